package audit_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/audit"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// corruption is something that is made wrong by hand, and what an audit has to say of it.
type corruption struct {
	name      string
	apply     func(s *scene)
	wantKinds string // the kinds of the findings, sorted
	wantText  string // what one of them says, with the placeholders of scene.fill
	// wantAfter are the events after which the findings are so, sorted and without repeats.
	wantAfter string
	// repairable says that a repair mends it; else it is told that people must.
	repairable bool
}

// The damages of what Redis keeps.
var inRedis = []corruption{
	{"a counter is too high", hset("counts", "A-1", "7"), "counter", "Redis counts 7 held of slot A-1 of hall; its live holds take 3.", "hold.confirmed", true},
	{"a counter is too low", hset("counts", "A-2", "1"), "counter", "Redis counts 1 held of slot A-2 of hall; its live holds take 2.", "hold.released", true},
	{"a counter is negative", hset("counts", "A-2", "-4"), "counter", "Redis counts -4 held of slot A-2 of hall; its live holds take 2.", "hold.released", true},
	{"a counter is no number", hset("counts", "A-2", "many\x1b[31m"), "counter", "Redis counts nonsense held of slot A-2", "hold.released", true},
	{"a counter is missing", func(s *scene) { s.redis.HDel(s.Context(), s.key("hall", "counts"), "A-2") }, "counter", "Redis counts 0 held of slot A-2", "hold.released", true},
	{"a counter is of no hold", hset("counts", "B-9", "1"), "counter", "Redis counts 1 held of slot B-9 of hall; its live holds take 0.", "", true},
	{"the counters are a list", replaced("counts", "oops"), "counter counter type", "The key counts of hall is a list, and should be a hash", "hold.confirmed hold.extended hold.released", true},
	{"the counters are gone", deleted("counts"), "counter counter", "Redis counts 0 held of slot A-1 of hall; its live holds take 3.", "hold.confirmed hold.released", true},
	{"a user has too many", hset("users", "ana", "3"), "users", "Redis counts 3 live holds of user ana on hall; there are 1.", "hold.created", true},
	{"a user is left over", hset("users", "zoe", "1"), "users", "Redis counts 1 live holds of user zoe on hall; there are 0.", "", true},
	{"the users are a list", replaced("users", "oops"), "index index type users users", "The key users of hall is a list", "hold.created hold.extended", true},
	{
		"a deadline is missing", func(s *scene) { s.redis.ZRem(s.Context(), s.key("hall", "due"), uuidOf(s.live)) },
		"due", "is not in the deadline index: it would never lapse.", "hold.extended", true,
	},
	{
		"a deadline is wrong", func(s *scene) { s.redis.ZIncrBy(s.Context(), s.key("hall", "due"), 60_000, uuidOf(s.other)) },
		"due", "the deadline index says", "hold.created", true,
	},
	{
		"an ended hold is due", func(s *scene) {
			s.redis.ZAdd(s.Context(), s.key("hall", "due"), redis.Z{Score: 4e12, Member: uuidOf(s.given)})
		},
		"due", "is in the deadline index with 2096-10-02T07:06:40.000Z and is not held.", "hold.released", true,
	},
	{
		"nobody is due", func(s *scene) {
			s.redis.ZAdd(s.Context(), s.key("hall", "due"), redis.Z{Score: 4e12, Member: strings.Repeat("0", 32)})
		}, "due", "and is not held.", "", true,
	},
	{"the deadlines are a list", replaced("due", "oops"), "due due type", "The key due of hall is a list", "hold.created hold.extended", true},
	{"the deadlines are gone", deleted("due"), "due due", "it would never lapse.", "hold.created hold.extended", true},
	{
		"the hint is missing", func(s *scene) { s.redis.Del(s.Context(), s.key("hall", "hold:"+uuidOf(s.live))) },
		"hold_key", "and its key is missing: no notification will tell that it lapses.", "hold.extended", true,
	},
	{
		"the hint comes never", func(s *scene) { s.redis.Persist(s.Context(), s.key("hall", "hold:"+uuidOf(s.live))) },
		"hold_key", "and its key lasts until \"for ever\".", "hold.extended", true,
	},
	{
		"a hint is a list", func(s *scene) {
			s.redis.Del(s.Context(), s.key("hall", "hold:"+uuidOf(s.live)))
			s.redis.RPush(s.Context(), s.key("hall", "hold:"+uuidOf(s.live)), "oops")
		}, "hold_key", `and its key lasts until "a list".`, "hold.extended", true,
	},
	{
		"a hint is left over", func(s *scene) { s.redis.Set(s.Context(), s.key("hall", "hold:"+uuidOf(s.over)), "{}", 0) },
		"residue", "is left over: the hold is expired.", "hold.expired", true,
	},
	{
		"a start of payment is left over", func(s *scene) { s.redis.Set(s.Context(), s.key("hall", "started:"+uuidOf(s.paid)), "1", time.Hour) },
		"residue", "is left over: the hold is confirmed.", "hold.confirmed", true,
	},
	{
		"an index is missing", func(s *scene) { s.redis.HDel(s.Context(), s.key("hall", "users"), s.indexOf("ana", "A-1,A-2")) },
		"index", "not in the index of its user: the same user could hold the same slots twice.", "hold.extended", true,
	},
	{
		"an index names another hold", func(s *scene) {
			s.redis.HSet(s.Context(), s.key("hall", "users"), s.indexOf("ana", "A-1,A-2"), uuidOf(s.given))
		},
		"index residue", "and the index of its user names", "hold.extended", true,
	},
	{
		"an index is left over", func(s *scene) {
			s.redis.HSet(s.Context(), s.key("hall", "users"), s.indexOf("cleo", "A-2"), uuidOf(s.given))
		},
		"residue", "is left over: the hold is released.", "", true,
	},
	{
		"an index of nobody", func(s *scene) {
			s.redis.HSet(s.Context(), s.key("hall", "users"), s.indexOf("zoe", "A-2"), strings.Repeat("0", 32))
		},
		"residue", "is left over: there is no such hold.", "", true,
	},
	{
		"an answer never ends", func(s *scene) { s.redis.Persist(s.Context(), s.key("hall", "request:key-of-gus")) },
		"residue", "The key request:key-of-gus of hall is left over: it has no end.", "", true,
	},
	{
		"an answer is missing", func(s *scene) { s.redis.Del(s.Context(), s.key("hall", "request:key-of-ana")) },
		"request", "Redis does not remember it as the answer to its request", "hold.extended", false,
	},
	{
		"a lock never ends", func(s *scene) { s.redis.HSet(s.Context(), s.key("hall", "locks"), "A-1", "x:1.y 1") },
		"residue", "The key locks of hall is left over: it has no end.", "", true,
	},
	{
		"a record is kept for ever", func(s *scene) { s.redis.ZRem(s.Context(), s.key("hall", "tombstones"), uuidOf(s.paid)) },
		"tombstone", "has ended, and nothing will ever drop its record.", "hold.confirmed", true,
	},
	{
		"a live hold is to be dropped", func(s *scene) {
			s.redis.ZAdd(s.Context(), s.key("hall", "tombstones"), redis.Z{Score: 4e12, Member: uuidOf(s.live)})
		}, "tombstone", "has not ended or is not known, and what there is of it is to be dropped", "hold.extended", true,
	},
	{
		"a live hold is to be announced", func(s *scene) {
			s.redis.ZAdd(s.Context(), s.key("hall", "departing"), redis.Z{Score: 4e12, Member: uuidOf(s.live)})
		}, "departing", "it has not lapsed or was announced.", "hold.extended", true,
	},
	{
		"a lapsed hold is forgotten", func(s *scene) { s.redis.ZRem(s.Context(), s.key("hall", "tombstones"), uuidOf(s.over)) },
		"departing", "neither has its hold.expired to be announced nor remembers that it was.", "hold.expired", true,
	},
	{"the tombstones are a list", replaced("tombstones", "oops"), "departing tombstone tombstone type", "The key tombstones of hall is a list", "hold.confirmed hold.expired hold.extended hold.released", true},
	{
		"a resource is not on the agenda", func(s *scene) { s.redis.ZRem(s.Context(), s.agenda("hall"), "hall") },
		"agenda", "and it is not on the agenda: the sweep does not look at it.", "hold.extended", true,
	},
	{
		"the agenda is late", func(s *scene) { s.redis.ZAdd(s.Context(), s.agenda("hall"), redis.Z{Score: 4e12, Member: "hall"}) },
		"agenda", "and the agenda says 2096-10-02T07:06:40.000Z: the sweep looks too late.", "hold.extended", true,
	},
	{
		"the agenda has what is over", func(s *scene) {
			s.redis.ZAdd(s.Context(), s.agenda("ghost"), redis.Z{Score: 4e12, Member: "ghost"})
		}, "agenda", "Nothing is to be done about ghost, and it is on the agenda with 2096-10-02T07:06:40.000Z.", "", true,
	},
	{
		"the agenda is a list", func(s *scene) {
			s.redis.Del(s.Context(), s.agenda("hall"))
			s.redis.RPush(s.Context(), s.agenda("hall"), "oops")
		}, "agenda type", "The key agenda of hall is a list, and should be a zset", "hold.extended", true,
	},
	{"rev is no number", func(s *scene) { s.redis.Set(s.Context(), s.key("hall", "rev"), "x", 0) }, "rev", "What counts the changes of hall is no number", "hold.extended", true},
	{"rev is a list", replaced("rev", "oops"), "type", "The key rev of hall is a list, and should be a string", "hold.extended", true},
	{
		"a record cannot be read", func(s *scene) { s.redis.HSet(s.Context(), s.key("hall", "records"), uuidOf(s.given), "rubbish") },
		"record", "cannot be read: it is 7 characters that are none. What it takes is not known", "hold.released", false,
	},
	{
		"the record of a live hold cannot be read", func(s *scene) { s.redis.HSet(s.Context(), s.key("hall", "records"), uuidOf(s.live), "rubbish") },
		"record", "cannot be read: it is 7 characters that are none. What it takes is not known", "hold.extended", false,
	},
	{
		"there is a record of no hold", func(s *scene) {
			s.redis.HSet(s.Context(), s.key("hall", "records"), "tom", "held 4000000000000 1 1 0 - u k A-1 {} ")
		}, "record", "The record of hold tom of hall cannot be read", "", false,
	},
	{"the records are a list", replaced("records", "oops"), "hold_lost hold_lost type", "All holds of the resource are lost with it", "hold.created hold.extended", false},
}

func hset(key, field, value string) func(*scene) {
	return func(s *scene) { s.redis.HSet(s.Context(), s.key("hall", key), field, value) }
}

func deleted(key string) func(*scene) {
	return func(s *scene) { s.redis.Del(s.Context(), s.key("hall", key)) }
}

func replaced(key, value string) func(*scene) {
	return func(s *scene) {
		s.redis.Del(s.Context(), s.key("hall", key))
		s.redis.RPush(s.Context(), s.key("hall", key), value)
	}
}

// afters are the events after which what was found can have been so, without repeats.
func afters(r *audit.Report) (all []string) {
	for _, f := range r.Findings {
		if f.After != nil {
			all = append(all, f.After.Type)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (s *harness) agenda(resource string) string {
	return fmt.Sprintf("%s:{%d}:agenda", s.namespace, record.Partition(resource))
}

func (s *harness) indexOf(user, slots string) string {
	return user + " " + s.sha1(slots)
}

func (s *harness) sha1(text string) string {
	s.Helper()
	sum, err := s.redis.Eval(s.Context(), "return redis.sha1hex(ARGV[1])", nil, text).Text()
	s.must(err)
	return sum
}

// corruptionsAtOnce is how many towns are damaged at a time, however few processors there are: most of
// the time they wait for holds to lapse.
const corruptionsAtOnce = 8

// TestRun_EachCorruption_FoundAndRepaired makes each thing wrong by hand, and sees that an audit finds just that, says what it is
// and since when, that a repair mends what can be mended, and that nothing is found after it.
func TestRun_EachCorruption_FoundAndRepaired(t *testing.T) {
	t.Parallel()
	turns := make(chan struct{}, corruptionsAtOnce)
	var all sync.WaitGroup
	defer all.Wait()
	for _, d := range stacktest.Sample(slices.Concat(inRedis, inPostgres, inStreams, inHistories)) {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			t.Run(strings.ReplaceAll(d.name, " ", "_"), d.check)
		})
	}
}

func (d corruption) check(t *testing.T) {
	s := newScene(t)
	d.apply(s)
	report := s.audit(audit.Options{})
	if got := strings.Join(kinds(report), " "); got != d.wantKinds {
		t.Fatalf("found %q, want %q:\n%s", got, d.wantKinds, findingsText(report))
	}
	if !strings.Contains(findingsText(report), d.wantText) {
		t.Errorf("nothing says %q:\n%s", d.wantText, findingsText(report))
	}
	if after := strings.Join(afters(report), " "); after != d.wantAfter {
		t.Errorf("it is so after %q, want %q:\n%s", after, d.wantAfter, findingsText(report))
	}
	for _, f := range report.Findings {
		if f.Automatic != d.repairable {
			t.Errorf("automatic is %v:\n%s", f.Automatic, findingsText(report))
		}
	}
	s.must(audit.Repair(t.Context(), s.backends, report.Findings, memory))
	if !d.repairable {
		if again := s.audit(audit.Options{}); !slices.Equal(kinds(again), kinds(report)) {
			t.Errorf("what is not mended has changed:\n%s", findingsText(again))
		}
		return
	}
	if left := report.Unrepaired(); left != 0 {
		t.Errorf("%d differences are left:\n%s", left, findingsText(report))
	}
	s.wantNoFindings()
	s.wantWorking()
}

// wantWorking fails the test unless the town works as if nothing had been.
func (s *scene) wantWorking() {
	s.Helper()
	s.startWorkers(1)
	hugo := s.request("hall", "hugo", time.Hour, 2, "A-2")
	if hugo == "" || s.request("hall", "ida", time.Hour, 2, "A-2") != "" {
		s.Error("A-2 does not have room for two more, or has room for four")
	}
	if o := s.pay(hugo, "p-hugo"); o != events.Type(holds.EventHoldConfirmed) {
		s.Errorf("hugo's payment was answered %s", o)
	}
	s.stopWorkers()
	s.wantNoFindings()
}

var inPostgres = []corruption{
	{
		"too much is reserved", func(s *scene) { s.execute(`UPDATE inventory SET reserved = 3 WHERE slot = 'A-1'`) },
		"reserved", "Postgres has 3 reserved of slot A-1 of hall; its confirmed reservations take 1.", "hold.confirmed", true,
	},
	{
		"too little is reserved", func(s *scene) { s.execute(`UPDATE inventory SET reserved = 0 WHERE slot = 'A-1'`) },
		"reserved", "Postgres has 0 reserved of slot A-1 of hall; its confirmed reservations take 1.", "hold.confirmed", true,
	},
	{
		"a reservation is gone", func(s *scene) { s.execute(`DELETE FROM reservations WHERE hold_id = $1`, s.cancelled) },
		"cancellation_differs payment_without_reservation", "was paid by p-fay according to Postgres, and there is no reservation.", "hold.confirmed reservation.cancelled", false,
	},
	{
		"a payment is gone", func(s *scene) { s.execute(`DELETE FROM payments WHERE payment_id = 'p-ben'`) },
		"answer_unrecorded reservation_without_payment", "is a reservation by payment p-ben, and Postgres has no such payment confirmed.", "hold.confirmed", false,
	},
	{
		"a refusal is gone", func(s *scene) { s.execute(`DELETE FROM payments WHERE payment_id = 'p-ben-2'`) },
		"answer_unrecorded", "has the answer rejected, already_confirmed to payment p-ben-2", "hold.confirm_rejected", false,
	},
	{
		"a refusal has another reason", func(s *scene) { s.execute(`UPDATE payments SET reason = 'expired' WHERE payment_id = 'p-ben-2'`) },
		"answer_differs", "; Postgres has rejected, expired.", "hold.confirm_rejected", false,
	},
	{
		"a payment was never told", func(s *scene) {
			s.execute(`INSERT INTO payments (hold_id, payment_id, outcome, reason, decided_at, hold) VALUES ($1, 'p-x', 'rejected', 'expired', now(), '{}')`, s.over)
		}, "answer_untold", "has the answer rejected, expired to payment p-x in Postgres since", "hold.expired", false,
	},
	{
		"a hold is paid twice", func(s *scene) {
			s.execute(`UPDATE payments SET outcome = 'confirmed', reason = NULL WHERE payment_id = 'p-ben-2'`)
		}, "answer_differs payment_without_reservation two_answers", "was paid more than once: p-ben and p-ben-2.", "hold.confirm_rejected", false,
	},
	{
		"a reservation is cancelled by SQL", func(s *scene) {
			s.execute(`UPDATE reservations SET status = 'cancelled', cancelled_at = now() WHERE hold_id = $1`, s.paid)
			s.execute(`UPDATE inventory SET reserved = 0 WHERE slot = 'A-1'`)
		}, "cancellation_differs", "is a cancelled reservation in Postgres, and that was never told.", "hold.confirmed", false,
	},
	{
		"a cancellation is undone", func(s *scene) {
			s.execute(`UPDATE reservations SET status = 'confirmed', cancelled_at = NULL, cancelled_by = NULL WHERE hold_id = $1`, s.cancelled)
			s.execute(`UPDATE inventory SET reserved = 2 WHERE resource_id = 'tent'`)
		}, "cancellation_differs", "; in Postgres it is confirmed.", "reservation.cancelled", false,
	},
	{
		"a reservation is of other slots", func(s *scene) {
			s.execute(`UPDATE reservations SET slots = '{A-2}' WHERE hold_id = $1`, s.paid)
			s.execute(`UPDATE inventory SET reserved = CASE slot WHEN 'A-2' THEN 1 ELSE 0 END WHERE resource_id = 'hall'`)
		}, "answer_differs", "was told with the slots A-1; its reservation has A-2.", "hold.confirmed", false,
	},
	{
		"the constraint is gone", func(s *scene) {
			s.execute(`ALTER TABLE inventory DROP CONSTRAINT reserved_is_between_zero_and_capacity`)
		}, "no_constraint", "The constraint reserved_is_between_zero_and_capacity of table inventory is missing", "", false,
	},
	{
		"the constraint does not hold", func(s *scene) {
			s.execute(`ALTER TABLE inventory DROP CONSTRAINT reserved_is_between_zero_and_capacity`)
			s.execute(`UPDATE inventory SET capacity = 0 WHERE slot = 'A-1'`)
			s.execute(`ALTER TABLE inventory ADD CONSTRAINT reserved_is_between_zero_and_capacity CHECK (reserved BETWEEN 0 AND capacity) NOT VALID`)
		}, "no_constraint out_of_bounds", "Of slot A-1 of hall 1 are reserved, and 0 may be sold.", "", false,
	},
}

// stored is an outcome that is published by hand, as a worker would.
func (s *scene) stored(event, resource, hold, cause string, data any) {
	s.Helper()
	body, err := json.Marshal(data)
	s.must(err)
	s.storedAs(uuid.NewString(), event, resource, hold, cause, body)
}

func (s *scene) storedAs(id, event, resource, hold, cause string, data []byte) {
	s.Helper()
	body, err := json.Marshal(events.Envelope{
		SpecVersion: "1.0", ID: id, Source: "/test", Type: events.Type(event), Subject: hold, CausationID: cause, Data: data,
		Time: holds.Time{Time: time.Now()},
	})
	s.must(err)
	_, err = s.js.Publish(s.Context(), s.subjects.Out(event, resource), body)
	s.must(err)
}

// erase removes the outcomes of a kind about a hold from the stream.
func (s *scene) erase(event, hold string) {
	s.Helper()
	stream, err := s.js.Stream(s.Context(), s.subjects.OutStream())
	s.must(err)
	info, err := stream.Info(s.Context())
	s.must(err)
	for seq := uint64(1); seq <= info.State.LastSeq; seq++ {
		m, err := stream.GetMsg(s.Context(), seq)
		s.must(err)
		var e events.Envelope
		s.must(json.Unmarshal(m.Data, &e))
		if e.Type == events.Type(event) && e.Subject == hold {
			s.must(stream.DeleteMsg(s.Context(), seq))
		}
	}
}

// outcomeOf is an outcome of a kind about a hold.
func (s *scene) outcomeOf(event, hold string) events.Envelope {
	s.Helper()
	for _, e := range s.outcomes(event) {
		if e.Subject == hold {
			return e
		}
	}
	s.Fatalf("no %s about %s", event, hold)
	return events.Envelope{}
}

// publishDeadLetter publishes a dead letter as a worker would, of an inbound sequence.
func (s *scene) publishDeadLetter(seq uint64, subject, reason string) {
	s.Helper()
	m := nats.NewMsg(s.subjects.DLQ(reason))
	m.Header.Set(events.HeaderDLQReason, reason)
	m.Header.Set(events.HeaderDLQSubject, subject)
	m.Header.Set(events.HeaderDLQStreamSeq, strconv.FormatUint(seq, 10))
	_, err := s.js.PublishMsg(s.Context(), m)
	s.must(err)
}

// inboundSeq is the sequence of the first event on a subject.
func (s *scene) inboundSeq(event, resource string) uint64 {
	s.Helper()
	stream, err := s.js.Stream(s.Context(), s.subjects.InStream())
	s.must(err)
	m, err := stream.GetMsg(s.Context(), 1)
	for seq := uint64(2); err == nil && m.Subject != s.subjects.In(event, resource); seq++ {
		m, err = stream.GetMsg(s.Context(), seq)
	}
	s.must(err)
	return m.Sequence
}

var inStreams = []corruption{
	{
		"an outcome is gone", func(s *scene) { s.erase(holds.EventConfirmRejected, s.paid) },
		"answer_untold no_outcome", "It was acknowledged, and has neither an outcome nor a dead letter.", "hold.confirmed payment.confirmed", false,
	},
	{
		"a grant was never told", func(s *scene) { s.erase(holds.EventHoldCreated, s.other) },
		"hold_untold no_outcome", "and was never told.", "booking.requested", false,
	},
	{
		"a release was never told", func(s *scene) { s.erase(holds.EventHoldReleased, s.given) },
		"end_untold no_outcome", "is released in Redis since", "booking.cancelled hold.created", false,
	},
	{
		"a lapse was never told", func(s *scene) { s.erase(holds.EventHoldExpired, s.over) },
		"end_untold", "is expired in Redis since", "hold.created", false,
	},
	{
		"an event has two outcomes", func(s *scene) {
			e := s.outcomeOf(holds.EventHoldReleased, s.given)
			s.storedAs(e.ID, holds.EventReleaseRejected, "hall", s.given, e.CausationID, []byte(`{"reason":"expired"}`))
		}, "two_outcomes", "have the same id and say different things.", "booking.cancelled", false,
	},
	{
		"an event has an outcome and a letter", func(s *scene) {
			s.publishDeadLetter(s.inboundSeq(events.BookingCancelled, "hall"), s.subjects.In(events.BookingCancelled, "hall"), events.ReasonPoison)
		}, "two_outcomes", "and is a dead letter too", "booking.cancelled", false,
	},
	{
		"an event has an outcome of another", func(s *scene) {
			e := s.outcomeOf(holds.EventConfirmRejected, s.paid)
			s.erase(holds.EventConfirmRejected, s.paid)
			s.execute(`DELETE FROM payments WHERE payment_id = 'p-ben-2'`)
			s.storedAs(e.ID, holds.EventReleaseRejected, "hall", s.paid, e.CausationID, []byte(`{"reason":"expired"}`))
		}, "wrong_outcome", "It is a payment.confirmed, and its outcome, sequence", "payment.confirmed", false,
	},
	{
		"an outcome has no event", func(s *scene) {
			s.stored(holds.EventReleaseRejected, "hall", s.given, "x", holds.ReleaseRejected{Reason: "expired"})
		}, "outcome_without_event", "a hold.release_rejected, is the outcome of no event in", "hold.release_rejected", false,
	},
	{
		"an outcome is none", func(s *scene) {
			_, err := s.js.Publish(s.Context(), s.subjects.Out(holds.EventHoldCreated, "hall"), []byte("rubbish"))
			s.must(err)
		}, "unreadable", "is no outcome that can be read.", "hold.created", false,
	},
	{
		"a letter has no event", func(s *scene) { s.publishDeadLetter(9999, s.subjects.In("x.y", "hall"), events.ReasonPoison) },
		"outcome_without_event", "which has only", "", false,
	},
	{
		"a letter does not say of what", func(s *scene) {
			m := nats.NewMsg(s.subjects.DLQ(events.ReasonPoison))
			m.Header.Set(events.HeaderDLQSubject, s.subjects.In("x.y", "hall"))
			_, err := s.js.PublishMsg(s.Context(), m)
			s.must(err)
		}, "outcome_without_event", "does not say of which event it is.", "", false,
	},
	{
		"a hold ends twice", func(s *scene) {
			e := s.outcomeOf(holds.EventHoldReleased, s.given)
			var data holds.HoldReleased
			s.must(json.Unmarshal(e.Data, &data))
			s.stored(holds.EventHoldExpired, "hall", s.given, "", holds.HoldExpired{HoldData: data.HoldData, ExpiresAt: data.ReleasedAt, RestoredAt: data.ReleasedAt})
		}, "two_ends", "ended twice: as hold.released in sequence", "hold.expired", false,
	},
	{
		"a live hold is told to have lapsed", func(s *scene) {
			var data holds.HoldCreated
			s.must(json.Unmarshal(s.outcomeOf(holds.EventHoldCreated, s.other).Data, &data))
			s.stored(holds.EventHoldExpired, "hall", s.other, "", holds.HoldExpired{HoldData: data.HoldData, ExpiresAt: data.ExpiresAt, RestoredAt: data.ExpiresAt})
		}, "hold_undead", "ended as hold.expired, and Redis takes it for held.", "hold.expired", false,
	},
	{
		"a hold is extended after its end", func(s *scene) {
			var data holds.HoldExpired
			s.must(json.Unmarshal(s.outcomeOf(holds.EventHoldExpired, s.over).Data, &data))
			later := holds.Time{Time: data.ExpiresAt.Add(time.Minute)}
			m := s.message(events.BookingExtended, "hall", events.BookingExtendedData{HoldID: s.over, TTLSeconds: 60})
			s.answerByHand(m, holds.EventHoldExtended, s.over, holds.HoldExtended{HoldData: data.HoldData, ExtendedAt: later, ExpiresAt: later})
		}, "after_end", "and was extended at", "hold.extended", false,
	},
	{
		"a lost record", func(s *scene) { s.redis.HDel(s.Context(), s.key("hall", "records"), uuidOf(s.other)) },
		"counter due hold_lost residue residue users", "and Redis does not know it.", "hold.confirmed hold.created", false,
	},
	{
		"an old record", func(s *scene) {
			line := s.redis.HGet(s.Context(), s.key("hall", "records"), uuidOf(s.other)).Val()
			words := strings.SplitN(line, " ", 3)
			deadline, err := strconv.ParseInt(words[1], 10, 64)
			s.must(err)
			earlier := strconv.FormatInt(deadline-60_000, 10)
			s.redis.HSet(s.Context(), s.key("hall", "records"), uuidOf(s.other), "held "+earlier+" "+words[2])
			s.redis.ZAdd(s.Context(), s.key("hall", "due"), redis.Z{Score: float64(deadline - 60_000), Member: uuidOf(s.other)})
			s.redis.ExpireAt(s.Context(), s.key("hall", "hold:"+uuidOf(s.other)), time.UnixMilli(deadline-60_000))
			s.redis.PExpireAt(s.Context(), s.key("hall", "hold:"+uuidOf(s.other)), time.UnixMilli(deadline-60_000))
			s.redis.ZAdd(s.Context(), s.agenda("hall"), redis.Z{Score: 1, Member: "hall"})
		}, "hold_differs", "was told with the deadline", "hold.created", false,
	},
	{
		"a claim is stuck", func(s *scene) {
			line := s.redis.HGet(s.Context(), s.key("hall", "records"), uuidOf(s.other)).Val()
			words := strings.SplitN(line, " ", 7)
			words[0], words[4], words[5] = "confirming", words[2], "p-olga"
			s.redis.HSet(s.Context(), s.key("hall", "records"), uuidOf(s.other), strings.Join(words, " "))
			s.redis.ZRem(s.Context(), s.key("hall", "due"), uuidOf(s.other))
			s.redis.Del(s.Context(), s.key("hall", "hold:"+uuidOf(s.other)))
		}, "claim_stuck", "is claimed by payment p-olga since", "hold.created", false,
	},
	{
		"a fence is a list", func(s *scene) {
			key := strings.TrimSuffix(s.agenda("hall"), "agenda") + "fence"
			s.redis.Del(s.Context(), key)
			s.redis.RPush(s.Context(), key, "oops")
		}, "type", "which counts the locks of a partition, is a list.", "", false,
	},
	{
		"the epoch is another", func(s *scene) {
			s.redis.Set(s.Context(), fmt.Sprintf("%s:{%d}:epoch", s.namespace, record.Partition("hall")), "x", 0)
		}, "data_lost", "1 of 64 partitions of Redis do not have the epoch that was written", "", false,
	},
	{
		"a slot is oversold", func(s *scene) {
			for i := range 3 {
				user := fmt.Sprintf("mallory-%d", i)
				now := holds.Time{Time: s.redis.Time(s.Context()).Val().UTC().Truncate(time.Millisecond).Add(time.Duration(i) * time.Millisecond)} // one after the other
				id, err := holds.NewHoldID("hall")
				s.must(err)
				quantity := int64(1)
				data := holds.HoldData{ResourceID: "hall", HoldID: id, RequestKey: "k" + user, UserID: user, SlotSelection: holds.SlotSelection{Slots: []string{"A-1"}}, Quantity: &quantity}
				m := s.message(events.BookingRequested, "hall", events.BookingRequestedData{RequestKey: "k" + user, UserID: user, ResourceID: "hall", SlotSelection: data.SlotSelection, Quantity: 1})
				s.answerByHand(m, holds.EventHoldCreated, id.String(), holds.HoldCreated{HoldData: data, CreatedAt: now, ExpiresAt: holds.Time{Time: now.Add(time.Minute)}})
			}
		}, "hold_lost hold_lost hold_lost oversold", "Of slot A-1 of hall 6 were taken at", "hold.created", false,
	},
}

// answerByHand stores an event, its outcome unless that is "", and acknowledges the event, as a worker
// would that is mistaken.
func (s *scene) answerByHand(m *nats.Msg, event, hold string, data any) {
	s.Helper()
	stored, err := s.js.PublishMsg(s.Context(), m)
	s.must(err)
	if event != "" {
		in, err := s.subjects.Decode(m.Subject, m.Header, m.Data, time.Now())
		s.must(err)
		body, err := json.Marshal(data)
		s.must(err)
		s.storedAs(in.OutcomeID, event, in.Resource, hold, in.ID, body)
	}
	// A consumer may be told of an event after its PubAck.
	stacktest.Eventually(s, "the event to be acknowledged", func() bool {
		last := uint64(0)
		for _, name := range []string{events.ConsumerRequests, events.ConsumerChanges, events.ConsumerPayments} {
			c, err := s.js.Consumer(s.Context(), s.subjects.InStream(), name)
			s.must(err)
			batch, err := c.FetchNoWait(100)
			s.must(err)
			for m := range batch.Messages() {
				s.must(m.DoubleAck(s.Context()))
				meta, err := m.Metadata()
				s.must(err)
				last = max(last, meta.Sequence.Stream)
			}
		}
		return last >= stored.Sequence
	})
}
