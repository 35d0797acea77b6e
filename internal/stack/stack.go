package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// readyWithin bounds the start of a server whose data is temporary. For others it is the time between two lines of
	// Options.Progress.
	readyWithin = 30 * time.Second
	// stopWithin is the default of Options.StopWithin. A worker with its servers stops within 10 s: it takes up to 4 s of them
	// itself, and the log of a killed Postgres that hung stays open for a second.
	stopWithin = 3 * time.Second
)

// Options select which servers to start and where they store their data.
type Options struct {
	// Dir is the directory for data that survives Close. The servers then write durably: NATS and
	// Postgres sync before they acknowledge, Redis syncs every second. A start takes as long as they
	// need to recover their data. Empty means a temporary directory, which Close removes, and servers
	// that never sync.
	Dir string

	// EndpointsDir is the directory of a later WriteEndpoints, which needs it. Start locks it before it
	// starts a server, so that no other stack writes there until Close. It may be Dir.
	EndpointsDir string

	// Locked is called when the directories are locked, before the first server starts. An error ends the
	// start. It may be nil.
	Locked func() error

	// NATS, Redis and Postgres select the servers to start.
	NATS, Redis, Postgres bool

	// LockServers is the number of further Redis servers to start, for locks.
	LockServers int

	// Cluster starts Redis as a cluster of three primaries and NATS as one of three servers. It needs an
	// empty Dir.
	Cluster bool

	// NoInstall forbids to install missing programs. Otherwise Start installs them with apt-get if this
	// process is root.
	NoInstall bool

	// StopWithin bounds the graceful stop of each server; then it is killed. NATS stops first, then
	// Redis and Postgres together, so Close takes little more than twice as long. 0 means 3 s.
	StopWithin time.Duration

	// Progress is called with a line before an installation, and each time when Redis or Postgres has taken
	// readyWithin longer to recover its data in Dir. Several goroutines may call it. It may be nil.
	Progress func(line string)
}

// Stack is a set of running servers. Its methods are safe for concurrent use, but WriteEndpoints.
type Stack struct {
	// NATSURL, RedisURL and PostgresURL are the URLs of the servers, empty for servers that Options did
	// not select.
	NATSURL, RedisURL, PostgresURL string
	LockURLs                       []string // of the lock servers

	home       *home
	stopWithin time.Duration
	nats       []*natsServer // several in a cluster
	redis      []*Server     // several in a cluster
	locks      []*Server
	postgres   *Server

	closing  chan struct{}
	failed   chan error
	watchers sync.WaitGroup

	endpoints *endpointsFile // nil without Options.EndpointsDir

	closeOnce sync.Once
	closeErr  error
}

// Start starts the selected servers in parallel and returns when all of them answer. ctx bounds the
// start only: the servers run until Close.
//
// When a server fails to start, Start stops the others and returns an error with the end of the
// server's log. The error is a *MissingError when a program is missing and could not be installed, and an
// *InUseError when another stack uses a directory.
func Start(ctx context.Context, o Options) (*Stack, error) {
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	s := &Stack{
		stopWithin: cmp.Or(o.StopWithin, stopWithin),
		closing:    make(chan struct{}),
		failed:     make(chan error, 1),
	}
	if err := s.open(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("start stack: %w", err), s.Close())
	}
	s.watch()
	return s, nil
}

// open locks the directories and starts the servers. After an error the caller calls Close.
func (s *Stack) open(ctx context.Context, o Options) (err error) {
	if o.NATS || o.Redis || o.Postgres || o.LockServers > 0 {
		if s.home, err = openHome(o.Dir); err != nil {
			return err
		}
		if s.home.durable {
			s.home.waiting = o.Progress
		}
	}
	if o.EndpointsDir != "" {
		if err := s.takeEndpoints(o.EndpointsDir); err != nil {
			return err
		}
	}
	if o.Locked != nil {
		if err := o.Locked(); err != nil {
			return err
		}
	}
	bins, err := o.programs(ctx)
	if err != nil {
		return err
	}
	return s.startAll(ctx, o, bins)
}

// startAll starts the servers in parallel. When one fails it cancels the other starts and returns the
// error of the first.
func (s *Stack) startAll(ctx context.Context, o Options, bins programs) error {
	starts, startCtx := errgroup.WithContext(ctx)
	start := func(selected bool, name string, f func(context.Context) error) {
		if !selected {
			return
		}
		starts.Go(func() error {
			if err := f(startCtx); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	start(o.NATS, "nats", func(ctx context.Context) error {
		return s.startNATS(ctx, o.Cluster)
	})
	start(o.Redis, "redis", func(ctx context.Context) error {
		return s.startRedis(ctx, bins.redis, o.Cluster)
	})
	start(o.LockServers > 0, "redis", func(ctx context.Context) error {
		return s.startLockServers(ctx, bins.redis, o.LockServers)
	})
	start(o.Postgres, "postgres", func(ctx context.Context) error {
		started, err := startPostgres(ctx, s.home, bins.postgres)
		if err == nil {
			s.postgres, s.PostgresURL = started, postgresURL(started.Port)
		}
		return err
	})
	if err := starts.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// clusterSize is the number of primaries of Redis, and of servers of NATS, with Options.Cluster.
const clusterSize = 3

func (s *Stack) startRedis(ctx context.Context, program string, cluster bool) error {
	if cluster {
		started, err := startRedisCluster(ctx, s.home, program, clusterSize, 0)
		if err == nil {
			s.redis, s.RedisURL = started.Nodes, started.URL()
		}
		return err
	}
	started, err := startRedis(ctx, s.home, "redis", program, nil)
	if err == nil {
		s.redis, s.RedisURL = []*Server{started}, redisURL(started.Port)
	}
	return err
}

func redisURL(port int) string { return fmt.Sprintf("redis://127.0.0.1:%d/0", port) }

func (s *Stack) startLockServers(ctx context.Context, program string, n int) error {
	for i := range n {
		name := fmt.Sprintf("lock server %d", i+1)
		started, err := startRedis(ctx, s.home, fmt.Sprintf("redis-lock-%d/redis", i+1), program, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		started.name = name + ": " + started.name
		s.locks, s.LockURLs = append(s.locks, started), append(s.LockURLs, redisURL(started.Port))
	}
	return nil
}

func (s *Stack) startNATS(ctx context.Context, cluster bool) (err error) {
	dir := filepath.Join(s.home.path, "nats")
	size := 1
	if cluster {
		size = clusterSize
	}
	if s.nats, err = startNATS(ctx, dir, size, s.home.durable); err != nil {
		return err
	}
	urls := make([]string, len(s.nats))
	for i, n := range s.nats {
		urls[i] = n.srv.ClientURL()
	}
	s.NATSURL = strings.Join(urls, ",")
	return nil
}

// children returns the servers that run as processes of their own.
func (s *Stack) children() []*Server {
	all := slices.Concat(s.redis, s.locks)
	if s.postgres != nil {
		all = append(all, s.postgres)
	}
	return all
}

// watch sends an error to Failed when a server ends before Close.
func (s *Stack) watch() {
	report := func(err error) {
		select {
		case <-s.closing:
			return
		default:
		}
		select {
		case s.failed <- err:
		default: // only the first is reported
		}
	}
	for _, c := range s.children() {
		s.watchers.Go(func() {
			<-c.exited
			report(c.ExitError())
		})
	}
	for _, n := range s.nats {
		s.watchers.Go(func() {
			n.srv.WaitForShutdown()
			report(fmt.Errorf("nats stopped unexpectedly: %s", n.log))
		})
	}
}

// Failed returns a channel that receives one error when the first server ends before Close. Close
// closes the channel, unless a server could not be stopped.
func (s *Stack) Failed() <-chan error { return s.failed }

// RedisPID returns the process id of redis-server, which was started. Tests use it to kill or pause the
// server.
func (s *Stack) RedisPID() int { return s.redis[0].PID() }

// PostgresPID returns the process id of the postmaster, which was started. Tests use it to kill or pause
// the server.
func (s *Stack) PostgresPID() int { return s.postgres.PID() }

// Close stops the servers (NATS first, then Redis and Postgres together), kills those that do not stop
// in time, and removes the endpoints file and the temporary directory. Later calls return the error of
// the first.
func (s *Stack) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Stack) close() error {
	close(s.closing)
	endpointsErr := s.removeEndpoints()
	var homeErr error
	// NATS first, because its clients are the last to write to the others.
	stopErr := errors.Join(stopAll(s.nats, s.stopWithin), stopAll(s.children(), s.stopWithin))
	if stopErr == nil {
		// The watcher of a server that could not be stopped would never return.
		s.watchers.Wait()
		close(s.failed)
	}
	if s.home != nil {
		homeErr = s.home.close()
	}
	if err := errors.Join(endpointsErr, stopErr, homeErr); err != nil {
		return fmt.Errorf("close stack: %w", err)
	}
	return nil
}

// stopAll stops servers at the same time.
func stopAll[S interface{ stop(time.Duration) error }](servers []S, within time.Duration) error {
	errs := make([]error, len(servers))
	var stopping sync.WaitGroup
	for i, server := range servers {
		stopping.Go(func() { errs[i] = server.stop(within) })
	}
	stopping.Wait()
	return errors.Join(errs...)
}
