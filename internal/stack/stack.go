package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"
)

const (
	// readyWithin bounds how long one server may take until it answers.
	readyWithin = 30 * time.Second
	// stopWithin is the StopWithin of who does not give one: within the 10 s that a worker has.
	stopWithin = 4 * time.Second
)

// Options say which servers to start and where they keep their data.
type Options struct {
	// Dir is where data is kept across runs. The servers then write
	// durably: NATS and Postgres sync before they acknowledge, Redis syncs
	// every second. Empty means a temporary directory that Close removes,
	// and servers that never sync.
	Dir string

	// EndpointsDir is where WriteEndpoints will write. Start takes the
	// directory, before anything else: no other living stack writes there
	// until Close. It may be Dir. Empty means that WriteEndpoints takes its
	// directory itself.
	EndpointsDir string

	// NATS, Redis, Postgres say which servers to start.
	NATS, Redis, Postgres bool

	// Install says whether missing programs may be installed.
	Install InstallPolicy

	// StopWithin bounds the graceful stop of each server; then it is killed. NATS stops first, then Redis and
	// Postgres together, so Close takes at most a little more than twice as long. 0 means 4 s.
	StopWithin time.Duration

	// Progress is told, one line at a time and never concurrently, what
	// takes long: an installation, the first initdb. May be nil.
	Progress func(line string)
}

// Stack is a set of running servers. Its methods may be called concurrently.
type Stack struct {
	// NATSURL, RedisURL and PostgresURL are where the servers listen;
	// empty for those that were not asked for.
	NATSURL, RedisURL, PostgresURL string

	home       *home
	stopWithin time.Duration
	nats       *natsServer
	redis      *child
	postgres   *child

	closing  chan struct{}
	failed   chan error
	watchers sync.WaitGroup

	mu        sync.Mutex                // guards endpoints
	endpoints map[string]*endpointsFile // by directory

	closeOnce sync.Once
	closeErr  error
}

// Start starts the servers that o asks for, side by side, and returns when all
// of them answer. ctx bounds the start only: the servers live until Close.
//
// When one fails, those already started are stopped and the error says why,
// with the end of the server's log. A program that is missing and could not be
// installed is a *MissingError, a directory that another stack uses is an
// *InUseError, one that the postgres user cannot enter is an *DirPermissionError.
func Start(ctx context.Context, o Options) (*Stack, error) {
	o.Progress = serial(o.Progress)
	s := &Stack{
		stopWithin: cmp.Or(o.StopWithin, stopWithin),
		closing:    make(chan struct{}),
		failed:     make(chan error, 1),
		endpoints:  map[string]*endpointsFile{},
	}
	if err := s.open(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("start stack: %w", err), s.Close())
	}
	s.watch()
	return s, nil
}

// open takes the directories and starts the servers. After an error, Close ends what was started.
func (s *Stack) open(ctx context.Context, o Options) (err error) {
	starts := o.NATS || o.Redis || o.Postgres
	if starts && o.Dir != "" {
		if s.home, err = openHome(o.Dir); err != nil {
			return err
		}
	}
	if o.EndpointsDir != "" {
		if _, _, err := s.takeEndpoints(o.EndpointsDir); err != nil {
			return err
		}
	}
	if !starts {
		return nil
	}
	bins, err := o.programs(ctx)
	if err != nil {
		return err
	}
	if s.home == nil {
		if s.home, err = openHome(""); err != nil {
			return err
		}
	}
	return s.startAll(ctx, o, bins)
}

// startAll starts the servers in parallel. The first that fails makes the
// others give up; its error is returned.
func (s *Stack) startAll(ctx context.Context, o Options, bins programs) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var wg sync.WaitGroup
	first := make(chan error, 1)
	start := func(wanted bool, name string, f func(context.Context) error) {
		if !wanted {
			return
		}
		wg.Go(func() {
			if err := f(ctx); err != nil {
				select {
				case first <- fmt.Errorf("%s: %w", name, err):
				default: // an echo of the first
				}
				cancel()
			}
		})
	}
	start(o.NATS, "nats", func(ctx context.Context) (err error) {
		s.nats, err = startNATS(ctx, filepath.Join(s.home.path, "nats"), s.home.durable)
		if err == nil {
			s.NATSURL = s.nats.url()
		}
		return err
	})
	start(o.Redis, "redis", func(ctx context.Context) (err error) {
		s.redis, s.RedisURL, err = startRedis(ctx, s.home, bins.redis)
		return err
	})
	start(o.Postgres, "postgres", func(ctx context.Context) (err error) {
		s.postgres, s.PostgresURL, err = startPostgres(ctx, s.home, bins.postgres, o.Progress)
		return err
	})
	wg.Wait()
	select {
	case err := <-first:
		return err
	default:
		return ctx.Err()
	}
}

// watch reports servers that end by themselves to Failed.
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
	for _, c := range []*child{s.redis, s.postgres} {
		if c == nil {
			continue
		}
		s.watchers.Go(func() {
			<-c.exited
			report(c.exitError())
		})
	}
	if s.nats != nil {
		s.watchers.Go(func() {
			s.nats.wait()
			report(fmt.Errorf("nats stopped by itself: %s", s.nats.log))
		})
	}
}

// Failed delivers one error when a server ends without Close, the first one if
// there are more. Close closes the channel, unless a server could not be stopped.
func (s *Stack) Failed() <-chan error { return s.failed }

// RedisPID returns the process id of redis-server, 0 when it was not started.
// For faults: a test may kill or freeze it.
func (s *Stack) RedisPID() int { return s.redis.pid() }

// PostgresPID returns the process id of the postmaster, 0 when it was not
// started. For faults: a test may kill or freeze it.
func (s *Stack) PostgresPID() int { return s.postgres.pid() }

// Close stops the servers (NATS first, then Redis and Postgres together),
// kills those that do not stop in time, removes the endpoints files that
// it wrote and the temporary directory. Later calls return what the first did.
func (s *Stack) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Stack) close() error {
	close(s.closing)
	endpointsErr := s.removeEndpoints()
	var natsErr, redisErr, postgresErr, homeErr error
	if s.nats != nil {
		natsErr = s.nats.stop(s.stopWithin)
	}
	var wg sync.WaitGroup
	wg.Go(func() { redisErr = s.redis.stop(s.stopWithin) })
	wg.Go(func() { postgresErr = s.postgres.stop(s.stopWithin) })
	wg.Wait()
	stopErr := errors.Join(natsErr, redisErr, postgresErr)
	if stopErr == nil {
		// A server that could not be stopped would keep its watcher for ever.
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

// serial makes f safe to call from several goroutines, and from none when nil.
func serial(f func(string)) func(string) {
	if f == nil {
		return func(string) {}
	}
	var mu sync.Mutex
	return func(line string) {
		mu.Lock()
		defer mu.Unlock()
		f(line)
	}
}
