package audit_test

import (
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"holdfast/internal/audit"
	"holdfast/internal/events"
	"holdfast/internal/holds"
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
