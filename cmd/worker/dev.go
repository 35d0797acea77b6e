package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/preflight"
	"holdfast/internal/stack"
)

// devCommand is `worker dev`.
type devCommand struct {
	Once       bool `help:"End after the story: 0 when all of it went as it says, else 1."`
	Directory  `embed:""`
	Installing `embed:""`
	// The story says what happens, so the log says what goes wrong only.
	Config `embed:"" set:"namespace=" set:"namespace_shown=NAME" set:"namespace_note=; default: holdfast, or a new one on servers that you give" set:"log_level=error"` //nolint:staticcheck // kong reads each set tag
}

func (*devCommand) Help() string {
	return `It starts a real NATS, Redis and Postgres on free ports of this machine (unless you give their
URLs), with --lock-strategy redlock three more Redis for the locks, runs a worker on them, plays
a short story and stays up until Ctrl-C. On servers that you give it uses a namespace of its own, and
removes it at the end, unless you give --namespace.

Example:

  worker dev --once`
}

// Run starts everything, plays the story and, unless it is to end then, stays up until ctx is over.
func (d *devCommand) Run(ctx context.Context, std streams) (err error) {
	config := d.Config
	log, err := newLogger(std.err, config.LogLevel)
	if err != nil {
		return err
	}
	fmt.Fprint(std.out, "Holdfast keeps rooms, seats and stock for customers while they pay, "+
		"and takes them back if they do not.\n\n")
	given := config // the URLs of the servers that exist already
	own := config.ownNamespace()
	if own {
		fmt.Fprintf(std.out, "On your servers everything goes into a namespace of its own, %s, "+
			"which is removed at the end.\n"+
			"(--namespace NAME uses another one, and keeps it.)\n\n", config.Namespace)
	}
	began := time.Now()
	started, err := startServers(ctx, &config, stack.Options{
		EndpointsDir: d.DataDir, Install: d.installPolicy(), Progress: func(line string) { fmt.Fprintln(std.out, "  "+line) },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, started.close()) }()
	listener, err := listenNear(config.HTTPAddr)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // the server has closed it already
	config.HTTPAddr = listener.Addr().String()
	endpoints, err := config.writeEndpoints(started, d.DataDir)
	if err != nil {
		return err
	}
	skip := slices.Concat(preflight.Durability, preflight.Privileges)
	worker, err := start(ctx, config, listener, log, preparation{migrate: true, skip: skip})
	if own && !errors.Is(err, errPreflight) { // which fails before anything is created
		given.Namespace = config.Namespace
		defer func() { err = errors.Join(err, given.removeNamespace(std.out)) }()
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(std.out, "Running after %.1f s, all of it real:\n", time.Since(began).Seconds())
	config.printServers(std.out, started)

	err = playStory(ctx, config, std.out)
	if ctx.Err() != nil {
		return worker.stop()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("the story went wrong: %w", err), worker.stop())
	}
	if d.Once {
		return worker.stop()
	}
	fmt.Fprint(std.out, nextCommands(endpoints, config, given.NATSURL != ""))
	return worker.wait(ctx, started)
}

// ownNamespace sets the namespace of worker dev when none is given. On servers that are given it is a new one, and
// it reports so: namespace holdfast may be in use there, or belong together with servers that have ended since.
func (c *Config) ownNamespace() (own bool) {
	if c.Namespace != "" {
		return false
	}
	c.Namespace = defaultNamespace
	if c.NATSURL == "" && c.RedisURL == "" && c.PostgresURL == "" {
		return false
	}
	c.Namespace += "_dev_" + uuid.NewString()[:8]
	return true
}

// printServers prints where the servers and the worker are.
func (c *Config) printServers(to io.Writer, started *servers) {
	one := func(name, url string, isNew bool) {
		origin := "yours"
		if isNew {
			origin = "started for you, keeps nothing"
		}
		fmt.Fprintf(to, "  %-9s %-60s %s\n", name, events.RedactedURL(url), origin)
	}
	one("NATS", c.NATSURL, started.main.NATSURL != "")
	one("Redis", c.RedisURL, started.main.RedisURL != "")
	one("Postgres", c.PostgresURL, started.main.PostgresURL != "")
	for _, url := range c.LockRedisURLs {
		one("locks", url, len(started.locks) > 0)
	}
	fmt.Fprintf(to, "  %-9s http://%s\n", "worker", c.HTTPAddr)
	fmt.Fprint(to, "Not checked here: what outlives a crash, and who may do what. "+
		"For that there is `worker preflight`, which refuses servers that keep nothing.\n\n")
}

// listenNear listens on addr, or, when that is taken, on a free port of the same host.
func listenNear(addr string) (net.Listener, error) {
	listener, err := net.Listen("tcp", addr)
	if err == nil {
		return listener, nil
	}
	host, _, splitErr := net.SplitHostPort(addr)
	if splitErr != nil {
		return nil, misused("--http-addr: %v", splitErr)
	}
	listener, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, fmt.Errorf("--http-addr: %w", err)
	}
	return listener, nil
}

// nextCommands says what to try next. natsGiven: NATS is not one of the addresses in the endpoints file.
func nextCommands(endpoints string, c Config, natsGiven bool) string {
	tomorrow := time.Now().UTC().AddDate(0, 0, 1)
	night := func(days int) string { return tomorrow.AddDate(0, 0, days).Format(time.DateOnly) }
	where := fmt.Sprintf("(the addresses are in %s):\n", relative(endpoints))
	if natsGiven {
		where = "with the HOLDFAST_..._URL that you gave here:\n\n  export HOLDFAST_NAMESPACE=" + c.Namespace
	}
	worker, publisher := "go run ./cmd/worker", "go run ./cmd/publisher"
	if _, err := exec.LookPath("publisher"); err == nil {
		worker, publisher = "worker", "publisher"
	}
	return fmt.Sprintf(`
Next, in another terminal in this directory %s
  %[2]s watch
  %[2]s inventory set --resource-id loft --check-in %[4]s --check-out %[5]s --capacity 1 --wait
  %[2]s request --resource-id loft --user-id you --check-in %[6]s --check-out %[7]s --ttl 30s --wait
  %[2]s pay --hold-id HOLD_ID --payment-id p-1 --wait
  %[2]s dlq list
  %[3]s locks
  %[3]s audit
  curl 'http://%[8]s/v1/availability?resource_id=loft&check_in=%[4]s&check_out=%[5]s'

Ctrl-C stops it.
`, where, publisher, worker, night(0), night(7), night(1), night(4), c.HTTPAddr)
}

// removeWithin bounds the removal of a namespace.
const removeWithin = 5 * time.Second

// removeNamespace removes the namespace from the servers whose URLs c has.
func (c *Config) removeNamespace(out io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), removeWithin)
	defer cancel()
	var errs []error
	for _, from := range []struct {
		url    string
		remove func(context.Context) error
	}{{c.NATSURL, c.removeStreams}, {c.RedisURL, c.removeKeys}, {c.PostgresURL, c.removeSchema}} {
		if from.url != "" {
			errs = append(errs, from.remove(ctx))
		}
	}
	if err := errors.Join(errs...); err != nil {
		ns := events.Namespace(c.Namespace)
		return fmt.Errorf("namespace %s is not removed: %w; remove by hand what is left of the streams %s, %s, %s and %s, "+
			"the Redis keys %s:* and the schema %s", c.Namespace, err, ns.InStream(), ns.OutStream(), ns.DLQStream(), ns.RunsStream(), c.Namespace, c.Namespace)
	}
	fmt.Fprintf(out, "\nThe namespace %s is removed from your servers.\n", c.Namespace)
	return nil
}

func (c *Config) removeStreams(ctx context.Context) error {
	nc, err := newNATS(*c, zerolog.Nop(), func() {})
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := events.NewJetStream(nc)
	if err != nil {
		return fmt.Errorf("jetstream: %w", err)
	}
	return events.Remove(ctx, js, events.Namespace(c.Namespace))
}

func (c *Config) removeKeys(ctx context.Context) error {
	client, err := newRedis(*c)
	if err != nil {
		return err
	}
	return errors.Join(holds.Remove(ctx, c.Namespace, client), client.Close())
}

func (c *Config) removeSchema(ctx context.Context) error {
	db, err := newStore(ctx, *c)
	if err != nil {
		return err
	}
	defer db.Close()
	return db.Drop(ctx, c.Namespace)
}

// relative shortens a path that lies below the working directory.
func relative(path string) string {
	working, err := filepath.Abs(".")
	if err != nil {
		return path
	}
	short, err := filepath.Rel(working, path)
	if err != nil || !filepath.IsLocal(short) {
		return path
	}
	return short
}
