package holds_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// runExpirer runs the loops of an Expirer until the test ends.
func runExpirer(t *testing.T, x *holds.Expirer) {
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

// TestWatch_Subscribed_SweepsAllPartitions lets a hold expire while no worker is subscribed and the
// timer is disabled: before the first subscription, and before the one that follows a cut. It runs
// alone, because it cuts all subscriptions of the server and disables notifications.
func TestWatch_Subscribed_SweepsAllPartitions(t *testing.T) {
	w := newRealTimeHarness(t)
	ctx := t.Context()
	w.setInventory(t, "tent", holds.SlotSelection{}, 1)
	expire := func() {
		hold := created(t, w.place(t, holds.PlaceRequest{Resource: "tent", User: "ana", TTLSeconds: seconds(1)})[0]).HoldID
		key := holds.Key(w.namespace, "tent", "hold:"+hold.UUID)
		stacktest.Eventually(t, "the deadline", func() bool { return w.client.Exists(ctx, key).Val() == 0 })
	}
	expire()
	runExpirer(t, holds.NewExpirer(w.service, w, holds.ExpirerOptions{NoTimer: true}, zerolog.Nop()))
	stacktest.Eventually(t, "the sweep after the first subscription", func() bool { return w.heldCount(t, "tent") == "0" })

	if err := w.client.ConfigSet(ctx, "notify-keyspace-events", "").Err(); err != nil {
		t.Fatal(err) // like a server that has restarted
	}
	expire()
	stacktest.Eventually(t, "the sweep after the cut", func() bool {
		if err := w.client.ClientKillByFilter(ctx, "TYPE", "pubsub").Err(); err != nil {
			t.Fatal(err)
		}
		return w.heldCount(t, "tent") == "0"
	})
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
	if got := brief(w.pay(t, first[many-1].Hold, "p")); got != "hold.confirm_rejected expired" {
		t.Errorf("a payment for a hold that was not swept: %s", got)
	}
	if got := brief(w.release(t, holds.ReleaseRequest{Hold: first[many-2].Hold})); got != "hold.release_rejected expired" {
		t.Errorf("a cancellation of a hold that was not swept: %s", got)
	}
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
	if err := w.expirer.SweepAndAnnounce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := briefs(w.takeAnnounced()), briefsAs(holds.EventHoldExpired, first); !slices.Equal(got, want) {
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

// TestSweep_SeveralWorkers_RestoreEachHoldOnce lets several workers sweep the same expired holds at
// the same time.
func TestSweep_SeveralWorkers_RestoreEachHoldOnce(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	const resources, each = 20, 10
	var all []holds.Outcome
	for r := range resources {
		name := fmt.Sprintf("room-%d", r)
		w.setInventory(t, name, holds.SlotSelection{}, each)
		for i := range each {
			o := w.place(t, holds.PlaceRequest{Resource: name, User: fmt.Sprintf("u%d", i), TTLSeconds: seconds(1)})
			created(t, o[0])
			all = append(all, o...)
		}
	}
	w.pass(t, time.Second)
	var workers sync.WaitGroup
	for range 4 {
		x := holds.NewExpirer(w.newService(w.client, w.locker(t), w.store), w, holds.ExpirerOptions{}, zerolog.Nop())
		workers.Go(func() {
			if err := x.SweepAndAnnounce(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	workers.Wait()
	if got, want := briefs(w.takeAnnounced()), briefsAs(holds.EventHoldExpired, all); !slices.Equal(got, want) {
		t.Errorf("announced %d, want each of %d once", len(got), len(want))
	}
	for r := range resources {
		w.assertNothingHeld(t, fmt.Sprintf("room-%d", r))
	}
}

// TestAnnounce_WorkerCrashed_IsHandedOutAgain lets a worker die after it has restored a hold and
// before it has announced it.
func TestAnnounce_WorkerCrashed_IsHandedOutAgain(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	o := w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", TTLSeconds: seconds(1)})
	created(t, o[0])
	w.pass(t, time.Second)
	dead := holds.NewExpirer(w.service, w, holds.ExpirerOptions{}, zerolog.Nop())
	if err := dead.SweepOnly(t.Context()); err != nil {
		t.Fatal(err)
	}
	sweep := func() []string {
		if err := w.expirer.SweepAndAnnounce(t.Context()); err != nil {
			t.Fatal(err)
		}
		return briefs(w.takeAnnounced())
	}
	if got := sweep(); len(got) != 0 {
		t.Errorf("announced %v while it was handed out to another worker", got)
	}
	w.pass(t, holds.AnnounceLease)
	if got, want := sweep(), briefsAs(holds.EventHoldExpired, o); !slices.Equal(got, want) {
		t.Errorf("announced %v, want %v", got, want)
	}
	w.pass(t, holds.AnnounceLease)
	if got := sweep(); len(got) != 0 {
		t.Errorf("announced again: %v", got)
	}
}

// TestSweep_StrayDeadline_ExpiresNothing adds claimed, confirmed and released holds to due, as a
// corrupt or restored Redis may have them. The state of a hold decides, not due.
func TestSweep_StrayDeadline_ExpiresNothing(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	ctx := t.Context()
	w.setInventory(t, "room", holds.SlotSelection{}, 3)
	var ids []holds.HoldID
	for _, user := range []string{"claims", "pays", "cancels"} {
		ids = append(ids, created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: user, TTLSeconds: seconds(60)})[0]).HoldID)
	}
	w.newService(w.client, w.locker(t), &failingInventory{Inventory: w.store}).Confirm(ctx, []holds.ConfirmRequest{{Hold: ids[0], PaymentID: "p"}})
	w.pay(t, ids[1], "p")
	w.release(t, holds.ReleaseRequest{Hold: ids[2]})
	for _, later := range []time.Duration{0, time.Hour} { // before their deadlines, and long after
		w.pass(t, later)
		for _, id := range ids {
			if err := w.client.ZAdd(ctx, holds.Key(w.namespace, "room", "due"), redis.Z{Score: 1, Member: id.UUID}).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if slot := w.available(t, "room", holds.SlotSelection{})[0]; slot.Held != 1 || slot.Reserved != 1 {
			t.Errorf("after a sweep of stray deadlines: %+v", slot)
		}
	}
	if err := w.expirer.SweepAndAnnounce(ctx); err != nil {
		t.Fatal(err)
	}
	if expired := w.takeAnnounced(); len(expired) != 0 {
		t.Errorf("expired: %v", briefs(expired))
	}
	if got := brief(w.pay(t, ids[0], "p")); got != holds.EventHoldConfirmed {
		t.Errorf("the claimed hold: %s", got)
	}
	w.assertNothingHeld(t, "room")
}

// TestAnnounce_NotStored_IsHandedOutAgain makes the stream refuse a hold.expired: it is announced
// later and not forgotten.
func TestAnnounce_NotStored_IsHandedOutAgain(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	o := w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", TTLSeconds: seconds(1)})
	created(t, o[0])
	w.pass(t, time.Second)
	w.unstored = 1
	if err := w.expirer.SweepAndAnnounce(t.Context()); err == nil {
		t.Error("Announce returned no error although it was not stored")
	}
	w.pass(t, holds.AnnounceLease)
	if err := w.expirer.SweepAndAnnounce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := briefs(w.takeAnnounced()), briefsAs(holds.EventHoldExpired, o); !slices.Equal(got, want) {
		t.Errorf("announced %v, want %v", got, want)
	}
}

// TestSweep_RequestsWithoutEnd_TimerStillFires requests sweeps of one partition without end while a
// hold of another partition expires without a notification.
func TestSweep_RequestsWithoutEnd_TimerStillFires(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.expireWhileRequesting(t, holds.NewExpirer(w.service, w, holds.ExpirerOptions{}, zerolog.Nop()), "other")
}

// expireWhileRequesting lets a hold expire in another partition than that of resource, without a
// notification. Meanwhile it requests sweeps of the partition of resource without end. It waits
// until the hold's count is restored.
func (w *harness) expireWhileRequesting(t *testing.T, x *holds.Expirer, resource string) {
	t.Helper()
	runExpirer(t, x)
	stacktest.Eventually(t, "the subscription", func() bool { return x.NotificationError() == nil })
	other := "tent"
	for i := 0; record.Partition(other) == record.Partition(resource); i++ {
		other = fmt.Sprint("tent-", i)
	}
	w.setInventory(t, other, holds.SlotSelection{}, 1)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: other, User: "ana", TTLSeconds: seconds(1)})[0]).HoldID
	if err := w.client.Del(t.Context(), holds.Key(w.namespace, other, "hold:"+hold.UUID)).Err(); err != nil {
		t.Fatal(err) // its expiry is not notified
	}
	nudge := holds.Key(w.namespace, resource, "hold:0")
	stacktest.Eventually(t, "the count to be restored", func() bool {
		if err := w.client.Publish(t.Context(), "__keyevent@0__:expired", nudge).Err(); err != nil {
			t.Fatal(err)
		}
		return w.heldCount(t, other) == "0"
	})
}

// TestSweep_ResourceCorrupt_RestoresOthers corrupts a resource whose partition is requested without
// end: a hold of another partition is restored.
func TestSweep_ResourceCorrupt_RestoresOthers(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.corrupt(t, "room")
	w.expireWhileRequesting(t, holds.NewExpirer(w.service, w, holds.ExpirerOptions{}, zerolog.Nop()), "room")
}

// TestSweep_DueWithoutEnd_RestoresOthers gives a resource more due holds before each round trip
// than one sweep expires.
func TestSweep_DueWithoutEnd_RestoresOthers(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	client := newClient(t, w.redisURL)
	client.AddHook(beforePipeline(func(context.Context, []redis.Cmder) error { return w.addDue(w.client, "room") }))
	x := holds.NewExpirer(w.newService(client, w.locker(t), w.store), w, holds.ExpirerOptions{}, zerolog.Nop())
	w.expireWhileRequesting(t, x, "room")
}

// TestSweep_PartitionSilent_RestoresOthers makes Redis not answer for one partition, like one of
// several servers that hangs, and gives the agenda of another partition a wrong type.
func TestSweep_PartitionSilent_RestoresOthers(t *testing.T) {
	t.Parallel()
	w := newHarnessOn(t, stacktest.StartRedis(t).RedisURL) // a server that knows no script yet
	silent := holds.EpochKey(w.namespace, "room")
	client := newClient(t, w.redisURL)
	client.AddHook(silentKey(silent))
	corrupt := "hall"
	for i := 0; holds.EpochKey(w.namespace, corrupt) == silent; i++ {
		corrupt = fmt.Sprint("hall-", i)
	}
	agenda := strings.TrimSuffix(holds.EpochKey(w.namespace, corrupt), "epoch") + "agenda"
	if err := w.client.Set(t.Context(), agenda, "oops", 0).Err(); err != nil {
		t.Fatal(err)
	}
	other := "tent"
	for i := 0; holds.EpochKey(w.namespace, other) == silent || holds.EpochKey(w.namespace, other) == holds.EpochKey(w.namespace, corrupt); i++ {
		other = fmt.Sprint("tent-", i)
	}
	w.setInventory(t, other, holds.SlotSelection{}, 1)
	created(t, w.place(t, holds.PlaceRequest{Resource: other, User: "ana", TTLSeconds: seconds(1)})[0])
	runExpirer(t, holds.NewExpirer(w.newService(client, w.locker(t), w.store), w, holds.ExpirerOptions{NoNotifications: true}, zerolog.Nop()))
	stacktest.Eventually(t, "the count to be restored", func() bool { return w.heldCount(t, other) == "0" })
}

// TestSweep_ResourcesCorrupt_RestAlone corrupts more resources of a partition than one round
// sweeps, and more than can pause. As many as possible pause, and a hold that is due later in the
// same partition is restored.
func TestSweep_ResourcesCorrupt_RestAlone(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	resources := samePartition(2*holds.DueMax + 1)
	good, corrupt := resources[0], resources[1:]
	w.setInventory(t, good, holds.SlotSelection{}, 1)
	hold := w.place(t, holds.PlaceRequest{Resource: good, User: "ana", TTLSeconds: seconds(1)})
	created(t, hold[0])
	w.corrupt(t, corrupt...)
	w.pass(t, time.Second)
	reports := 0
	w.service.OnCorruption(func(string) { reports++ })
	round := w.expirer.Rounds(time.Hour)
	for n := range 3 {
		resting, err := round(t.Context())
		if want := min(n+1, 2) * holds.DueMax; resting != want || reports != want || (err == nil) != (n == 2) {
			t.Errorf("after round %d %d resources pause, %d failures were reported: %v", n, resting, reports, err)
		}
	}
	if got := w.heldCount(t, good); got != "0" {
		t.Errorf("%s are held", got)
	}
	tireless := w.expirer.Rounds(-time.Second)
	for n := range 3 { // a failure is reported once
		if _, err := tireless(t.Context()); (err == nil) != (n == 2) {
			t.Errorf("round %d: %v", n, err)
		}
	}
	more := make([]string, holds.RestingMax)
	for i := range more {
		more[i] = fmt.Sprint("e", i)
	}
	w.corrupt(t, more...)
	for range 3 {
		if resting, _ := round(t.Context()); resting > holds.RestingMax {
			t.Errorf("%d resources pause", resting)
		}
	}
}

// TestSweep_OneResourceFull_TakesTurns makes more holds due on one resource than a round expires,
// and one hold on each of the other resources in the same run.
func TestSweep_OneResourceFull_TakesTurns(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	resources := samePartition(5)
	for _, resource := range resources[1:] {
		w.setInventory(t, resource, holds.SlotSelection{}, 1)
		created(t, w.place(t, holds.PlaceRequest{Resource: resource, User: "ana", TTLSeconds: seconds(1)})[0])
	}
	w.pass(t, time.Second)
	round := w.expirer.Rounds(time.Second)
	for range 2 {
		if err := w.addDue(w.client, resources[0]); err != nil {
			t.Fatal(err)
		}
		if _, err := round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, resource := range resources[1:] {
		if got := w.heldCount(t, resource); got != "0" {
			t.Errorf("%s are held of %s", got, resource)
		}
	}
}

// addDue adds more entries to due of a resource than one run expires, all long ago. They have no
// holds.
func (w *harness) addDue(client *redis.Client, resource string) error {
	stray := make([]redis.Z, holds.SweepMax)
	for i := range stray {
		stray[i] = redis.Z{Score: 1, Member: uuid.NewString()}
	}
	ctx := context.Background()
	agenda := strings.TrimSuffix(holds.EpochKey(w.namespace, resource), "epoch") + "agenda"
	return errors.Join(client.ZAdd(ctx, holds.Key(w.namespace, resource, "due"), stray...).Err(),
		client.ZAdd(ctx, agenda, redis.Z{Score: 1, Member: resource}).Err())
}

// corrupt adds to each resource a due hold whose record is corrupt.
func (w *harness) corrupt(t *testing.T, resources ...string) {
	t.Helper()
	pipe := w.client.Pipeline()
	for _, resource := range resources {
		agenda := strings.TrimSuffix(holds.EpochKey(w.namespace, resource), "epoch") + "agenda"
		pipe.HSet(t.Context(), holds.Key(w.namespace, resource, "records"), "x", "rubbish")
		pipe.ZAdd(t.Context(), holds.Key(w.namespace, resource, "due"), redis.Z{Score: 1, Member: "x"})
		pipe.ZAdd(t.Context(), agenda, redis.Z{Score: 1, Member: resource})
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// beforePipeline is a hook that calls a function before each pipeline. If the function fails, the
// pipeline fails.
type beforePipeline func(context.Context, []redis.Cmder) error

func (f beforePipeline) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		if err := f(ctx, commands); err != nil {
			return err
		}
		return next(ctx, commands)
	}
}

func (beforePipeline) DialHook(next redis.DialHook) redis.DialHook { return next }

func (beforePipeline) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// silentKey is a hook that never answers commands with this key as an argument, and passes the
// others on.
type silentKey string

func (k silentKey) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		var received, unanswered []redis.Cmder
		for _, c := range commands {
			if slices.Contains(c.Args(), any(string(k))) {
				unanswered = append(unanswered, c)
			} else {
				received = append(received, c)
			}
		}
		err := next(ctx, received)
		if len(unanswered) > 0 {
			<-ctx.Done()
			err = context.Cause(ctx)
			for _, c := range unanswered {
				c.SetErr(err)
			}
		}
		return err
	}
}

func (silentKey) DialHook(next redis.DialHook) redis.DialHook { return next }

func (silentKey) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// BenchmarkExpire lets 2,000 holds expire within a second among 100,000 other keys with a TTL, and
// prints the delay until their counts are restored.
//
//	go test ./internal/holds -run '^$' -bench Expire -benchtime 1x
func BenchmarkExpire(b *testing.B) {
	const resources, total, foreign = 200, 2000, 100_000
	for _, notifications := range []bool{false, true} {
		b.Run(fmt.Sprintf("notifications=%v", notifications), func(b *testing.B) {
			w := newRealTimeHarness(b)
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
			x := holds.NewExpirer(w.service, w, holds.ExpirerOptions{NoNotifications: !notifications}, zerolog.Nop())
			ctx, cancel := context.WithCancel(context.Background())
			var loops sync.WaitGroup
			for _, loop := range []func(context.Context) error{x.Sweep, x.Announce, x.Watch} {
				loops.Go(func() { _ = loop(ctx) })
			}
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
			cancel()
			loops.Wait()
			slices.Sort(late)
			for name, at := range map[string]float64{"p50": 0.5, "p99": 0.99, "max": 1} {
				b.ReportMetric(float64(late[int(at*float64(len(late)-1))].Milliseconds()), name+"-ms-late")
			}
			if err := w.client.FlushDB(b.Context()).Err(); err != nil {
				b.Fatal(err)
			}
		})
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

// TestSweep_RedisOutage_LoggedAtBeginAndEnd fails all commands of the sweep, each with another error. It logs one line
// when the outage begins and one when it ends.
func TestSweep_RedisOutage_LoggedAtBeginAndEnd(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	var down atomic.Bool
	var failed atomic.Int64
	client := newClient(t, w.redisURL)
	client.AddHook(beforePipeline(func(_ context.Context, commands []redis.Cmder) error {
		if !down.Load() {
			return nil
		}
		err := fmt.Errorf("failure %d", failed.Add(1))
		for _, c := range commands {
			c.SetErr(err)
		}
		return err
	}))
	var log logBuffer
	down.Store(true)
	x := holds.NewExpirer(w.newService(client, w.locker(t), w.store), w, holds.ExpirerOptions{}, zerolog.New(&log))
	runExpirer(t, x)
	stacktest.Eventually(t, "several failed rounds", func() bool { return failed.Load() > 10 })
	if begun, ended := log.count("sweep failed"), log.count("sweep recovered"); begun != 1 || ended != 0 {
		t.Errorf("during the outage %d lines begin and %d end: %s", begun, ended, log.text.String())
	}
	down.Store(false)
	stacktest.Eventually(t, "the end of the outage", func() bool { return log.count("sweep recovered") > 0 })
	if begun, ended := log.count("sweep failed"), log.count("sweep recovered"); begun != 1 || ended != 1 {
		t.Errorf("after the outage %d lines begin and %d end", begun, ended)
	}
}

// TestAnnounce_OutageOfNATS_LoggedAtBeginAndEnd fails the announcements of the first two of three holds.
func TestAnnounce_OutageOfNATS_LoggedAtBeginAndEnd(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.placeForThreeRounds(t)
	w.unstored = 2
	var log logBuffer
	runExpirer(t, holds.NewExpirer(w.service, w, holds.ExpirerOptions{}, zerolog.New(&log)))
	stacktest.Eventually(t, "the end of the outage", func() bool { return log.count("announcing expired holds recovered") > 0 })
	if begun, ended := log.count("announcing expired holds failed"), log.count("announcing expired holds recovered"); begun != 1 || ended != 1 {
		t.Errorf("%d lines begin and %d end the outage", begun, ended)
	}
}

// placeForThreeRounds places three holds, which expire in different rounds.
func (w *harness) placeForThreeRounds(t *testing.T) {
	t.Helper()
	w.setInventory(t, "tent", holds.SlotSelection{}, 3)
	for i := range int64(3) {
		created(t, w.place(t, holds.PlaceRequest{Resource: "tent", User: fmt.Sprint(i), TTLSeconds: seconds(i + 1)})[0])
	}
}

// TestAnnounce_NothingSent_LeavesNothingUncertain fails what an announcement needs before it sends, and then the sending.
// Only after the latter something may be stored later.
func TestAnnounce_NothingSent_LeavesNothingUncertain(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.placeForThreeRounds(t)
	term := &unverifiedTerm{EpochTerm: w.term, ends: make(chan bool, 100)}
	service := holds.NewService(w.namespace, w.client, w.locker(t), w.store, term, w.policy)
	w.unstored = 1
	runExpirer(t, holds.NewExpirer(service, w, holds.ExpirerOptions{}, zerolog.Nop()))
	for i, want := range []bool{true, false, true} { // Postgres is away, NATS is away, stored
		if certain := <-term.ends; certain != want {
			t.Errorf("announcement %d: all that was sent is stored: %v, want %v", i+1, certain, want)
		}
	}
}

// unverifiedTerm is a term that cannot verify its epoch the first time.
type unverifiedTerm struct {
	*recovery.EpochTerm
	once sync.Once
	ends chan bool // of publications: certain
}

func (t *unverifiedTerm) Verify(ctx context.Context, term string) (err error) {
	t.once.Do(func() { err = errors.New("postgres does not answer") })
	if err != nil {
		return err
	}
	return t.EpochTerm.Verify(ctx, term)
}

func (t *unverifiedTerm) Publishing() func(certain bool) {
	done := t.EpochTerm.Publishing()
	return func(certain bool) { done(certain); t.ends <- certain }
}
