package robustness

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"holdfast/internal/stack"
)

// nodeVariable is the environment variable with the configuration of a NATS node, as JSON. The machine
// may lack a nats-server program, so the test program starts itself as the node.
const nodeVariable = "HOLDFAST_ROBUSTNESS_NODE"

// node configures a node of NATS.
type node struct {
	Name   string   `json:"name"`
	Port   int      `json:"port"`
	Route  int      `json:"route"`  // the port for other nodes, 0 for a single node
	Routes []string `json:"routes"` // URLs of the Route ports of all nodes
	Dir    string   `json:"dir"`
}

// isNode reports whether this process was started as a node of NATS. TestMain then calls only runNode.
func isNode() bool { return os.Getenv(nodeVariable) != "" }

// runNode runs a node of NATS until SIGTERM.
func runNode() error {
	var n node
	if err := json.Unmarshal([]byte(os.Getenv(nodeVariable)), &n); err != nil {
		return fmt.Errorf("%s: %w", nodeVariable, err)
	}
	o := &server.Options{
		ServerName: n.Name, Host: "127.0.0.1", Port: n.Port,
		JetStream: true, StoreDir: n.Dir, SyncAlways: true, JetStreamMaxStore: 8 << 30,
		NoSigs: true, DisableJetStreamBanner: true,
	}
	if n.Route != 0 {
		// Without NoAdvertise clients would learn the addresses of the nodes and bypass the proxies.
		o.Cluster = server.ClusterOpts{Name: "robustness", Host: "127.0.0.1", Port: n.Route, NoAdvertise: true}
		for _, route := range n.Routes {
			u, err := url.Parse(route)
			if err != nil {
				return err
			}
			o.Routes = append(o.Routes, u)
		}
	}
	srv, err := server.NewServer(o)
	if err != nil {
		return err
	}
	srv.ConfigureLogger()
	srv.Start()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
	srv.Shutdown()
	srv.WaitForShutdown()
	return nil
}

// newNodes returns a single node, or a cluster of so many nodes. They do not run yet. Each keeps its
// ports over restarts, so that the others find it again.
func newNodes(dir string, number int) ([]*serverProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ports, err := stack.QuietPorts(2 * number)
	if err != nil {
		return nil, err
	}
	var routes []string
	if number > 1 {
		for _, port := range ports[number:] {
			routes = append(routes, "nats://"+stack.Loopback(port))
		}
	}
	processes := make([]*serverProcess, number)
	for i := range processes {
		n := node{
			Name: fmt.Sprintf("n%d", i+1), Port: ports[i], Routes: routes,
			Dir: nodeDir(dir, i),
		}
		if number > 1 {
			n.Route = ports[number+i]
		}
		config, err := json.Marshal(n)
		if err != nil {
			return nil, err
		}
		processes[i] = &serverProcess{name: "nats " + n.Name, start: func(ctx context.Context) (*stack.Server, error) {
			process, err := stack.StartProgram(ctx, stack.Program{
				Path: self, Env: []string{nodeVariable + "=" + string(config)},
				Ready: func(ctx context.Context) error { return natsReady(ctx, n.Port) },
			})
			if err != nil {
				return nil, err
			}
			process.Port = n.Port
			return process, nil
		}}
	}
	return processes, nil
}

func nodeDir(dir string, i int) string { return filepath.Join(dir, fmt.Sprintf("nats-%d", i+1)) }

// natsReady returns an error unless the node accepts connections. Its streams may still lack a leader.
func natsReady(ctx context.Context, port int) error {
	within := time.Second
	if deadline, ok := ctx.Deadline(); ok {
		within = time.Until(deadline)
	}
	nc, err := nats.Connect("nats://"+stack.Loopback(port), nats.Timeout(within))
	if err != nil {
		return err
	}
	nc.Close()
	return nil
}

func natsURL(addrs []string) string {
	return "nats://" + strings.Join(addrs, ",nats://")
}
