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
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// TestRun_WorkIsPending_IsCounted audits what is on its way for long: an event that no worker takes, a payment that has
// claimed its hold and waits for Postgres, and a hold that nobody sweeps.
func TestRun_WorkIsPending_IsCounted(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	w := s.harness
	w.startWorkers(1)
	short := w.request("tent", "kim", time.Second, 1)
	conn, err := pgx.Connect(t.Context(), stacktest.Shared().PostgresURL)
	w.must(err)
	defer func() { _ = conn.Close(t.Context()) }()
	tx, err := conn.Begin(t.Context())
	w.must(err)
	_, err = tx.Exec(t.Context(), `UPDATE `+w.namespace+`.inventory SET capacity = capacity`)
	w.must(err)
	w.must(w.client.Publish(t.Context(), w.message(events.PaymentConfirmed, "hall", events.PaymentConfirmedData{HoldID: s.other, PaymentID: "p-olga"})))
	stacktest.Eventually(t, "the claim", func() bool {
		return strings.HasPrefix(w.redis.HGet(t.Context(), w.key("hall", "records"), uuidOf(s.other)).Val(), "confirming ")
	})
	report := w.wantNoFindings()
	if report.Pending.Events != 1 || report.Pending.Oldest == nil {
		t.Errorf("while a payment waits, pending is %+v", report.Pending)
	}
	w.stopWorkers()
	w.must(w.client.Publish(t.Context(), w.message(events.BookingRequested, "hall", "no object")))
	w.awaitDeadline("tent", short)
	report = w.wantNoFindings()
	if p := report.Pending; p.Events != 2 || p.Expirations+p.Announcements == 0 && len(w.outcomes(holds.EventHoldExpired)) < 3 {
		t.Errorf("while nobody works, pending is %+v", p)
	}
	w.must(tx.Rollback(t.Context()))
	w.startWorkers(1)
	stacktest.Eventually(t, "rest", func() bool { return w.audit(audit.Options{}).Pending == audit.Pending{} })
	w.wantNoFindings()
}

// TestRun_Duplicates_CountAsOne publishes an event twice, and stores an outcome twice: both are one.
func TestRun_Duplicates_CountAsOne(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.startWorkers(1)
	m := s.message(events.BookingCancelled, "hall", events.BookingCancelledData{HoldID: s.other})
	for range 2 {
		_, err := s.client.Request(stacktest.WaitContext(t), m)
		s.must(err)
		m.Header.Del("Nats-Msg-Id") // or the stream would drop what comes twice
	}
	e := s.outcomeOf(holds.EventHoldReleased, s.other)
	s.storedAs(e.ID, holds.EventHoldReleased, "hall", e.Subject, e.CausationID, e.Data)
	s.stopWorkers()
	s.wantNoFindings()
}

// TestRun_OldMessagesDropped_Inconclusive drops the older part of each stream, as retention does. What cannot be told
// any more is counted, and no fault.
func TestRun_OldMessagesDropped_Inconclusive(t *testing.T) {
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
			report := s.wantNoFindings()
			if len(report.Inconclusive) == 0 {
				t.Errorf("it does not say what it cannot tell: %+v", report)
			}
			for stream, since := range report.StreamStarts {
				gone := stream == s.subjects.InStream() && (name == "in" || name == "both") || stream == s.subjects.OutStream() && name != "in"
				if since.Whole == gone {
					t.Errorf("%s since %+v", stream, since)
				}
			}
			s.wantWorking()
		})
	}
}

// TestRun_CapacityUnknown_Inconclusive lowers a capacity by SQL below what was once sold, when what it was is not
// told any more: that is no fault, and cannot be told from one.
func TestRun_CapacityUnknown_Inconclusive(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, name := range []string{s.subjects.InStream(), s.subjects.OutStream()} {
		stream, err := s.js.Stream(t.Context(), name)
		s.must(err)
		s.must(stream.Purge(t.Context(), jetstream.WithPurgeSequence(3))) // two of inventory
	}
	s.execute(`UPDATE inventory SET capacity = 1 WHERE slot = 'A-2'`)
	report := s.wantNoFindings()
	if text := strings.Join(report.Inconclusive, "\n"); !strings.Contains(text, "1 slot was taken more than is for sale now, at a time of which the capacity is not known any more") {
		t.Errorf("cannot tell:\n%s", text)
	}
}

// TestRun_DeadLettersRemoved_NoFindings discards letters: their events have none any more, and that is no fault. More
// events without letters than letters were removed is one.
func TestRun_DeadLettersRemoved_NoFindings(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	deadLetters, err := s.client.DeadLetters(t.Context())
	s.must(err)
	s.must(deadLetters.Remove(t.Context(), 1))
	report := s.wantNoFindings()
	if text := strings.Join(report.Inconclusive, "\n"); text != "1 event that cannot be processed has no dead letter any more: as many were removed" {
		t.Errorf("cannot tell:\n%s", text)
	}
	m := s.message(events.BookingRequested, "hall", "no object, again")
	s.answerByHand(m, "", "", nil)
	if got := kinds(s.audit(audit.Options{})); !slices.Equal(got, []string{"no_outcome", "no_outcome"}) {
		t.Errorf("with two events and one letter removed: %v", got)
	}
}

// TestRun_ClockSetBack_NothingOversold tells, by hand, of a hold that was given back before another was asked for, whose
// times lie before it: Redis' clock was set back. Nothing was sold twice.
func TestRun_ClockSetBack_NothingOversold(t *testing.T) {
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
	s.wantNoFindings()
}

func (s *scene) setInventoryByHand(resource string, capacity int64) {
	s.Helper()
	m := s.message(events.InventorySet, resource, events.InventorySetData{ResourceID: resource, Capacity: capacity})
	s.answerByHand(m, holds.EventInventoryUpdated, "", holds.InventoryUpdated{ResourceID: resource, Slots: []holds.SlotCounts{{Slot: "stock", Capacity: capacity}}})
}

// TestRun_LargeResource_FoundAndRepaired makes things wrong on a resource that is looked at in pages.
func TestRun_LargeResource_FoundAndRepaired(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.startWorkers(1)
	w.setInventory("arena", 1_000_000, "a", "b")
	const number = 1100 // more than are looked at in one step, and more than are told one by one
	w.placeMany("arena", number-1, []string{"a", "b"})
	live := w.request("arena", "zoe", time.Hour, 1, "a")
	w.stopWorkers()
	if report := w.wantNoFindings(); report.Stats.Records != number {
		t.Fatalf("checked %+v", report.Stats)
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
		t.Fatalf("found %v\n%s", got, findingsText(report))
	}
	w.must(audit.Repair(ctx, w.backends, report.Findings, memory))
	w.wantNoFindings()
	w.redis.HIncrBy(ctx, w.key("arena", "users"), "zoe", 1) // and no counter
	report = w.audit(audit.Options{})
	if got := kinds(report); !slices.Equal(got, []string{"users"}) {
		t.Fatalf("found %v\n%s", got, findingsText(report))
	}
	w.must(audit.Repair(ctx, w.backends, report.Findings, memory))
	w.wantNoFindings()

	w.redis.HSet(ctx, w.key("arena", "records"), uuidOf(live), "rubbish")
	report = w.audit(audit.Options{})
	if got := kinds(report); !slices.Equal(got, []string{"record"}) {
		t.Errorf("found %v\n%s", got, findingsText(report))
	}
	w.redis.Del(ctx, w.key("arena", "records"))
	w.redis.RPush(ctx, w.key("arena", "records"), "oops")
	report = w.audit(audit.Options{})
	if report.Counts[audit.WrongType] != 1 || report.Counts[audit.HoldLost] != number || len(report.Counts) != 2 || len(report.Findings) != 1001 {
		t.Errorf("found %v, %d of them told", report.Counts, len(report.Findings))
	}
}

// TestRun_ConsumerMissing_IsReported deletes a consumer: what it would take waits, and that is told.
func TestRun_ConsumerMissing_IsReported(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.must(s.js.DeleteConsumer(t.Context(), s.subjects.InStream(), events.ConsumerPayments))
	s.must(s.client.Publish(t.Context(), s.message(events.PaymentConfirmed, "hall", events.PaymentConfirmedData{HoldID: s.other, PaymentID: "p"})))
	report := s.wantNoFindings()
	if text := strings.Join(report.Inconclusive, "\n"); !strings.HasPrefix(text, "consumer payments of ") || report.Pending.Events != 1 {
		t.Errorf("cannot tell:\n%s\npending %+v", text, report.Pending)
	}
}

// TestRun_UnknownKeys_LeftAlone leaves what it does not know alone, and says so.
func TestRun_UnknownKeys_LeftAlone(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	s.redis.Set(ctx, s.key("hall", "colour"), "red", 0)
	s.redis.Set(ctx, fmt.Sprintf("%s:{%d}:hall:counts", s.namespace, (record.Partition("hall")+1)%record.Partitions), "red", 0)
	s.redis.ZAdd(ctx, s.agenda("hall"), redis.Z{Score: 1, Member: "no resource\n"})
	report := s.wantNoFindings()
	if text := strings.Join(report.Inconclusive, "\n"); text != "3 keys or entries in redis are none that this version knows" {
		t.Errorf("cannot tell:\n%s", text)
	}
}

// TestRun_BookedDuringCancel_NothingOversold books a slot between the moment in which a reservation gave it back and the
// one that is told for that, which is read after it. Nothing was sold twice.
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
	s.execute(`UPDATE reservations SET status = 'cancelled', cancelled_by = 'x', cancelled_at = $2 WHERE hold_id = $1`, first, at.Time)
	data, err := json.Marshal(holds.ReservationCancelled{HoldData: holds.HoldData{ResourceID: "cell", HoldID: id}, CancelledAt: at})
	s.must(err)
	s.storedAs(in.OutcomeID, holds.EventReservationCancelled, "cell", first, in.ID, data)
	s.wantNoFindings()
}
