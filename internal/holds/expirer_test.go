package holds_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// runExpirer runs the loops of an Expirer until the test ends.
func runExpirer(t testing.TB, x *holds.Expirer) {
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	for _, loop := range []func(context.Context) error{x.Sweep, x.Announce, x.Watch} {
		loops.Go(func() {
			if err := loop(ctx); err != nil {
				t.Errorf("loop: %v", err)
			}
		})
	}
	t.Cleanup(func() { cancel(); loops.Wait() })
}

func (w *harness) heldCount(t testing.TB, resource string) string {
	t.Helper()
	held, err := w.client.HGet(context.Background(), holds.Key(w.namespace, resource, "counts"), holds.StockSlot).Result()
	if err != nil {
		return "0"
	}
	return held
}

// TestExpirer_EachTrigger_ExpiresHold lets a hold expire by Redis' own clock, with each trigger of
// the sweep disabled.
func TestExpirer_EachTrigger_ExpiresHold(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]holds.ExpirerOptions{
		"timer and notifications": {},
		"timer alone":             {NoNotifications: true},
		"notifications alone":     {NoTimer: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRealTimeHarness(t)
			x := holds.NewExpirer(w.service, w, options, zerolog.Nop())
			runExpirer(t, x)
			if !options.NoNotifications {
				stacktest.Eventually(t, "the subscription", func() bool { return x.NotificationError() == nil })
			}
			w.setInventory(t, "tent", holds.SlotSelection{}, 1)
			o := w.place(t, holds.PlaceRequest{Resource: "tent", User: "ana", TTLSeconds: seconds(1)})[0]
			hold := created(t, o)
			// The test does not read the availability, because that would expire the hold.
			// It reads the key of the hold: else Redis notifies only when it happens to find that key among all others.
			key := holds.Key(w.namespace, "tent", "hold:"+hold.HoldID.UUID)
			stacktest.Eventually(t, "the counter to be restored", func() bool {
				return w.client.Exists(t.Context(), key).Err() == nil && w.heldCount(t, "tent") == "0"
			})
			var expired []holds.Outcome
			stacktest.Eventually(t, "hold.expired", func() bool { expired = append(expired, w.takeAnnounced()...); return len(expired) > 0 })
			data := expired[0].Data.(holds.HoldExpired)
			if len(expired) != 1 || expired[0].Hold != hold.HoldID || data.ExpiresAt != hold.ExpiresAt || data.RestoredAt.Before(data.ExpiresAt.Time) {
				t.Errorf("announced %+v for %+v", expired, hold)
			}
			stacktest.Eventually(t, "the hold to be forgotten", func() bool {
				return w.client.Exists(t.Context(), holds.Key(w.namespace, "tent", "departing")).Val() == 0
			})
			w.assertNothingHeld(t, "tent")
		})
	}
}

// TestService_DueHoldsNotSwept_CountAsExpired lets more holds expire than one call expires, without
// any sweep.
func TestService_DueHoldsNotSwept_CountAsExpired(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	const many = 3*holds.SweepMax + 7
	w.setInventory(t, "hall", holds.SlotSelection{}, many)
	requests := make([]holds.PlaceRequest, many)
	for i := range requests {
		requests[i] = holds.PlaceRequest{Resource: "hall", User: fmt.Sprintf("u%d", i), TTLSeconds: seconds(60)}
	}
	first := w.place(t, requests...)
	for _, o := range first {
		created(t, o)
	}
	w.pass(t, 59_999*time.Millisecond)
	rejected(t, w.place(t, holds.PlaceRequest{Resource: "hall", User: "late"})[0], holds.ReasonSoldOut)
	w.pass(t, time.Millisecond)
	// One call expires some of them. A query expires all. A payment and a cancellation also expire
	// their own hold.
	wantBrief(t, w.pay(t, first[many-1].Hold, "p"), "hold.confirm_rejected expired")
	wantBrief(t, w.release(t, holds.ReleaseRequest{Hold: first[many-2].Hold}), "hold.release_rejected expired")
	other := newHarness(t)
	other.setInventory(t, "hall", holds.SlotSelection{}, many)
	for i := range requests {
		requests[i].RequestKey, requests[i].EventID = "", ""
	}
	other.place(t, requests...)
	other.pass(t, time.Minute)
	if slot := other.available(t, "hall", holds.SlotSelection{})[0]; slot.Available != many {
		t.Errorf("available after all holds have expired: %+v", slot)
	}
	created(t, w.place(t, holds.PlaceRequest{Resource: "hall", User: "whole", Quantity: many})[0])

	// A later sweep announces each of them once.
	if got, want := briefs(w.sweep(t)), briefsAs(holds.EventHoldExpired, first); !slices.Equal(got, want) {
		t.Errorf("announced %d holds, want each of %d once", len(got), len(want))
	}
}

// briefsAs returns what briefs would return if each of the outcomes' holds had an event.
func briefsAs(event string, outcomes []holds.Outcome) []string {
	texts := make([]string, len(outcomes))
	for i, o := range outcomes {
		texts[i] = fmt.Sprintf("%s %s", event, o.Hold)
	}
	slices.Sort(texts)
	return texts
}

// BenchmarkExpire lets 2,000 holds expire within a second among 100,000 other keys with a TTL, and
// prints the delay until their counts are restored.
//
//	go test ./internal/holds -run '^$' -bench Expire -benchtime 1x
func BenchmarkExpire(b *testing.B) {
	const resources, total, foreign = 200, 2000, 100_000
	for _, notifications := range []bool{false, true} {
		b.Run(fmt.Sprintf("notifications=%v", notifications), func(b *testing.B) {
			w := newRealTimeHarness(b)
			w.flushAfter(b)
			pipe := w.client.Pipeline()
			for i := range foreign {
				pipe.Set(b.Context(), fmt.Sprintf("%s:foreign:%d", w.namespace, i), "x", time.Hour)
			}
			if _, err := pipe.Exec(b.Context()); err != nil {
				b.Fatal(err)
			}
			for r := range resources {
				w.setInventory(b, fmt.Sprintf("room-%d", r), holds.SlotSelection{}, total/resources)
			}
			runExpirer(b, holds.NewExpirer(w.service, w, holds.ExpirerOptions{NoNotifications: !notifications}, zerolog.Nop()))
			var late []time.Duration
			for b.Loop() {
				requests := make([]holds.PlaceRequest, total)
				for i := range requests {
					requests[i] = holds.PlaceRequest{Resource: fmt.Sprintf("room-%d", i%resources), User: fmt.Sprintf("u%d", i), TTLSeconds: seconds(3)}
				}
				w.place(b, requests...)
				for want := len(late) + total; len(late) < want; {
					stacktest.Eventually(b, "the expired holds", func() bool {
						batch := w.takeAnnounced()
						for _, o := range batch {
							data := o.Data.(holds.HoldExpired)
							late = append(late, data.RestoredAt.Sub(data.ExpiresAt.Time))
						}
						return len(batch) > 0
					})
				}
			}
			slices.Sort(late)
			for name, at := range map[string]float64{"p50": 0.5, "p99": 0.99, "max": 1} {
				b.ReportMetric(float64(late[int(at*float64(len(late)-1))].Milliseconds()), name+"-ms-late")
			}
		})
	}
}

// flushAfter removes what a benchmark has written when all that it runs has ended.
func (w *harness) flushAfter(b *testing.B) {
	b.Cleanup(func() {
		if err := w.client.FlushDB(context.Background()).Err(); err != nil {
			b.Error(err)
		}
	})
}

// BenchmarkExpireSteadily lets a hold expire every 2 ms while nothing else happens, and prints the processor time of
// Redis for each, with one worker and with three.
//
//	go test ./internal/holds -run '^$' -bench ExpireSteadily -benchtime 1x
func BenchmarkExpireSteadily(b *testing.B) {
	const resources, total, every = 200, 1000, 2 * time.Millisecond
	for _, workers := range []int{1, 3} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			w := newRealTimeHarness(b)
			w.flushAfter(b)
			for r := range resources {
				w.setInventory(b, fmt.Sprintf("room-%d", r), holds.SlotSelection{}, total)
			}
			for range workers {
				runExpirer(b, holds.NewExpirer(w.newService(w.client, w.locker(b), w.store), w, holds.ExpirerOptions{}, zerolog.Nop()))
			}
			for b.Loop() {
				due := time.NewTicker(every)
				for i := range total {
					<-due.C
					w.place(b, holds.PlaceRequest{
						Resource: fmt.Sprintf("room-%d", i%resources), User: fmt.Sprintf("u%d", i), TTLSeconds: seconds(4),
					})
				}
				due.Stop()
				expired := 0
				used := usageOf(b, w.client, total, func() {
					stacktest.Eventually(b, "the expired holds", func() bool { expired += len(w.takeAnnounced()); return expired == total })
				})
				b.ReportMetric(used.us, "redis-cpu-us/hold")
				b.ReportMetric(used.commands, "redis-commands/hold")
			}
		})
	}
}

// BenchmarkExpireNights lets holds of one night, of 14 and of 90 expire, ten and a hundred on each resource, and prints
// the processor time of Redis for each.
//
//	go test ./internal/holds -run '^$' -bench ExpireNights -benchtime 1x
func BenchmarkExpireNights(b *testing.B) {
	const total, year = 2000, 365
	for _, each := range []int{10, 100} {
		for _, nights := range []int{1, 14, 90} {
			b.Run(fmt.Sprintf("nights=%d/resource=%d", nights, each), func(b *testing.B) {
				w := newHarness(b)
				w.flushAfter(b)
				w.setPolicy(b, func(p *holds.Policy) { p.NightsMax = nights })
				first := time.Now().UTC().AddDate(0, 0, 1)
				night := func(i int) string { return first.AddDate(0, 0, i).Format(time.DateOnly) }
				for r := range total / each {
					w.setInventory(b, fmt.Sprintf("room-%d", r), holds.SlotSelection{CheckIn: night(0), CheckOut: night(year)}, total)
				}
				for b.Loop() {
					for r := range total / each {
						requests := make([]holds.PlaceRequest, each)
						for i := range requests {
							from := rand.IntN(year - nights)
							requests[i] = holds.PlaceRequest{
								Resource: fmt.Sprintf("room-%d", r), User: fmt.Sprintf("u%d", i), TTLSeconds: seconds(60),
								Selection: holds.SlotSelection{CheckIn: night(from), CheckOut: night(from + nights)},
							}
						}
						for _, o := range w.place(b, requests...) {
							created(b, o)
						}
					}
					w.pass(b, time.Minute)
					used := usageOf(b, w.client, total, func() {
						if expired := len(w.sweep(b)); expired != total {
							b.Fatalf("%d expired, want %d", expired, total)
						}
					})
					b.ReportMetric(used.us, "redis-cpu-us/hold")
				}
			})
		}
	}
}

// logBuffer is a log that several goroutines write and a test reads.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// count returns how often the log contains a text.
func (b *logBuffer) count(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.text.String(), text)
}
