package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/schollz/progressbar/v3"

	"holdfast/internal/client"
	"holdfast/internal/terminal"
)

// dlqRuns shows recorded runs.
type dlqRuns struct {
	ID string `arg:"" optional:"" help:"Run id: show its results."`
}

func (*dlqRuns) Help() string {
	return `Every replay, edit and discard is a run. It is recorded for a year: operator, time, note, selected
dead letters, and the result of each. An unfinished run is still active, or its process crashed; to
resume a replay, use publisher dlq replay --run ID.

Examples:

  publisher dlq runs
  publisher dlq runs 0198f0c2-a1b4-7c3d-8e4f-5a6b7c8d9e0f -o json`
}

func (c *dlqRuns) Run(ctx context.Context, p *program) error {
	if c.ID != "" && uuid.Validate(c.ID) != nil {
		return misused("%q is not a run id, see publisher dlq runs", c.ID)
	}
	cl, err := p.connect(ctx)
	if err != nil {
		return err
	}
	if c.ID != "" {
		run, err := cl.GetRun(ctx, c.ID)
		if err != nil {
			return p.withHint(err)
		}
		return p.printRun(run)
	}
	out := p.newList([]string{"run", "command", "state", "total", "processed", "started", "operator", "note"}, []string{
		"run", "command", "state", "total", "processed", "started", "last update", "operator", "selection", "results", "note",
	})
	runs, strange, err := cl.ListRuns(ctx)
	if err != nil {
		return p.withHint(err)
	}
	for _, err := range strange {
		p.reportf("%v", err)
	}
	for _, run := range runs {
		work := []any{run.ID, run.Verb, run.State, run.Total, run.Processed()}
		row := append(slices.Clone(work), since(run.StartedAt.Time)+" ago", run.Operator, run.Note)
		wide := append(work, p.timeText(run.StartedAt.Time), p.timeText(run.RecordedAt.Time), run.Operator,
			selectionOf(run), tally(run.Counts), run.Note)
		if err := out.add(run, row, wide); err != nil {
			return err
		}
	}
	return out.end("no runs")
}

// executeRun processes the dead letters of a started run, ends the run and prints its results. It
// returns an error if the run stopped early, with advice how to process the rest, or if a result is not
// what the operator wanted.
func (p *program) executeRun(
	ctx context.Context, deadLetters *client.DeadLetters, log *client.RunLog, work client.RunWork,
) error {
	bar := terminal.NewProgress(p.err, int64(len(log.Left)), progressbar.OptionSetDescription(log.Run.Verb),
		progressbar.OptionShowCount())
	stopped := log.Execute(ctx, work, func(processed int) { bar.Set(int64(processed)) })
	bar.End()
	if stopped != nil {
		rest := map[string]string{
			client.RunReplay:  "to resume: publisher dlq replay --run " + log.Run.ID,
			client.RunDiscard: "the same command removes the rest",
			client.RunEdit:    "repeat the command",
		}[log.Run.Verb]
		stopped = fmt.Errorf("run %s: %w, after %d of %d\n%s", log.Run.ID, stopped, log.Run.Processed(), log.Run.Total, rest)
	}
	reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.Timeout)
	defer cancel()
	recorded, err := deadLetters.GetRun(reading, log.Run.ID)
	if err == nil {
		err = p.printRun(recorded)
	}
	if stopped != nil || err != nil {
		return errors.Join(stopped, err)
	}
	return runError(recorded)
}

// runError returns the error for the exit code of a finished run.
func runError(run *client.Run) error {
	failed, unanswered := run.Counts[client.ReplayFailed], run.Counts[client.ReplayNoOutcome]
	switch {
	case failed > 0 && run.Verb == client.RunReplay:
		return fmt.Errorf("%s failed, see publisher dlq runs %s -o wide\nto retry: publisher dlq replay --run %s",
			terminal.Counted(failed, "dead letter"), run.ID, run.ID)
	case failed > 0:
		return fmt.Errorf("%s failed, see publisher dlq runs %s -o wide", terminal.Counted(failed, "dead letter"), run.ID)
	case run.Counts[client.ReplayDeadLettered] > 0, run.Counts[client.ReplaySkipped] > 0:
		return errDeadLettered
	case unanswered > 0:
		err := fmt.Errorf("%w for %s, stored and to be processed later. Is a worker running?",
			client.ErrReplyTimeout, terminal.Counted(unanswered, "event"))
		if run.Verb == client.RunReplay {
			err = fmt.Errorf("%w\nto search for them again: publisher dlq replay --run %s", err, run.ID)
		}
		return err
	}
	for result := range run.Counts {
		if strings.HasSuffix(result, "rejected") {
			return errRejected
		}
	}
	return nil
}

// printRun prints a run with its results.
func (p *program) printRun(run *client.Run) error {
	switch p.Output {
	case outputJSON:
		return p.printValue(run)
	case outputNDJSON:
		out := p.newList(nil, nil)
		for _, result := range run.Results {
			if err := out.addValue(result); err != nil {
				return err
			}
		}
		return out.end("")
	default:
		return p.printRunPage(run)
	}
}

// printRunPage prints a run as text: a count of each result, or with -o wide each result.
func (p *program) printRunPage(run *client.Run) error {
	last := []string{"took", run.RecordedAt.Sub(run.StartedAt.Time).Round(time.Millisecond).String()}
	if run.State != client.RunDone {
		last = []string{"last update", p.timeText(run.RecordedAt.Time) + ", " + since(run.RecordedAt.Time) + " ago"}
	}
	rows := [][]string{
		{"run", run.ID},
		{"operator", run.Operator},
		{"note", run.Note},
		{"selection", selectionOf(run)},
		{"limits", limitsOf(run)},
		{"started", p.timeText(run.StartedAt.Time)},
		last,
	}
	rows = slices.DeleteFunc(rows, func(row []string) bool { return row[1] == "" })
	if p.width > 0 && p.Output != outputWide { // the selection may be thousands of sequences
		const names = len("  last update") + terminal.ColumnGap
		for _, row := range rows {
			row[1] = terminal.Shortened(terminal.Printable(row[1]), max(columnMin, p.width-names))
		}
	}
	text := fmt.Sprintf("%s of %s: %s, %d processed\n", terminal.Printable(run.Verb),
		terminal.Counted(run.Total, "dead letter"), terminal.Printable(run.State), run.Processed()) + facts(rows)
	if len(run.Results) == 0 {
		return p.print(text)
	}
	if err := p.print(text + "\n"); err != nil {
		return err
	}
	out := p.newList([]string{"count", "result", "first", "sample detail"}, []string{"seq", "event_id", "result", "detail"})
	counts, first := make(map[string]int), make(map[string]client.RunResult)
	bySeq := func(a, b client.RunResult) int { return cmp.Compare(a.Seq, b.Seq) } // they are recorded as they come
	for _, r := range slices.SortedStableFunc(slices.Values(run.Results), bySeq) {
		result := r.Result
		if r.Reason != "" {
			result += ": " + r.Reason
		}
		if counts[result]++; counts[result] == 1 {
			first[result] = r
		}
		if p.Output == outputWide {
			out.addRow(r.Seq, r.EventID, result, r.Detail)
		}
	}
	if p.Output != outputWide {
		for _, result := range terminal.ByCount(counts) {
			out.addRow(counts[result], result, first[result].Seq, first[result].Detail)
		}
	}
	return out.end("")
}

// selectionOf returns the dead letters of a run: its filters, or its sequences as far as they are
// loaded.
func selectionOf(run *client.Run) string {
	f := run.Filter
	if f == nil {
		return strings.Trim(fmt.Sprint(run.Seqs), "[]")
	}
	texts := []string{"all"}
	add := func(name, value string) {
		if value != "" {
			texts = append(texts, field(name, value))
		}
	}
	add("reason", strings.Join(f.Reasons, ","))
	add("type", f.Type)
	add("resource", f.ResourceID)
	add("user", f.UserID)
	if !f.Since.IsZero() {
		add("since", f.Since.Format(time.RFC3339))
	}
	if !f.Until.IsZero() {
		add("until", f.Until.Format(time.RFC3339))
	}
	add("contains", f.Contains)
	if run.Limit > 0 {
		add("limit", strconv.Itoa(run.Limit))
	}
	return strings.Join(texts, " ")
}

// limitsOf returns the limits of a replay, or "" for another run.
func limitsOf(run *client.Run) string {
	if run.Limits == nil {
		return ""
	}
	pace := "no rate limit"
	if run.Limits.Rate > 0 {
		pace = strconv.FormatFloat(run.Limits.Rate, 'g', -1, 64) + " per second"
	}
	text := fmt.Sprintf("%s, stops above %d%% failures", pace, run.Limits.StopOnFailures)
	if run.Limits.MaxReplays > 0 {
		text += fmt.Sprintf(", skips after %s", terminal.Counted(int(run.Limits.MaxReplays), "replay"))
	}
	return text
}
