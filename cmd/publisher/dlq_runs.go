package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"holdfast/internal/client"
	"holdfast/internal/holds"
	"holdfast/internal/terminal"
)

// dlqRuns shows runs.
type dlqRuns struct {
	ID string `arg:"" optional:"" help:"Of one run: show it with what came of each letter."`
}

// Help implements kong's detailed help.
func (*dlqRuns) Help() string {
	return `Every replay, edit and discard is a run, which is kept for a year: who, when, why, which dead letters, and what came of each. A run that is unfinished is still going on, or its process was killed: a replay goes on with publisher dlq replay --run ID.

Examples:

  publisher dlq runs
  publisher dlq runs 0198f0c2-a1b4-7c3d-8e4f-5a6b7c8d9e0f -o json`
}

func (*dlqRuns) outputs() []string { return everyOutput }

// Run shows them.
func (v *dlqRuns) Run(ctx context.Context, p *program) error {
	if v.ID != "" && uuid.Validate(v.ID) != nil {
		return misused("%q is no id of a run: publisher dlq runs lists them", v.ID)
	}
	cl, disconnect, err := p.connect()
	if err != nil {
		return err
	}
	defer disconnect()
	if v.ID != "" {
		run, err := cl.GetRun(ctx, v.ID)
		if err != nil {
			return p.withHint(err)
		}
		return p.printRun(run)
	}
	out := p.newList([]string{"run", "verb", "state", "letters", "ended", "when", "who", "note"},
		[]string{"run", "verb", "state", "letters", "ended", "started", "recorded", "who", "which", "results", "note"})
	runs, err := cl.ListRuns(ctx)
	if err != nil {
		return p.withHint(err)
	}
	for _, run := range runs {
		deadLetters, ended := strconv.Itoa(run.Total), strconv.Itoa(run.Processed())
		switch {
		case out.isJSON():
			if err := out.addValue(run); err != nil {
				return err
			}
		case p.Output == outputWide:
			out.addRow(run.ID, run.Verb, run.State, deadLetters, ended, run.StartedAt.Format(holds.TimeFormat),
				run.RecordedAt.Format(holds.TimeFormat), run.Operator, selectionOf(run), tally(run.Counts), run.Note)
		default:
			out.addRow(run.ID, run.Verb, run.State, deadLetters, ended, since(run.StartedAt.Time)+" ago", run.Operator, run.Note)
		}
	}
	return out.end("no runs")
}

// printRun prints a run with its results.
func (p *program) printRun(run *client.Run) error {
	switch p.Output {
	case outputJSON:
		text, err := json.Marshal(run, json.Deterministic(true))
		if err != nil {
			return fmt.Errorf("encode run %s: %w", run.ID, err)
		}
		return p.printJSON(text)
	case outputNDJSON:
		out := p.newList(nil, nil)
		for _, result := range run.Results {
			if err := out.addValue(result); err != nil {
				return err
			}
		}
		return out.end("")
	default:
		return p.print(p.runPage(run))
	}
}

// runPage is a run, for a person: its results counted, and with -o wide each of them.
func (p *program) runPage(run *client.Run) string {
	rows := [][]string{
		{"run", run.ID},
		{"who", run.Operator},
		{"note", run.Note},
		{"which", selectionOf(run)},
		{"limits", limitsOf(run)},
		{"started", run.StartedAt.Format(holds.TimeFormat)},
		{"took", run.RecordedAt.Sub(run.StartedAt.Time).Round(time.Millisecond).String()},
	}
	if run.State != client.RunDone {
		rows[6] = []string{"last sign", run.RecordedAt.Format(holds.TimeFormat) + ", " + since(run.RecordedAt.Time) + " ago"}
	}
	rows = slices.DeleteFunc(rows, func(row []string) bool { return row[1] == "" })
	for i := range rows {
		rows[i] = []string{"  " + rows[i][0], terminal.Printable(rows[i][1])}
	}
	if p.width > 0 && p.Output != outputWide { // a run may name thousands of sequences
		const names = len("  last sign") + terminal.ColumnGap
		for _, row := range rows {
			row[1] = shortened(row[1], max(columnMin, p.width-names))
		}
	}
	text := fmt.Sprintf("%s of %s: %s, %d ended\n", terminal.Printable(run.Verb), counted(run.Total, "dead letter"), terminal.Printable(run.State), run.Processed()) + terminal.Table(nil, rows)
	if len(run.Results) == 0 {
		return text
	}
	if p.Output == outputWide {
		var rows [][]string
		for _, r := range run.Results {
			rows = append(rows, []string{strconv.FormatUint(r.Seq, 10), terminal.Printable(r.EventID), terminal.Printable(resultOf(r)), terminal.Printable(r.Detail)})
		}
		return text + "\n" + p.table([]string{"SEQ", "EVENT_ID", "RESULT", "DETAIL"}, rows)
	}
	counts, first := make(map[string]int), make(map[string]client.RunResult)
	for _, r := range run.Results {
		if counts[resultOf(r)]++; counts[resultOf(r)] == 1 {
			first[resultOf(r)] = r
		}
	}
	rows = nil
	for _, result := range byCount(counts) {
		r := first[result]
		rows = append(rows, []string{strconv.Itoa(counts[result]), terminal.Printable(result), strconv.FormatUint(r.Seq, 10), terminal.Printable(r.Detail)})
	}
	return text + "\n" + p.table([]string{"LETTERS", "RESULT", "FIRST", "ITS DETAIL"}, rows)
}

// resultOf is what became of a letter, with why.
func resultOf(r client.RunResult) string {
	if r.Reason != "" {
		return r.Result + ": " + r.Reason
	}
	return r.Result
}

// selectionOf says which letters a run is for: how they were found, or those that were named, as far
// as they were read.
func selectionOf(run *client.Run) string {
	f := run.Filter
	if f == nil {
		named := make([]string, len(run.Seqs))
		for i, seq := range run.Seqs {
			named[i] = strconv.FormatUint(seq, 10)
		}
		return strings.Join(named, " ")
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
	return strings.Join(texts, " ")
}

// limitsOf are the limits of a replay, "" of another run.
func limitsOf(run *client.Run) string {
	if run.Limits == nil {
		return ""
	}
	pace := "no rate"
	if run.Limits.Rate > 0 {
		pace = strconv.FormatFloat(run.Limits.Rate, 'g', -1, 64) + " a second"
	}
	return fmt.Sprintf("%s, stops above %d%% failures", pace, run.Limits.StopOnFailures)
}

// printNoDeadLetters tells that a run has nothing to do. It is not recorded.
func (p *program) printNoDeadLetters(run *client.Run) error {
	if p.json() {
		return p.printRun(run)
	}
	fmt.Fprintln(p.err, "publisher: no dead letters are meant, so there is nothing to do")
	return nil
}
