package robustness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// startWithin bounds each start of a server.
const startWithin = 60 * time.Second

// serverProcess is one server that is started and ended over and over, on the same data, and the
// proxies before it.
type serverProcess struct {
	name  string
	start func(ctx context.Context) (*stack.Server, error)

	mu      sync.Mutex
	server  *stack.Server // nil while it is down
	proxies []*stacktest.Proxy
}

// up starts the server, unless it runs, and turns its proxies to where it listens now.
func (k *serverProcess) up(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.server != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	process, err := k.start(ctx)
	if err != nil {
		return fmt.Errorf("start %s: %w", k.name, err)
	}
	k.server = process
	for _, p := range k.proxies {
		p.Target(local(process.Port))
	}
	return nil
}

// kill ends the server at once.
func (k *serverProcess) kill() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.server == nil {
		return nil
	}
	err := k.server.Kill()
	k.server = nil
	return err
}

// replace kills the server and has another one take its place.
func (k *serverProcess) replace(process *stack.Server) error {
	err := k.kill()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.server = process
	for _, p := range k.proxies {
		p.Target(local(process.Port))
	}
	return err
}

func (k *serverProcess) pause() error  { return k.now().Pause() }
func (k *serverProcess) resume() error { return k.now().Resume() }

func (k *serverProcess) now() *stack.Server {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.server
}

// addr is where the server listens, or an address where nobody does.
func (k *serverProcess) addr() string {
	if process := k.now(); process != nil {
		return local(process.Port)
	}
	return local(1)
}

// proxy returns a new proxy before the server.
func (k *serverProcess) proxy() (*stacktest.Proxy, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p, err := stacktest.NewProxy(local(k.server.Port))
	if err == nil {
		k.proxies = append(k.proxies, p)
	}
	return p, err
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// Servers are the servers of a run, real ones, each a process of its own.
type Servers struct {
	dir      string
	redis    *serverProcess
	postgres *serverProcess
	nats     []*serverProcess // one node, or three of a cluster
	shim     string           // the library that moves Redis' clock, "" = there is no compiler
	clock    time.Duration    // by which Redis' clock is moved from its next start on

	redisAt   redisServer
	redisMore []string // arguments of its next start only
}

const postgresConnections = 60

// NewServers starts the servers in a directory of their own, with so many nodes of NATS.
func NewServers(ctx context.Context, nodes int) (s *Servers, err error) {
	dir, err := os.MkdirTemp("", "holdfast-robustness-")
	if err != nil {
		return nil, fmt.Errorf("directory: %w", err)
	}
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // the user who runs postgres passes through it
		return nil, fmt.Errorf("directory: %w", err)
	}
	s = &Servers{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	s.shim = buildShim(ctx, dir)
	ports, err := stack.QuietPorts(1)
	if err != nil {
		return nil, err
	}
	s.redisAt = redisServer{ports[0], filepath.Join(dir, "redis")}
	s.redis = &serverProcess{name: "redis", start: func(ctx context.Context) (*stack.Server, error) {
		more := s.redisMore
		s.redisMore = nil
		return s.startRedis(ctx, s.redisAt, more...)
	}}
	s.postgres = &serverProcess{name: "postgres", start: func(ctx context.Context) (*stack.Server, error) {
		return stack.StartPostgresServer(ctx, filepath.Join(dir, "postgres"), fmt.Sprintf("max_connections=%d", postgresConnections))
	}}
	if s.nats, err = newNodes(dir, nodes); err != nil {
		return nil, err
	}
	var all sync.WaitGroup
	errs := make([]error, 2+nodes)
	for i, k := range append([]*serverProcess{s.redis, s.postgres}, s.nats...) {
		all.Go(func() { errs[i] = k.up(ctx) })
	}
	all.Wait()
	return s, errors.Join(errs...)
}

// Close ends all servers and removes what they have written.
func (s *Servers) Close() error {
	var errs []error
	for _, k := range append([]*serverProcess{s.redis, s.postgres}, s.nats...) {
		if k == nil {
			continue
		}
		for _, p := range k.proxies {
			errs = append(errs, p.Close())
		}
		errs = append(errs, k.kill())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// redisServer is where one Redis listens and keeps its data. It keeps its port, so that workers
// also hear what it says while it loads.
type redisServer struct {
	port int
	dir  string
}

// startRedis starts a Redis with more arguments, and its clock moved by s.clock.
func (s *Servers) startRedis(ctx context.Context, r redisServer, more ...string) (*stack.Server, error) {
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
	args := append([]string{
		"--port", strconv.Itoa(r.port), "--bind", "127.0.0.1", "--dir", r.dir, "--save", "", "--tcp-backlog", "128",
		"--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction",
		"--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0",
	}, more...)
	process, err := stack.StartProgram(ctx, stack.Program{Path: program, Args: args, Env: env, Ready: func(ctx context.Context) error {
		client := redis.NewClient(&redis.Options{Addr: local(r.port), MaxRetries: -1, ContextTimeoutEnabled: true})
		return errors.Join(client.Ping(ctx).Err(), client.Close())
	}})
	if err != nil {
		return nil, err
	}
	process.Port = r.port
	return process, nil
}

// redisClient returns a client that talks to Redis past all proxies. It is for one step: where the
// server listens changes with each start.
func (s *Servers) redisClient() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.redis.addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
}

// withRedis does something with Redis past all proxies.
func (s *Servers) withRedis(ctx context.Context, do func(ctx context.Context, c *redis.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	client := s.redisClient()
	return errors.Join(do(ctx, client), client.Close())
}

func postgresURL(addr string) string {
	return "postgres://postgres@" + addr + "/postgres?sslmode=disable"
}

// withPostgres does something with Postgres past all proxies.
func (s *Servers) withPostgres(ctx context.Context, do func(ctx context.Context, c *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	conn, err := pgx.Connect(ctx, postgresURL(s.postgres.addr()))
	if err != nil {
		return fmt.Errorf("connect to postgres: %w", err)
	}
	return errors.Join(do(ctx, conn), conn.Close(ctx))
}

// natsURL is where all nodes listen, past all proxies.
func (s *Servers) natsURL() string {
	var addrs []string
	for _, node := range s.nats {
		addrs = append(addrs, node.addr())
	}
	return natsURL(addrs)
}

// connectNATS connects to any node past all proxies, and reconnects for ever. Nodes keep their ports.
func (s *Servers) connectNATS() (*nats.Conn, error) {
	return nats.Connect(s.natsURL(), nats.Name("robustness"), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.RetryOnFailedConnect(true),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // what comes too fast is read again
}
