package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"holdfast/internal/stack"
)

// startServers starts the servers whose URLs are not given, with options o, sets their URLs in c and writes the
// endpoints file. It opens the addresses of the worker before the first server starts, and returns the error of an
// address as it is. When o.Dir is empty, the data of the servers is lost when they stop. It returns an error when
// another worker has its endpoints file in o.EndpointsDir.
func startServers(ctx context.Context, c *Config, near bool, o stack.Options) (s *stack.Stack, l listeners, err error) {
	var refused error
	o.Locked = func() error {
		l, refused = c.listen(near)
		return refused
	}
	o.NATS, o.Redis, o.Postgres = c.NATSURL == "", c.RedisURL == "", c.PostgresURL == ""
	if c.LockStrategy == redlockStrategy && len(c.LockRedisURLs) == 0 {
		o.LockServers = lockServersMin
	}
	if s, err = stack.Start(ctx, o); err != nil {
		l.close()
		return nil, listeners{}, cmp.Or(refused, explainStart(err))
	}
	c.NATSURL, c.RedisURL = cmp.Or(c.NATSURL, s.NATSURL), cmp.Or(c.RedisURL, s.RedisURL)
	c.PostgresURL = cmp.Or(c.PostgresURL, s.PostgresURL)
	if o.LockServers > 0 {
		c.LockRedisURLs = s.LockURLs
	}
	more := []string{"HOLDFAST_HTTP_ADDR=" + c.HTTPAddr, "HOLDFAST_NAMESPACE=" + c.Namespace}
	if c.APIAddr != "" {
		more = append(more, "HOLDFAST_API_ADDR="+c.APIAddr)
	}
	if _, err := s.WriteEndpoints(more...); err != nil {
		l.close()
		return nil, listeners{}, errors.Join(err, s.Close())
	}
	return s, l, nil
}

// explainStart adds to the error of a start of servers what to do.
func explainStart(err error) error {
	if missing, ok := errors.AsType[*stack.MissingError](err); ok {
		return fmt.Errorf("%w\n\n\t%s", err, missing.Line)
	}
	if used, ok := errors.AsType[*stack.InUseError](err); ok {
		return inUse(used)
	}
	return fmt.Errorf("start servers: %w", err)
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
