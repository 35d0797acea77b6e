package audit_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"holdfast/internal/audit"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// read decodes the data of an outcome.
func read[T any](s *scene, e events.Envelope) (data T) {
	s.Helper()
	s.must(json.Unmarshal(e.Data, &data))
	return data
}

// grantByHand stores a request and a grant of it for an hour that no worker has decided.
func (s *scene) grantByHand(key, user, hold string, slots ...string) {
	s.Helper()
	requested := holds.SlotSelection{Slots: slots}
	now := holds.Time{Time: s.redis.Time(s.Context()).Val().UTC().Truncate(time.Millisecond)}
	id, err := holds.NewHoldID("hall")
	s.must(err)
	if hold != "" {
		id, err = holds.ParseHoldID(hold)
		s.must(err)
	}
	one := int64(1)
	data := holds.HoldData{ResourceID: "hall", HoldID: id, RequestKey: key, UserID: user, SlotSelection: requested, Quantity: &one}
	m := s.message(events.BookingRequested, "hall", events.BookingRequestedData{RequestKey: key, UserID: user, ResourceID: "hall", SlotSelection: requested, Quantity: 1})
	s.answerByHand(m, holds.EventHoldCreated, id.String(), holds.HoldCreated{HoldData: data, CreatedAt: now, ExpiresAt: holds.Time{Time: now.Add(time.Hour)}})
}

// placed stores an outcome on a subject that is not its own.
func (s *scene) placed(e events.Envelope, subject string) {
	s.Helper()
	body, err := json.Marshal(e)
	s.must(err)
	_, err = s.js.Publish(s.Context(), subject, body)
	s.must(err)
}

// inHistories are outcomes that contradict each other, though each is correct by itself.
var inHistories = []corruption{
	{
		"a hold expires at the deadline before its extension", func(s *scene) {
			data := read[holds.HoldCreated](s, s.outcomeOf(holds.EventHoldCreated, s.expired))
			m := s.message(events.BookingExtended, "hall", events.BookingExtendedData{HoldID: s.expired, TTLSeconds: 60})
			s.answerByHand(m, holds.EventHoldExtended, s.expired, holds.HoldExtended{
				HoldData: data.HoldData, ExtendedAt: data.CreatedAt, ExpiresAt: holds.Time{Time: data.CreatedAt.Add(time.Minute)},
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
			id, err := holds.NewHoldID("hall")
			s.must(err)
			data.HoldID = id
			s.stored(holds.EventHoldExpired, "hall", id.String(), "", data)
		}, "never_granted", "and no outcome grants it.", "hold.expired", false,
	},
	{
		"a hold is paid that was never granted", func(s *scene) { s.erase(holds.EventHoldCreated, s.paid) },
		"never_granted no_outcome", "was extended, paid or ended, and no outcome grants it.", "booking.requested hold.confirmed", false,
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
			key, id := s.key("hall", "records"), uuidOf(s.released)
			s.redis.HSet(s.Context(), key, id, strings.Replace(s.redis.HGet(s.Context(), key, id).Val(), "released", "expired", 1))
		}, "hold_differs", "ended as hold.released, and Redis remembers it as expired.", "hold.released", false,
	},
}

// TestRun_StreamsRecreated_NoFindings deletes streams and recreates them, as an operator does after
// NATS has lost its data. The lost outcomes are inconclusive, and no finding.
func TestRun_StreamsRecreated_NoFindings(t *testing.T) {
	t.Parallel()
	for name, which := range map[string]func(events.Namespace) []string{
		"in":  func(ns events.Namespace) []string { return []string{ns.InStream()} },
		"out": func(ns events.Namespace) []string { return []string{ns.OutStream()} },
		"dlq": func(ns events.Namespace) []string { return []string{ns.DLQStream()} },
		"all": func(ns events.Namespace) []string { return []string{ns.InStream(), ns.OutStream(), ns.DLQStream()} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			for _, stream := range which(s.subjects) {
				s.must(s.js.DeleteStream(t.Context(), stream))
			}
			s.must(events.Setup(t.Context(), s.js, s.subjects, events.Retention{HoldLifetime: s.policy.HoldLifetimeMax, AnswerTTL: memory}, zerolog.Nop()))
			if report := s.wantNoFindings(); name != "all" && len(report.Inconclusive) == 0 {
				t.Error("nothing is inconclusive")
			}
			s.wantWorking()
		})
	}
}

// TestRun_DatabaseRecreated_NoFindings recreates Redis and Postgres under the same name and leaves
// the streams. Their outcomes are those of another database.
func TestRun_DatabaseRecreated_NoFindings(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	s.recreateDatabase()
	report := s.wantNoFindings()
	if text := strings.Join(report.Inconclusive, "\n"); !strings.HasPrefix(text, "19 outcomes were published before the schema of this database was created") {
		t.Errorf("inconclusive:\n%s", text)
	}
	s.startWorkers(1)
	s.setInventory("hall", 1, "A-1")
	if s.request("hall", "ana", time.Hour, 1, "A-1") == "" || s.request("hall", "olga", time.Hour, 1, "A-1") != "" {
		t.Error("A-1 does not have a capacity of exactly one")
	}
	s.stopWorkers()
	s.wantNoFindings()
	s.redis.HSet(ctx, s.key("hall", "counts"), "A-1", "0")
	if got := kinds(s.audit(audit.Options{})); !slices.Equal(got, []string{"counter"}) {
		t.Errorf("found %v", got)
	}
}

// recreateDatabase replaces the database by a new one of the same name, and empties Redis.
func (s *scene) recreateDatabase() {
	s.Helper()
	s.execute(`DROP SCHEMA ` + s.namespace + ` CASCADE`)
	s.removeRedisData()
	var err error
	s.store, err = store.Open(s.Context(), stacktest.Shared().PostgresURL, s.namespace)
	s.must(err)
	s.Cleanup(s.store.Close)
	s.must(s.store.Migrate(s.Context(), s.namespace))
	s.beginEpoch()
	s.backends.Postgres, err = audit.OpenPostgres(s.Context(), stacktest.Shared().PostgresURL, s.namespace)
	s.must(err)
	s.Cleanup(s.backends.Postgres.Close)
}

// TestRun_RebuiltFromOlderStreams_OnlyUnannouncedFound recreates the database and rebuilds Redis
// from streams that stayed. A hold in Redis whose outcomes were published before the schema was
// created is no finding. A hold without any outcome is one.
func TestRun_RebuiltFromOlderStreams_OnlyUnannouncedFound(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	s := newScene(t)
	ctx := t.Context()
	s.recreateDatabase()
	term := holds.NewEpochTerm()
	if _, err := s.newSupervisor(term).Rebuild(ctx, "a test", true, func(string) {}); err != nil {
		t.Fatal(err)
	}
	records := s.redis.HGetAll(ctx, s.key("hall", "records")).Val()
	if !strings.HasPrefix(records[uuidOf(s.live)], "held ") || !strings.HasPrefix(records[uuidOf(s.released)], "released ") {
		t.Fatalf("redis was rebuilt with %v", records)
	}
	report := s.wantNoFindings()
	if text := strings.Join(report.Inconclusive, "\n"); !strings.HasPrefix(text, "19 outcomes were published before the schema of this database was created") {
		t.Errorf("inconclusive:\n%s", text)
	}
	for i, line := range []string{records[uuidOf(s.live)], records[uuidOf(s.released)]} {
		s.must(s.redis.HSet(ctx, s.key("hall", "records"), strings.Repeat(strconv.Itoa(i), 32), line).Err())
	}
	if got := kinds(s.audit(audit.Options{})); !slices.Contains(got, "hold_untold") || !slices.Contains(got, "end_untold") {
		t.Errorf("holds without outcomes: found %v", got)
	}
}

// TestRun_DeadLetterReplayed_NoFindings dead-letters an event and replays the dead letter. The
// event is answered, with the dead letter removed or kept, or is dead-lettered again.
func TestRun_DeadLetterReplayed_NoFindings(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"answered, dead letter removed", "answered, dead letter kept", "dead again", "dead again, first dead letter removed"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			m := s.message(events.BookingCancelled, "hall", events.BookingCancelledData{HoldID: s.other})
			die := func() {
				s.answerByHand(m, "", "", nil)
				s.publishDeadLetter(s.lastInbound(), m.Subject, events.ReasonPoison)
			}
			die()
			s.wantNoFindings()
			again := nats.NewMsg(m.Subject)
			again.Data, again.Header = m.Data, nats.Header{"Content-Type": m.Header["Content-Type"], "Nats-Msg-Id": {"a replay"}}
			m = again
			if strings.HasPrefix(name, "dead") {
				die()
			} else {
				s.startWorkers(1)
				if a, err := s.client.Request(stacktest.WaitContext(t), m); err != nil || a.Envelope.Type != events.Type(holds.EventHoldReleased) {
					t.Errorf("the replay was answered %+v, %v", a, err)
				}
				s.stopWorkers()
			}
			if strings.HasSuffix(name, "removed") {
				deadLetters, err := s.client.DeadLetters(t.Context())
				s.must(err)
				s.must(deadLetters.Remove(t.Context(), 2)) // sequence 1 belongs to the scene
			}
			s.wantNoFindings()
		})
	}
}

// lastInbound returns the sequence of the last inbound event.
func (s *scene) lastInbound() uint64 {
	s.Helper()
	stream, err := s.js.Stream(s.Context(), s.subjects.InStream())
	s.must(err)
	info, err := stream.Info(s.Context())
	s.must(err)
	return info.State.LastSeq
}

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
	if len(report.Findings) > 0 || !strings.HasPrefix(strings.Join(report.Inconclusive, "\n"), "1 slot was granted beyond its last published capacity") {
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

// outlast waits longer than the clocks of the servers may differ: for the life of a hold.
func (s *scene) outlast() {
	s.Helper()
	expired := len(s.outcomes(holds.EventHoldExpired))
	s.request("tent", fmt.Sprintf("kim-%d", expired), 2*time.Second, 1)
	s.awaitOutcomes(holds.EventHoldExpired, expired+1)
}
