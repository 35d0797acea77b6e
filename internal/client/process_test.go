package client

import (
	"reflect"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
)

// TestDiscardWork_EachDeadLetter_RecordsItsEvent discards dead letters of events in both modes, one whose event has no id, and
// one that does not exist. The record of the run says which events they were.
func TestDiscardWork_EachDeadLetter_RecordsItsEvent(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	d := h.deadLetters()
	in := h.ns.In(events.BookingRequested, "room")
	binary := nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"binary"}, "ce-source": {"/s"}}
	seqs := []uint64{
		h.storeDeadLetter(events.ReasonPoison, "", in, nil, keyed("structured")),
		h.storeDeadLetter(events.ReasonUnknownType, "", in, binary, "{}"),
		h.storeDeadLetter(events.ReasonMalformed, "", in, nil, "no JSON"),
		99,
	}
	log, err := d.StartRun(t.Context(), Run{Verb: RunDiscard}, seqs)
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Execute(t.Context(), d.DiscardWork(), func(int) {}); err != nil {
		t.Fatal(err)
	}
	run, err := h.client.GetRun(t.Context(), log.Run.ID)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(run.Results, func(a, b RunResult) int { return int(a.Seq) - int(b.Seq) })
	want := []RunResult{
		{Seq: seqs[0], EventID: "structured", Result: Discarded, Reason: events.ReasonPoison},
		{Seq: seqs[1], EventID: "binary", Result: Discarded, Reason: events.ReasonUnknownType},
		{Seq: seqs[2], Result: Discarded, Reason: events.ReasonMalformed},
		{Seq: 99, Result: ReplayNotFound},
	}
	if !reflect.DeepEqual(run.Results, want) {
		t.Errorf("results %+v, want %+v", run.Results, want)
	}
	if left := seqsOf(t, d, DeadLetterFilter{}, false); len(left) != 0 {
		t.Errorf("dead letters %v are left", left)
	}
}
