package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"holdfast/internal/events"
)

// evaluationsMax is how many letters a dry run asks about at a time.
const evaluationsMax = 32

// evaluation is what would become of one letter.
type evaluation struct {
	Seq     uint64 `json:"seq"`
	EventID string `json:"event_id"`
	events.Verdict

	about events.About
	err   error // why there is no verdict
}

// unknown begins the verdict on a letter of which nothing can be said.
const unknown = "not known"

// dryRun says for each letter what would happen now. A worker decides it, by the code that
// decides events, and writes nothing.
func (v *dlqReplay) dryRun(ctx context.Context, p *program, client *events.Client, letters *events.DeadLetters) error {
	asking, stop := context.WithCancel(ctx)
	defer stop()
	queue := make(chan chan evaluation, evaluationsMax) // in the order of the letters
	var unread error
	go func() {
		defer close(queue)
		for l, err := range v.Choice.choose(asking, letters, true) {
			if err != nil {
				unread = err
				return
			}
			answer := make(chan evaluation, 1)
			select {
			case queue <- answer:
				go func() { answer <- evaluate(asking, p, client, l) }()
			case <-asking.Done():
				return
			}
		}
	}()
	out := p.newList([]string{"seq", "event", "resource", "verdict", "detail"},
		[]string{"seq", "event", "event_id", "resource", "user", "verdict", "outcome", "reason", "detail"})
	var all []evaluation
	var failed error
	for answer := range queue {
		e := <-answer
		if errors.Is(e.err, events.ErrNoWorker) {
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
			out.addRow(seq, e.about.Type, e.EventID, e.about.Resource, e.about.User, e.Verdict.Verdict, e.Event, e.Reason, e.Detail)
		} else {
			out.addRow(seq, e.about.Type, e.about.Resource, e.Verdict.Verdict, e.Detail)
		}
	}
	if ctx.Err() != nil {
		return errInterrupted
	}
	if err := errors.Join(unread, out.end("no dead letters are meant")); err != nil {
		return err
	}
	if !out.isJSON() && len(all) > 1 {
		if err := p.print("\n" + verdictCounts(all)); err != nil {
			return err
		}
	}
	return failed
}

// evaluate asks about one letter.
func evaluate(ctx context.Context, p *program, client *events.Client, l *events.DeadLetter) evaluation {
	e := evaluation{Seq: l.Seq, EventID: l.EventID, about: l.Event}
	m, err := l.Original(p.subjects())
	if err != nil {
		e.Verdict = events.Verdict{Verdict: "cannot be replayed", Detail: err.Error()}
		return e
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	if e.Verdict, e.err = client.Evaluate(ctx, m); e.err != nil {
		e.Verdict = events.Verdict{Verdict: unknown, Detail: e.err.Error()}
	}
	return e
}

// verdictCounts is how many letters have which verdict.
func verdictCounts(all []evaluation) string {
	counts, outcomes := make(map[string]int), make(map[string]string)
	for _, e := range all {
		kind := e.Kind()
		counts[kind]++
		outcomes[kind] = e.Event
	}
	var rows [][]string
	for _, kind := range byCount(counts) {
		rows = append(rows, []string{strconv.Itoa(counts[kind]), printable(kind), printable(outcomes[kind])})
	}
	return table([]string{"LETTERS", "VERDICT", "OUTCOME"}, rows)
}
