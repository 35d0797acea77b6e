package audit

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// TestCheckEvents_TrimmedAfterOutage_NoFinding has an outcome whose event was removed. The event
// may have waited through an outage of two days: then another event that is still in the stream has
// waited as long.
func TestCheckEvents_TrimmedAfterOutage_NoFinding(t *testing.T) {
	t.Parallel()
	at := func(hours int) time.Time { return time.Date(2026, 11, 1, hours, 0, 0, 0, time.UTC) }
	for name, c := range map[string]struct {
		answered int // when the event that is still in the stream was answered, hours
		findings int
	}{
		"others waited as long": {49, 0},
		"others did not wait":   {1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := &group{
				auditor: &auditor{subjects: "holdfast"}, dlq: &stream{}, out: &stream{},
				in:      &stream{since: at(1), state: jetstream.StreamState{FirstSeq: 2}},
				events:  map[id]*event{{1}: {seqs: []uint64{2}, stored: at(1).UnixMilli(), name: events.BookingRequested}},
				orphans: []orphan{{id{2}, 1, at(48).UnixMilli(), holds.EventHoldRejected, 0}},

				inconclusive: make(inconclusive),
			}
			g.addOutcome(id{1}, message{seq: 2, stored: at(c.answered).UnixMilli()}, holds.EventHoldRejected, 0)
			if found := g.checkEvents(); len(found) != c.findings || g.inconclusive[eventsDropped] != 1-c.findings {
				t.Errorf("found %+v, %d inconclusive", found, g.inconclusive[eventsDropped])
			}
		})
	}
}
