package robustness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/connect"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// startWithin bounds each start of a server.
const startWithin = 60 * time.Second

// serverProcess is one server, which faults stop and restart on the same data, and the proxies in
// front of it.
type serverProcess struct {
	name  string
	start func(ctx context.Context) (*stack.Server, error)

	mu      sync.Mutex
	server  *stack.Server // nil while it is down
	proxies []*stacktest.Proxy
	link    *stacktest.Proxy // to other servers, for the whole run; nil without one
}

// up starts the server unless it runs, and directs its proxies to its address.
func (s *serverProcess) up(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	process, err := s.start(ctx)
	if err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	s.set(process)
	return nil
}

// set records the running process and directs the proxies to its address. The caller holds mu.
func (s *serverProcess) set(process *stack.Server) {
	s.server = process
	for _, p := range s.proxies {
		p.Target(stack.Loopback(process.Port))
	}
	if s.link != nil {
		s.link.Target(stack.Loopback(process.Port))
	}
}

// kill kills the server with SIGKILL, if it runs.
func (s *serverProcess) kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		return nil
	}
	err := s.server.Kill()
	s.server = nil
	return err
}

// replace kills the server and puts another process in its place.
func (s *serverProcess) replace(process *stack.Server) error {
	err := s.kill()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(process)
	return err
}

func (s *serverProcess) pause() error  { return s.now().Pause() }
func (s *serverProcess) resume() error { return s.now().Resume() }

func (s *serverProcess) now() *stack.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server
}

// addr returns the address of the server, or an address without a listener while the server is down.
func (s *serverProcess) addr() string {
	if process := s.now(); process != nil {
		return stack.Loopback(process.Port)
	}
	return stack.Loopback(1)
}

// proxy returns a new proxy in front of the server, which must run.
func (s *serverProcess) proxy() (*stacktest.Proxy, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := stacktest.NewProxy(stack.Loopback(s.server.Port))
	if err == nil {
		s.proxies = append(s.proxies, p)
	}
	return p, err
}

// closeProxies closes all proxies in front of the server.
func (s *serverProcess) closeProxies() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, p := range s.proxies {
		errs = append(errs, p.Close())
	}
	s.proxies = nil
	return errors.Join(errs...)
}

// The layouts of the servers.
const (
	single   = "single"   // one Redis, one Postgres, and one or three nodes of NATS
	sentinel = "sentinel" // the same with a Redis that has a replica, and three Sentinels
	cluster  = "cluster"  // a Redis Cluster, Postgres with a synchronous standby, three nodes of NATS
)

var layouts = []string{single, sentinel, cluster}

// Servers are the real servers of a run, each in a process of its own.
type Servers struct {
	layout    string
	dir       string
	redis     []*redisServer
	sentinels []*serverProcess // of the layout sentinel
	postgres  []*postgresServer
	writing   atomic.Pointer[postgresServer] // the one of postgres that is no standby
	nats      []*serverProcess               // one node, or a cluster of three
	shim      string                         // path of the library that moves Redis' clock, "" without a C compiler
	clock     time.Duration                  // offset of Redis' clock from its next start on
}

const postgresConnections = 60

// NewServers starts the servers of a layout, with one or three nodes of NATS, in a new directory. The
// caller calls Close.
func NewServers(ctx context.Context, layout string, nodes int) (s *Servers, err error) {
	dir, err := os.MkdirTemp("", "holdfast-robustness-")
	if err != nil {
		return nil, fmt.Errorf("directory: %w", err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, fmt.Errorf("directory: %w", err)
	}
	s = &Servers{layout: layout, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	s.shim = buildShim(ctx, dir)
	if s.nats, err = newNodes(dir, nodes); err != nil {
		return nil, err
	}
	switch layout {
	case cluster:
		err = errors.Join(s.addRedisCluster(), s.addPostgresPair())
	case sentinel:
		err = errors.Join(s.addRedisPair(), s.addPostgres("postgres"))
	default:
		err = errors.Join(s.addRedis(), s.addPostgres("postgres"))
	}
	if err != nil {
		return nil, err
	}
	var starts errgroup.Group
	for _, server := range s.all() {
		if !s.isStandby(server) {
			starts.Go(func() error { return server.up(ctx) })
		}
	}
	if err := starts.Wait(); err != nil || layout != cluster {
		return s, err
	}
	return s, errors.Join(s.formRedisCluster(ctx), s.startStandby(ctx))
}

// all returns the servers that exist; after a failed NewServers some may be missing.
func (s *Servers) all() (all []*serverProcess) {
	for _, server := range s.redis {
		all = append(all, server.serverProcess)
	}
	for _, server := range s.postgres {
		all = append(all, server.serverProcess)
	}
	return slices.Concat(all, s.sentinels, s.nats)
}

// Close kills all servers and removes their directory.
func (s *Servers) Close() error {
	var errs []error
	for _, server := range s.all() {
		errs = append(errs, server.closeProxies(), server.kill())
		if server.link != nil {
			errs = append(errs, server.link.Close())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// redisServer is one Redis. The port stays the same over restarts, so that workers also get the replies
// of a Redis that is still loading.
type redisServer struct {
	*serverProcess
	port   int
	dir    string
	config string   // path of a configuration file that the server may change, "" without one
	more   []string // arguments for the next start only
}

// newRedis returns a Redis that does not run yet, with arguments for each start.
func (s *Servers) newRedis(name string, port int, args ...string) *redisServer {
	r := &redisServer{port: port, dir: filepath.Join(s.dir, name)}
	r.serverProcess = &serverProcess{name: name, start: func(ctx context.Context) (*stack.Server, error) {
		more := r.more
		r.more = nil
		return s.startRedis(ctx, r, slices.Concat(args, more)...)
	}}
	return r
}

func (s *Servers) addRedis() error {
	ports, err := stack.QuietPorts(1)
	if err == nil {
		s.redis = []*redisServer{s.newRedis("redis", ports[0])}
	}
	return err
}

// startRedis starts a Redis with more arguments. Its clock is off by s.clock.
func (s *Servers) startRedis(ctx context.Context, r *redisServer, more ...string) (*stack.Server, error) {
	program, err := stack.RedisProgram(ctx)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return nil, err
	}
	var env []string
	if s.clock != 0 {
		env = []string{"LD_PRELOAD=" + s.shim, fmt.Sprintf("HOLDFAST_CLOCK_MOVED=%d", int(s.clock.Seconds()))}
	}
	var args []string
	if r.config != "" {
		args = append(args, r.config)
	}
	args = append(args,
		"--port", strconv.Itoa(r.port), "--bind", "127.0.0.1", "--dir", r.dir, "--save", "", "--tcp-backlog", "128",
		"--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction",
		"--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0")
	args = append(args, more...)
	ready := func(ctx context.Context) error {
		client := r.client()
		return errors.Join(client.Ping(ctx).Err(), client.Close())
	}
	process, err := stack.StartProgram(ctx, stack.Program{Path: program, Args: args, Env: env, Ready: ready})
	if err != nil {
		return nil, err
	}
	process.Port = r.port
	return process, nil
}

// client returns a client that connects without a proxy.
func (r *redisServer) client() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: stack.Loopback(r.port), MaxRetries: -1, ContextTimeoutEnabled: true})
}

// with calls do with a client that connects without a proxy.
func (r *redisServer) with(ctx context.Context, do func(ctx context.Context, c *redis.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	client := r.client()
	if err := errors.Join(do(ctx, client), client.Close()); err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	return nil
}

// redisClient returns a client of Redis, or of the cluster, that connects without a proxy. Use it for one
// step only: a fault may replace Redis by a server at another address.
func (s *Servers) redisClient() redis.UniversalClient {
	switch s.layout {
	case single:
		return s.redis[0].client()
	case sentinel:
		options, err := connect.RedisOptions(s.redisURL(nil, s.sentinelAddrs()), connect.TLSFiles{})
		if err != nil {
			panic(err) // the URL is right
		}
		options.MaxRetries, options.ContextTimeoutEnabled = -1, true
		return redis.NewClient(options)
	}
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: s.redisAddrs(), MaxRetries: -1, DisableRoutingPolicies: true, ContextTimeoutEnabled: true,
	})
}

func (s *Servers) redisAddrs() (addrs []string) {
	for _, r := range s.redis {
		addrs = append(addrs, stack.Loopback(r.port))
	}
	return addrs
}

// redisURL returns the URL of the layout for servers of Redis and Sentinels at these addresses.
func (s *Servers) redisURL(redis, sentinels []string) string {
	switch s.layout {
	case single:
		return "redis://" + redis[0] + "/0"
	case sentinel:
		return "redis+sentinel://" + strings.Join(sentinels, ",") + "/" + sentinelName + "/0"
	default:
		return "redis+cluster://" + strings.Join(redis, ",")
	}
}

// withRedis calls do with a client of each Redis, replicas included, that connects without a proxy.
func (s *Servers) withRedis(ctx context.Context, do func(ctx context.Context, c *redis.Client) error) error {
	var errs []error
	for _, r := range s.redis {
		errs = append(errs, r.with(ctx, do))
	}
	return errors.Join(errs...)
}

func postgresURL(addrs ...string) string {
	return "postgres://postgres@" + strings.Join(addrs, ",") + "/postgres?sslmode=disable"
}

// writerURL returns the URL of the Postgres that is no standby, without a proxy.
func (s *Servers) writerURL() string { return postgresURL(s.writer().addr()) }

// withPostgres calls do with a connection to the Postgres that is no standby, without a proxy.
func (s *Servers) withPostgres(ctx context.Context, do func(ctx context.Context, c *pgx.Conn) error) error {
	return s.writer().with(ctx, do)
}

// natsURL returns the URLs of all nodes, without proxies.
func (s *Servers) natsURL() string {
	var addrs []string
	for _, node := range s.nats {
		addrs = append(addrs, node.addr())
	}
	return natsURL(addrs)
}

// connectNATS connects to any node without a proxy, and reconnects without a limit. Nodes keep their ports.
func (s *Servers) connectNATS() (*nats.Conn, error) {
	return nats.Connect(s.natsURL(), nats.Name("robustness"), nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
		// A slow consumer loses messages; the recorder reads them again.
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
}
