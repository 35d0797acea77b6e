package audit_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/audit"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestPending audits what is on its way for long: an event that no worker takes, a payment that has
// claimed its hold and waits for Postgres, and a hold that nobody sweeps.
func TestPending(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	w := s.town
	w.work(1)
	short := w.request("tent", "kim", time.Second, 1)
	conn, err := pgx.Connect(t.Context(), stacktest.Shared().PostgresURL)
	w.must(err)
	defer func() { _ = conn.Close(t.Context()) }()
	tx, err := conn.Begin(t.Context())
	w.must(err)
	_, err = tx.Exec(t.Context(), `UPDATE `+w.namespace+`.inventory SET capacity = capacity`)
	w.must(err)
	w.must(w.client.Send(t.Context(), w.message(events.PaymentConfirmed, "hall", events.PaymentConfirmedData{HoldID: s.other, PaymentID: "p-olga"})))
	stacktest.Eventually(t, "the claim", func() bool {
		return strings.HasPrefix(w.redis.HGet(t.Context(), w.key("hall", "records"), uuidOf(s.other)).Val(), "confirming ")
	})
	report := w.silent()
	if report.Pending.Events != 1 || report.Pending.Oldest == nil {
		t.Errorf("while a payment waits, pending is %+v", report.Pending)
	}
	w.rest()
	w.must(w.client.Send(t.Context(), w.message(events.BookingRequested, "hall", "no object")))
	w.awaitLapse("tent", short)
	report = w.silent()
	if p := report.Pending; p.Events != 2 || p.Lapses+p.Announcements == 0 && len(w.outcomes(holds.EventHoldExpired)) < 3 {
		t.Errorf("while nobody works, pending is %+v", p)
	}
	w.must(tx.Rollback(t.Context()))
	w.work(1)
	stacktest.Eventually(t, "rest", func() bool { return w.audit(audit.Options{}).Pending == audit.Pending{} })
	w.silent()
}

// TestRepeated publishes an event twice, and stores an outcome twice: both are one.
func TestRepeated(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.work(1)
	m := s.message(events.BookingCancelled, "hall", events.BookingCancelledData{HoldID: s.other})
	for range 2 {
		_, err := s.client.Ask(stacktest.Patience(t), m)
		s.must(err)
		m.Header.Del("Nats-Msg-Id") // or the stream would drop what comes twice
	}
	e := s.outcomeOf(holds.EventHoldReleased, s.other)
	s.storedAs(e.ID, holds.EventHoldReleased, "hall", e.Subject, e.CausationID, e.Data)
	s.rest()
	s.silent()
}

// TestDroppedByRetention drops the older part of each stream, as retention does. What cannot be told
// any more is counted, and no fault.
func TestDroppedByRetention(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"in", "out", "both", "out, all of it"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			purge := func(stream string, upTo int) {
				found, err := s.js.Stream(t.Context(), stream)
				s.must(err)
				info, err := found.Info(t.Context())
				s.must(err)
				s.must(found.Purge(t.Context(), jetstream.WithPurgeSequence(info.State.LastSeq+uint64(upTo))))
			}
			if name == "in" || name == "both" {
				purge(s.subjects.InStream(), -4)
			}
			switch name {
			case "out", "both":
				purge(s.subjects.OutStream(), -4)
			case "out, all of it":
				purge(s.subjects.OutStream(), 1)
			}
			report := s.silent()
			if len(report.CannotTell) == 0 {
				t.Errorf("it does not say what it cannot tell: %+v", report)
			}
			for stream, since := range report.Since {
				gone := stream == s.subjects.InStream() && (name == "in" || name == "both") || stream == s.subjects.OutStream() && name != "in"
				if since.Whole == gone {
					t.Errorf("%s since %+v", stream, since)
				}
			}
			s.worksOn()
		})
	}
}

// TestSoldMoreThanIsKnown lowers a capacity by SQL below what was once sold, when what it was is not
// told any more: that is no fault, and cannot be told from one.
func TestSoldMoreThanIsKnown(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, name := range []string{s.subjects.InStream(), s.subjects.OutStream()} {
		stream, err := s.js.Stream(t.Context(), name)
		s.must(err)
		s.must(stream.Purge(t.Context(), jetstream.WithPurgeSequence(3))) // two of inventory
	}
	s.execute(`UPDATE inventory SET capacity = 1 WHERE slot = 'A-2'`)
	report := s.silent()
	if text := strings.Join(report.CannotTell, "\n"); !strings.Contains(text, "1 slot was taken more than is for sale now, at a time of which the capacity is not known any more") {
		t.Errorf("cannot tell:\n%s", text)
	}
}

// TestLettersRemoved discards letters: their events have none any more, and that is no fault. More
// events without letters than letters were removed is one.
func TestLettersRemoved(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	letters, err := s.client.DeadLetters(t.Context())
	s.must(err)
	s.must(letters.Remove(t.Context(), 1))
	report := s.silent()
	if text := strings.Join(report.CannotTell, "\n"); text != "1 event that cannot be processed has no dead letter any more: as many were removed" {
		t.Errorf("cannot tell:\n%s", text)
	}
	m := s.message(events.BookingRequested, "hall", "no object, again")
	s.answerByHand(m, "", "", nil)
	if got := kinds(s.audit(audit.Options{})); !slices.Equal(got, []string{"no_outcome", "no_outcome"}) {
		t.Errorf("with two events and one letter removed: %v", got)
	}
}

// TestClockSetBack tells, by hand, of a hold that was given back before another was asked for, whose
// times lie before it: Redis' clock was set back. Nothing was sold twice.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.setInventoryByHand("cell", 1)
	now := s.redis.Time(t.Context()).Val().UTC().Truncate(time.Millisecond)
	one := int64(1)
	for i, hour := range []int{2, 1} { // later by its clock, and then earlier
		id, err := holds.NewHoldID("cell")
		s.must(err)
		at := now.Add(time.Duration(hour)*time.Hour - 12*time.Hour)
		until := at.Add(2 * time.Hour)
		key := fmt.Sprintf("k%d", i)
		data := holds.HoldData{ResourceID: "cell", HoldID: id, RequestKey: key, UserID: "ann", Quantity: &one}
		m := s.message(events.BookingRequested, "cell", events.BookingRequestedData{RequestKey: key, UserID: "ann", ResourceID: "cell", Quantity: 1})
		s.answerByHand(m, holds.EventHoldCreated, id.String(), holds.HoldCreated{HoldData: data, CreatedAt: holds.Time{Time: at}, ExpiresAt: holds.Time{Time: until}})
		m = s.message(events.BookingCancelled, "cell", events.BookingCancelledData{HoldID: id.String()})
		s.answerByHand(m, holds.EventHoldReleased, id.String(), holds.HoldReleased{HoldData: data, ReleasedAt: holds.Time{Time: until.Add(-time.Second)}})
	}
	s.silent()
}

func (s *scene) setInventoryByHand(resource string, capacity int64) {
	s.Helper()
	m := s.message(events.InventorySet, resource, events.InventorySetData{ResourceID: resource, Capacity: capacity})
	s.answerByHand(m, holds.EventInventoryUpdated, "", holds.InventoryUpdated{ResourceID: resource, Slots: []holds.SlotStock{{Slot: "stock", Capacity: capacity}}})
}

// TestLarge makes things wrong on a resource that is looked at in pages.
func TestLarge(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.work(1)
	w.setInventory("arena", 1_000_000, "a", "b")
	const number = 1100 // more than are looked at in one step, and more than are told one by one
	w.fill("arena", number-1, []string{"a", "b"})
	live := w.request("arena", "zoe", time.Hour, 1, "a")
	w.rest()
	if report := w.silent(); report.Checked.Records != number {
		t.Fatalf("checked %+v", report.Checked)
	}
	ctx := t.Context()
	w.redis.HIncrBy(ctx, w.key("arena", "counts"), "a", -3)
	w.redis.HSet(ctx, w.key("arena", "counts"), "c", "1")
	w.redis.HSet(ctx, w.key("arena", "users"), "nobody", "1")
	w.redis.ZRem(ctx, w.key("arena", "due"), uuidOf(live))
	w.redis.ZAdd(ctx, w.key("arena", "due"), redis.Z{Score: 4e12, Member: strings.Repeat("0", 32)})
	w.redis.ZAdd(ctx, w.key("arena", "tombstones"), redis.Z{Score: 4e12, Member: strings.Repeat("1", 32)})
	w.redis.Del(ctx, w.key("arena", "hold:"+uuidOf(live)))
	w.redis.Set(ctx, w.key("arena", "rev"), "x", 0)
	report := w.audit(audit.Options{})
	if got := kinds(report); !slices.Equal(got, []string{"counter", "counter", "due", "due", "hold_key", "rev", "tombstone", "users"}) {
		t.Fatalf("found %v\n%s", got, told(report))
	}
	w.must(audit.Repair(ctx, w.servers, report.Findings, memory))
	w.silent()
	w.redis.HIncrBy(ctx, w.key("arena", "users"), "zoe", 1) // and no counter
	report = w.audit(audit.Options{})
	if got := kinds(report); !slices.Equal(got, []string{"users"}) {
		t.Fatalf("found %v\n%s", got, told(report))
	}
	w.must(audit.Repair(ctx, w.servers, report.Findings, memory))
	w.silent()

	w.redis.HSet(ctx, w.key("arena", "records"), uuidOf(live), "rubbish")
	report = w.audit(audit.Options{})
	if got := kinds(report); !slices.Equal(got, []string{"record"}) {
		t.Errorf("found %v\n%s", got, told(report))
	}
	w.redis.Del(ctx, w.key("arena", "records"))
	w.redis.RPush(ctx, w.key("arena", "records"), "oops")
	report = w.audit(audit.Options{})
	if report.Counts[audit.WrongType] != 1 || report.Counts[audit.HoldLost] != number || len(report.Counts) != 2 || len(report.Findings) != 1001 {
		t.Errorf("found %v, %d of them told", report.Counts, len(report.Findings))
	}
}

// TestConsumerMissing deletes a consumer: what it would take waits, and that is told.
func TestConsumerMissing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.must(s.js.DeleteConsumer(t.Context(), s.subjects.InStream(), events.ConsumerPayments))
	s.must(s.client.Send(t.Context(), s.message(events.PaymentConfirmed, "hall", events.PaymentConfirmedData{HoldID: s.other, PaymentID: "p"})))
	report := s.silent()
	if text := strings.Join(report.CannotTell, "\n"); !strings.HasPrefix(text, "consumer payments of ") || report.Pending.Events != 1 {
		t.Errorf("cannot tell:\n%s\npending %+v", text, report.Pending)
	}
}

// TestKeysOfOthers leaves what it does not know alone, and says so.
func TestKeysOfOthers(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	s.redis.Set(ctx, s.key("hall", "colour"), "red", 0)
	s.redis.Set(ctx, fmt.Sprintf("%s:{%d}:hall:counts", s.namespace, (holds.Partition("hall")+1)%holds.Partitions), "red", 0)
	s.redis.ZAdd(ctx, s.agenda("hall"), redis.Z{Score: 1, Member: "no resource\n"})
	report := s.silent()
	if text := strings.Join(report.CannotTell, "\n"); text != "3 keys or entries in redis are none that this version knows" {
		t.Errorf("cannot tell:\n%s", text)
	}
}

// TestBookedWhileCancelled books a slot between the moment in which a reservation gave it back and the
// one that is told for that, which is read after it. Nothing was sold twice.
func TestBookedWhileCancelled(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.work(1)
	s.setInventory("cell", 1)
	first := s.request("cell", "ana", time.Hour, 1)
	s.pay(first, "p-ana")
	s.rest()
	m := s.message(events.ReservationCancelled, "cell", events.ReservationCancelledData{HoldID: first})
	s.answerByHand(m, "", "", nil)
	s.execute(`UPDATE inventory SET reserved = 0 WHERE resource_id = 'cell'`)
	s.work(1)
	if s.request("cell", "ben", time.Hour, 1) == "" {
		t.Fatal("the slot was not given back")
	}
	s.rest()
	in, err := s.subjects.Decode(m.Subject, m.Header, m.Data, time.Now())
	s.must(err)
	id, err := holds.ParseHoldID(first)
	s.must(err)
	at := holds.Time{Time: s.redis.Time(t.Context()).Val().UTC().Truncate(time.Millisecond)}
	s.execute(`UPDATE reservations SET status = 'cancelled', cancelled_by = 'x', cancelled_at = $2 WHERE hold_id = $1`, first, at.Time)
	data, err := json.Marshal(holds.ReservationCancelled{HoldData: holds.HoldData{ResourceID: "cell", HoldID: id}, CancelledAt: at})
	s.must(err)
	s.storedAs(in.OutcomeID, holds.EventReservationCancelled, "cell", first, in.ID, data)
	s.silent()
}
