package audit_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/audit"
	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// TestRun_CapacityCut_OnlyGrantsBeyondItFound cuts a capacity below what is held. That is no
// finding, and neither is the payment that is refused because of it, or what is sold after SQL has
// raised the capacity. A grant beyond the published capacity is a finding if no capacity is written
// by SQL, else it is inconclusive.
func TestRun_CapacityCut_OnlyGrantsBeyondItFound(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.startWorkers(1)
	s.setInventory("hall", 1, "A-2") // ana holds two
	if got := s.pay(s.live, "p-ana"); got != events.Type(holds.EventConfirmRejected) {
		t.Fatalf("the payment was answered %s", got)
	}
	s.setInventory("hall", 5, "A-1")
	s.publish(events.BookingCancelled, "hall", events.BookingCancelledData{HoldID: s.other})
	s.stopWorkers()
	both := func(want ...string) *audit.Report {
		t.Helper()
		if got := kinds(s.audit(audit.Options{CapacityByEvents: true})); !slices.Equal(got, want) {
			t.Errorf("by published capacities found %v, want %v", got, want)
		}
		return s.audit(audit.Options{})
	}
	if report := both(); len(report.Findings) > 0 || len(report.Inconclusive) > 0 {
		t.Errorf("after the cut:\n%s", findingsText(report))
	}

	// A request within a second of the cut may have been decided before it, and an outcome within a
	// second of a raise may follow it.
	s.startWorkers(1)
	s.outlast()
	s.stopWorkers()
	s.execute(`UPDATE inventory SET capacity = 5 WHERE slot = 'A-2'`)
	s.startWorkers(1)
	if s.request("hall", "pia", time.Hour, 1, "A-2") == "" {
		t.Fatal("refused after SQL has raised the capacity")
	}
	s.stopWorkers()
	report := both("oversold")
	if len(report.Findings) > 0 ||
		!regexp.MustCompile(`^slots granted beyond their last published capacity, .*: 1$`).MatchString(strings.Join(report.Inconclusive, "\n")) {
		t.Errorf("after a grant beyond the published capacity:\n%s", findingsText(report))
	}
	s.startWorkers(1)
	s.outlast()
	s.setInventory("hall", 5, "A-2")
	if s.request("hall", "quinn", time.Hour, 2, "A-2") == "" || s.request("hall", "rob", time.Hour, 1, "A-2") != "" {
		t.Error("A-2 does not have room for exactly two more")
	}
	s.stopWorkers()
	both("oversold")
}

// TestRun_CapacityUnknown_Inconclusive lowers a capacity by SQL below what was sold before, after
// the events with the earlier capacity were dropped. That is inconclusive, and no finding.
func TestRun_CapacityUnknown_Inconclusive(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, name := range []string{s.subjects.InStream(), s.subjects.OutStream()} {
		stream, err := s.js.Stream(t.Context(), name)
		s.must(err)
		s.must(stream.Purge(t.Context(), jetstream.WithPurgeSequence(3))) // the two of inventory
	}
	s.execute(`UPDATE inventory SET capacity = 1 WHERE slot = 'A-2'`)
	report := s.wantNoFindings()
	if text := strings.Join(report.Inconclusive, "\n"); !strings.Contains(text,
		"slots taken beyond their current capacity at times whose capacity is unknown: 1") {
		t.Errorf("inconclusive:\n%s", text)
	}
}

// TestRun_ClockSetBack_NothingOversold stores by hand a hold that was released before another was
// requested. The times of the second lie before the first, as after a step back of Redis' clock.
// The slot was not sold twice.
func TestRun_ClockSetBack_NothingOversold(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.setInventoryByHand("cell", 1)
	now := s.redis.Time(t.Context()).Val().UTC().Truncate(time.Millisecond)
	for i, hour := range []int{2, 1} { // the second hold is earlier by Redis' clock
		at := now.Add(time.Duration(hour)*time.Hour - 12*time.Hour)
		s.heldByHand(fmt.Sprintf("k%d", i), at, at.Add(2*time.Hour-time.Second))
	}
	s.wantNoFindings()
}

// heldByHand stores a hold of the slot of cell for two hours, and its release.
func (s *scene) heldByHand(key string, at, releasedAt time.Time) {
	s.Helper()
	s.heldAs(holds.NewHoldID("cell"), key, at, releasedAt, false)
}

// heldAs is heldByHand for a hold with an id, whose hold.created is replayed or its own.
func (s *scene) heldAs(id holds.HoldID, key string, at, releasedAt time.Time, replayed bool) {
	s.Helper()
	one := int64(1)
	data := holds.HoldData{ResourceID: "cell", HoldID: id, RequestKey: key, UserID: "ann", Quantity: &one}
	m := s.message(events.BookingRequested, "cell",
		events.BookingRequestedData{RequestKey: key, UserID: "ann", ResourceID: "cell", Quantity: 1})
	s.answerByHand(m, holds.EventHoldCreated, id.String(), holds.HoldCreated{
		HoldData: data, CreatedAt: holds.Time{Time: at}, ExpiresAt: holds.Time{Time: at.Add(2 * time.Hour)}, Replayed: replayed,
	})
	m = s.message(events.BookingCancelled, "cell", events.BookingCancelledData{HoldID: id.String()})
	s.answerByHand(m, holds.EventHoldReleased, id.String(),
		holds.HoldReleased{HoldData: data, ReleasedAt: holds.Time{Time: releasedAt}})
}

// TestRun_CreationGuessed_NothingOversold stores by hand a hold whose hold.created was lost with Redis: the answer to its
// request has the time of its id, by a clock half an hour behind that of Redis. It took the slot of a hold that had been
// released, not that of one that was granted after this time.
func TestRun_CreationGuessed_NothingOversold(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.startWorkers(1)
	s.setInventory("cell", 2)
	released := s.request("cell", "ben", time.Hour, 1)
	s.request("cell", "cleo", time.Hour, 1)
	s.publish(events.BookingCancelled, "cell", events.BookingCancelledData{HoldID: released})
	s.stopWorkers()
	now := s.redis.Time(t.Context()).Val().UTC().Truncate(time.Millisecond)
	id := holds.NewHoldID("cell")
	guess := now.Add(-30 * time.Minute)
	id.UUID = fmt.Sprintf("%012x", guess.UnixMilli()) + id.UUID[12:]
	s.heldAs(id, "k", guess, now, true)
	s.wantNoFindings()
}

// TestRun_CancelledBeforeClockSetBack_NothingOversold stores by hand a hold that was requested after a reservation had been
// cancelled. Its times lie before the reservation, as after a step back of Redis' clock. The slot was not sold twice.
func TestRun_CancelledBeforeClockSetBack_NothingOversold(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.startWorkers(1)
	s.setInventory("cell", 1)
	paid := s.request("cell", "ana", time.Hour, 1)
	s.pay(paid, "p-ana")
	s.publish(events.ReservationCancelled, "cell", events.ReservationCancelledData{HoldID: paid})
	s.stopWorkers()
	at := read[holds.HoldCreated](s, s.outcomeOf(holds.EventHoldCreated, paid)).CreatedAt.Time
	s.heldByHand("k", at.Add(-time.Hour), at.Add(time.Millisecond))
	s.wantNoFindings()
}

// TestRun_PaidLateAfterClockSetBack_NothingOversold stores by hand a hold that was released before a late payment took its
// slot. Its times lie after the payment, as before a step back of Redis' clock. The slot was not sold twice.
func TestRun_PaidLateAfterClockSetBack_NothingOversold(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.startWorkers(1)
	s.setInventory("cell", 1)
	expired := len(s.outcomes(holds.EventHoldExpired))
	paid := s.request("cell", "ana", time.Second, 1)
	s.awaitOutcomes(holds.EventHoldExpired, expired+1)
	s.stopWorkers()
	at := s.redis.Time(t.Context()).Val().UTC().Truncate(time.Millisecond).Add(time.Hour)
	s.heldByHand("k", at, at.Add(time.Hour))
	s.startWorkers(1)
	if got := s.pay(paid, "p-ana"); got != events.Type(holds.EventHoldConfirmed) {
		t.Fatalf("the late payment was answered %s", got)
	}
	s.stopWorkers()
	s.wantNoFindings()
}

// TestRun_BookedDuringCancel_NothingOversold books a slot after a reservation has given it back and
// before the published cancelled_at, which is read later. The slot was not sold twice.
func TestRun_BookedDuringCancel_NothingOversold(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.startWorkers(1)
	s.setInventory("cell", 1)
	first := s.request("cell", "ana", time.Hour, 1)
	s.pay(first, "p-ana")
	s.stopWorkers()
	m := s.message(events.ReservationCancelled, "cell", events.ReservationCancelledData{HoldID: first})
	s.answerByHand(m, "", "", nil)
	s.execute(`UPDATE inventory SET reserved = 0 WHERE resource_id = 'cell'`)
	s.startWorkers(1)
	if s.request("cell", "ben", time.Hour, 1) == "" {
		t.Fatal("the slot was not given back")
	}
	s.stopWorkers()
	in, err := s.subjects.Decode(m.Subject, m.Header, m.Data, time.Now())
	s.must(err)
	id, err := holds.ParseHoldID(first)
	s.must(err)
	at := holds.Time{Time: s.redis.Time(t.Context()).Val().UTC().Truncate(time.Millisecond)}
	s.execute(`UPDATE reservations SET status = 'cancelled', cancelled_by = 'x', cancelled_at = $2 WHERE hold_id = $1`,
		first, at.Time)
	data, err := json.Marshal(holds.ReservationCancelled{HoldData: holds.HoldData{ResourceID: "cell", HoldID: id},
		CancelledAt: at})
	s.must(err)
	s.storedAs(in.OutcomeID, holds.EventReservationCancelled, "cell", first, in.ID, data)
	s.wantNoFindings()
}
