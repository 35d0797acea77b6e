package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/rs/zerolog"

	"holdfast/internal/connect"
	"holdfast/internal/preflight"
	"holdfast/internal/recovery"
	"holdfast/internal/store"
	"holdfast/internal/terminal"
)

// preflightCommand is `worker preflight`.
type preflightCommand struct {
	NoMigrate    bool   `env:"HOLDFAST_NO_MIGRATE" help:"Check for a worker that runs with --no-migrate: streams, consumers and schema must exist."`
	Output       string `short:"o" default:"table" enum:"table,json" help:"Output format: table or json."`
	FoundServers `embed:""`
	Lifetimes    `embed:"" group:"Policies, as set for the workers:"`
	LockServers  `embed:"" group:"Locks:"`
	ConsoleMode  `embed:"" group:"Operations:"`
	Monitors     `embed:"" group:"Operations:"`
	Replication  `embed:"" group:"Operations:"`
}

func (*preflightCommand) Help() string {
	return `It checks Redis, NATS and Postgres as a worker with the same settings would use them. For each setting
that endangers a promise of Holdfast it prints the reason and the fix. It changes nothing. A check is
unknown when its user lacks a permission; the URLs of an administrator show more.

On the servers of worker dev the checks postgres.fsync and postgres.synchronous_commit fail, because
those servers do not keep their data.

Exit codes: 0 no check failed, 1 a check failed or a server does not answer, 2 wrong usage.

Examples:

  worker preflight --no-migrate
  worker preflight --nats-monitor-urls http://nats:8222 -o json`
}

// errPreflight is the error when a check fails. The failed checks are printed or part of its
// message.
var errPreflight = errors.New("preflight failed")

// Run checks the servers and prints the checks. It returns errPreflight when one fails.
func (p *preflightCommand) Run(ctx context.Context, std streams) error {
	if err := errors.Join(p.find(p.DataDir), p.findLockServers(p.DataDir)); err != nil {
		return err
	}
	if err := p.missingLockURLs(); err != nil {
		return err
	}
	c := Config{
		Connections: p.Connections, Policies: Policies{Terms: Terms{Lifetimes: p.Lifetimes}},
		Locks: Locks{LockServers: p.LockServers},
		Operations: Operations{
			API: API{ConsoleMode: p.ConsoleMode}, Starting: Starting{Monitors: p.Monitors, Replication: p.Replication},
		},
	}
	db, err := newStore(ctx, c)
	if err != nil {
		return err
	}
	defer db.Close()
	target, err := c.target(db, preparation{migrate: !p.NoMigrate})
	if err != nil {
		return err
	}
	checks := preflight.Run(ctx, target)
	if p.Output == "json" {
		if err := printJSON(std.out, checks); err != nil {
			return err
		}
	} else {
		printChecks(std.out, checks)
	}
	if failed := len(preflight.Filter(checks, preflight.Fail)); failed > 0 {
		return fmt.Errorf("%w: %d of %d checks", errPreflight, failed, len(checks))
	}
	return nil
}

// target returns the servers and settings that a worker with this configuration uses.
func (c *Config) target(db *store.Store, p preparation) (preflight.Target, error) {
	main, err := c.redisOptions("--redis-url", c.RedisURL)
	if err != nil {
		return preflight.Target{}, err
	}
	if c.LockStrategy == "optimistic" && connect.IsCluster(c.RedisURL) {
		return preflight.Target{}, misused("--lock-strategy optimistic needs one Redis: a transaction of Redis Cluster is limited " +
			"to one hash slot; use range or none")
	}
	locks, err := c.lockServerOptions()
	if err != nil {
		return preflight.Target{}, err
	}
	files, err := c.NATSFiles.Options(c.NATSURL)
	if err != nil {
		return preflight.Target{}, misused("%v", err)
	}
	var primaries func(context.Context) ([]recovery.Server, error)
	if connect.IsCluster(c.RedisURL) {
		primaries = c.redisPrimaries
	}
	return preflight.Target{
		Namespace: c.Namespace, NATSURL: c.NATSURL, NATSOptions: files, Redis: main, Primaries: primaries,
		LockServers: locks, Store: db,
		Optimistic: c.LockStrategy == "optimistic", Retention: c.retention(), Migrates: p.migrate,
		Console: c.Console, Monitors: c.NATSMonitorURLs, Skip: p.skip,
	}, nil
}

// runPreflight checks the servers before a worker starts on them. It logs warnings, and returns
// errPreflight when a check fails, except those of preflight.Writable, which it logs. With --preflight warn it only logs
// failed checks, except those of preflight.Required.
func (c *Config) runPreflight(ctx context.Context, db *store.Store, log zerolog.Logger, p preparation) error {
	target, err := c.target(db, p)
	if err != nil {
		return err
	}
	checks := preflight.Run(ctx, target)
	if ctx.Err() != nil { // what failed then says nothing about the servers
		return fmt.Errorf("%w: %w", errPreflight, context.Cause(ctx))
	}
	var failed []preflight.Check
	for _, check := range preflight.Filter(checks, preflight.Warn, preflight.Fail) {
		if check.Status == preflight.Fail && c.refuses(check.Name) {
			failed = append(failed, check)
			continue
		}
		log.Warn().Str("check", check.Name).Str("found", check.Found).Str("why", check.Impact).Str("fix", check.Fix).
			Msg("preflight check not passed")
	}
	if len(failed) == 0 {
		return nil
	}
	texts := make([]string, len(failed))
	for i, check := range failed {
		texts[i] = terminal.PrintableLines(check.Format("  "))
	}
	override := "HOLDFAST_PREFLIGHT=warn starts anyway"
	if slices.ContainsFunc(failed, func(f preflight.Check) bool { return slices.Contains(preflight.Required, f.Name) }) {
		override = "HOLDFAST_PREFLIGHT=warn does not override " + strings.Join(preflight.Required, ", ")
	}
	return fmt.Errorf("%w, not started (worker preflight shows all checks, %s)\n%s",
		errPreflight, override, strings.Join(texts, "\n"))
}

// refuses reports whether a worker does not start when the check with this name fails.
func (c *Config) refuses(check string) bool {
	if c.Preflight == "warn" {
		return slices.Contains(preflight.Required, check)
	}
	return !slices.Contains(preflight.Writable, check)
}

// printChecks prints the checks for people, each that is not ok with its reason and fix.
func printChecks(to io.Writer, checks []preflight.Check) {
	count := make(map[preflight.Status]int)
	skipped := make(map[string][]string) // names of checks by the reason why they are skipped
	for _, c := range checks {
		count[c.Status]++
		if c.Status == preflight.Skipped {
			skipped[c.Found] = append(skipped[c.Found], c.Name)
			continue
		}
		fmt.Fprintf(to, "%-8s %s\n", c.Status, terminal.PrintableLines(strings.TrimLeft(c.Format("         "), " ")))
	}
	for _, why := range slices.Sorted(maps.Keys(skipped)) {
		fmt.Fprintf(to, "%-8s %s: %s\n", preflight.Skipped, strings.Join(skipped[why], " "), terminal.PrintableLines(why))
	}
	fmt.Fprintf(to, "\n%d ok, %d warn, %d fail, %d unknown, %d skipped\n", count[preflight.OK], count[preflight.Warn],
		count[preflight.Fail], count[preflight.Unknown], count[preflight.Skipped])
}
