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
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// newSupervisor returns what notices that Redis has lost its data, and fills it again.
func (w *harness) newSupervisor(term *recovery.EpochTerm) *recovery.Supervisor {
	return recovery.NewSupervisor(recovery.SupervisorOptions{
		Namespace: w.namespace, Name: "keeper", Policy: w.policy, Term: term,
		Redis:      func() *redis.Options { return stacktest.RedisOptions(stacktest.Shared().RedisURL) },
		EpochStore: w.store, Inventory: w.store, OutcomeLog: events.NewOutcomeLog(w.js, w.subjects, zerolog.Nop()),
		Fence: locking.FenceBase(w.store.FenceBase).Next, Log: zerolog.Nop(),
	})
}

// runSupervisor has a Keeper keep watch until the test is over, as in every worker: without one, what is decided may be
// published for two seconds after the last look, and then never.
func (w *harness) runSupervisor(supervisor *recovery.Supervisor) {
	var running sync.WaitGroup
	running.Go(func() { _ = supervisor.Run(w.Context()) })
	w.Cleanup(running.Wait)
}

// checkEpoch has a Keeper check the servers, which may not answer in time on a slow machine, and fails the test unless it
// finds an epoch that is written, or is not.
func (w *harness) checkEpoch(supervisor *recovery.Supervisor, written bool) {
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

// removeRedisData removes all that Redis has of a town.
func (w *harness) removeRedisData() {
	w.Helper()
	ctx := w.Context()
	keys := w.redis.Scan(ctx, 0, w.namespace+":*", 1000).Iterator()
	for keys.Next(ctx) {
		w.redis.Del(ctx, keys.Val())
	}
	w.must(keys.Err())
}

// TestRun_RedisLostAndRebuilt_NoFindings loses all that Redis has of a town. While it is lost nothing of it is judged and nothing is
// repaired, also where something is left; an audit finds nothing when it was filled again, and what goes wrong then is
// healed as before.
func TestRun_RedisLostAndRebuilt_NoFindings(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	term := recovery.NewEpochTerm()
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
		!strings.Contains(got, "epoch missing") || !strings.Contains(got, "nobody fills it again yet") || !strings.Contains(got, "2 resources could not be looked at in redis") {
		t.Errorf("found\n%s", got)
	}
	if err := audit.Repair(ctx, s.backends, planned.Findings, memory); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("a repair ended with %v", err)
	}
	if got := s.redis.HGet(ctx, s.key("hall", "counts"), "A-1").Val(); got != "7" {
		t.Errorf("somebody has set the counter to %q", got)
	}

	if _, err := supervisor.Rebuild(ctx, "a test", false, func(string) {}); err != nil {
		t.Fatal(err)
	}
	check(true)
	s.wantNoFindings()
	if format, err := recovery.ReadFormat(ctx, s.namespace, s.redis); err != nil || format != recovery.Format {
		t.Errorf("the format is %d, %v", format, err)
	}
	wrongCounter()
	s.must(w.Round(ctx))
	if got := s.redis.HGet(ctx, s.key("hall", "counts"), "A-1").Val(); got != "3" {
		t.Errorf("it was healed to %q", got)
	}
	s.wantNoFindings()
	s.term = term
	s.runSupervisor(supervisor)
	s.startWorkers(1)
	s.pay(s.live, "p-ana")
	s.stopWorkers()
	s.wantNoFindings()
}

// TestRun_ExtensionLost_PaymentCounts has a hold extended, and then paid after its first deadline, by a worker that tells nobody, and
// loses what Redis has: the payment counts, the extension is forgotten. That is no fault; it is one where nobody
// has asked for an extension.
func TestRun_ExtensionLost_PaymentCounts(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"asked for": "", "not asked for": "after_end"} {
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
			for ttl := time.Second; event != holds.EventHoldExtended; ttl *= 2 { // on a slow machine it lapses before
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
			stacktest.Eventually(t, "the deadline that was told", func() bool {
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
			stacktest.Eventually(t, "all to be answered", func() bool {
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
