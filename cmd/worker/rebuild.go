package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/recovery"
)

// rebuildCommand is `worker rebuild`.
type rebuildCommand struct {
	Yes         bool   `help:"Do not ask."`
	Output      string `short:"o" default:"table" enum:"table,json" help:"Write a table, or json."`
	Directory   `embed:""`
	Connections `embed:"" group:"Connections:" set:"namespace=" set:"namespace_shown=NAME" set:"namespace_note=; default: as endpoints.env says, else holdfast"` //nolint:staticcheck // kong reads each set tag
	Terms       `embed:"" group:"Policies, as the workers have them:"`
}

func (*rebuildCommand) Help() string {
	return `Workers notice by themselves when Redis has lost its data, and fill it again from the outbound stream
and Postgres. This does it by hand: when data was damaged or restored behind their back, or when
Redis has what another database has written. All decisions wait meanwhile; nothing is lost.
worker audit checks, without writing anything, whether Redis has what it should have.

Example:

  worker audit
  worker rebuild --yes`
}

// Run fills Redis again.
func (r *rebuildCommand) Run(ctx context.Context, std streams) error {
	if err := r.find(r.DataDir); err != nil {
		return err
	}
	log, err := newLogger(std.err, "error")
	if err != nil {
		return err
	}
	if err := r.confirm(ctx, std.err); err != nil {
		return err
	}
	ctx, supervisor, closeAll, err := r.supervisor(ctx, log)
	if err != nil {
		return err
	}
	defer closeAll()
	progress, end := newProgress(std.err)
	rebuilt, err := supervisor.Rebuild(ctx, "asked for by worker rebuild", true, progress)
	end()
	if err != nil {
		return events.Refused(ctx, err)
	}
	return r.report(std.out, rebuilt)
}

// errUnconfirmed says that nobody has agreed.
var errUnconfirmed = errors.New("nothing was done")

// confirm asks whether Redis is to be emptied and filled.
func (r *rebuildCommand) confirm(ctx context.Context, to io.Writer) error {
	if r.Yes {
		return nil
	}
	if err := requireTerminal(); err != nil {
		return err
	}
	if !confirmed(ctx, to, "Empty the namespace %s of %s, fill it again, and let all decisions wait until then?", r.Namespace, events.RedactedURL(r.RedisURL)) {
		return errUnconfirmed
	}
	return nil
}

// supervisor returns a Keeper of its own connections, what closes them, and a context that ends when NATS lacks a permission.
func (r *rebuildCommand) supervisor(ctx context.Context, log zerolog.Logger) (until context.Context, k *recovery.Supervisor, closeAll func(), err error) {
	c := Config{Connections: r.Connections, Policies: Policies{Terms: r.Terms}}
	db, err := newStore(ctx, c)
	if err != nil {
		return nil, nil, nil, err
	}
	nc, err := newNATS(c, log, func() {})
	if err != nil {
		db.Close()
		return nil, nil, nil, err
	}
	until, restore := events.UntilRefused(ctx, nc)
	closeAll = func() { restore(); nc.Close(); db.Close() }
	js, err := events.NewJetStream(nc)
	if err == nil {
		k, err = newSupervisor(c, recovery.NewEpochTerm(), recovery.NewConnGuard(), db, js, events.Namespace(r.Namespace), log)
	}
	if err != nil {
		closeAll()
		return nil, nil, nil, err
	}
	return until, k, closeAll, nil
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
		fmt.Fprintln(to, "a worker has filled it in meanwhile, see its log")
		return nil
	}
	fmt.Fprintf(to, "filled in from %d outcomes in %.1f s: %d live holds and %d that have ended, on %d resources; %d answers\n",
		done.Outcomes, done.Took.Round(time.Millisecond).Seconds(), done.Live, done.Ended, done.Resources, done.Answers)
	if done.Gaps != "" {
		fmt.Fprintf(to, "not all outcomes that can matter are there any more: %s; %s\n", done.Gaps, recovery.GapsImpact)
	}
	return nil
}
