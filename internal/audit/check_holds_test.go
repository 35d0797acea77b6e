package audit_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/rs/zerolog"

	"holdfast/internal/audit"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// TestRun_ExtensionLost_PaymentCounts extends a hold and then pays it after its first deadline,
// without publishing either outcome. Then Redis loses its data. The payment counts and the
// extension is lost, which is no finding. It is one if no extension was requested.
func TestRun_ExtensionLost_PaymentCounts(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"requested": "", "not requested": "after_end"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			ctx := t.Context()
			w.startWorkers(1)
			w.setInventory("hall", 100, "A-1")
			term := recovery.NewEpochTerm()
			supervisor := w.newSupervisor(term)
			check := func(written bool) { w.checkEpoch(supervisor, written) }
			check(true)

			var hold holds.HoldID
			event := ""
			// on a slow machine the hold may expire first
			for ttl := time.Second; event != holds.EventHoldExtended; ttl *= 2 {
				var err error
				hold, err = holds.ParseHoldID(w.request("hall", "ana-"+ttl.String(), ttl, 1, "A-1"))
				w.must(err)
				requested := w.message(events.PaymentStarted, "hall", events.PaymentStartedData{HoldID: hold.String()})
				if want != "" {
					requested = w.message(events.BookingCancelled, "hall",
						events.BookingCancelledData{ResourceID: "hall", RequestKey: "k"})
				}
				w.stopWorkers()
				_, err = w.js.PublishMsg(ctx, requested)
				w.must(err)
				started := holds.ExtendRequest{EventID: "c", Hold: hold, PaymentStarted: true}
				extended := w.service().Extend(ctx, []holds.ExtendRequest{started})[0]
				w.must(extended.Err)
				event = extended.Outcome.Event
				if event != holds.EventHoldExtended {
					w.startWorkers(1)
				}
			}
			granted := w.outcomes(holds.EventHoldCreated)
			var created holds.HoldCreated
			w.must(json.Unmarshal(granted[len(granted)-1].Data, &created))
			stacktest.Eventually(t, "the published deadline", func() bool {
				return !w.redis.Time(ctx).Val().Before(created.ExpiresAt.Time)
			})
			_, err := w.js.PublishMsg(ctx,
				w.message(events.PaymentConfirmed, "hall",
					events.PaymentConfirmedData{HoldID: hold.String(), PaymentID: "p"}))
			w.must(err)
			for _, r := range w.service().Confirm(ctx, []holds.ConfirmRequest{{Hold: hold, PaymentID: "p"}}) {
				w.must(r.Err)
				if r.Outcome.Event != holds.EventHoldConfirmed {
					t.Fatalf("paid within the extension: %+v", r.Outcome)
				}
			}

			w.removeRedisData()
			check(false)
			if _, err := supervisor.Rebuild(ctx, "a test", false, func(string) {}); err != nil {
				t.Fatal(err)
			}
			check(true)
			w.term = term
			w.runSupervisor(supervisor)
			w.startWorkers(1)
			w.awaitOutcomes(holds.EventHoldConfirmed, 1)
			stacktest.Eventually(t, "every event to be answered", func() bool {
				report := w.audit(audit.Options{})
				return report.Pending == audit.Pending{}
			})
			w.stopWorkers()
			report := w.audit(audit.Options{})
			if got := strings.Join(kinds(report), " "); got != want {
				t.Errorf("the audit finds %q, want %q\n%s", got, want, findingsText(report))
			}
		})
	}
}

// TestRun_StreamLacksLiveHolds_NoRebuild lets the outbound stream lack what Redis has, as after the restore of an older
// copy: the grant of a live hold, or the position of the marker in Redis. A rebuild would lose live holds, so no remedy
// names it, as that of a hold that has ended unpublished and those of its counters do when the stream lacks nothing else.
func TestRun_StreamLacksLiveHolds_NoRebuild(t *testing.T) {
	t.Parallel()
	applied := func(s *scene, change func(end *holds.LogPosition)) {
		end, err := events.NewOutcomeLog(s.js, s.subjects, zerolog.Nop()).Position(s.Context())
		s.must(err)
		change(&end)
		s.must(s.redis.Set(s.Context(), record.Keyspace(s.namespace).Applied(3), fmt.Sprintf("epoch history %d.%d.%d",
			end.Created.UnixNano(), end.Seq, end.StoredAt.UnixNano()), 0).Err())
	}
	for name, lacks := range map[string]func(s *scene){
		// the marker was written before a complete copy was restored
		"nothing": func(s *scene) {
			applied(s, func(end *holds.LogPosition) { end.Created = end.Created.Add(-time.Hour) })
		},
		"a grant":    func(s *scene) { s.erase(holds.EventHoldCreated, s.other) },
		"the marker": func(s *scene) { applied(s, func(end *holds.LogPosition) { end.Seq++ }) },
		"its message": func(s *scene) {
			applied(s, func(end *holds.LogPosition) { end.StoredAt = end.StoredAt.Add(-time.Hour) })
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.changeRecord(s.live, func(words []string) { words[0], words[4] = "released", "1" })
			lacks(s)
			report := s.audit(audit.Options{})
			rebuilds, losing := 0, 0
			for _, f := range report.Findings {
				if strings.Contains(f.Remedy, "worker rebuild") {
					rebuilds++
				}
				if strings.HasPrefix(f.Remedy, "A rebuild of Redis would lose live holds") {
					losing++
				}
			}
			if !slices.Contains(kinds(report), "end_untold") || (rebuilds > 0) != (name == "nothing") ||
				(losing > 0) == (name == "nothing") {
				t.Errorf("%d remedies name a rebuild, %d that it loses holds:\n%s", rebuilds, losing, findingsText(report))
			}
		})
	}
}
