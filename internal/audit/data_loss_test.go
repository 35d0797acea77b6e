package audit_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/audit"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/stack/stacktest"
)

// newSupervisor returns a supervisor, which detects that Redis has lost data and rebuilds it.
func (w *harness) newSupervisor(term *holds.EpochTerm) *holds.Supervisor {
	return holds.NewSupervisor(holds.SupervisorOptions{
		Namespace: w.namespace, Name: "supervisor", Policy: w.policy, Term: term,
		Redis:      func() *redis.Options { return stacktest.RedisOptions(stacktest.Shared().RedisURL) },
		EpochStore: w.store, Inventory: w.store, OutcomeLog: events.NewOutcomeLog(w.js, w.subjects, zerolog.Nop()),
		Fence: locking.FenceBase(w.store.FenceBase).Next, Log: zerolog.Nop(),
	})
}

// runSupervisor runs a supervisor until the test ends, as every worker does. Without it outcomes
// may be published for only two seconds after the last check.
func (w *harness) runSupervisor(supervisor *holds.Supervisor) {
	var running sync.WaitGroup
	running.Go(func() { _ = supervisor.Run(w.Context()) })
	w.Cleanup(running.Wait)
}

// checkEpoch lets a supervisor check the servers, which may be slow to answer, and fails the test
// unless the epoch is complete or not, as wanted.
func (w *harness) checkEpoch(supervisor *holds.Supervisor, written bool) {
	w.Helper()
	stacktest.Eventually(w, "the servers to answer", func() bool {
		e, err := supervisor.Check(w.Context())
		if err == nil && e.Complete != written {
			w.Fatalf("the epoch is %+v", e)
		}
		if err != nil {
			w.Logf("check: %v", err)
		}
		return err == nil
	})
}

// removeRedisData removes all data of the namespace from Redis.
func (w *harness) removeRedisData() {
	w.Helper()
	ctx := w.Context()
	keys := w.redis.Scan(ctx, 0, w.namespace+":*", 1000).Iterator()
	for keys.Next(ctx) {
		w.redis.Del(ctx, keys.Val())
	}
	w.must(keys.Err())
}

// TestRun_RedisLostAndRebuilt_NoFindings removes all data from Redis. Until the rebuild nothing is
// checked or repaired, even where data is left. After it an audit finds nothing, and new corruption
// is healed as before.
func TestRun_RedisLostAndRebuilt_NoFindings(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	term := holds.NewEpochTerm()
	supervisor := s.newSupervisor(term)
	w := s.newReconcilerWithTerm(term, true)
	check := func(written bool) { s.checkEpoch(supervisor, written) }
	wrongCounter := func() {
		t.Helper()
		s.must(s.redis.HSet(ctx, s.key("hall", "counts"), "A-1", 7).Err())
	}
	check(true)
	wrongCounter()
	planned := s.audit(audit.Options{})
	s.removeRedisData()
	check(false)

	wrongCounter()
	if err := w.Round(ctx); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("a round ended with %v", err)
	}
	report := s.audit(audit.Options{})
	if got := findingsText(report); len(report.Findings) != 1 || report.Findings[0].Kind != audit.DataLost ||
		!strings.Contains(got, "the epoch is gone") || !strings.Contains(got, "the rebuild has not started") || !strings.Contains(got, "2 resources could not be read in redis") {
		t.Errorf("found\n%s", got)
	}
	if err := audit.Repair(ctx, s.backends, planned.Findings, memory); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("a repair ended with %v", err)
	}
	if got := s.redis.HGet(ctx, s.key("hall", "counts"), "A-1").Val(); got != "7" {
		t.Errorf("the counter is %q, want it unchanged", got)
	}

	if _, err := supervisor.Rebuild(ctx, "a test", false, func(string) {}); err != nil {
		t.Fatal(err)
	}
	check(true)
	s.wantNoFindings()
	if format, err := holds.ReadFormat(ctx, s.namespace, s.redis); err != nil || format != holds.Format {
		t.Errorf("the format is %d, %v", format, err)
	}
	wrongCounter()
	s.must(w.Round(ctx))
	if got := s.redis.HGet(ctx, s.key("hall", "counts"), "A-1").Val(); got != "3" {
		t.Errorf("healed to %q", got)
	}
	s.wantNoFindings()
	s.term = term
	s.runSupervisor(supervisor)
	s.startWorkers(1)
	s.pay(s.live, "p-ana")
	s.stopWorkers()
	s.wantNoFindings()
}

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
			term := holds.NewEpochTerm()
			supervisor := w.newSupervisor(term)
			check := func(written bool) { w.checkEpoch(supervisor, written) }
			check(true)

			var hold holds.HoldID
			event := ""
			for ttl := time.Second; event != holds.EventHoldExtended; ttl *= 2 { // on a slow machine the hold may expire first
				var err error
				hold, err = holds.ParseHoldID(w.request("hall", "ana-"+ttl.String(), ttl, 1, "A-1"))
				w.must(err)
				requested := w.message(events.PaymentStarted, "hall", events.PaymentStartedData{HoldID: hold.String()})
				if want != "" {
					requested = w.message(events.BookingCancelled, "hall", events.BookingCancelledData{ResourceID: "hall", RequestKey: "k"})
				}
				w.stopWorkers()
				_, err = w.js.PublishMsg(ctx, requested)
				w.must(err)
				w.service().Extend(ctx, []holds.ExtendRequest{{EventID: "c", Hold: hold, PaymentStarted: true}}, func(_ int, r holds.Result) {
					w.must(r.Err)
					event = r.Outcome.Event
				})
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
			_, err := w.js.PublishMsg(ctx, w.message(events.PaymentConfirmed, "hall", events.PaymentConfirmedData{HoldID: hold.String(), PaymentID: "p"}))
			w.must(err)
			w.service().Confirm(ctx, []holds.ConfirmRequest{{Hold: hold, PaymentID: "p"}}, func(_ int, r holds.Result) {
				w.must(r.Err)
				if r.Outcome.Event != holds.EventHoldConfirmed {
					t.Fatalf("paid within the extension: %+v", r.Outcome)
				}
			})

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
