package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

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

// resultUnknown is the result of a dead letter whose dry run failed.
const resultUnknown = "not known"

// dryRun prints for each selected dead letter what a replay would do now. A worker decides with the
// code that decides events, and writes nothing.
func (c *dlqReplay) dryRun(ctx context.Context, p *program, cl *client.Client, deadLetters *client.DeadLetters) error {
	dryRunCtx, stop := context.WithCancel(ctx)
	defer stop()
	queue := make(chan chan dryRunRow, dryRunsMax)
	var unread error
	go func() {
		defer close(queue)
		unread = c.requestDryRuns(dryRunCtx, p, cl, deadLetters, queue)
	}()
	out := p.newList([]string{"seq", "event", "resource", "result", "detail"},
		[]string{"seq", "event", "event_id", "resource", "result", "outcome", "reason", "detail"})
	var all []dryRunRow
	var failed error
	for answer := range queue {
		e := <-answer
		if errors.Is(e.err, client.ErrNoWorker) {
			return fmt.Errorf("%w: a dry run needs a worker; is one running in namespace %s?", e.err, p.Namespace)
		}
		if e.err != nil && failed == nil {
			failed = fmt.Errorf("dead letter %d: %w", e.Seq, e.err)
		}
		all = append(all, e)
		s := e.summary
		if err := out.add(e, []any{e.Seq, s.Type, s.Resource, e.Text, e.Detail},
			[]any{e.Seq, s.Type, e.EventID, s.Resource, e.Text, e.Event, e.Reason, e.Detail}); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return errInterrupted
	}
	if err := errors.Join(unread, out.end("no matching dead letters")); err != nil {
		return err
	}
	if !out.isJSON() && len(all) > 1 {
		if err := p.print("\n" + countDryRuns(all)); err != nil {
			return err
		}
	}
	return failed
}

// requestDryRuns requests the dry run of each selected dead letter, some at a time, and puts the channels of the
// answers into a queue in the order of the dead letters.
func (c *dlqReplay) requestDryRuns(
	ctx context.Context, p *program, cl *client.Client, deadLetters *client.DeadLetters, queue chan<- chan dryRunRow,
) error {
	limits := c.limits(nil)
	for l, err := range c.Choice.choose(ctx, deadLetters, true) {
		if err != nil {
			return err
		}
		answer := make(chan dryRunRow, 1)
		select {
		case queue <- answer:
			go func() { answer <- dryRunDeadLetter(ctx, p, cl, l, limits) }()
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// dryRunDeadLetter requests the dry run of one dead letter.
func dryRunDeadLetter(
	ctx context.Context, p *program, cl *client.Client, l *events.DeadLetter, limits *client.RunLimits,
) dryRunRow {
	e := dryRunRow{Seq: l.Seq, EventID: l.EventID, summary: l.Event}
	if limits.Exhausted(l) {
		e.DryRunResult = events.DryRunResult{Text: client.ReplaySkipped, Detail: client.ExhaustedDetail(l)}
		return e
	}
	m, err := l.Again(p.namespace())
	if err != nil {
		e.DryRunResult = events.DryRunResult{Text: "cannot be replayed", Detail: err.Error()}
		return e
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	if e.DryRunResult, e.err = cl.DryRun(ctx, m); e.err != nil {
		e.DryRunResult = events.DryRunResult{Text: resultUnknown, Detail: e.err.Error()}
	}
	return e
}

// countDryRuns returns a table of the results, the most frequent first.
func countDryRuns(all []dryRunRow) string {
	counts, outcomes := make(map[string]int), make(map[string]string)
	for _, e := range all {
		kind := e.Label()
		counts[kind]++
		outcomes[kind] = e.Event
	}
	var rows [][]string
	for _, kind := range byCount(counts) {
		rows = append(rows, []string{strconv.Itoa(counts[kind]), terminal.Printable(kind),
			terminal.Printable(outcomes[kind])})
	}
	return terminal.Table([]string{"COUNT", "RESULT", "OUTCOME"}, rows)
}
