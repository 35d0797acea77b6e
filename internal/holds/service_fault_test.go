package holds_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// replyLosingService returns a service that loses the reply of its n-th round trip of scripts from
// now. It takes no locks, so that every round trip belongs to the verb.
func (w *harness) replyLosingService(t *testing.T, n int32) *holds.Service {
	t.Helper()
	client := newClient(t, stacktest.Shared().RedisURL)
	stacktest.DropReply(client, n, "eval", "evalsha")
	return w.newService(client, newLocker(t, locking.NewNone(client)), w.store)
}

// TestService_ReplyLost_RedeliveryHasSameOutcome loses the reply of each script after it has run.
// The event is redelivered, and its outcome is the one that was decided the first time.
func TestService_ReplyLost_RedeliveryHasSameOutcome(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	ctx := t.Context()
	w.setInventory(t, "tent", holds.SlotSelection{}, 1)

	place := []holds.PlaceRequest{{
		EventID: uuid.NewString(), RequestKey: "k", Resource: "tent", User: "ana", Quantity: 1, StoredAt: time.Now(),
	}}
	expectReplyLost(t, w.replyLosingService(t, 1).Place(ctx, place))
	hold := created(t, w.place(t, place...)[0])
	if hold.Replayed || w.heldCount(t, "tent") != "1" {
		t.Fatalf("after a lost reply %s are held and the outcome is %+v", w.heldCount(t, "tent"), hold)
	}

	paid := []holds.ConfirmRequest{{Hold: hold.HoldID, PaymentID: "p"}}
	expectReplyLost(t, slices.All(w.replyLosingService(t, 1).Confirm(ctx, paid))) // claim.lua
	expectReplyLost(t, slices.All(w.replyLosingService(t, 2).Confirm(ctx, paid))) // settle.lua
	if got := brief(w.pay(t, hold.HoldID, "p")); got != holds.EventHoldConfirmed {
		t.Fatalf("paid after lost replies: %s", got)
	}
	if slot := w.available(t, "tent", holds.SlotSelection{})[0]; slot.Reserved != 1 || slot.Held != 0 {
		t.Fatalf("after lost replies: %+v", slot)
	}

	cancel := holds.CancelRequest{EventID: uuid.NewString(), Hold: hold.HoldID}
	w.execute(t, `CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'lost'; END $$;
		CREATE TRIGGER lose BEFORE UPDATE OF cancelled_at ON reservations EXECUTE FUNCTION lose()`)
	for _, r := range w.service.Cancel(ctx, []holds.CancelRequest{cancel}) {
		if r.Err == nil { // the first transaction is committed, the second is not
			t.Errorf("cancelled at an unknown time: %+v", r.Outcome)
		}
	}
	w.execute(t, `DROP TRIGGER lose ON reservations`)
	first := exactText(t, w.cancelReservation(t, cancel))
	if again := exactText(t, w.cancelReservation(t, cancel)); again != first || !strings.HasPrefix(first, holds.EventReservationCancelled) {
		t.Fatalf("the outcome of the cancellation is\n\t%s\nand then\n\t%s", first, again)
	}
	if slot := w.available(t, "tent", holds.SlotSelection{})[0]; slot.Reserved != 0 || slot.Available != 1 {
		t.Fatalf("after a reservation was cancelled: %+v", slot)
	}

	w.setInventory(t, "boat", holds.SlotSelection{}, 1)
	boat := created(t, w.place(t, holds.PlaceRequest{Resource: "boat", User: "ana"})[0])
	start := holds.ExtendRequest{EventID: uuid.NewString(), Hold: boat.HoldID, PaymentStarted: true}
	expectReplyLost(t, slices.All(w.replyLosingService(t, 1).Extend(ctx, []holds.ExtendRequest{start})))
	if got := brief(w.extend(t, start)); got != holds.EventHoldExtended {
		t.Fatalf("started to pay after a lost reply: %s", got)
	}
	release := holds.ReleaseRequest{EventID: uuid.NewString(), Hold: boat.HoldID, Resource: "boat"}
	expectReplyLost(t, slices.All(w.replyLosingService(t, 1).Release(ctx, []holds.ReleaseRequest{release})))
	if got := brief(w.release(t, release)); got != holds.EventHoldReleased {
		t.Fatalf("released after a lost reply: %s", got)
	}
	if got := brief(w.release(t, holds.ReleaseRequest{Hold: boat.HoldID})); got != "hold.release_rejected released" {
		t.Fatalf("released by another event: %s", got)
	}
	w.assertNothingHeld(t, "boat")
}

// TestConfirm_LateReplyLost_TakesSlotsOnce loses the reply of each script of a late payment, and
// makes Postgres fail between them. The payment takes its slots once, and leaves nothing when it
// does not get them.
func TestConfirm_LateReplyLost_TakesSlotsOnce(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setPolicy(t, func(p *holds.Policy) { p.LatePayment = holds.LateAcceptedIfFree })
	ctx := t.Context()
	w.setInventory(t, "tent", holds.SlotSelection{}, 1)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "tent", User: "ana", TTLSeconds: seconds(60)})[0]).HoldID
	w.pass(t, time.Minute)
	if err := w.expirer.SweepAndAnnounce(ctx); err != nil {
		t.Fatal(err)
	}
	paid := []holds.ConfirmRequest{{Hold: hold, PaymentID: "p"}}
	expectReplyLost(t, slices.All(w.replyLosingService(t, 1).Confirm(ctx, paid))) // claim.lua, which finds it expired
	expectReplyLost(t, slices.All(w.replyLosingService(t, 2).Confirm(ctx, paid))) // place.lua, which takes the slot
	if w.heldCount(t, "tent") != "1" {
		t.Fatalf("%s are held by a late payment", w.heldCount(t, "tent"))
	}
	other := []holds.ConfirmRequest{{Hold: hold, PaymentID: "p2"}}
	for _, r := range w.service.Confirm(ctx, other) {
		if !errors.Is(r.Err, holds.ErrBusy) {
			t.Errorf("another payment while the first is being decided: %+v", r)
		}
	}
	for _, r := range w.newService(w.client, w.locker(t), &failingInventory{Inventory: w.store}).Confirm(ctx, paid) {
		if !errors.Is(r.Err, errDown) {
			t.Errorf("the result while Postgres fails: %+v", r)
		}
	}
	expectReplyLost(t, slices.All(w.replyLosingService(t, 2).Confirm(ctx, paid))) // settle.lua
	if got := brief(w.pay(t, hold, "p")); got != "hold.confirmed late" {
		t.Fatalf("paid late after lost replies: %s", got)
	}
	if slot := w.available(t, "tent", holds.SlotSelection{})[0]; slot.Reserved != 1 || slot.Held != 0 {
		t.Fatalf("after lost replies: %+v", slot)
	}
	w.assertNothingHeld(t, "tent")

	// Capacity is cut after the slot was taken again: Postgres rejects the payment, and the slot is
	// free.
	w.setInventory(t, "boat", holds.SlotSelection{}, 1)
	hold = created(t, w.place(t, holds.PlaceRequest{Resource: "boat", User: "ana", TTLSeconds: seconds(60)})[0]).HoldID
	w.pass(t, time.Minute)
	if err := w.expirer.SweepAndAnnounce(ctx); err != nil {
		t.Fatal(err)
	}
	expectReplyLost(t, slices.All(w.replyLosingService(t, 2).Confirm(ctx, []holds.ConfirmRequest{{Hold: hold, PaymentID: "p"}})))
	w.setInventory(t, "boat", holds.SlotSelection{}, 0)
	if got := brief(w.pay(t, hold, "p")); got != "hold.confirm_rejected sold_out" {
		t.Fatalf("paid late, and capacity was cut: %s", got)
	}
	w.assertNothingHeld(t, "boat")
}

func expectReplyLost(t *testing.T, results iter.Seq2[int, holds.Result]) {
	t.Helper()
	for _, r := range results {
		if !errors.Is(r.Err, stacktest.ErrReplyDropped) {
			t.Errorf("want an error for the lost reply, got %+v", r)
		}
	}
}

// lockByOther makes another owner hold a lock for some time.
func lockByOther(ctx context.Context, w *harness, resource, key string, lease time.Duration) error {
	until := w.client.Time(ctx).Val().Add(lease).UnixMilli()
	return w.client.HSet(ctx, holds.Key(w.namespace, resource, "locks"), key, fmt.Sprintf("another:1.x %d", until)).Err()
}

// TestPlace_LockLostDuringRead_RetriesUntilHeld loses one of the locks of a group during the read
// of Postgres. Nothing may be written under it, and the request must succeed when it has the lock
// again.
func TestPlace_LockLostDuringRead_RetriesUntilHeld(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", nights(1, 3), 1)
	const steals = 3
	inventory := &interferingInventory{Inventory: w.store, interfere: func(read int) {
		locks := w.client.HKeys(t.Context(), holds.Key(w.namespace, "room", "locks")).Val()
		var err error
		switch {
		case read == 1: // without locks, in vain
			err = w.service.BumpRevisions(t.Context(), "room")
		case read > 2+steals: // for the assertions below
			return
		case len(locks) != 3:
			err = fmt.Errorf("locks %q", locks)
		case read <= 1+steals:
			err = lockByOther(t.Context(), w, "room", locks[0], 50*time.Millisecond)
		}
		if held := w.client.HGetAll(t.Context(), holds.Key(w.namespace, "room", "counts")).Val(); len(held) > 0 {
			err = fmt.Errorf("%v are held under a lost lock", held)
		}
		if err != nil {
			t.Error(err)
		}
	}}
	w.service = w.newService(w.client, newLocker(t, w.rangeLocks(w.client, lockLease)), inventory)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", Selection: nights(1, 3)})[0])
	if inventory.reads != 2+steals {
		t.Errorf("decided after %d reads, want %d", inventory.reads, 2+steals)
	}
	for _, slot := range w.available(t, "room", nights(1, 3)) {
		if slot.Held != 1 {
			t.Errorf("after lost locks: %+v", slot)
		}
	}
}

// TestPlace_LockHeldByOther_IsBusyAfterLockWait lets another worker hold the lock for longer than
// LockWait.
func TestPlace_LockHeldByOther_IsBusyAfterLockWait(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.policy.LockWait = 50 * time.Millisecond
	service := w.newService(w.client, newLocker(t, w.rangeLocks(w.client, time.Minute)), w.store)
	for _, name := range []string{"free", "taken"} {
		w.setInventory(t, name, holds.SlotSelection{}, 1)
	}
	if err := lockByOther(t.Context(), w, "taken", "stock", time.Hour); err != nil {
		t.Fatal(err)
	}
	var requests []holds.PlaceRequest
	for _, name := range []string{"taken", "free"} {
		requests = append(requests, holds.PlaceRequest{
			EventID: uuid.NewString(), RequestKey: "k", Resource: name, User: "ana", Quantity: 1, StoredAt: time.Now(),
		})
	}
	results := make(map[string]holds.Result)
	for i, r := range service.Place(t.Context(), requests) {
		results[requests[i].Resource] = r
	}
	if err := results["taken"].Err; !errors.Is(err, holds.ErrBusy) {
		t.Errorf("a resource that is locked: %v, want ErrBusy", err)
	}
	if results["free"].Err != nil {
		t.Errorf("a resource that is free, in the same batch: %v", results["free"].Err)
	}
}

// changingInventory is an Inventory with a sale that is committed and settled just after the read.
type changingInventory struct {
	holds.Inventory
	between func()
}

func (s *changingInventory) InventoryRows(ctx context.Context, resources []string, slots [][]string) ([][]holds.InventoryRow, error) {
	rows, err := s.Inventory.InventoryRows(ctx, resources, slots)
	if s.between != nil {
		between := s.between
		s.between = nil
		between()
	}
	return rows, err
}

// TestPlace_SaleAfterRead_RejectsSoldOut sells the last room after the read of Postgres and before
// the script decides. The read is out of date, and rev shows it.
func TestPlace_SaleAfterRead_RejectsSoldOut(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	ana := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	slow := w.newService(w.client, newLocker(t, locking.NewNone(w.client)), &changingInventory{w.store, func() { w.pay(t, ana.HoldID, "p") }})
	w.service = slow
	rejected(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0], holds.ReasonSoldOut)
}

// TestPlace_CancellationAfterRead_Grants cancels the reservation of the last room after the read of
// Postgres: the request gets the room.
func TestPlace_CancellationAfterRead_Grants(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	ana := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	w.pay(t, ana.HoldID, "p")
	w.service = w.newService(w.client, newLocker(t, locking.NewNone(w.client)), &changingInventory{w.store, func() {
		w.cancelReservation(t, holds.CancelRequest{Hold: ana.HoldID})
	}})
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0])
}

// TestPlace_CapacityCutAfterRead_RejectsSoldOut cuts the capacity by an event, and by plain SQL
// while the worker is paused for longer than readAge.
func TestPlace_CapacityCutAfterRead_RejectsSoldOut(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(w *harness){
		"by an event": func(w *harness) { w.setInventory(t, "room", holds.SlotSelection{}, 0) },
		"by SQL, and a pause": func(w *harness) {
			began := w.client.Time(t.Context()).Val()
			w.execute(t, `UPDATE inventory SET capacity = 0`)
			stacktest.Eventually(t, "the pause", func() bool { return w.client.Time(t.Context()).Val().Sub(began) > holds.ReadAge+time.Millisecond }) // scripts count whole ms
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRealTimeHarness(t)
			w.setInventory(t, "room", holds.SlotSelection{}, 1)
			w.service = w.newService(w.client, newLocker(t, locking.NewNone(w.client)), &changingInventory{w.store, func() { cut(w) }})
			rejected(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0], holds.ReasonSoldOut)
		})
	}
}

// TestBumpRevisions_CapacityChangedBySQL_BumpsRev changes capacities by plain SQL, as an upstream
// system may at any time. A notification of Postgres bumps rev, also after the connection was cut,
// and for any statement.
func TestBumpRevisions_CapacityChangedBySQL_BumpsRev(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	ctx, stop := context.WithCancel(t.Context())
	watched := make(chan error)
	go func() { watched <- w.store.Watch(ctx, w.service, zerolog.Nop()) }()
	t.Cleanup(func() {
		stop()
		if err := <-watched; err != nil {
			t.Error(err)
		}
	})
	rev := func(resource string) string { return w.client.Get(ctx, holds.Key(w.namespace, resource, "rev")).Val() }
	noticed := func(resource, sql string) {
		t.Helper()
		before := rev(resource)
		w.execute(t, sql)
		stacktest.Eventually(t, "the notification of: "+sql, func() bool { return rev(resource) != before })
	}
	// Use a separate resource: the notification of one of these changes may come after this has
	// returned.
	listening := func() {
		t.Helper()
		w.setInventory(t, "hall", holds.SlotSelection{}, 5)
		before := rev("hall")
		stacktest.Eventually(t, "the worker to listen", func() bool {
			w.execute(t, `UPDATE inventory SET capacity = capacity + 1 WHERE resource_id = 'hall'`)
			return rev("hall") != before
		})
	}
	listening()
	noticed("loft", `INSERT INTO inventory (resource_id, slot, capacity) VALUES ('loft', 'A-1', 5)`)
	w.execute(t, `INSERT INTO inventory (resource_id, slot, capacity) VALUES ('no resource', 'A-1', 5), (repeat('x', 9000), 'A-1', 5)`)
	noticed("loft", `DELETE FROM inventory WHERE slot = 'A-1'`)
	w.execute(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND application_name = 'holdfast worker `+w.namespace+`'`)
	listening()

	// Therefore no decision uses an earlier read.
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	w.service = w.newService(w.client, newLocker(t, locking.NewNone(w.client)), &changingInventory{w.store, func() { noticed("room", `UPDATE inventory SET capacity = 0`) }})
	rejected(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0], holds.ReasonSoldOut)
}

// TestService_RedisOutOfMemory_OnlyFreesHolds fills Redis: no hold is created, but holds can be
// released, paid and swept, which frees memory. The memory limit applies to all clients, so this
// test has its own Redis.
func TestService_RedisOutOfMemory_OnlyFreesHolds(t *testing.T) {
	t.Parallel()
	w := newHarnessOn(t, stacktest.StartRedis(t).RedisURL)
	ctx := t.Context()
	w.setInventory(t, "room", holds.SlotSelection{}, 5)
	var ids []holds.HoldID
	for _, user := range []string{"pays", "cancels", "walks"} {
		ttl := seconds(600)
		if user == "walks" {
			ttl = seconds(1)
		}
		ids = append(ids, created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: user, TTLSeconds: ttl})[0]).HoldID)
	}
	if err := w.client.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	late := holds.PlaceRequest{
		EventID: uuid.NewString(), RequestKey: "k", Resource: "room", User: "late", Quantity: 1, StoredAt: time.Now(),
	}
	for _, r := range w.service.Place(ctx, []holds.PlaceRequest{late}) {
		if r.Err == nil {
			t.Errorf("granted without memory: %+v", r)
		}
	}
	if got := brief(w.pay(t, ids[0], "p")); got != holds.EventHoldConfirmed {
		t.Errorf("paid: %s", got)
	}
	if got := brief(w.release(t, holds.ReleaseRequest{Hold: ids[1]})); got != holds.EventHoldReleased {
		t.Errorf("cancelled: %s", got)
	}
	stacktest.Eventually(t, "the deadline", func() bool {
		if err := w.expirer.SweepAndAnnounce(ctx); err != nil {
			t.Fatal(err)
		}
		return len(w.takeAnnounced()) == 1
	})
	w.assertNothingHeld(t, "room")
}

// TestPlace_RequestAnswer_OutlastsItsHold checks how long the answer to a request is remembered:
// longer than its hold lives, during the whole decision of a payment, but not for ever.
func TestPlace_RequestAnswer_OutlastsItsHold(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	ctx := t.Context()
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", RequestKey: "k"})[0]).HoldID
	memory := func() time.Duration { return w.client.PTTL(ctx, holds.Key(w.namespace, "room", "request:k")).Val() }
	if got := memory(); got <= w.policy.RequestKeyTTL || got > w.policy.RequestKeyTTL+w.policy.HoldTTL {
		t.Errorf("answer of a live hold: %v", got)
	}
	longer := w.extend(t, holds.ExtendRequest{EventID: "longer", Hold: hold, TTLSeconds: int64(w.policy.HoldTTLMax / time.Second)}).Data.(holds.HoldExtended)
	if got := memory(); got <= w.policy.RequestKeyTTL+w.policy.HoldTTL || got > w.policy.RequestKeyTTL+w.policy.HoldTTLMax {
		t.Errorf("answer of an extended hold: %v", got)
	}
	if got := w.client.PTTL(ctx, holds.Key(w.namespace, "room", "extension:longer")).Val(); got <= 0 || got > w.policy.RequestKeyTTL {
		t.Errorf("answer of an extension: %v", got)
	}
	w.extend(t, holds.ExtendRequest{EventID: "start", Hold: hold, PaymentStarted: true})
	if got := w.client.PTTL(ctx, holds.Key(w.namespace, "room", "started:"+hold.UUID)).Val(); got <= w.policy.HoldLifetimeMax || got > w.policy.RequestKeyTTL {
		t.Errorf("start of a payment: %v", got)
	}
	if got := w.client.PExpireTime(ctx, holds.Key(w.namespace, "room", "hold:"+hold.UUID)).Val(); got.Milliseconds() != longer.ExpiresAt.UnixMilli() {
		t.Errorf("the key of the hold expires at %v, the hold at %v", got, longer.ExpiresAt)
	}
	w.newService(w.client, w.locker(t), &failingInventory{Inventory: w.store}).Confirm(ctx, []holds.ConfirmRequest{{Hold: hold, PaymentID: "p"}})
	if got := memory(); got != -1 {
		t.Errorf("answer of a claimed hold: %v, want no TTL", got)
	}
	w.pay(t, hold, "p")
	if got := memory(); got <= 0 || got > w.policy.RequestKeyTTL {
		t.Errorf("answer of an ended hold: %v", got)
	}
	w.release(t, holds.ReleaseRequest{Resource: "room", RequestKey: "never"})
	if got := w.client.PTTL(ctx, holds.Key(w.namespace, "room", "request:never")).Val(); got <= w.policy.RequestKeyTTL-time.Minute {
		t.Errorf("answer of a cancelled key: %v", got)
	}
}

// TestPlace_NightPassedSinceStored_IsGranted requests a night that has passed since the event was
// stored. An event that waited through an outage, or is redelivered, gets the answer that it would
// have had.
func TestPlace_NightPassedSinceStored_IsGranted(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", nights(-5, 3), 1)
	old := holds.PlaceRequest{Resource: "room", User: "ana", Selection: nights(-5, 3), StoredAt: time.Now().AddDate(0, 0, -5)}
	created(t, w.place(t, old)[0])
	old.StoredAt = time.Now()
	if got := rejected(t, w.place(t, old)[0], holds.ReasonInvalidRequest); got.Field != "check_in" {
		t.Errorf("%+v", got)
	}
}

// TestService_EpochLostOrCountsCorrupt_Refuses flushes the scripts and then removes or corrupts
// data.
func TestService_EpochLostOrCountsCorrupt_Refuses(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	ctx := t.Context()
	w.setInventory(t, "room", holds.SlotSelection{}, 5)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	if err := w.client.ScriptFlush(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0])

	for name, corruption := range map[string]struct {
		do, undo func() error
		want     error
	}{
		"the epoch is missing": {
			func() error { return w.client.Del(ctx, holds.EpochKey(w.namespace, "room")).Err() },
			func() error { return w.client.Set(ctx, holds.EpochKey(w.namespace, "room"), w.epoch, 0).Err() },
			holds.ErrDataLost,
		},
		"the epoch is different": {
			func() error { return w.client.Set(ctx, holds.EpochKey(w.namespace, "room"), "other", 0).Err() },
			func() error { return w.client.Set(ctx, holds.EpochKey(w.namespace, "room"), w.epoch, 0).Err() },
			holds.ErrDataLost,
		},
		"the counters are of another type": {
			func() error {
				return errors.Join(w.client.Rename(ctx, holds.Key(w.namespace, "room", "counts"), holds.Key(w.namespace, "room", "aside")).Err(),
					w.client.Set(ctx, holds.Key(w.namespace, "room", "counts"), "5", 0).Err())
			},
			func() error {
				return w.client.Rename(ctx, holds.Key(w.namespace, "room", "aside"), holds.Key(w.namespace, "room", "counts")).Err()
			},
			holds.ErrCorrupt,
		},
		"a counter is not a number": {
			func() error {
				return w.client.HSet(ctx, holds.Key(w.namespace, "room", "counts"), "stock", "many").Err()
			},
			func() error { return w.client.HSet(ctx, holds.Key(w.namespace, "room", "counts"), "stock", "2").Err() },
			holds.ErrCorrupt,
		},
		"a counter is negative": {
			func() error { return w.client.HSet(ctx, holds.Key(w.namespace, "room", "counts"), "stock", "-3").Err() },
			func() error { return w.client.HSet(ctx, holds.Key(w.namespace, "room", "counts"), "stock", "2").Err() },
			holds.ErrCorrupt,
		},
	} {
		if err := corruption.do(); err != nil {
			t.Fatal(name, err)
		}
		var reported []string
		w.service.OnCorruption(func(resource string) { reported = append(reported, resource) })
		request := holds.PlaceRequest{
			EventID: uuid.NewString(), RequestKey: uuid.NewString(), Resource: "room", User: "cleo", Quantity: 1, StoredAt: time.Now(),
		}
		for _, r := range w.service.Place(ctx, []holds.PlaceRequest{request}) {
			if !errors.Is(r.Err, corruption.want) {
				t.Errorf("%s: place: %+v, want %v", name, r, corruption.want)
			}
		}
		release := holds.ReleaseRequest{EventID: uuid.NewString(), Resource: "room", Hold: hold.HoldID}
		for _, r := range w.service.Release(ctx, []holds.ReleaseRequest{release}) {
			if !errors.Is(r.Err, corruption.want) {
				t.Errorf("%s: release: %+v, want %v", name, r, corruption.want)
			}
		}
		if wasReported := slices.Equal(reported, []string{"room", "room"}); wasReported != errors.Is(corruption.want, holds.ErrCorrupt) || !wasReported && len(reported) > 0 {
			t.Errorf("%s: reported corruption of %v", name, reported)
		}
		if err := corruption.undo(); err != nil {
			t.Fatal(name, err)
		}
	}
	if got := brief(w.release(t, holds.ReleaseRequest{Hold: hold.HoldID})); got != holds.EventHoldReleased {
		t.Errorf("after the repair: %s", got)
	}
}

// TestRelease_RecordCorrupt_ChangesNothing writes a record that the scripts do not write. The
// release does nothing to its hold, and the error names the corrupt value.
func TestRelease_RecordCorrupt_ChangesNothing(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	ctx := t.Context()
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0]).HoldID
	records := holds.Key(w.namespace, "room", "records")
	line := w.client.HGet(ctx, records, hold.UUID).Val()
	for _, corrupt := range []string{"", "held", "held 1 1 1 0 - ana", "held 1 1 1 0 - ana k stock", strings.Replace(line, " 1 0 ", " one 0 ", 1), strings.Replace(line, "held ", "held  ", 1)} {
		w.client.HSet(ctx, records, hold.UUID, corrupt)
		for _, r := range w.service.Release(ctx, []holds.ReleaseRequest{{EventID: "c", Resource: "room", Hold: hold}}) {
			if !errors.Is(r.Err, holds.ErrCorrupt) {
				t.Errorf("%q: %+v", corrupt, r)
			}
		}
	}
	w.client.HSet(ctx, records, hold.UUID, line)
	if got := brief(w.release(t, holds.ReleaseRequest{Hold: hold})); got != holds.EventHoldReleased {
		t.Errorf("after the repair: %s", got)
	}
	w.assertNothingHeld(t, "room")
}

// TestPlace_PublishForbiddenByACL_IsGranted places a hold as a user whose ACL allows no channel,
// while an acquisition waits for the locks. The hold is granted, and the locks are free.
func TestPlace_PublishForbiddenByACL_IsGranted(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	ctx := t.Context()
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	if err := w.client.Do(ctx, "acl", "setuser", w.namespace, "on", ">secret", "~*", "+@all", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.client.Do(context.Background(), "acl", "deluser", w.namespace) })
	options := stacktest.RedisOptions(stacktest.Shared().RedisURL)
	options.Username, options.Password = w.namespace, "secret"
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	w.client.Set(ctx, holds.Key(w.namespace, "room", "waited_for"), "1", time.Hour)
	w.service = w.newService(client, newLocker(t, w.rangeLocks(client, lockLease)), w.store)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	if n := w.client.Exists(ctx, holds.Key(w.namespace, "room", "locks")).Val(); n != 0 {
		t.Error("the locks were not released")
	}
}

// TestPlace_RevHasWrongType_IsCorrupt replaces rev by another type. No hold is granted, because
// Postgres may have changed since the read.
func TestPlace_RevHasWrongType_IsCorrupt(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", slots("a"), 1)
	ctx, rev := t.Context(), holds.Key(w.namespace, "room", "rev")
	w.client.Del(ctx, rev)
	w.client.RPush(ctx, rev, "1")
	request := holds.PlaceRequest{EventID: "c", Resource: "room", User: "ana", RequestKey: "k", Selection: slots("a"), Quantity: 1, StoredAt: time.Now()}
	for _, r := range w.service.Place(ctx, []holds.PlaceRequest{request}) {
		if !errors.Is(r.Err, holds.ErrCorrupt) {
			t.Errorf("%+v, want ErrCorrupt", r)
		}
	}
	w.client.Del(ctx, rev)
	created(t, w.place(t, request)[0])
}

// TestPlace_IndexNamesEndedHold_IsGranted makes the index contain an ended hold of the user: it
// does not prevent a new hold. A hold that ends does not remove the index of a later one.
func TestPlace_IndexNamesEndedHold_IsGranted(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", slots("a"), 2)
	ctx, users := t.Context(), holds.Key(w.namespace, "room", "users")
	request := func(key string) holds.PlaceRequest {
		return holds.PlaceRequest{Resource: "room", User: "ana", RequestKey: key, Selection: slots("a")}
	}
	first := created(t, w.place(t, request("k1"))[0]).HoldID
	index := record.IndexField("ana", "a")
	if id := w.client.HGet(ctx, users, index).Val(); id != first.UUID {
		t.Fatalf("the index contains %q, want %s", id, first.UUID)
	}
	w.client.HDel(ctx, users, index) // like a worker of a version with another index
	second := created(t, w.place(t, request("k2"))[0]).HoldID
	w.release(t, holds.ReleaseRequest{Hold: first})
	rejected(t, w.place(t, request("k3"))[0], holds.ReasonAlreadyHolding)
	w.release(t, holds.ReleaseRequest{Hold: second})
	w.client.HSet(ctx, users, index, first.UUID)
	created(t, w.place(t, request("k4"))[0])
}
