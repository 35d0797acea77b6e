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

// dryRunsMax is how many letters a dry run asks about at a time.
const dryRunsMax = 32

// dryRunRow is what would become of one letter.
type dryRunRow struct {
	Seq     uint64 `json:"seq"`
	EventID string `json:"event_id"`
	events.DryRunResult

	summary events.EventSummary
	err     error // why there is no verdict
}

// unknown begins the verdict on a letter of which nothing can be said.
const unknown = "not known"

// dryRun says for each letter what would happen now. A worker decides it, by the code that
// decides events, and writes nothing.
func (v *dlqReplay) dryRun(ctx context.Context, p *program, cl *client.Client, deadLetters *client.DeadLetters) error {
	dryRunCtx, stop := context.WithCancel(ctx)
	defer stop()
	queue := make(chan chan dryRunRow, dryRunsMax) // in the order of the letters
	var unread error
	go func() {
		defer close(queue)
		for l, err := range v.Choice.choose(dryRunCtx, deadLetters, true) {
			if err != nil {
				unread = err
				return
			}
			answer := make(chan dryRunRow, 1)
			select {
			case queue <- answer:
				go func() { answer <- dryRunDeadLetter(dryRunCtx, p, cl, l) }()
			case <-dryRunCtx.Done():
				return
			}
		}
	}()
	out := p.newList([]string{"seq", "event", "resource", "verdict", "detail"},
		[]string{"seq", "event", "event_id", "resource", "user", "verdict", "outcome", "reason", "detail"})
	var all []dryRunRow
	var failed error
	for answer := range queue {
		e := <-answer
		if errors.Is(e.err, client.ErrNoWorker) {
			return fmt.Errorf("%w: a dry run asks a worker what it would do; does one run in namespace %s?", e.err, p.Namespace)
		}
		if e.err != nil && failed == nil {
			failed = fmt.Errorf("letter %d: %w", e.Seq, e.err)
		}
		all = append(all, e)
		if out.isJSON() {
			if err := out.addValue(e); err != nil {
				return err
			}
			continue
		}
		seq := strconv.FormatUint(e.Seq, 10)
		if p.Output == outputWide {
			out.addRow(seq, e.summary.Type, e.EventID, e.summary.Resource, e.summary.User, e.DryRunResult.Text, e.Event, e.Reason, e.Detail)
		} else {
			out.addRow(seq, e.summary.Type, e.summary.Resource, e.DryRunResult.Text, e.Detail)
		}
	}
	if ctx.Err() != nil {
		return errInterrupted
	}
	if err := errors.Join(unread, out.end("no dead letters are meant")); err != nil {
		return err
	}
	if !out.isJSON() && len(all) > 1 {
		if err := p.print("\n" + countDryRuns(all)); err != nil {
			return err
		}
	}
	return failed
}

// dryRunDeadLetter asks about one letter.
func dryRunDeadLetter(ctx context.Context, p *program, cl *client.Client, l *events.DeadLetter) dryRunRow {
	e := dryRunRow{Seq: l.Seq, EventID: l.EventID, summary: l.Event}
	m, err := l.Original(p.namespace())
	if err != nil {
		e.DryRunResult = events.DryRunResult{Text: "cannot be replayed", Detail: err.Error()}
		return e
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	if e.DryRunResult, e.err = cl.DryRun(ctx, m); e.err != nil {
		e.DryRunResult = events.DryRunResult{Text: unknown, Detail: e.err.Error()}
	}
	return e
}

// countDryRuns is how many letters have which verdict.
func countDryRuns(all []dryRunRow) string {
	counts, outcomes := make(map[string]int), make(map[string]string)
	for _, e := range all {
		kind := e.Label()
		counts[kind]++
		outcomes[kind] = e.Event
	}
	var rows [][]string
	for _, kind := range byCount(counts) {
		rows = append(rows, []string{strconv.Itoa(counts[kind]), terminal.Printable(kind), terminal.Printable(outcomes[kind])})
	}
	return terminal.Table([]string{"LETTERS", "VERDICT", "OUTCOME"}, rows)
}
