package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/rs/zerolog"

	"holdfast/internal/preflight"
	"holdfast/internal/store"
)

// preflightCommand is `worker preflight`.
type preflightCommand struct {
	NoMigrate   bool   `env:"HOLDFAST_NO_MIGRATE" help:"Check for a worker that is run with --no-migrate: what it would not create must exist."`
	Output      string `short:"o" default:"table" enum:"table,json" help:"Write a table, or json."`
	Directory   `embed:""`
	Connections `embed:"" group:"Connections:" set:"namespace=" set:"namespace_shown=NAME" set:"namespace_note=; default: as endpoints.env says, else holdfast"` //nolint:staticcheck // kong reads each set tag
	Lifetimes   `embed:"" group:"Policies, as the workers have them:"`
	LockServers `embed:"" group:"Locks:"`
	Monitors    `embed:"" group:"Operations:"`
	Replication `embed:"" group:"Operations:"`
}

func (*preflightCommand) Help() string {
	return `It looks at Redis, NATS and Postgres as a worker with the same settings would use them, changes
nothing, and tells what would break a promise, why, and what mends it. Exit codes: 0 when nothing
fails, 1 when something does or a server does not answer, 2 wrong usage. What it may not see is
unknown: an administrator's URLs let it see more. Servers that worker dev has started keep nothing, so
postgres.fsync and postgres.synchronous_commit fail there.

Example:

  worker preflight --no-migrate
  worker preflight --nats-monitor-urls http://nats:8222 -o json`
}

// errPreflight says that something was found that would break a promise. What, is printed.
var errPreflight = errors.New("preflight failed")

// Run looks at the servers and prints what it has found.
func (p *preflightCommand) Run(ctx context.Context, std streams) error {
	if err := errors.Join(p.Connections.find(p.DataDir), p.LockServers.find(p.DataDir)); err != nil {
		return err
	}
	if err := p.missingLockURLs(); err != nil {
		return err
	}
	c := Config{
		Connections: p.Connections, Policies: Policies{Terms: Terms{Lifetimes: p.Lifetimes}},
		Locks: Locks{LockServers: p.LockServers}, Operations: Operations{Starting: Starting{Monitors: p.Monitors, Replication: p.Replication}},
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

// target is what a worker with this configuration would use.
func (c *Config) target(db *store.Store, p preparation) (preflight.Target, error) {
	main, err := c.redisOptions("--redis-url", c.RedisURL)
	if err != nil {
		return preflight.Target{}, err
	}
	locks, err := c.lockServerOptions()
	if err != nil {
		return preflight.Target{}, err
	}
	return preflight.Target{
		Namespace: c.Namespace, NATSURL: c.NATSURL, Redis: main, LockServers: locks, Store: db,
		Optimistic: c.LockStrategy == "optimistic", Retention: c.retention(), Migrates: p.migrate, Monitors: c.NATSMonitorURLs, Skip: p.skip,
	}, nil
}

// runPreflight looks at the servers before a worker starts on them. It logs what is a risk and, unless
// --preflight warn says otherwise, returns an error when something would break a promise. What is
// written by another version, and would be misread, is refused with --preflight warn too.
func (c *Config) runPreflight(ctx context.Context, db *store.Store, log zerolog.Logger, p preparation) error {
	target, err := c.target(db, p)
	if err != nil {
		return err
	}
	checks := preflight.Run(ctx, target)
	reported := []preflight.Status{preflight.Warn}
	failed := preflight.Filter(checks, preflight.Fail)
	if c.Preflight == "warn" {
		reported = append(reported, preflight.Fail)
		failed = slices.DeleteFunc(failed, func(f preflight.Check) bool { return !slices.Contains(preflight.Versions, f.Name) })
	}
	for _, check := range preflight.Filter(checks, reported...) {
		log.Warn().Str("check", check.Name).Str("found", check.Found).Str("why", check.Impact).Str("fix", check.Fix).Msg("preflight")
	}
	if len(failed) == 0 {
		return nil
	}
	texts := make([]string, len(failed))
	for i, check := range failed {
		texts[i] = onScreen(check.Format("  "))
	}
	overrule := "HOLDFAST_PREFLIGHT=warn starts nevertheless"
	if slices.ContainsFunc(failed, func(f preflight.Check) bool { return slices.Contains(preflight.Versions, f.Name) }) {
		overrule = "HOLDFAST_PREFLIGHT=warn does not overrule redis.format and postgres.schema"
	}
	return fmt.Errorf("%w; nothing was started (worker preflight shows all checks, %s)\n%s",
		errPreflight, overrule, strings.Join(texts, "\n"))
}

// printChecks prints a table for people: what is not as it should be with its reason and remedy.
func printChecks(to io.Writer, checks []preflight.Check) {
	count := make(map[preflight.Status]int)
	skipped := make(map[string][]string) // names, by why
	for _, c := range checks {
		count[c.Status]++
		if c.Status == preflight.Skipped {
			skipped[c.Found] = append(skipped[c.Found], c.Name)
			continue
		}
		fmt.Fprintf(to, "%-8s %s\n", c.Status, onScreen(strings.TrimLeft(c.Format("         "), " ")))
	}
	for _, why := range slices.Sorted(maps.Keys(skipped)) {
		fmt.Fprintf(to, "%-8s %s: %s\n", preflight.Skipped, strings.Join(skipped[why], " "), onScreen(why))
	}
	fmt.Fprintf(to, "\n%d ok, %d warn, %d fail, %d unknown, %d skipped\n", count[preflight.OK], count[preflight.Warn],
		count[preflight.Fail], count[preflight.Unknown], count[preflight.Skipped])
}

// onScreen makes what servers say fit for a terminal.
func onScreen(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}
