package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"

	"holdfast/internal/events"
	"holdfast/internal/recovery"
	"holdfast/internal/terminal"
)

// rebuildCommand is `worker rebuild`.
type rebuildCommand struct {
	Yes          bool   `help:"Rebuild without confirmation."`
	Output       string `short:"o" default:"table" enum:"table,json" help:"Output format: table or json."`
	FoundServers `embed:""`
	Terms        `embed:"" group:"Policies, used only when Postgres has no stored policy:"`
}

func (*rebuildCommand) Help() string {
	return `A worker detects by itself that Redis has lost data, and rebuilds it from the outbound stream and
Postgres. Run this command when a worker cannot detect it: data in Redis is corrupt, was restored from
a backup, or belongs to another Postgres database. Events wait during the rebuild; none is lost.
worker audit checks, without writing anything, whether Redis has what it should have.

It needs all three servers, as the user of the workers. It changes nothing when the outbound stream is not that of the
workers of this Postgres. The result counts what was written. Exit codes: 0 done,
1 failed (run it again), 2 wrong usage.

Example:

  worker audit
  worker rebuild --yes`
}

// Run rebuilds Redis.
func (r *rebuildCommand) Run(ctx context.Context, std streams) error {
	if err := r.find(r.DataDir); err != nil {
		return err
	}
	log := newLogger(std.err, Logging{LogLevel: "error"}, r.Namespace)
	if err := r.confirm(ctx, std.err); err != nil {
		return err
	}
	c := Config{Connections: r.Connections, Policies: Policies{Terms: r.Terms}}
	db, err := newStore(ctx, c)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, open, disconnect, err := c.openNATS(ctx, "holdfast worker "+c.Namespace, warnings(log), notBuffered)
	if err != nil {
		return err
	}
	defer disconnect()
	js, err := events.NewJetStream(open.Conn(), events.Namespace(r.Namespace))
	if err != nil {
		return err
	}
	supervisor, closeServers, err := newSupervisor(c, recovery.NewEpochTerm(), recovery.NewConnGuard(), db, js,
		events.Namespace(r.Namespace), log)
	if err != nil {
		return err
	}
	defer closeServers()
	bar := terminal.NewProgress(std.err, -1, progressbar.OptionSetElapsedTime(true))
	rebuilt, err := supervisor.Rebuild(ctx, "requested by worker rebuild", true, bar.Describe)
	bar.End()
	if err != nil {
		return events.Refused(ctx, err)
	}
	return r.report(std.out, rebuilt)
}

// confirm returns nil when --yes is given or the operator confirms the rebuild.
func (r *rebuildCommand) confirm(ctx context.Context, to io.Writer) error {
	if r.Yes {
		return nil
	}
	if err := requireTerminal(); err != nil {
		return err
	}
	question := fmt.Sprintf("Delete namespace %s in %s and rebuild it from %s and %s? All events wait until it is done.",
		r.Namespace, events.RedactedURL(r.RedisURL), events.RedactedURL(r.NATSURL), events.RedactedURL(r.PostgresURL))
	if !terminal.Confirmed(ctx, os.Stdin, to, question) {
		return errors.New("aborted")
	}
	return nil
}

// report prints what was filled in.
func (r *rebuildCommand) report(to io.Writer, done recovery.RebuildResult) error {
	if r.Output == "json" {
		return printJSON(to, struct {
			recovery.RebuildResult
			TookMS int64 `json:"took_ms"`
		}{done, done.Took.Milliseconds()})
	}
	if done == (recovery.RebuildResult{}) {
		fmt.Fprintln(to, "a worker has already rebuilt it, see its log")
		return nil
	}
	fmt.Fprintf(to, "rebuilt from %d outcomes in %.1f s: %d live and %d ended holds on %d resources, %d answers\n",
		done.Outcomes, done.Took.Round(time.Millisecond).Seconds(), done.Live, done.Ended, done.Resources, done.Answers)
	if done.Gaps != "" {
		fmt.Fprintf(to, "outbound stream is incomplete: %s; %s. Run worker audit to see what contradicts Postgres\n",
			done.Gaps, recovery.GapsImpact)
	}
	return nil
}
