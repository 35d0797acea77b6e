package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"

	"holdfast/internal/console"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/preflight"
	"holdfast/internal/stack"
	"holdfast/internal/stack/endpoints"
	"holdfast/internal/terminal"
)

// devCommand is `worker dev`.
type devCommand struct {
	Once       bool   `help:"Exit after the demo: 0 when every step succeeded, else 1."`
	Traffic    bool   `help:"After the demo, simulate customers: some ten requests a second on hotels, a hall and a shop."`
	Layout     string `enum:"single,cluster" default:"single" help:"Servers to start: single (one of each), or cluster (three Redis primaries in a cluster, three NATS servers with replicated streams, one Postgres)."`
	Directory  `embed:""`
	Installing `embed:""`
	// The demo prints what happens, so only errors are logged.
	Config `embed:"" set:"namespace=" set:"namespace_shown=NAME" set:"namespace_note=. Default: holdfast, or a new one on servers that you give" set:"log_level=error" set:"console=act"` //nolint:staticcheck // kong reads each set tag
}

func (*devCommand) Help() string {
	return `It starts NATS, Redis and Postgres on free ports of this machine, runs a worker on them, runs a short
demo and keeps running until Ctrl-C. With --lock-strategy redlock it starts three more Redis servers
for the locks.

It does not start a server whose URL you give. On your servers it uses a new namespace and removes it
at the end. With --namespace it uses that one and keeps it.

Examples:

  worker dev
  worker dev --traffic
  worker dev --once
  worker dev --layout cluster`
}

// Run starts the servers and a worker and runs the demo. Without --once it then keeps running until
// ctx is cancelled.
func (d *devCommand) Run(ctx context.Context, std streams) (err error) {
	config := d.Config
	fmt.Fprint(std.out, "Holdfast holds rooms, seats and stock for customers while they pay, "+
		"and frees them if they do not.\n\n")
	given := config // with the URLs of the user's own servers only
	own := config.ownNamespace()
	log := newLogger(std.err, config.Logging, config.Namespace)
	if own {
		fmt.Fprintf(std.out, "On your servers all data goes into the new namespace %s, which is removed at the end.\n"+
			"(--namespace NAME uses another one and keeps it.)\n\n", config.Namespace)
	}
	began := time.Now()
	started, all, err := startServers(ctx, &config, true, stack.Options{
		EndpointsDir: d.DataDir, NoInstall: d.Install == "never", Cluster: d.Layout == "cluster",
		Progress: func(line string) { fmt.Fprintln(std.out, "  "+line) },
	})
	if ctx.Err() != nil && err != nil {
		return d.interrupted()
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, started.Close()) }()
	defer all.close()
	skip := slices.Concat(preflight.Durability, preflight.Privileges)
	created := false
	worker, err := start(ctx, config, all, started, log,
		preparation{migrate: true, skip: skip, creates: func() { created = true }})
	if own && created {
		given.Namespace = config.Namespace
		defer func() { err = errors.Join(err, given.removeNamespace(std.out)) }()
	}
	if ctx.Err() != nil && err != nil {
		return d.interrupted()
	}
	if err != nil {
		return err
	}
	if config.Console != consoleOff {
		fmt.Fprintf(std.out, "Console: http://%s%s\n\n", all.apiAddr(), console.Prefix)
	}
	fmt.Fprintf(std.out, "Running on real servers after %.1f s:\n", time.Since(began).Seconds())
	config.printServers(std.out, started)

	next := nextCommands(filepath.Join(d.DataDir, endpoints.FileName), config, given.NATSURL != "", all.apiAddr().String())
	return d.play(ctx, config, worker, next, std.out)
}

// interrupted returns the result when ctx ended before the demo: a worker that was asked to stop has not failed, but with
// Once not every step succeeded.
func (d *devCommand) interrupted() error {
	if d.Once {
		return errors.New("interrupted before the end of the demo")
	}
	return nil
}

// play runs the demo and, without Once, prints what to do next and keeps the worker running.
func (d *devCommand) play(
	ctx context.Context, config Config, worker *running, next string, out io.Writer,
) (err error) {
	err = runDemo(ctx, config, out)
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.Join(d.interrupted(), worker.stop())
	case err != nil:
		return errors.Join(fmt.Errorf("demo failed: %w", err), worker.stop())
	case d.Once:
		return worker.stop()
	}
	fmt.Fprint(out, next)
	if d.Traffic {
		visiting, stop := context.WithCancel(ctx)
		customers := make(chan error, 1)
		go func() { customers <- runTraffic(visiting, config) }()
		defer func() { stop(); err = errors.Join(err, <-customers) }()
	}
	return worker.wait(ctx)
}

// ownNamespace sets the namespace when none is given. It reports whether it has made a new one: on
// servers that the user gives, the namespace holdfast may be in use, or may belong to other servers
// that worker dev started earlier.
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

// printServers prints the addresses of the servers and of the worker.
func (c *Config) printServers(to io.Writer, started *stack.Stack) {
	one := func(name, url string, isNew bool) {
		origin := "yours"
		if isNew {
			origin = "started here, data is lost at the end"
		}
		fmt.Fprintf(to, "  %-9s %-60s %s\n", name, events.RedactedURL(url), origin)
	}
	one("NATS", c.NATSURL, started.NATSURL != "")
	one("Redis", c.RedisURL, started.RedisURL != "")
	one("Postgres", c.PostgresURL, started.PostgresURL != "")
	for _, url := range c.LockRedisURLs {
		one("locks", url, len(started.LockURLs) > 0)
	}
	fmt.Fprintf(to, "  %-9s http://%s\n", "worker", c.HTTPAddr)
	fmt.Fprint(to, "Do not use this setup in production: `worker dev` does not check durability and permissions.\n"+
		"`worker preflight` does.\n\n")
}

// nextCommands returns commands to try next, in another terminal. file is the endpoints file. natsGiven means that the user gave the
// NATS URL, so the endpoints file does not have it. api is the address of /v1.
func nextCommands(file string, c Config, natsGiven bool, api string) string {
	tomorrow := time.Now().UTC().AddDate(0, 0, 1)
	night := func(days int) string { return tomorrow.AddDate(0, 0, days).Format(time.DateOnly) }
	where := fmt.Sprintf("(they read the addresses from %s):\n", relative(file))
	if natsGiven {
		where = "with the same HOLDFAST_..._URL variables:\n\n  export HOLDFAST_NAMESPACE=" + c.Namespace
	}
	if dir := relative(filepath.Dir(file)); dir != defaultDataDir {
		where += "\n  export HOLDFAST_DATA_DIR=" + terminal.Quote(dir)
	}
	curl := "curl"
	if c.APITokenFile != "" {
		curl += ` -H "Authorization: Bearer $(cat ` + terminal.Quote(c.APITokenFile) + `)"`
	}
	worker, publisher := programs()
	return fmt.Sprintf(`
Try next, in another terminal in this directory %s
  %[2]s watch
  %[2]s inventory set --resource-id loft --check-in %[4]s --check-out %[5]s --capacity 1 --wait
  %[2]s request --resource-id loft --user-id you --check-in %[6]s --check-out %[7]s --ttl 30s --wait
  %[2]s pay --hold-id HOLD_ID --payment-id p-1 --wait
  %[2]s dlq list
  %[3]s locks
  %[3]s audit
  %[9]s 'http://%[8]s/v1/availability?resource_id=loft&check_in=%[4]s&check_out=%[5]s'

Ctrl-C stops the worker and the servers that it started.
`, where, publisher, worker, night(0), night(7), night(1), night(4), api, curl)
}

// programs returns how to run both programs: by name if they are on PATH, by path if publisher is beside
// this program, as in the archive of a release, and else from the source.
func programs() (worker, publisher string) {
	if _, err := exec.LookPath("publisher"); err == nil {
		return "worker", "publisher"
	}
	if worker, err := os.Executable(); err == nil {
		publisher := filepath.Join(filepath.Dir(worker), "publisher")
		if info, err := os.Stat(publisher); err == nil && info.Mode().IsRegular() {
			return terminal.Quote(worker), terminal.Quote(publisher)
		}
	}
	return "go run ./cmd/worker", "go run ./cmd/publisher"
}

// removeWithin bounds the removal of a namespace.
const removeWithin = 5 * time.Second

// removeNamespace removes the namespace from the servers whose URLs are in c.
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
		return fmt.Errorf("remove namespace %s: %w; remove the rest by hand: the streams %s, %s, %s and %s, "+
			"the Redis keys %s:* and the schema %s", c.Namespace, err,
			ns.InStream(), ns.OutStream(), ns.DLQStream(), ns.RunsStream(), c.Namespace, c.Namespace)
	}
	fmt.Fprintf(out, "\nNamespace %s was removed from your servers.\n", c.Namespace)
	return nil
}

func (c *Config) removeStreams(ctx context.Context) error {
	ctx, js, disconnect, err := c.openNATS(ctx, "holdfast worker "+c.Namespace, func(string, ...any) {})
	if err != nil {
		return err
	}
	defer disconnect()
	return events.Refused(ctx, events.Remove(ctx, js, events.Namespace(c.Namespace)))
}

func (c *Config) removeKeys(ctx context.Context) error {
	client, err := c.redisClient()
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

// relative returns a path below the working directory as a relative path, and any other unchanged.
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
