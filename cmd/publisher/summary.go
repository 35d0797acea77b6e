package main

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"holdfast/internal/client"
	"holdfast/internal/terminal"
)

// summary is the result of a load.
type summary struct {
	File           string         `json:"file"`
	Complete       bool           `json:"complete"`       // the load reached the end of the file
	Lines          int            `json:"lines"`          // processed lines without blank ones: the sum of the next four
	Published      int            `json:"published"`      // stored
	Duplicates     int            `json:"duplicates"`     // in the short form, and stored less than 100 ms before
	BadLines       int            `json:"bad_lines"`      // not published
	Unacknowledged int            `json:"unacknowledged"` // unknown whether stored: the load was stopped
	Outcomes       []outcomeCount `json:"outcomes,omitzero"`
	Unanswered     int            `json:"unanswered"` // without an outcome in time

	counts                 map[outcomeCount]int // by an outcomeCount with Count 0; nil without --wait
	rejected, deadLettered int
	last                   int // number of the last processed line
}

// outcomeCount is the number of events with an outcome.
type outcomeCount struct {
	Event  string `json:"event"`
	Reason string `json:"reason,omitzero"`
	Count  int    `json:"count"`
}

// eventDeadLettered is the Event of dead-lettered events, which have no outcome.
const eventDeadLettered = "dead-lettered"

func newSummary(file string, follow bool) *summary {
	s := &summary{File: file}
	if follow {
		s.counts = make(map[outcomeCount]int)
	}
	return s
}

// add counts the result of an event.
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
			_ = json.Unmarshal(r.Reply.Envelope.Data, &data) // without a reason if the data is malformed
			outcome.Reason = data.Reason
		}
		s.counts[outcome]++
	}
}

// printSummary prints the result of a load.
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
		return p.printValue(s)
	}
	headline := "loaded"
	if !s.Complete {
		headline = "stopped loading"
	}
	rows := [][]string{
		{"lines", strconv.Itoa(s.Lines)},
		{"published", strconv.Itoa(s.Published)},
		{"duplicates", strconv.Itoa(s.Duplicates)},
		{"bad lines", strconv.Itoa(s.BadLines)},
	}
	if s.Unacknowledged > 0 {
		rows = append(rows, []string{"unacknowledged", strconv.Itoa(s.Unacknowledged)})
	}
	if s.counts != nil {
		rows = append(rows, []string{"unanswered", strconv.Itoa(s.Unanswered)})
	}
	text := headline + " " + terminal.Printable(s.File) + "\n" + facts(rows)
	if len(s.Outcomes) > 0 {
		outcomes := make([][]string, len(s.Outcomes))
		for i, o := range s.Outcomes {
			outcomes[i] = []string{terminal.Printable(o.Event), terminal.Printable(o.Reason), strconv.Itoa(o.Count)}
		}
		text += "\n" + terminal.Table([]string{"OUTCOME", "REASON", "COUNT"}, outcomes)
	}
	return p.print(text)
}
