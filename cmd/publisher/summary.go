package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"holdfast/internal/client"
	"holdfast/internal/terminal"
)

// summary is what became of a load.
type summary struct {
	File           string         `json:"file"`
	Complete       bool           `json:"complete"`       // the load reached the end of the file
	Lines          int            `json:"lines"`          // that were handled, blank ones aside; the sum of the next four
	Published      int            `json:"published"`      // stored
	Duplicates     int            `json:"duplicates"`     // stored before
	BadLines       int            `json:"bad_lines"`      // not published
	Unacknowledged int            `json:"unacknowledged"` // stored or not: the load was stopped
	Outcomes       []outcomeCount `json:"outcomes,omitzero"`
	Unanswered     int            `json:"unanswered"` // no outcome came in time

	counts                 map[outcomeCount]int // by an outcomeCount whose count is 0; nil = outcomes are not followed
	rejected, deadLettered int
	last                   int // the number of the last line that was handled
}

// outcomeCount is how many events had an outcome.
type outcomeCount struct {
	Event  string `json:"event"`
	Reason string `json:"reason,omitzero"`
	Count  int    `json:"count"`
}

// eventDeadLettered stands for the event of an outcome in the place of which there is a dead letter.
const eventDeadLettered = "dead-lettered"

func newSummary(file string, follow bool) *summary {
	s := &summary{File: file}
	if follow {
		s.counts = make(map[outcomeCount]int)
	}
	return s
}

// add counts what became of an event.
func (s *summary) add(r client.BulkResult) {
	switch {
	case !r.Stored:
		s.Unacknowledged++
		return
	case r.Duplicate:
		s.Duplicates++
	default:
		s.Published++
	}
	switch {
	case s.counts == nil:
	case r.Reply == nil:
		s.Unanswered++
	case r.Reply.DeadLetter != nil:
		s.deadLettered++
		s.counts[outcomeCount{Event: eventDeadLettered, Reason: r.Reply.DeadLetter.Error}]++
	default:
		outcome := outcomeCount{Event: eventName(r.Reply.Envelope.Type)}
		var data struct {
			Reason string `json:"reason"`
		}
		if strings.HasSuffix(outcome.Event, "rejected") {
			s.rejected++
			_ = json.Unmarshal(r.Reply.Envelope.Data, &data) // what cannot be read has no reason
			outcome.Reason = data.Reason
		}
		s.counts[outcome]++
	}
}

// printSummary prints what became of a load.
func (p *program) printSummary(s *summary) error {
	if s.counts != nil {
		s.Outcomes = make([]outcomeCount, 0, len(s.counts))
	}
	for outcome, count := range s.counts {
		outcome.Count = count
		s.Outcomes = append(s.Outcomes, outcome)
	}
	slices.SortFunc(s.Outcomes, func(a, b outcomeCount) int {
		return cmp.Or(cmp.Compare(a.Event, b.Event), cmp.Compare(a.Reason, b.Reason))
	})
	if p.json() {
		encoded, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("encode the summary: %w", err)
		}
		return p.printJSON(encoded)
	}
	verb := "loaded"
	if !s.Complete {
		verb = "stopped loading"
	}
	rows := [][]string{
		{"  lines", strconv.Itoa(s.Lines)},
		{"  published", strconv.Itoa(s.Published)},
		{"  duplicates", strconv.Itoa(s.Duplicates)},
		{"  bad lines", strconv.Itoa(s.BadLines)},
	}
	if s.Unacknowledged > 0 {
		rows = append(rows, []string{"  unacknowledged", strconv.Itoa(s.Unacknowledged)})
	}
	if s.counts != nil {
		rows = append(rows, []string{"  unanswered", strconv.Itoa(s.Unanswered)})
	}
	text := verb + " " + terminal.Printable(s.File) + "\n" + terminal.Table(nil, rows)
	if len(s.Outcomes) > 0 {
		outcomes := make([][]string, len(s.Outcomes))
		for i, o := range s.Outcomes {
			outcomes[i] = []string{terminal.Printable(o.Event), terminal.Printable(o.Reason), strconv.Itoa(o.Count)}
		}
		text += "\n" + terminal.Table([]string{"OUTCOME", "REASON", "COUNT"}, outcomes)
	}
	return p.print(text)
}
