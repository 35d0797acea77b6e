package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/terminal"
)

// dryRunsMax is the number of concurrent queries of a dry run. When so many in a row have no answer, the others are not
// sent: each would wait for the timeout, too.
const dryRunsMax = 32

// dryRunRow is the dry-run result of one dead letter.
type dryRunRow struct {
	Seq     uint64 `json:"seq"`
	EventID string `json:"event_id"`
	events.DryRunResult

	summary events.EventSummary
	err     error // why there is no result
}

// dryRun prints for each selected dead letter what a replay would do now. A worker decides with the
// code that decides events, and writes nothing.
func (c *dlqReplay) dryRun(ctx context.Context, p *program, deadLetters *client.DeadLetters) error {
	limits := c.limits(nil)
	var all []*dryRunRow
	var unread error
	var unanswered atomic.Int64 // in a row
	queries, querying := errgroup.WithContext(ctx)
	queries.SetLimit(dryRunsMax)
	for l, err := range c.Choice.choose(querying, deadLetters, true) {
		if err != nil {
			unread = err
			break
		}
		e := &dryRunRow{Seq: l.Seq, EventID: l.EventID, summary: l.Event}
		all = append(all, e)
		queries.Go(func() error {
			m, why := limits.ReplayOf(p.namespace(), l)
			if m == nil {
				e.DryRunResult = why
				return nil
			}
			e.dryRun(querying, p, deadLetters, m)
			switch {
			case errors.Is(e.err, client.ErrNoWorker):
				return fmt.Errorf("%w: a dry run needs a worker; is one running in namespace %s?", e.err, p.Namespace)
			case !errors.Is(e.err, errNoDryRun):
				unanswered.Store(0)
			case unanswered.Add(1) >= dryRunsMax:
				return fmt.Errorf("no answer to %d dry runs in a row, the others were not tried: %w", dryRunsMax, e.err)
			}
			return nil
		})
	}
	stopped := queries.Wait()
	if ctx.Err() != nil {
		stopped = errInterrupted
	}
	if stopped != nil {
		known := slices.DeleteFunc(all, func(e *dryRunRow) bool { return e.err != nil || e.Text == "" })
		if len(known) == 0 {
			return stopped
		}
		return errors.Join(p.printDryRuns(known), stopped)
	}
	return errors.Join(unread, p.printDryRuns(all))
}

// printDryRuns prints dry-run results, and returns the first error for which one is not known.
func (p *program) printDryRuns(all []*dryRunRow) (failed error) {
	out := p.newList([]string{"seq", "event", "resource", "result", "detail"},
		[]string{"seq", "event", "event_id", "resource", "result", "outcome", "reason", "detail"})
	for _, e := range all {
		if e.err != nil && failed == nil {
			failed = fmt.Errorf("dead letter %d: %w", e.Seq, e.err)
		}
		s := e.summary
		if err := out.add(e, []any{e.Seq, s.Type, s.Resource, e.Text, e.Detail},
			[]any{e.Seq, s.Type, e.EventID, s.Resource, e.Text, e.Event, e.Reason, e.Detail}); err != nil {
			return err
		}
	}
	if err := out.end("no matching dead letters"); err != nil {
		return err
	}
	if !out.isJSON() && len(all) > 1 {
		if err := p.printCounts(all); err != nil {
			return err
		}
	}
	return failed
}

// errNoDryRun reports that nothing has answered a dry run in time.
var errNoDryRun = errors.New("no answer to the dry run")

// dryRun requests the dry run of one dead letter, whose replay would publish m.
func (e *dryRunRow) dryRun(ctx context.Context, p *program, cl *client.DeadLetters, m *nats.Msg) {
	waiting, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	if e.DryRunResult, e.err = cl.DryRun(waiting, m); e.err == nil {
		return
	}
	e.DryRunResult = events.DryRunResult{Text: "not known", Detail: e.err.Error()}
	if errors.Is(e.err, context.DeadlineExceeded) && ctx.Err() == nil {
		e.err = fmt.Errorf("%w within %s; NATS or the workers of namespace %s hang or are overloaded: check their logs "+
			"and /readyz, then try again, or with a longer --timeout", errNoDryRun, p.Timeout, p.Namespace)
	}
}

// printCounts prints a table of the results, the most frequent first.
func (p *program) printCounts(all []*dryRunRow) error {
	counts, outcomes := make(map[string]int), make(map[string]string)
	for _, e := range all {
		kind := e.Label()
		counts[kind]++
		outcomes[kind] = e.Event
	}
	out := p.newList([]string{"count", "result", "outcome"}, nil)
	for _, kind := range terminal.ByCount(counts) {
		out.addRow(counts[kind], kind, outcomes[kind])
	}
	return errors.Join(p.print("\n"), out.end(""))
}
