package audit_test

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
)

// corruption is data that a test makes wrong by hand, and the findings that an audit has to report.
type corruption struct {
	name      string
	apply     func(s *scene)
	wantKinds string // the kinds of the findings, sorted
	wantText  string // part of one of their texts
	// wantAfter are the events after which the findings are true, sorted and without repeats.
	wantAfter string
	// repairable means that a repair corrects it. Else the finding says that an operator must.
	repairable bool
}

// inRedis are corruptions of Redis.
var inRedis = []corruption{
	{"a counter is too high", hset("counts", "A-1", "7"), "counter",
		"Redis counts 7 held of slot A-1 of hall; its live holds take 3.", "hold.confirmed", true},
	{"a counter is too low", hset("counts", "A-2", "1"), "counter",
		"Redis counts 1 held of slot A-2 of hall; its live holds take 2.", "hold.released", true},
	{"a counter is negative", hset("counts", "A-2", "-4"), "counter",
		"Redis counts -4 held of slot A-2 of hall; its live holds take 2.", "hold.released", true},
	{"a counter is no number", hset("counts", "A-2", "many\x1b[31m"), "counter",
		"Redis counts nonsense held of slot A-2", "hold.released", true},
	{"a counter is missing", func(s *scene) { s.redis.HDel(s.Context(), s.key("hall", "counts"), "A-2") }, "counter",
		"Redis counts 0 held of slot A-2", "hold.released", true},
	{"a counter is of no hold", hset("counts", "B-9", "1"), "counter",
		"Redis counts 1 held of slot B-9 of hall; its live holds take 0.", "", true},
	{"the counters are a list", replaced("counts", "oops"), "counter counter type",
		"The key counts of hall is a list and must be a hash", "hold.confirmed hold.extended hold.released", true},
	{"the counters are gone", deleted("counts"), "counter counter",
		"Redis counts 0 held of slot A-1 of hall; its live holds take 3.", "hold.confirmed hold.released", true},
	{"a user has too many", hset("users", "ana", "3"), "users",
		"Redis counts 3 live holds of user ana on hall; there are 1.", "hold.created", true},
	{"a user is left over", hset("users", "zoe", "1"), "users",
		"Redis counts 1 live holds of user zoe on hall; there are 0.", "", true},
	{"the users are a list", replaced("users", "oops"), "index index type users users",
		"The key users of hall is a list", "hold.created hold.extended", true},
	{
		"a deadline is missing", func(s *scene) { s.redis.ZRem(s.Context(), s.key("hall", "due"), uuidOf(s.live)) },
		"due", "is missing from the deadline index: it would never expire.", "hold.extended", true,
	},
	{
		"a deadline is wrong",
		func(s *scene) { s.redis.ZIncrBy(s.Context(), s.key("hall", "due"), 60_000, uuidOf(s.other)) },
		"due", "the deadline index has", "hold.created", true,
	},
	{
		"an ended hold is due", func(s *scene) {
			s.redis.ZAdd(s.Context(), s.key("hall", "due"), redis.Z{Score: 4e12, Member: uuidOf(s.released)})
		},
		"due", "is in the deadline index at 2096-10-02T07:06:40.000Z and is not held.", "hold.released", true,
	},
	{
		"an unknown hold is due", func(s *scene) {
			s.redis.ZAdd(s.Context(), s.key("hall", "due"), redis.Z{Score: 4e12, Member: strings.Repeat("0", 32)})
		}, "due", "and is not held.", "", true,
	},
	{"the deadlines are a list", replaced("due", "oops"), "due due type", "The key due of hall is a list",
		"hold.created hold.extended", true},
	{"the deadlines are gone", deleted("due"), "due due", "it would never expire.", "hold.created hold.extended", true},
	{
		"the key of a hold is missing",
		func(s *scene) { s.redis.Del(s.Context(), s.key("hall", "hold:"+uuidOf(s.live))) },
		"hold_key", "and its key is missing: no notification will report its expiry.", "hold.extended", true,
	},
	{
		"the key of a hold never expires",
		func(s *scene) { s.redis.Persist(s.Context(), s.key("hall", "hold:"+uuidOf(s.live))) },
		"hold_key", "the expiry of its key is \"for ever\".", "hold.extended", true,
	},
	{
		"the key of a hold expires too late", func(s *scene) {
			key := s.key("hall", "hold:"+uuidOf(s.live))
			s.redis.PExpireAt(s.Context(), key, time.UnixMilli(s.redis.PExpireTime(s.Context(), key).Val().Milliseconds()+1500))
		}, "hold_key", "the expiry of its key is", "hold.extended", true,
	},
	{
		"the key of a hold is a list", func(s *scene) {
			s.redis.Del(s.Context(), s.key("hall", "hold:"+uuidOf(s.live)))
			s.redis.RPush(s.Context(), s.key("hall", "hold:"+uuidOf(s.live)), "oops")
		}, "hold_key", `the expiry of its key is "a list".`, "hold.extended", true,
	},
	{
		"the key of a hold is left over",
		func(s *scene) { s.redis.Set(s.Context(), s.key("hall", "hold:"+uuidOf(s.expired)), "{}", 0) },
		"residue", "is left over: the hold is expired.", "hold.expired", true,
	},
	{
		"a start of payment is left over",
		func(s *scene) { s.redis.Set(s.Context(), s.key("hall", "started:"+uuidOf(s.paid)), "1", time.Hour) },
		"residue", "is left over: the hold is confirmed.", "hold.confirmed", true,
	},
	{
		"an index is missing",
		func(s *scene) { s.redis.HDel(s.Context(), s.key("hall", "users"), record.IndexField("ana", "A-1,A-2")) },
		"index", "missing from the index of its user: the user could hold the same slots twice.", "hold.extended", true,
	},
	{
		"an index names another hold", func(s *scene) {
			s.redis.HSet(s.Context(), s.key("hall", "users"), record.IndexField("ana", "A-1,A-2"), uuidOf(s.released))
		},
		"index residue", "and the index of its user names", "hold.extended", true,
	},
	{
		"an index is left over", func(s *scene) {
			s.redis.HSet(s.Context(), s.key("hall", "users"), record.IndexField("cleo", "A-2"), uuidOf(s.released))
		},
		"residue", "is left over: the hold is released.", "", true,
	},
	{
		"an index of an unknown user", func(s *scene) {
			s.redis.HSet(s.Context(), s.key("hall", "users"), record.IndexField("zoe", "A-2"), strings.Repeat("0", 32))
		},
		"residue", "is left over: there is no such hold.", "", true,
	},
	{
		"an answer never expires", func(s *scene) { s.redis.Persist(s.Context(), s.key("hall", "request:key-of-gus")) },
		"residue", "The key request:key-of-gus of hall is left over: it has no expiry.", "", true,
	},
	{
		"an answer is missing", func(s *scene) { s.redis.Del(s.Context(), s.key("hall", "request:key-of-ana")) },
		"request", "Redis does not remember it as the answer to its request", "hold.extended", false,
	},
	{
		"a refusal cannot be read", overwritten("request:key-of-gus", "sold_out - - 1 x - "), "answer",
		"The key request:key-of-gus of hall (19 characters) is no answer that a worker writes", "", false,
	},
	{
		"the answer to an extension cannot be read", overwritten("extension:*", "extended\x1b[31m soon 1"), "answer",
		"of hall (20 characters) is no answer that a worker writes", "", false,
	},
	{
		"the answer to an extension is a list", func(s *scene) {
			key := s.redis.Keys(s.Context(), s.key("hall", "extension:*")).Val()[0]
			s.redis.Del(s.Context(), key)
			s.redis.RPush(s.Context(), key, "oops")
			s.redis.Expire(s.Context(), key, time.Hour)
		}, "answer", "of hall (a list) is no answer that a worker writes", "", false,
	},
	{
		"a lock never expires", func(s *scene) { s.redis.HSet(s.Context(), s.key("hall", "locks"), "A-1", "x:1.y 1") },
		"residue", "The key locks of hall is left over: it has no expiry.", "", true,
	},
	{
		"a record is kept for ever",
		func(s *scene) { s.redis.ZRem(s.Context(), s.key("hall", "tombstones"), uuidOf(s.paid)) },
		"tombstone", "has ended, and its record is not scheduled to be deleted.", "hold.confirmed", true,
	},
	{
		"a live hold is scheduled to be deleted", func(s *scene) {
			s.redis.ZAdd(s.Context(), s.key("hall", "tombstones"), redis.Z{Score: 4e12, Member: uuidOf(s.live)})
		}, "tombstone", "has not ended or is unknown, and its record is scheduled to be deleted", "hold.extended", true,
	},
	{
		"a live hold is scheduled to be announced", func(s *scene) {
			s.redis.ZAdd(s.Context(), s.key("hall", "departing"), redis.Z{Score: 4e12, Member: uuidOf(s.live)})
		}, "departing", "it has not expired or was announced before.", "hold.extended", true,
	},
	{
		"an expired hold is announced in the far future", func(s *scene) {
			s.redis.ZRem(s.Context(), s.key("hall", "tombstones"), uuidOf(s.expired))
			s.redis.ZAdd(s.Context(), s.key("hall", "departing"), redis.Z{Score: 4e12, Member: uuidOf(s.expired)})
		}, "departing", "has expired, and is scheduled to be announced at 2096-10-02T07:06:40.000Z only.", "hold.expired", true,
	},
	{
		"an expired hold is forgotten",
		func(s *scene) { s.redis.ZRem(s.Context(), s.key("hall", "tombstones"), uuidOf(s.expired)) },
		"departing", "neither among the expiries to announce nor among the announced ones.", "hold.expired", true,
	},
	{"the tombstones are a list", replaced("tombstones", "oops"), "departing tombstone tombstone type",
		"The key tombstones of hall is a list", "hold.confirmed hold.expired hold.extended hold.released", true},
	{
		"a resource is not on the agenda", func(s *scene) { s.redis.ZRem(s.Context(), s.agenda("hall"), "hall") },
		"agenda", "and is missing from the agenda: the sweep skips it.", "hold.extended", true,
	},
	{
		"the agenda is late",
		func(s *scene) { s.redis.ZAdd(s.Context(), s.agenda("hall"), redis.Z{Score: 4e12, Member: "hall"}) },
		"agenda", "and the agenda has 2096-10-02T07:06:40.000Z: the sweep comes too late.", "hold.extended", true,
	},
	{
		"the agenda has a finished resource", func(s *scene) {
			s.redis.ZAdd(s.Context(), s.agenda("ghost"), redis.Z{Score: 4e12, Member: "ghost"})
		}, "agenda", "Resource ghost has no work due, and it is on the agenda at 2096-10-02T07:06:40.000Z.", "", true,
	},
	{
		"the agenda is a list", func(s *scene) {
			s.redis.Del(s.Context(), s.agenda("hall"))
			s.redis.RPush(s.Context(), s.agenda("hall"), "oops")
		}, "agenda type", "The key agenda of hall is a list and must be a zset", "hold.extended", true,
	},
	{"rev is not a number", func(s *scene) { s.redis.Set(s.Context(), s.key("hall", "rev"), "x", 0) }, "rev",
		"The revision of hall is not a number", "hold.extended", true},
	{"rev is a list", replaced("rev", "oops"), "type", "The key rev of hall is a list and must be a string",
		"hold.extended", true},
	{
		"a record cannot be read",
		func(s *scene) { s.redis.HSet(s.Context(), s.key("hall", "records"), uuidOf(s.released), "rubbish") },
		"record", "(7 characters) is none that a worker writes. Which slots it takes is unknown", "hold.released",
		false,
	},
	{
		"the record of a live hold cannot be read",
		func(s *scene) { s.redis.HSet(s.Context(), s.key("hall", "records"), uuidOf(s.live), "rubbish") },
		"record", "(7 characters) is none that a worker writes. Which slots it takes is unknown", "hold.extended",
		false,
	},
	{
		"a record has no hold id", func(s *scene) {
			s.redis.HSet(s.Context(), s.key("hall", "records"), "tom", "held 4000000000000 1 1 0 - u k A-1 {} ")
		}, "record", "The record of hold tom of hall (38 characters) is none", "", false,
	},
	{"the records are a list", replaced("records", "oops"), "hold_lost hold_lost type",
		"All holds of the resource are lost with it", "hold.created hold.extended", false},
}

func hset(key, field, value string) func(*scene) {
	return func(s *scene) { s.redis.HSet(s.Context(), s.key("hall", key), field, value) }
}

// overwritten replaces the value of the only key that matches a pattern, for an hour.
func overwritten(pattern, value string) func(*scene) {
	return func(s *scene) {
		for _, key := range s.redis.Keys(s.Context(), s.key("hall", pattern)).Val() {
			s.redis.Set(s.Context(), key, value, time.Hour)
		}
	}
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

var inPostgres = []corruption{
	{
		"too much is reserved", func(s *scene) { s.execute(`UPDATE inventory SET reserved = 3 WHERE slot = 'A-1'`) },
		"reserved", "Postgres has 3 reserved of slot A-1 of hall; its confirmed reservations take 1.", "hold.confirmed",
		true,
	},
	{
		"too little is reserved", func(s *scene) { s.execute(`UPDATE inventory SET reserved = 0 WHERE slot = 'A-1'`) },
		"reserved", "Postgres has 0 reserved of slot A-1 of hall; its confirmed reservations take 1.", "hold.confirmed",
		true,
	},
	{
		"a reservation is gone",
		func(s *scene) { s.execute(`DELETE FROM reservations WHERE hold_id = $1`, s.cancelled) },
		"cancellation_differs payment_without_reservation",
		"was paid by p-fay according to Postgres, and has no reservation.", "hold.confirmed reservation.cancelled",
		false,
	},
	{
		"a payment is gone", func(s *scene) { s.execute(`DELETE FROM payments WHERE payment_id = 'p-ben'`) },
		"answer_unrecorded reservation_without_payment",
		"is a reservation by payment p-ben, and Postgres has no such confirmed payment.", "hold.confirmed", false,
	},
	{
		"a refusal is gone", func(s *scene) { s.execute(`DELETE FROM payments WHERE payment_id = 'p-ben-2'`) },
		"answer_unrecorded", "has the answer rejected, already_confirmed to payment p-ben-2", "hold.confirm_rejected",
		false,
	},
	{
		"a refusal has another reason",
		func(s *scene) { s.execute(`UPDATE payments SET reason = 'expired' WHERE payment_id = 'p-ben-2'`) },
		"answer_differs", "; Postgres has rejected, expired.", "hold.confirm_rejected", false,
	},
	{
		"the answer to a payment was never published", func(s *scene) {
			s.execute(`INSERT INTO payments (hold_id, payment_id, outcome, reason, decided_at, hold) VALUES ($1, 'p-x', 'rejected', 'expired', now(), '{}')`,
				s.expired)
		}, "answer_untold", "has the answer rejected, expired to payment p-x in Postgres since", "hold.expired", false,
	},
	{
		"a hold is paid twice", func(s *scene) {
			s.execute(`UPDATE payments SET outcome = 'confirmed', reason = NULL WHERE payment_id = 'p-ben-2'`)
		}, "answer_differs payment_without_reservation two_answers", "was paid more than once: p-ben and p-ben-2.",
		"hold.confirm_rejected", false,
	},
	{
		"a reservation is cancelled by SQL", func(s *scene) {
			s.execute(`UPDATE reservations SET status = 'cancelled', cancelled_at = now() WHERE hold_id = $1`, s.paid)
			s.execute(`UPDATE inventory SET reserved = 0 WHERE slot = 'A-1'`)
		}, "cancellation_differs", "is a cancelled reservation in Postgres, and no outcome says so.", "hold.confirmed",
		false,
	},
	{
		"a cancellation is undone", func(s *scene) {
			s.execute(`UPDATE reservations SET status = 'confirmed', cancelled_at = NULL, cancelled_by = NULL WHERE hold_id = $1`,
				s.cancelled)
			s.execute(`UPDATE inventory SET reserved = 2 WHERE resource_id = 'tent'`)
		}, "cancellation_differs", "; in Postgres it is confirmed.", "reservation.cancelled", false,
	},
	{
		"a reservation is of other slots", func(s *scene) {
			s.execute(`UPDATE reservations SET slots = '{A-2}' WHERE hold_id = $1`, s.paid)
			s.execute(`UPDATE inventory SET reserved = CASE slot WHEN 'A-2' THEN 1 ELSE 0 END WHERE resource_id = 'hall'`)
		}, "answer_differs", "was published with the slots A-1; its reservation has A-2.", "hold.confirmed", false,
	},
	{
		"the constraint is gone", func(s *scene) {
			s.execute(`ALTER TABLE inventory DROP CONSTRAINT reserved_is_between_zero_and_capacity`)
		}, "no_constraint", "The constraint reserved_is_between_zero_and_capacity of table inventory is missing", "",
		false,
	},
	{
		"the constraint is not validated", func(s *scene) {
			s.execute(`ALTER TABLE inventory DROP CONSTRAINT reserved_is_between_zero_and_capacity`)
			s.execute(`UPDATE inventory SET capacity = 0 WHERE slot = 'A-1'`)
			s.execute(`ALTER TABLE inventory ADD CONSTRAINT reserved_is_between_zero_and_capacity CHECK (reserved BETWEEN 0 AND capacity) NOT VALID`)
		}, "no_constraint out_of_bounds", "Slot A-1 of hall has 1 reserved and a capacity of 0.", "", false,
	},
	{
		"a lost commit was not put back", func(s *scene) {
			s.execute(`INSERT INTO lost_commits (outcome_id, resource_id, event, reason, outcome)
				VALUES ('o-1', 'tent', 'inventory.updated', 'capacity is lower', '{}')`)
		}, "commit_lost", "lost the commit of a published inventory.updated of tent, and since ", "", false,
	},
}

var inStreams = []corruption{
	{
		"an outcome is gone", func(s *scene) { s.erase(holds.EventConfirmRejected, s.paid) },
		"answer_untold no_outcome", "It was acknowledged and has neither an outcome nor a dead letter.",
		"hold.confirmed payment.confirmed", false,
	},
	{
		"a grant was never published", func(s *scene) { s.erase(holds.EventHoldCreated, s.other) },
		"hold_untold no_outcome", "and no outcome was published.", "booking.requested", false,
	},
	{
		"a release was never published", func(s *scene) { s.erase(holds.EventHoldReleased, s.released) },
		"end_untold no_outcome", "is released in Redis since", "booking.cancelled hold.created", false,
	},
	{
		"an expiry was never published", func(s *scene) { s.erase(holds.EventHoldExpired, s.expired) },
		"end_untold", "is expired in Redis since", "hold.created", false,
	},
	{
		"an event has two outcomes", func(s *scene) {
			e := s.outcomeOf(holds.EventHoldReleased, s.released)
			s.storedAs(e.ID, holds.EventReleaseRejected, "hall", s.released, e.CausationID,
				[]byte(`{"reason":"expired"}`))
		}, "two_outcomes", "have the same id and different content.", "booking.cancelled", false,
	},
	{
		"an event has an outcome and a dead letter", func(s *scene) {
			s.publishDeadLetter(s.inboundSeq(events.BookingCancelled, "hall"),
				s.subjects.In(events.BookingCancelled, "hall"), events.ReasonPoison)
		}, "two_outcomes", "and also a dead letter", "booking.cancelled", false,
	},
	{
		"an event has an outcome of another kind of event", func(s *scene) {
			e := s.outcomeOf(holds.EventConfirmRejected, s.paid)
			s.erase(holds.EventConfirmRejected, s.paid)
			s.execute(`DELETE FROM payments WHERE payment_id = 'p-ben-2'`)
			s.storedAs(e.ID, holds.EventReleaseRejected, "hall", s.paid, e.CausationID, []byte(`{"reason":"expired"}`))
		}, "wrong_outcome", "It is payment.confirmed, and its outcome (sequence", "payment.confirmed", false,
	},
	{
		"an outcome has no event", func(s *scene) {
			s.stored(holds.EventReleaseRejected, "hall", s.released, "x", holds.ReleaseRejected{Reason: "expired"})
		}, "outcome_without_event", "(hold.release_rejected) is an outcome, and", "hold.release_rejected", false,
	},
	{
		"an outcome cannot be read", func(s *scene) {
			_, err := s.js.Publish(s.Context(), s.subjects.Out(holds.EventHoldCreated, "hall"), []byte("rubbish"))
			s.must(err)
		}, "unreadable", "is not a readable outcome.", "hold.created", false,
	},
	{
		"a dead letter has no event",
		func(s *scene) { s.publishDeadLetter(9999, s.subjects.In("x.y", "hall"), events.ReasonPoison) },
		"outcome_without_event", "whose last sequence is", "", false,
	},
	{
		"a dead letter does not name its event", func(s *scene) {
			m := nats.NewMsg(s.subjects.DLQ(events.ReasonPoison))
			m.Header.Set(events.HeaderDLQSubject, s.subjects.In("x.y", "hall"))
			_, err := s.js.PublishMsg(s.Context(), m)
			s.must(err)
		}, "outcome_without_event", "does not name its event.", "", false,
	},
	{
		"a hold ends twice", func(s *scene) {
			e := s.outcomeOf(holds.EventHoldReleased, s.released)
			data := read[holds.HoldReleased](s, e)
			s.stored(holds.EventHoldExpired, "hall", s.released, "",
				holds.HoldExpired{HoldData: data.HoldData, ExpiresAt: data.ReleasedAt, RestoredAt: data.ReleasedAt})
		}, "two_ends", "ended twice: as hold.released in sequence", "hold.expired", false,
	},
	{
		"a live hold is published as expired", func(s *scene) {
			data := read[holds.HoldCreated](s, s.outcomeOf(holds.EventHoldCreated, s.other))
			s.stored(holds.EventHoldExpired, "hall", s.other, "",
				holds.HoldExpired{HoldData: data.HoldData, ExpiresAt: data.ExpiresAt, RestoredAt: data.ExpiresAt})
		}, "hold_undead", "ended as hold.expired, and in Redis it is held.", "hold.expired", false,
	},
	{
		"a hold is extended after its end", func(s *scene) {
			data := read[holds.HoldExpired](s, s.outcomeOf(holds.EventHoldExpired, s.expired))
			later := holds.Time{Time: data.ExpiresAt.Add(time.Minute)}
			m := s.message(events.BookingExtended, "hall",
				events.BookingExtendedData{HoldID: s.expired, TTLSeconds: 60})
			s.answerByHand(m, holds.EventHoldExtended, s.expired,
				holds.HoldExtended{HoldData: data.HoldData, ExtendedAt: later, ExpiresAt: later})
		}, "after_end", "and was extended at", "hold.extended", false,
	},
	{
		"a lost record", func(s *scene) { s.redis.HDel(s.Context(), s.key("hall", "records"), uuidOf(s.other)) },
		"counter due hold_lost residue residue users", "and Redis has no record of it.", "hold.confirmed hold.created",
		false,
	},
	{
		"an old record", func(s *scene) {
			earlier := int64(s.redis.ZIncrBy(s.Context(), s.key("hall", "due"), -60_000, uuidOf(s.other)).Val())
			s.changeRecord(s.other, func(words []string) { words[1] = strconv.FormatInt(earlier, 10) })
			s.redis.PExpireAt(s.Context(), s.key("hall", "hold:"+uuidOf(s.other)), time.UnixMilli(earlier))
			s.redis.ZAdd(s.Context(), s.agenda("hall"), redis.Z{Score: 1, Member: "hall"})
		}, "hold_differs", "was published with the deadline", "hold.created", false,
	},
	{
		"a claim is stuck", func(s *scene) { s.claimOther(0) }, "claim_stuck",
		"is claimed by payment p-olga since", "hold.created", false,
	},
	{
		"the epoch is different", func(s *scene) {
			s.redis.Set(s.Context(), fmt.Sprintf("%s:{%d}:epoch", s.namespace, record.Partition("hall")), "x", 0)
		}, "data_lost", "1 of 64 partitions of Redis have an epoch of another database", "", false,
	},
	{
		"the epoch is missing", func(s *scene) {
			s.redis.Del(s.Context(), fmt.Sprintf("%s:{%d}:epoch", s.namespace, record.Partition("hall")))
		}, "data_lost", "1 of 64 partitions of Redis lack the epoch that Postgres has", "", false,
	},
	{
		"a slot is oversold", func(s *scene) {
			for i := range 2 { // a third one could be granted in the same millisecond as the second
				user := fmt.Sprintf("mallory-%d", i)
				s.grantByHand("k"+user, user, "", "A-1")
			}
		}, "hold_lost hold_lost oversold", "Slot A-1 of hall: 6 were taken at", "hold.created", false,
	},
}

// inHistories are outcomes that contradict each other, though each is correct by itself.
var inHistories = []corruption{
	{
		"a hold expires at the deadline before its extension", func(s *scene) {
			data := read[holds.HoldCreated](s, s.outcomeOf(holds.EventHoldCreated, s.expired))
			m := s.message(events.BookingExtended, "hall",
				events.BookingExtendedData{HoldID: s.expired, TTLSeconds: 60})
			s.answerByHand(m, holds.EventHoldExtended, s.expired, holds.HoldExtended{
				HoldData: data.HoldData, ExtendedAt: data.CreatedAt,
				ExpiresAt: holds.Time{Time: data.CreatedAt.Add(time.Minute)},
			})
		}, "ended_early", "and was published as expired at", "hold.expired", false,
	},
	{
		"slots are given back before the deadline", func(s *scene) {
			e := s.outcomeOf(holds.EventHoldExpired, s.expired)
			data := read[holds.HoldExpired](s, e)
			data.RestoredAt = holds.Time{Time: data.ExpiresAt.Add(-time.Millisecond)}
			body, err := json.Marshal(data)
			s.must(err)
			s.erase(holds.EventHoldExpired, s.expired)
			s.storedAs(e.ID, holds.EventHoldExpired, "hall", s.expired, "", body)
		}, "ended_early", "and its slots were given back before that, at", "hold.expired", false,
	},
	{
		"a hold expires that was never granted", func(s *scene) {
			data := read[holds.HoldExpired](s, s.outcomeOf(holds.EventHoldExpired, s.expired))
			id := holds.NewHoldID("hall")
			data.HoldID = id
			s.stored(holds.EventHoldExpired, "hall", id.String(), "", data)
		}, "never_granted", "and no outcome grants it.", "hold.expired", false,
	},
	{
		"a hold is paid that was never granted", func(s *scene) { s.erase(holds.EventHoldCreated, s.paid) },
		"never_granted no_outcome", "was extended, paid or ended, and no outcome grants it.",
		"booking.requested hold.confirmed", false,
	},
	{
		"an outcome is on the subject of another event", func(s *scene) {
			s.placed(s.outcomeOf(holds.EventHoldExpired, s.expired), s.subjects.Out(holds.EventHoldCreated, "hall"))
		}, "misplaced", "is stored on the subject of another event or resource than its own", "hold.expired", false,
	},
	{
		"an outcome is on the subject of another resource", func(s *scene) {
			s.placed(s.outcomeOf(holds.EventHoldExpired, s.expired), s.subjects.Out(holds.EventHoldExpired, "tent"))
		}, "misplaced", "is stored on the subject of another event or resource than its own", "hold.expired", false,
	},
	{
		"a request key has two holds", func(s *scene) { s.grantByHand("key-of-olga", "hank", "", "A-2") },
		"hold_lost two_grants", "of the same request key was live.", "hold.created", false,
	},
	{
		"a user has two holds on the same slots", func(s *scene) { s.grantByHand("k", "olga", "", "A-1") },
		"hold_lost two_grants", "of the same user and the same slots was live.", "hold.created", false,
	},
	{
		"a hold is granted twice with different content", func(s *scene) { s.grantByHand("k", "ida", s.other, "A-1") },
		"two_grants", "and with different content in sequence", "hold.created", false,
	},
	{
		"Redis remembers another end", func(s *scene) {
			s.changeRecord(s.released, func(words []string) { words[0] = "expired" })
		}, "hold_differs", "ended as hold.released, and Redis remembers it as expired.", "hold.released", false,
	},
}
