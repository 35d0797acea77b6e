package stacktest

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"holdfast/internal/stack"
)

// NATSWithMaxPayload starts a NATS server with JetStream that refuses messages of more than
// payloadMax bytes. The server stops when the test ends.
func NATSWithMaxPayload(t testing.TB, payloadMax int32) (url string) {
	t.Helper()
	return StartNATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir(), MaxPayload: payloadMax}).ClientURL()
}

// NATSWithAccountPayload starts a NATS server with JetStream and an account that refuses messages of more than payloadMax bytes. The
// server itself allows larger ones. It stops when the test ends.
func NATSWithAccountPayload(t testing.TB, payloadMax int) (url string) {
	t.Helper()
	s := NATSWithConfig(t, fmt.Sprintf(`
jetstream { store_dir: %q }
accounts {
  APP { jetstream: enabled, limits { max_payload: %d }, users: [ { user: app, password: pw } ] }
  SYS { users: [ { user: sys, password: pw } ] }
}
system_account: SYS
`, t.TempDir(), payloadMax))
	return strings.Replace(s.ClientURL(), "nats://", "nats://app:pw@", 1)
}

// NATSWithConfig starts a NATS server with the text of a configuration file. It stops when the test ends.
func NATSWithConfig(t testing.TB, config string) *server.Server {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	Must(t, os.WriteFile(file, []byte(config), 0o600))
	o, err := server.ProcessConfigFile(file)
	Must(t, err)
	return StartNATS(t, o)
}

// StartNATS starts a NATS server with options, on loopback and, unless they have a port, a free one. It
// stops when the test ends.
func StartNATS(t testing.TB, o *server.Options) *server.Server {
	t.Helper()
	s, err := startNATS(o)
	if s != nil {
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	}
	Must(t, err)
	return s
}

// startNATS is StartNATS without a test. The caller stops the server, also after an error.
func startNATS(o *server.Options) (*server.Server, error) {
	o.Host, o.Port, o.NoSigs = "127.0.0.1", cmp.Or(o.Port, server.RANDOM_PORT), true
	s, err := server.NewServer(o)
	if err != nil {
		return nil, err
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		err = errors.New("the NATS server is not ready within a minute")
	}
	return s, err
}

// StartNATSServers starts NATS servers with options as one cluster, and returns when they have a leader that
// all follow.
func StartNATSServers(t testing.TB, options ...*server.Options) (cluster []*server.Server) {
	t.Helper()
	ports := QuietPorts(t, len(options))
	for i, o := range options {
		o.ServerName, o.StoreDir, o.JetStream = fmt.Sprint("nats-", i+1), t.TempDir(), true
		o.Cluster.Host, o.Cluster.Port = "127.0.0.1", ports[i]
		for _, port := range ports {
			o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: stack.Loopback(port),
				User: url.UserPassword(o.Cluster.Username, o.Cluster.Password)})
		}
		cluster = append(cluster, StartNATS(t, o))
	}
	Eventually(t, "a leader that all servers follow", func() bool { return followed(cluster) })
	return cluster
}

// CuttableNATS is a cluster of three NATS servers, one of which can be cut off from the others. Its clients stay connected.
type CuttableNATS struct {
	Servers []*server.Server
	routes  []*Proxy // of the first server, in both directions
}

// StartCuttableNATS starts a cluster, and returns when it has a leader that all follow.
func StartCuttableNATS(t testing.TB) *CuttableNATS {
	t.Helper()
	const size = 3
	c := &CuttableNATS{}
	ports := QuietPorts(t, size)
	for i := range size {
		o := &server.Options{ServerName: fmt.Sprint("nats-", i+1), JetStream: true, StoreDir: t.TempDir()}
		// The others receive an address at which nothing listens: they use the routes that are configured.
		o.Cluster = server.ClusterOpts{Name: "cuttable", Host: "127.0.0.1", Port: ports[i], Advertise: "127.0.0.1:1", NoAdvertise: true}
		for j, port := range ports {
			address := stack.Loopback(port)
			if i != j && (i == 0 || j == 0) {
				proxy, err := NewProxy(address)
				Must(t, err)
				t.Cleanup(func() { _ = proxy.Close() })
				c.routes = append(c.routes, proxy)
				address = proxy.Addr()
			}
			if i != j {
				o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: address})
			}
		}
		c.Servers = append(c.Servers, StartNATS(t, o))
	}
	Eventually(t, "a leader that all servers follow", func() bool { return followed(c.Servers) })
	return c
}

// CutOff cuts the first server off from the others.
func (c *CuttableNATS) CutOff(t testing.TB) {
	t.Helper()
	for _, p := range c.routes {
		p.Refuse(true)
		p.Cut(true)
	}
	Eventually(t, "the end of all routes", func() bool { return c.Servers[0].NumRoutes() == 0 })
}

// followed reports whether a server of a cluster is the leader, and all know that.
func followed(cluster []*server.Server) bool {
	return slices.ContainsFunc(cluster, (*server.Server).JetStreamIsLeader) &&
		!slices.ContainsFunc(cluster, func(s *server.Server) bool { return !s.JetStreamIsCurrent() })
}

// QuietPorts is stack.QuietPorts for a test.
func QuietPorts(t testing.TB, number int) []int {
	t.Helper()
	ports, err := stack.QuietPorts(number)
	Must(t, err)
	return ports
}

// UnknownBatchPrefix begins the names of headers that no server knows. They have the length of those of atomic batches.
const UnknownBatchPrefix = "Xats-Batch-"

// WithoutBatches returns the URL of a proxy to a server of NATS, which then does not know atomic batches: it receives their
// headers with [UnknownBatchPrefix], and so stores each message by itself.
func WithoutBatches(t testing.TB, serverURL string) (proxyURL string) {
	t.Helper()
	proxyURL, proxy := ProxyTo(t, serverURL)
	proxy.Rewrite(Upstream, "Nats-Batch-", UnknownBatchPrefix)
	return proxyURL
}
