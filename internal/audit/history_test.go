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
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// read returns what an outcome says.
func read[T any](s *scene, e events.Envelope) (data T) {
	s.Helper()
	s.must(json.Unmarshal(e.Data, &data))
	return data
}

// grantByHand stores a request and a grant of it that no worker has decided, until an hour from now.
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

// placed stores what an outcome says on a subject that is not its own.
func (s *scene) placed(e events.Envelope, subject string) {
	s.Helper()
	body, err := json.Marshal(e)
	s.must(err)
	_, err = s.js.Publish(s.Context(), subject, body)
	s.must(err)
}

// Histories of which each outcome looks well by itself.
var inHistories = []corruption{
	{
		"a hold lapses at the deadline before it was extended", func(s *scene) {
			data := read[holds.HoldCreated](s, s.outcomeOf(holds.EventHoldCreated, s.over))
			m := s.message(events.BookingExtended, "hall", events.BookingExtendedData{HoldID: s.over, TTLSeconds: 60})
			s.answerByHand(m, holds.EventHoldExtended, s.over, holds.HoldExtended{
				HoldData: data.HoldData, ExtendedAt: data.CreatedAt, ExpiresAt: holds.Time{Time: data.CreatedAt.Add(time.Minute)},
			})
		}, "ended_early", "and is told to have lapsed at", "hold.expired", false,
	},
	{
		"slots are given back before the deadline", func(s *scene) {
			e := s.outcomeOf(holds.EventHoldExpired, s.over)
			data := read[holds.HoldExpired](s, e)
			data.RestoredAt = holds.Time{Time: data.ExpiresAt.Add(-time.Millisecond)}
			body, err := json.Marshal(data)
			s.must(err)
			s.erase(holds.EventHoldExpired, s.over)
			s.storedAs(e.ID, holds.EventHoldExpired, "hall", s.over, "", body)
		}, "ended_early", "and its slots were given back at", "hold.expired", false,
	},
	{
		"a hold lapses that was never granted", func(s *scene) {
			data := read[holds.HoldExpired](s, s.outcomeOf(holds.EventHoldExpired, s.over))
			id, err := holds.NewHoldID("hall")
			s.must(err)
			data.HoldID = id
			s.stored(holds.EventHoldExpired, "hall", id.String(), "", data)
		}, "never_granted", "and nothing tells that it was granted.", "hold.expired", false,
	},
	{
		"a hold is paid that was never granted", func(s *scene) { s.erase(holds.EventHoldCreated, s.paid) },
		"never_granted no_outcome", "was extended, paid or ended, and nothing tells that it was granted.", "booking.requested hold.confirmed", false,
	},
	{
		"an outcome is on the subject of another event", func(s *scene) {
			s.placed(s.outcomeOf(holds.EventHoldExpired, s.over), s.subjects.Out(holds.EventHoldCreated, "hall"))
		}, "misplaced", "is stored on the subject of another event or another resource than it says", "hold.expired", false,
	},
	{
		"an outcome is on the subject of another resource", func(s *scene) {
			s.placed(s.outcomeOf(holds.EventHoldExpired, s.over), s.subjects.Out(holds.EventHoldExpired, "tent"))
		}, "misplaced", "is stored on the subject of another event or another resource than it says", "hold.expired", false,
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
		"a hold is granted twice, and otherwise", func(s *scene) { s.grantByHand("k", "ida", s.other, "A-1") },
		"two_grants", "and otherwise in sequence", "hold.created", false,
	},
	{
		"Redis remembers another end", func(s *scene) {
			key, id := s.key("hall", "records"), uuidOf(s.given)
			s.redis.HSet(s.Context(), key, id, strings.Replace(s.redis.HGet(s.Context(), key, id).Val(), "released", "expired", 1))
		}, "hold_differs", "ended as hold.released, and Redis remembers it as expired.", "hold.released", false,
	},
}

// TestRun_StreamsRecreated_NoFindings deletes streams and makes them anew, as who has lost NATS does: what was told in the
// streams before is not known, and no fault.
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
				t.Error("it does not say what it cannot tell")
			}
			s.wantWorking()
		})
	}
}

// TestRun_DatabaseRecreated_NoFindings begins anew in Redis and Postgres under the same name, and leaves the streams as they
// are: what was told there of holds and payments is of another database.
func TestRun_DatabaseRecreated_NoFindings(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	s.recreateDatabase()
	report := s.wantNoFindings()
	if text := strings.Join(report.Inconclusive, "\n"); !strings.HasPrefix(text, "19 outcomes were told before the schema of this database was made") {
		t.Errorf("cannot tell:\n%s", text)
	}
	s.startWorkers(1)
	s.setInventory("hall", 1, "A-1")
	if s.request("hall", "ana", time.Hour, 1, "A-1") == "" || s.request("hall", "olga", time.Hour, 1, "A-1") != "" {
		t.Error("A-1 does not have room for one, or has room for two")
	}
	s.stopWorkers()
	s.wantNoFindings()
	s.redis.HSet(ctx, s.key("hall", "counts"), "A-1", "0")
	if got := kinds(s.audit(audit.Options{})); !slices.Equal(got, []string{"counter"}) {
		t.Errorf("found %v", got)
	}
}

// recreateDatabase makes a new database under the name of the old one, with nothing in Redis.
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

// TestRun_RebuiltFromOlderStreams_OnlyUnannouncedFound begins anew, and has Redis filled from streams that stayed: what it has of holds that were told
// before the schema was made is no fault, and what nobody has told is one.
func TestRun_RebuiltFromOlderStreams_OnlyUnannouncedFound(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	s := newScene(t)
	ctx := t.Context()
	s.recreateDatabase()
	term := recovery.NewEpochTerm()
	if _, err := s.newSupervisor(term).Rebuild(ctx, "a test", true, func(string) {}); err != nil {
		t.Fatal(err)
	}
	records := s.redis.HGetAll(ctx, s.key("hall", "records")).Val()
	if !strings.HasPrefix(records[uuidOf(s.live)], "held ") || !strings.HasPrefix(records[uuidOf(s.given)], "released ") {
		t.Fatalf("redis was filled with %v", records)
	}
	report := s.wantNoFindings()
	if text := strings.Join(report.Inconclusive, "\n"); !strings.HasPrefix(text, "19 outcomes were told before the schema of this database was made") {
		t.Errorf("cannot tell:\n%s", text)
	}
	for i, line := range []string{records[uuidOf(s.live)], records[uuidOf(s.given)]} {
		s.must(s.redis.HSet(ctx, s.key("hall", "records"), strings.Repeat(strconv.Itoa(i), 32), line).Err())
	}
	if got := kinds(s.audit(audit.Options{})); !slices.Contains(got, "hold_untold") || !slices.Contains(got, "end_untold") {
		t.Errorf("of holds that nobody has told it finds %v", got)
	}
}

// TestRun_DeadLetterReplayed_NoFindings has an event die, and replays its letter: it is answered, with the letter removed and kept, or
// dies again.
func TestRun_DeadLetterReplayed_NoFindings(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"answered, the letter removed", "answered, the letter kept", "dead again", "dead again, the first letter removed"} {
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
				s.must(deadLetters.Remove(t.Context(), 2)) // the first is of the scene
			}
			s.wantNoFindings()
		})
	}
}

// lastInbound is the sequence of the last event.
func (s *scene) lastInbound() uint64 {
	s.Helper()
	stream, err := s.js.Stream(s.Context(), s.subjects.InStream())
	s.must(err)
	info, err := stream.Info(s.Context())
	s.must(err)
	return info.State.LastSeq
}

// TestRun_CapacityCut_OnlyGrantsBeyondItFound cuts a capacity below what is held: no fault, nor is the payment that is refused for it, or what is
// sold once SQL has raised it. A grant beyond it is one for who knows that nobody has raised it; else it is told
// that it could be.
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
			t.Errorf("by what was told found %v, want %v", got, want)
		}
		return s.audit(audit.Options{})
	}
	if report := both(); len(report.Findings) > 0 || len(report.Inconclusive) > 0 {
		t.Errorf("after the cut:\n%s", findingsText(report))
	}

	// What is asked for within a second of the cut may have been decided before it, and what is told within a second
	// of a raise after it.
	s.startWorkers(1)
	s.outlast()
	s.stopWorkers()
	s.execute(`UPDATE inventory SET capacity = 5 WHERE slot = 'A-2'`)
	s.startWorkers(1)
	if s.request("hall", "pia", time.Hour, 1, "A-2") == "" {
		t.Fatal("there is no room after SQL has made some")
	}
	s.stopWorkers()
	report := both("oversold")
	if len(report.Findings) > 0 || !strings.HasPrefix(strings.Join(report.Inconclusive, "\n"), "1 slot was granted beyond the capacity that was told of it last") {
		t.Errorf("after a grant beyond what was told:\n%s", findingsText(report))
	}
	s.startWorkers(1)
	s.outlast()
	s.setInventory("hall", 5, "A-2")
	if s.request("hall", "quinn", time.Hour, 2, "A-2") == "" || s.request("hall", "rob", time.Hour, 1, "A-2") != "" {
		t.Error("A-2 does not have room for two more, or has room for three")
	}
	s.stopWorkers()
	both("oversold")
}

// outlast has more time go by than the clocks of the servers may differ by: that of a hold.
func (s *scene) outlast() {
	s.Helper()
	expired := len(s.outcomes(holds.EventHoldExpired))
	s.request("tent", fmt.Sprintf("kim-%d", expired), 2*time.Second, 1)
	s.awaitOutcomes(holds.EventHoldExpired, expired+1)
}
