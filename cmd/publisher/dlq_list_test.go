package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"holdfast/internal/events"
)

// TestDLQList_Pages_ContinueAfterLast lists page by page, oldest and newest first.
func TestDLQList_Pages_ContinueAfterLast(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for range 5 {
		h.storeDeadLetter(events.ReasonMalformed, "", h.ns.In(events.BookingRequested, "loft"), "no JSON")
	}
	for line, want := range map[string]struct {
		seqs []int
		hint string // on stderr
	}{
		"":                              {[]int{1, 2, 3, 4, 5}, ""},
		"--limit 2":                     {[]int{1, 2}, "--after 2\n"},
		"--limit 2 --after 2":           {[]int{3, 4}, "--after 4\n"},
		"--limit 2 --after 4":           {[]int{5}, ""},
		"--after 5":                     {nil, "no dead letters\n"},
		"--newest":                      {[]int{5, 4, 3, 2, 1}, ""},
		"--newest --limit 2":            {[]int{5, 4}, "--after 4\n"},
		"--newest --limit 3 --after 4":  {[]int{3, 2, 1}, "--after 1\n"},
		"--newest --after 1":            {nil, "no dead letters\n"},
		"--newest --reason poison":      {nil, "no dead letters\n"},
		"--newest --type payment.start": {nil, "no dead letters\n"},
	} {
		r := h.run(append([]string{"dlq", "list"}, words(line)...)...).want(t, exitOK)
		var got []string
		for row := range strings.Lines(r.out) {
			if fields := strings.Fields(row); len(fields) > 1 && fields[0] != "SEQ" {
				got = append(got, fields[0])
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want.seqs) || !strings.HasSuffix(r.errOut, want.hint) || want.hint == "" &&
			r.errOut != "" {
			t.Errorf("dlq list %s: %v, want %v\n%s%s", line, got, want.seqs, r.out, r.errOut)
		}
	}
	if r := h.run(words("dlq list --newest --limit 1 -o json")...).want(t, exitOK, `[{"seq":5,`); strings.Count(r.out,
		`"seq"`) != 1 || r.errOut != "" {
		t.Errorf("%s%s", r.out, r.errOut)
	}
}

// TestDLQList_EachFilter_Selects selects one of three dead letters with one filter at a time.
func TestDLQList_EachFilter_Selects(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.storeDeadLetter(events.ReasonMalformed, "no quantity", h.ns.In(events.BookingRequested, "loft"), booking("loft", "ann"))
	second := h.storeDeadLetter(events.ReasonPoison, "attic is cursed", h.ns.In(events.BookingRequested, "attic"),
		booking("attic", "ben"))
	h.storeDeadLetter(events.ReasonMalformed, "no JSON", h.ns.In(events.PaymentConfirmed, "loft"), "")
	stream, err := h.js.Stream(t.Context(), h.ns.DLQStream())
	if err != nil {
		t.Fatal(err)
	}
	stored, err := stream.GetMsg(t.Context(), second)
	if err != nil {
		t.Fatal(err)
	}
	at := stored.Time.Format(time.RFC3339Nano)
	for line, want := range map[string]string{
		"--reason poison":                    "[2]",
		"--reason poison --reason malformed": "[1 2 3]",
		"--type booking.requested":           "[1 2]",
		"--type payment.confirmed":           "[3]",
		"--resource-id attic":                "[2]",
		"--user-id ann":                      "[1]",
		"--contains cursed":                  "[2]",
		"--since " + at:                      "[2 3]",
		"--until " + at:                      "[1]",
		"--newest --resource-id loft":        "[3 1]",
		"--newest --since " + at:             "[3 2]",
		"--newest --until " + at:             "[1]",
	} {
		r := h.run(append(words("dlq list -o ndjson"), words(line)...)...).want(t, exitOK)
		var got []uint64
		for row := range strings.Lines(r.out) {
			var l events.DeadLetter
			if err := json.Unmarshal([]byte(row), &l); err != nil {
				t.Fatal(err)
			}
			got = append(got, l.Seq)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("dlq list %s: %v, want %s", line, got, want)
		}
	}
}
