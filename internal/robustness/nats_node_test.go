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

// nodeVariable has, in its environment, what a process that is to be a node of NATS should be:
// there may be no nats-server program, so the test program runs itself.
const nodeVariable = "HOLDFAST_ROBUSTNESS_NODE"

// node says what a node of NATS is.
type node struct {
	Name   string   `json:"name"`
	Port   int      `json:"port"`
	Route  int      `json:"route"` // where the other nodes reach it, 0 = it is alone
	Routes []string `json:"routes"`
	Dir    string   `json:"dir"`
}

// IsNode reports whether this process was started to be a node of NATS: then its main must call
// RunNode and nothing else.
func IsNode() bool { return os.Getenv(nodeVariable) != "" }

// RunNode is a node of NATS until it is told to end.
func RunNode() error {
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
		// Clients are not told of the other nodes: they would go past the proxies.
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

// newNodes returns the keepers of so many nodes, one alone or a cluster. Each keeps its ports, so
// that the others find it again.
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
			routes = append(routes, "nats://"+local(port))
		}
	}
	processes := make([]*serverProcess, number)
	for i := range processes {
		n := node{Name: fmt.Sprintf("n%d", i+1), Port: ports[i], Routes: routes, Dir: filepath.Join(dir, fmt.Sprintf("nats-%d", i+1))}
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

// natsReady asks whether a node takes connections. That its streams have a leader is for others to
// wait for.
func natsReady(ctx context.Context, port int) error {
	within := time.Second
	if deadline, ok := ctx.Deadline(); ok {
		within = time.Until(deadline)
	}
	nc, err := nats.Connect("nats://"+local(port), nats.Timeout(within))
	if err != nil {
		return err
	}
	nc.Close()
	return nil
}

func natsURL(addrs []string) string {
	return "nats://" + strings.Join(addrs, ",nats://")
}
