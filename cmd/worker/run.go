package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"
	"go.uber.org/dig"
	"go.uber.org/fx"

	"holdfast/internal/events"
	"holdfast/internal/preflight"
	"holdfast/internal/stack"
)

// runCommand is `worker run`.
type runCommand struct {
	Embedded   bool `env:"HOLDFAST_EMBEDDED" help:"Start the servers whose URLs are not given, and keep their data in --data-dir."`
	NoMigrate  bool `env:"HOLDFAST_NO_MIGRATE" help:"Do not create streams, consumers and schema. Run worker migrate first."`
	Directory  `embed:""`
	Installing `embed:""`
	Config     `embed:""`
}

func (*runCommand) Help() string {
	return `It answers booking and payment events until SIGTERM, SIGINT or SIGHUP, then finishes the events
that it has fetched and exits within 10 seconds. It uses the servers whose URLs are given. With
--embedded it starts the others itself, on this machine.

Examples:

  worker run --embedded --data-dir /var/lib/holdfast
  worker run --nats-url nats://nats:4222 --redis-url redis://redis:6379 \
    --postgres-url postgres://holdfast@postgres/holdfast`
}

// Run runs a worker until ctx is cancelled or one of its parts fails. When ctx is cancelled during the start it
// returns nil: a worker that was asked to stop has not failed.
func (r *runCommand) Run(ctx context.Context, std streams, line *kong.Context) (err error) {
	config := r.Config
	config.Namespace = cmp.Or(config.Namespace, defaultNamespace)
	log := newLogger(std.err, config.Logging, config.Namespace)
	logUnknownVariables(log, line)
	// Go ends a process that writes to a pipe whose reader has ended. A worker whose log is not read goes on.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	var worker *running
	defer func() {
		if worker == nil && ctx.Err() != nil {
			log.Info().AnErr("cause", err).Msg("worker stopped during its start")
			err = nil
		}
	}()
	p := preparation{migrate: !r.NoMigrate, skip: preflight.Privileges}
	var started *stack.Stack
	var all listeners
	if r.Embedded {
		p.skip = append(slices.Clone(p.skip), preflight.NATSReplicas)
		started, all, err = startServers(ctx, &config, false, stack.Options{
			Dir: r.DataDir, EndpointsDir: r.DataDir, NoInstall: r.Install == "never",
			Progress: func(line string) { log.Info().Msg(line) },
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, started.Close()) }()
	} else {
		if err := cmp.Or(config.missingURL(startToo), config.missingLockURLs()); err != nil {
			return err
		}
		if all, err = config.listen(false); err != nil {
			return err
		}
	}
	defer all.close()
	if worker, err = start(ctx, config, all, started, log, p); err != nil {
		return err
	}
	return worker.wait(ctx)
}

// logUnknownVariables logs the variables that look like settings and are none: a misspelt policy would be ignored.
func logUnknownVariables(log zerolog.Logger, line *kong.Context) {
	if unknown := unknownVariables(os.Environ(), line.Model); len(unknown) > 0 {
		log.Warn().Strs("variables", unknown).Msg("unknown environment variables ignored, worker run --help has all names")
	}
}

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
	used, ok := errors.AsType[*stack.InUseError](err)
	switch {
	case !ok:
		return fmt.Errorf("start servers: %w", err)
	case used.Endpoints["HOLDFAST_HTTP_ADDR"] == "":
		return fmt.Errorf("another worker is starting or stopping in %s: try again, or give another --data-dir", used.Dir)
	}
	return fmt.Errorf("a worker is already running in %s, at http://%s: use it, stop it, or give another --data-dir",
		used.Dir, used.Endpoints["HOLDFAST_HTTP_ADDR"])
}

// running is a worker that has started.
type running struct {
	app     *fx.App
	log     zerolog.Logger
	servers *stack.Stack // that the process has started, or nil
}

// start prepares the servers and starts a worker on them.
func start(ctx context.Context, c Config, l listeners, s *stack.Stack, log zerolog.Logger, p preparation) (*running, error) {
	if err := prepare(ctx, c, log, p); err != nil {
		return nil, err
	}
	app := graph(ctx, c, l, log)
	if err := app.Start(ctx); err != nil {
		if refused, ok := errors.AsType[*events.PermissionError](err); ok {
			return nil, refused
		}
		return nil, dig.RootCause(err) // without the constructor names that fx adds
	}
	started := log.Info().Str("http_addr", l.operations.Addr().String())
	if l.api != nil {
		started.Str("api_addr", l.api.Addr().String())
	}
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		started.Int64("memory_limit_bytes", limit)
	}
	started.Str("lock_strategy", c.LockStrategy).Msg("worker started")
	return &running{app, log, s}, nil
}

// wait waits until ctx is cancelled, or the worker or one of the started servers ends. It then
// stops the worker. It returns nil only when ctx was cancelled and the stop succeeded.
func (r *running) wait(ctx context.Context) error {
	var failed <-chan error
	if r.servers != nil {
		failed = r.servers.Failed()
	}
	var cause error
	select {
	case <-ctx.Done():
	case signal := <-r.app.Wait():
		if signal.ExitCode != exitOK {
			cause = errors.New("worker stopped unexpectedly, see the log")
		}
	case cause = <-failed:
	}
	return errors.Join(cause, r.stop())
}

// stop stops fetching events, finishes those that were fetched, and closes all connections. A server that does
// not answer in time is no error: what was not finished is delivered to another worker.
func (r *running) stop() error {
	began, within := time.Now(), stopWithin
	if r.servers != nil {
		within = stopWithinForServers
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	switch err := r.app.Stop(ctx); {
	case errors.Is(err, context.DeadlineExceeded):
		r.log.Warn().Err(err).Msg("worker stopped without waiting for a server that does not answer")
	case err != nil:
		return fmt.Errorf("stop: %w", err)
	}
	r.log.Info().Dur("took_ms", time.Since(began)).Msg("worker stopped")
	return nil
}

// migrateCommand is `worker migrate`.
type migrateCommand struct {
	Connections `embed:"" group:"Connections:"`
	Policies    `embed:"" group:"Policies, for all workers:"`
	Starting    `embed:"" group:"Operations:"`
}

func (*migrateCommand) Help() string {
	return `It creates what is missing on the servers and leaves the rest unchanged, so it can run again at any
time. It stores the policies below for all workers. Run it before the workers when they run with
--no-migrate.

Example:

  worker migrate --nats-url nats://nats:4222 --redis-url redis://redis:6379 \
    --postgres-url postgres://holdfast_migrator@postgres/holdfast`
}

// Run creates what is missing on the servers and stores the policies.
func (m *migrateCommand) Run(ctx context.Context, std streams, line *kong.Context) error {
	m.Namespace = cmp.Or(m.Namespace, defaultNamespace)
	log := newLogger(std.err, m.Logging, m.Namespace)
	logUnknownVariables(log, line)
	if err := m.missingURL(startToo); err != nil {
		return err
	}
	c := Config{Connections: m.Connections, Policies: m.Policies, Operations: Operations{Starting: m.Starting}}
	if err := prepare(ctx, c, log, preparation{migrate: true, skip: preflight.OfWorker}); err != nil {
		return err
	}
	fmt.Fprintf(std.out, "namespace %s is ready: streams, consumers, schema and epoch exist\n", m.Namespace)
	return nil
}
