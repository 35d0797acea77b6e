package main

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/terminal"
)

// dryRunsMax is the number of concurrent queries of a dry run.
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
	var unread, failed error
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
			e.dryRun(querying, p, deadLetters, l, limits)
			if errors.Is(e.err, client.ErrNoWorker) {
				return fmt.Errorf("%w: a dry run needs a worker; is one running in namespace %s?", e.err, p.Namespace)
			}
			return nil
		})
	}
	stopped := queries.Wait()
	if ctx.Err() != nil {
		stopped = errInterrupted
	}
	out := p.newList([]string{"seq", "event", "resource", "result", "detail"},
		[]string{"seq", "event", "event_id", "resource", "result", "outcome", "reason", "detail"})
	for _, e := range all {
		if stopped != nil && (e.err != nil || e.Text == "") {
			break // what comes before it is known
		}
		if e.err != nil && failed == nil {
			failed = fmt.Errorf("dead letter %d: %w", e.Seq, e.err)
		}
		s := e.summary
		if err := out.add(e, []any{e.Seq, s.Type, s.Resource, e.Text, e.Detail},
			[]any{e.Seq, s.Type, e.EventID, s.Resource, e.Text, e.Event, e.Reason, e.Detail}); err != nil {
			return err
		}
	}
	if stopped != nil {
		return stopped
	}
	if err := errors.Join(unread, out.end("no matching dead letters")); err != nil {
		return err
	}
	if !out.isJSON() && len(all) > 1 {
		if err := p.printCounts(all); err != nil {
			return err
		}
	}
	return failed
}

// dryRun requests the dry run of one dead letter.
func (e *dryRunRow) dryRun(
	ctx context.Context, p *program, cl *client.DeadLetters, l *events.DeadLetter, limits *client.RunLimits,
) {
	m, why := limits.ReplayOf(p.namespace(), l)
	if m == nil {
		e.DryRunResult = why
		return
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	if e.DryRunResult, e.err = cl.DryRun(ctx, m); e.err != nil {
		e.DryRunResult = events.DryRunResult{Text: "not known", Detail: e.err.Error()}
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
