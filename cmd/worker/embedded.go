package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"holdfast/internal/stack"
)

// servers are the servers that the worker has started because their URLs were not given.
type servers struct {
	main      *stack.Stack   // NATS, Redis, Postgres
	locks     []*stack.Stack // one Redis each, for redlock
	failed    chan error     // receives why a server ended unexpectedly
	endpoints string         // path of the file with the addresses of the servers and of the worker
}

// startServers starts the servers whose URLs are not given, with options o, sets their URLs in c and writes the
// endpoints file. When o.Dir is empty, their data is lost when they stop. It returns an error when another
// worker has its endpoints file in o.EndpointsDir.
func startServers(ctx context.Context, c *Config, o stack.Options) (*servers, error) {
	o.NATS, o.Redis, o.Postgres = c.NATSURL == "", c.RedisURL == "", c.PostgresURL == ""
	main, err := startStack(ctx, o)
	if err != nil {
		return nil, err
	}
	c.NATSURL, c.RedisURL = cmp.Or(c.NATSURL, main.NATSURL), cmp.Or(c.RedisURL, main.RedisURL)
	c.PostgresURL = cmp.Or(c.PostgresURL, main.PostgresURL)
	s := &servers{main: main}
	if c.LockStrategy == redlockStrategy && len(c.LockRedisURLs) == 0 {
		if err := s.startLocks(ctx, o); err != nil {
			return nil, errors.Join(err, s.close())
		}
		c.LockRedisURLs = s.lockURLs()
	}
	s.watch()
	if err := s.writeEndpoints(c); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// startListening is startServers, and opens the addresses of the worker before the first server starts. It
// returns the error of an address as it is.
func startListening(ctx context.Context, c *Config, near bool, o stack.Options) (s *servers, l listeners, err error) {
	var refused error
	o.Locked = func() error {
		l, refused = c.listen(near)
		return refused
	}
	if s, err = startServers(ctx, c, o); err != nil {
		l.close()
		return nil, listeners{}, cmp.Or(refused, err)
	}
	return s, l, nil
}

// startLocks starts lockServersMin lock servers for redlock.
func (s *servers) startLocks(ctx context.Context, o stack.Options) error {
	for i := range lockServersMin {
		options := stack.Options{Redis: true, NoInstall: o.NoInstall, Progress: o.Progress}
		if o.Dir != "" {
			options.Dir = filepath.Join(o.Dir, fmt.Sprintf("redis-lock-%d", i+1))
		}
		one, err := startStack(ctx, options)
		if err != nil {
			return fmt.Errorf("lock server %d: %w", i+1, err)
		}
		s.locks = append(s.locks, one)
	}
	return nil
}

func startStack(ctx context.Context, o stack.Options) (*stack.Stack, error) {
	started, err := stack.Start(ctx, o)
	if missing, ok := errors.AsType[*stack.MissingError](err); ok {
		return nil, fmt.Errorf("%w\n\n\t%s", err, missing.Line)
	}
	if used, ok := errors.AsType[*stack.InUseError](err); ok {
		return nil, inUse(used)
	}
	if err != nil {
		return nil, fmt.Errorf("start servers: %w", err)
	}
	return started, nil
}

// inUse returns the error for a directory that another worker uses: which worker, and what to do.
func inUse(used *stack.InUseError) error {
	addr := used.Endpoints["HOLDFAST_HTTP_ADDR"]
	if addr == "" {
		return fmt.Errorf("another worker is starting or stopping in %s: try again, or give another --data-dir", used.Dir)
	}
	return fmt.Errorf("a worker is already running in %s, at http://%s: use it, stop it, or give another --data-dir",
		used.Dir, addr)
}

// watch sends to s.failed why a server ended, until close.
func (s *servers) watch() {
	s.failed = make(chan error, 1+len(s.locks))
	forward := func(one *stack.Stack, as string) {
		if err, failed := <-one.Failed(); failed {
			s.failed <- fmt.Errorf("%s%w", as, err)
		}
	}
	go forward(s.main, "")
	for i, one := range s.locks {
		go forward(one, fmt.Sprintf("lock server %d: ", i+1))
	}
}

func (s *servers) close() error {
	all := append([]*stack.Stack{s.main}, s.locks...)
	errs := make([]error, len(all))
	var closing sync.WaitGroup
	for i, one := range all {
		closing.Go(func() { errs[i] = one.Close() })
	}
	closing.Wait()
	return errors.Join(errs...)
}

func (s *servers) lockURLs() (urls []string) {
	for _, one := range s.locks {
		urls = append(urls, one.RedisURL)
	}
	return urls
}

// writeEndpoints writes the addresses of the started servers and of the worker into the data directory,
// for the publisher and the other commands.
func (s *servers) writeEndpoints(c *Config) (err error) {
	more := []string{"HOLDFAST_HTTP_ADDR=" + c.HTTPAddr, "HOLDFAST_NAMESPACE=" + c.Namespace}
	if c.APIAddr != "" {
		more = append(more, "HOLDFAST_API_ADDR="+c.APIAddr)
	}
	if len(s.locks) > 0 {
		more = append(more, "HOLDFAST_LOCK_REDIS_URLS="+strings.Join(s.lockURLs(), ","))
	}
	s.endpoints, err = s.main.WriteEndpoints(more...)
	return err
}
