package holds_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/stack/stacktest"
)

// lossy returns a service of the world whose n-th round trip of scripts from now is done while
// its reply is lost. It takes no locks, so that every round trip is one of the verb's own.
func (w *world) lossy(t *testing.T, n int32) *holds.Service {
	t.Helper()
	client := newClient(t, stacktest.Shared().RedisURL)
	stacktest.LoseReply(client, n, "eval", "evalsha")
	return w.newService(client, newLocker(t, locking.NewNone(client)), w.store)
}

// TestLostReply loses the reply of each script after it was done. The event is delivered again,
// and its outcome is the one that was decided the first time.
func TestLostReply(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	ctx := t.Context()
	w.setInventory(t, "tent", holds.Asked{}, 1)

	place := []holds.PlaceRequest{{
		Cause: uuid.NewString(), RequestKey: "k", Resource: "tent", User: "ana", Quantity: 1, StoredAt: time.Now(),
	}}
	w.lossy(t, 1).Place(ctx, place, expectLost(t))
	hold := created(t, w.place(t, place...)[0])
	if hold.Replayed || w.held(t, "tent") != "1" {
		t.Fatalf("after a lost reply %s are held and the outcome is %+v", w.held(t, "tent"), hold)
	}

	paid := []holds.ConfirmRequest{{Hold: hold.HoldID, PaymentID: "p"}}
	w.lossy(t, 1).Confirm(ctx, paid, expectLost(t)) // claim.lua
	w.lossy(t, 2).Confirm(ctx, paid, expectLost(t)) // settle.lua
	if got := brief(w.pay(t, hold.HoldID, "p")); got != holds.EventHoldConfirmed {
		t.Fatalf("paid after lost replies: %s", got)
	}
	if slot := w.available(t, "tent", holds.Asked{})[0]; slot.Reserved != 1 || slot.Held != 0 {
		t.Fatalf("after lost replies: %+v", slot)
	}

	cancel := holds.CancelRequest{Cause: uuid.NewString(), Hold: hold.HoldID}
	w.execute(t, `CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'lost'; END $$;
		CREATE TRIGGER lose BEFORE UPDATE OF cancelled_at ON reservations EXECUTE FUNCTION lose()`)
	w.service.Cancel(ctx, []holds.CancelRequest{cancel}, func(_ int, r holds.Result) {
		if r.Err == nil { // the first transaction is committed, the second is not
			t.Errorf("cancelled, and nobody knows when: %+v", r.Outcome)
		}
	})
	w.execute(t, `DROP TRIGGER lose ON reservations`)
	first := letter(t, w.cancelReservation(t, cancel))
	if again := letter(t, w.cancelReservation(t, cancel)); again != first || !strings.HasPrefix(first, holds.EventReservationCancelled) {
		t.Fatalf("cancelled\n\t%s\nand again\n\t%s", first, again)
	}
	if slot := w.available(t, "tent", holds.Asked{})[0]; slot.Reserved != 0 || slot.Available != 1 {
		t.Fatalf("after a reservation was cancelled: %+v", slot)
	}

	w.setInventory(t, "boat", holds.Asked{}, 1)
	boat := created(t, w.place(t, holds.PlaceRequest{Resource: "boat", User: "ana"})[0])
	start := holds.ExtendRequest{Cause: uuid.NewString(), Hold: boat.HoldID, PaymentStarted: true}
	w.lossy(t, 1).Extend(ctx, []holds.ExtendRequest{start}, expectLost(t))
	if got := brief(w.extend(t, start)); got != holds.EventHoldExtended {
		t.Fatalf("started to pay after a lost reply: %s", got)
	}
	release := holds.ReleaseRequest{Cause: uuid.NewString(), Hold: boat.HoldID, Resource: "boat"}
	w.lossy(t, 1).Release(ctx, []holds.ReleaseRequest{release}, expectLost(t))
	if got := brief(w.release(t, release)); got != holds.EventHoldReleased {
		t.Fatalf("released after a lost reply: %s", got)
	}
	if got := brief(w.release(t, holds.ReleaseRequest{Hold: boat.HoldID})); got != "hold.release_rejected released" {
		t.Fatalf("released by another event: %s", got)
	}
	w.atRest(t, "boat")
}

// TestLostReplyOfALatePayment loses the reply of each script of it, and finds Postgres down between
// them. The payment takes its slots once, and leaves nothing behind where it does not get them.
func TestLostReplyOfALatePayment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setPolicy(t, func(p *holds.Policy) { p.LatePayment = holds.LateAcceptedIfFree })
	ctx := t.Context()
	w.setInventory(t, "tent", holds.Asked{}, 1)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "tent", User: "ana", TTLSeconds: seconds(60)})[0]).HoldID
	w.pass(t, time.Minute)
	if err := w.expirer.SweepAndAnnounce(ctx); err != nil {
		t.Fatal(err)
	}
	paid := []holds.ConfirmRequest{{Hold: hold, PaymentID: "p"}}
	w.lossy(t, 1).Confirm(ctx, paid, expectLost(t)) // claim.lua, which finds it expired
	w.lossy(t, 2).Confirm(ctx, paid, expectLost(t)) // place.lua, which takes the slot
	if w.held(t, "tent") != "1" {
		t.Fatalf("%s are held by a late payment", w.held(t, "tent"))
	}
	other := []holds.ConfirmRequest{{Hold: hold, PaymentID: "p2"}}
	w.service.Confirm(ctx, other, func(_ int, r holds.Result) {
		if !errors.Is(r.Err, holds.ErrBusy) {
			t.Errorf("another payment while the first is being decided: %+v", r)
		}
	})
	w.newService(w.client, w.locker(t), &outage{Inventory: w.store}).Confirm(ctx, paid, func(_ int, r holds.Result) {
		if !errors.Is(r.Err, errDown) {
			t.Errorf("Postgres is down: %+v", r)
		}
	})
	w.lossy(t, 2).Confirm(ctx, paid, expectLost(t)) // settle.lua
	if got := brief(w.pay(t, hold, "p")); got != "hold.confirmed late" {
		t.Fatalf("paid late after lost replies: %s", got)
	}
	if slot := w.available(t, "tent", holds.Asked{})[0]; slot.Reserved != 1 || slot.Held != 0 {
		t.Fatalf("after lost replies: %+v", slot)
	}
	w.atRest(t, "tent")

	// Capacity is cut after the slot was taken again: Postgres refuses, and it is free.
	w.setInventory(t, "boat", holds.Asked{}, 1)
	hold = created(t, w.place(t, holds.PlaceRequest{Resource: "boat", User: "ana", TTLSeconds: seconds(60)})[0]).HoldID
	w.pass(t, time.Minute)
	if err := w.expirer.SweepAndAnnounce(ctx); err != nil {
		t.Fatal(err)
	}
	w.lossy(t, 2).Confirm(ctx, []holds.ConfirmRequest{{Hold: hold, PaymentID: "p"}}, expectLost(t))
	w.setInventory(t, "boat", holds.Asked{}, 0)
	if got := brief(w.pay(t, hold, "p")); got != "hold.confirm_rejected sold_out" {
		t.Fatalf("paid late, and capacity was cut: %s", got)
	}
	w.atRest(t, "boat")
}

func expectLost(t *testing.T) func(int, holds.Result) {
	return func(_ int, r holds.Result) {
		if !errors.Is(r.Err, stacktest.ErrReplyLost) {
			t.Errorf("want the lost reply to be an error, got %+v", r)
		}
	}
}

// stealing is Postgres, and takes a lock away while it is being read, the first n times.
type stealing struct {
	holds.Inventory
	steal func() error
	times int
}

func (s *stealing) Stock(ctx context.Context, resources []string, slots [][]string) ([][]holds.Stock, error) {
	stock, err := s.Inventory.Stock(ctx, resources, slots)
	if s.times--; s.times >= 0 && err == nil {
		err = s.steal()
	}
	return stock, err
}

// lockFor has somebody else hold a lock for some time.
func lockFor(ctx context.Context, w *world, resource, key string, lease time.Duration) error {
	until := w.client.Time(ctx).Val().Add(lease).UnixMilli()
	return w.client.HSet(ctx, holds.Key(w.namespace, resource, "locks"), key, fmt.Sprintf("another:1.x %d", until)).Err()
}

// TestLostLock loses one of the locks of a group while Postgres is being read: nothing may be
// written under it, and the work must succeed once it has the lock.
func TestLostLock(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	w.setInventory(t, "room", nights(1, 3), 1)
	inventory := &stealing{w.store, func() error {
		locks, err := w.client.HKeys(t.Context(), holds.Key(w.namespace, "room", "locks")).Result()
		if err != nil || len(locks) != 3 {
			return fmt.Errorf("locks %q: %w", locks, err)
		}
		if held := w.client.HGetAll(t.Context(), holds.Key(w.namespace, "room", "counts")).Val(); len(held) > 0 {
			return fmt.Errorf("%v are held under a lost lock", held)
		}
		return lockFor(t.Context(), w, "room", locks[0], 50*time.Millisecond)
	}, 3}
	w.service = w.newService(w.client, newLocker(t, w.rangeLocks(w.client, lockLease)), inventory)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", Asked: nights(1, 3)})[0])
	if inventory.times >= 0 {
		t.Errorf("the lock was not tried again after it was lost")
	}
	for _, slot := range w.available(t, "room", nights(1, 3)) {
		if slot.Held != 1 {
			t.Errorf("after lost locks: %+v", slot)
		}
	}
}

// TestLockWaitIsBounded has another worker hold the lock for longer than anyone waits.
func TestLockWaitIsBounded(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	w.policy.LockWait = 50 * time.Millisecond
	service := w.newService(w.client, newLocker(t, w.rangeLocks(w.client, time.Minute)), w.store)
	for _, name := range []string{"free", "taken"} {
		w.setInventory(t, name, holds.Asked{}, 1)
	}
	if err := lockFor(t.Context(), w, "taken", "stock", time.Hour); err != nil {
		t.Fatal(err)
	}
	var requests []holds.PlaceRequest
	for _, name := range []string{"taken", "free"} {
		requests = append(requests, holds.PlaceRequest{
			Cause: uuid.NewString(), RequestKey: "k", Resource: name, User: "ana", Quantity: 1, StoredAt: time.Now(),
		})
	}
	results := make(map[string]holds.Result)
	service.Place(t.Context(), requests, func(i int, r holds.Result) { results[requests[i].Resource] = r })
	if err := results["taken"].Err; !errors.Is(err, holds.ErrBusy) {
		t.Errorf("a resource that is locked: %v, want ErrBusy", err)
	}
	if results["free"].Err != nil {
		t.Errorf("a resource that is free, in the same batch: %v", results["free"].Err)
	}
}

// selling is Postgres with a sale that is committed and settled just after it was read.
type selling struct {
	holds.Inventory
	between func()
}

func (s *selling) Stock(ctx context.Context, resources []string, slots [][]string) ([][]holds.Stock, error) {
	stock, err := s.Inventory.Stock(ctx, resources, slots)
	if s.between != nil {
		between := s.between
		s.between = nil
		between()
	}
	return stock, err
}

// TestSaleBetweenReadAndDecision sells the last room after Postgres was read and before the
// script decides: what was read is out of date, and rev says so.
func TestSaleBetweenReadAndDecision(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	w.setInventory(t, "room", holds.Asked{}, 1)
	ana := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	slow := w.newService(w.client, newLocker(t, locking.NewNone(w.client)), &selling{w.store, func() { w.pay(t, ana.HoldID, "p") }})
	w.service = slow
	rejected(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0], holds.ReasonSoldOut)
}

// TestCancellationBetweenReadAndDecision gives the last room back after Postgres was read: whoever
// asks for it just then has it.
func TestCancellationBetweenReadAndDecision(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	w.setInventory(t, "room", holds.Asked{}, 1)
	ana := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	w.pay(t, ana.HoldID, "p")
	w.service = w.newService(w.client, newLocker(t, locking.NewNone(w.client)), &selling{w.store, func() {
		w.cancelReservation(t, holds.CancelRequest{Hold: ana.HoldID})
	}})
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0])
}

// TestCapacityCutBetweenReadAndDecision cuts the capacity by an event, and by plain SQL while the
// worker is paused for longer than what it has read may be old.
func TestCapacityCutBetweenReadAndDecision(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(w *world){
		"by an event": func(w *world) { w.setInventory(t, "room", holds.Asked{}, 0) },
		"by SQL, and a pause": func(w *world) {
			began := w.client.Time(t.Context()).Val()
			w.execute(t, `UPDATE inventory SET capacity = 0`)
			stacktest.Eventually(t, "the pause", func() bool { return w.client.Time(t.Context()).Val().Sub(began) > holds.ReadAge+time.Millisecond }) // scripts count whole ms
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRealTimeWorld(t)
			w.setInventory(t, "room", holds.Asked{}, 1)
			w.service = w.newService(w.client, newLocker(t, locking.NewNone(w.client)), &selling{w.store, func() { cut(w) }})
			rejected(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0], holds.ReasonSoldOut)
		})
	}
}

// TestCapacityBySQLIsNoticed changes capacities by plain SQL, as upstream may at any time: rev is
// bumped by a word of Postgres, also after the connection was cut, and whatever else is written.
func TestCapacityBySQLIsNoticed(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
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
		stacktest.Eventually(t, "a word of: "+sql, func() bool { return rev(resource) != before })
	}
	// Of a resource of its own: the word of one of these changes may come after this has returned.
	listening := func() {
		t.Helper()
		w.setInventory(t, "hall", holds.Asked{}, 5)
		before := rev("hall")
		stacktest.Eventually(t, "somebody to listen", func() bool {
			w.execute(t, `UPDATE inventory SET capacity = capacity + 1 WHERE resource_id = 'hall'`)
			return rev("hall") != before
		})
	}
	listening()
	noticed("loft", `INSERT INTO inventory (resource_id, slot, capacity) VALUES ('loft', 'A-1', 5)`)
	w.execute(t, `INSERT INTO inventory (resource_id, slot, capacity) VALUES ('no resource', 'A-1', 5), (repeat('x', 9000), 'A-1', 5)`)
	noticed("loft", `DELETE FROM inventory WHERE slot = 'A-1'`)
	w.execute(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND application_name = 'holdfast `+w.namespace+`'`)
	listening()

	// And so nobody decides on what was read before.
	w.setInventory(t, "room", holds.Asked{}, 1)
	w.service = w.newService(w.client, newLocker(t, locking.NewNone(w.client)), &selling{w.store, func() { noticed("room", `UPDATE inventory SET capacity = 0`) }})
	rejected(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0], holds.ReasonSoldOut)
}

// TestOutOfMemory fills Redis: nothing is granted, but what is held can be given back, paid and
// swept, which frees memory. Redis' limit is for all, so this test has a Redis of its own.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, stacktest.StartRedis(t).RedisURL)
	ctx := t.Context()
	w.setInventory(t, "room", holds.Asked{}, 5)
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
	w.service.Place(ctx, []holds.PlaceRequest{{
		Cause: uuid.NewString(), RequestKey: "k", Resource: "room", User: "late", Quantity: 1, StoredAt: time.Now(),
	}}, func(_ int, r holds.Result) {
		if r.Err == nil {
			t.Errorf("granted without memory: %+v", r)
		}
	})
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
	w.atRest(t, "room")
}

// TestMemoryOfRequests looks at how long the answer to a request is remembered: not to be
// forgotten before its hold, however long a payment is being decided, and not for ever.
func TestMemoryOfRequests(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	ctx := t.Context()
	w.setInventory(t, "room", holds.Asked{}, 1)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", RequestKey: "k"})[0]).HoldID
	memory := func() time.Duration { return w.client.PTTL(ctx, holds.Key(w.namespace, "room", "request:k")).Val() }
	if got := memory(); got <= w.policy.RequestKeyTTL || got > w.policy.RequestKeyTTL+w.policy.HoldTTL {
		t.Errorf("of a live hold: %v", got)
	}
	longer := w.extend(t, holds.ExtendRequest{Cause: "longer", Hold: hold, TTLSeconds: int64(w.policy.HoldTTLMax / time.Second)}).Data.(holds.HoldExtended)
	if got := memory(); got <= w.policy.RequestKeyTTL+w.policy.HoldTTL || got > w.policy.RequestKeyTTL+w.policy.HoldTTLMax {
		t.Errorf("of an extended hold: %v", got)
	}
	if got := w.client.PTTL(ctx, holds.Key(w.namespace, "room", "extension:longer")).Val(); got <= 0 || got > w.policy.RequestKeyTTL {
		t.Errorf("of an extension: %v", got)
	}
	w.extend(t, holds.ExtendRequest{Cause: "start", Hold: hold, PaymentStarted: true})
	if got := w.client.PTTL(ctx, holds.Key(w.namespace, "room", "started:"+hold.UUID)).Val(); got <= w.policy.HoldLifetimeMax || got > w.policy.RequestKeyTTL {
		t.Errorf("of the start of a payment: %v", got)
	}
	if got := w.client.PExpireTime(ctx, holds.Key(w.namespace, "room", "hold:"+hold.UUID)).Val(); got.Milliseconds() != longer.ExpiresAt.UnixMilli() {
		t.Errorf("the hold is shown until %v, and lasts until %v", got, longer.ExpiresAt)
	}
	w.newService(w.client, w.locker(t), &outage{Inventory: w.store}).Confirm(ctx, []holds.ConfirmRequest{{Hold: hold, PaymentID: "p"}}, func(int, holds.Result) {})
	if got := memory(); got != -1 {
		t.Errorf("of a claimed hold: %v, want for ever", got)
	}
	w.pay(t, hold, "p")
	if got := memory(); got <= 0 || got > w.policy.RequestKeyTTL {
		t.Errorf("of an ended hold: %v", got)
	}
	w.release(t, holds.ReleaseRequest{Resource: "room", RequestKey: "never"})
	if got := w.client.PTTL(ctx, holds.Key(w.namespace, "room", "request:never")).Val(); got <= w.policy.RequestKeyTTL-time.Minute {
		t.Errorf("of a cancelled key: %v", got)
	}
}

// TestPassedIsJudgedWhenStored asks for a night that has passed since the event was stored: an
// event that waited through an outage, or is delivered again, has the answer that it would have had.
func TestPassedIsJudgedWhenStored(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	w.setInventory(t, "room", nights(-5, 3), 1)
	old := holds.PlaceRequest{Resource: "room", User: "ana", Asked: nights(-5, 3), StoredAt: time.Now().AddDate(0, 0, -5)}
	created(t, w.place(t, old)[0])
	old.StoredAt = time.Now()
	if got := rejected(t, w.place(t, old)[0], holds.ReasonInvalidRequest); got.Field != "check_in" {
		t.Errorf("%+v", got)
	}
}

// TestLostData forgets the scripts and then everything.
func TestLostData(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	w.setInventory(t, "room", holds.Asked{}, 5)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	if err := w.client.ScriptFlush(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0])

	for name, damage := range map[string]struct {
		do, undo func() error
		want     error
	}{
		"the epoch is gone": {
			func() error { return w.client.Del(ctx, holds.EpochKey(w.namespace, "room")).Err() },
			func() error { return w.client.Set(ctx, holds.EpochKey(w.namespace, "room"), w.epoch, 0).Err() },
			holds.ErrDataLost,
		},
		"the epoch is another": {
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
			holds.ErrDamaged,
		},
		"a counter is not a number": {
			func() error {
				return w.client.HSet(ctx, holds.Key(w.namespace, "room", "counts"), "stock", "many").Err()
			},
			func() error { return w.client.HSet(ctx, holds.Key(w.namespace, "room", "counts"), "stock", "2").Err() },
			holds.ErrDamaged,
		},
		"a counter is negative": {
			func() error { return w.client.HSet(ctx, holds.Key(w.namespace, "room", "counts"), "stock", "-3").Err() },
			func() error { return w.client.HSet(ctx, holds.Key(w.namespace, "room", "counts"), "stock", "2").Err() },
			holds.ErrDamaged,
		},
	} {
		if err := damage.do(); err != nil {
			t.Fatal(name, err)
		}
		var told []string
		w.service.OnDamage(func(resource string) { told = append(told, resource) })
		want := func(verb string) func(int, holds.Result) {
			return func(_ int, r holds.Result) {
				if !errors.Is(r.Err, damage.want) {
					t.Errorf("%s: %s: %+v, want %v", name, verb, r, damage.want)
				}
			}
		}
		w.service.Place(ctx, []holds.PlaceRequest{{
			Cause: uuid.NewString(), RequestKey: uuid.NewString(), Resource: "room", User: "cleo", Quantity: 1, StoredAt: time.Now(),
		}}, want("place"))
		w.service.Release(ctx, []holds.ReleaseRequest{{Cause: uuid.NewString(), Resource: "room", Hold: hold.HoldID}}, want("release"))
		if isTold := slices.Equal(told, []string{"room", "room"}); isTold != errors.Is(damage.want, holds.ErrDamaged) || !isTold && len(told) > 0 {
			t.Errorf("%s: told of damage to %v", name, told)
		}
		if err := damage.undo(); err != nil {
			t.Fatal(name, err)
		}
	}
	if got := brief(w.release(t, holds.ReleaseRequest{Hold: hold.HoldID})); got != holds.EventHoldReleased {
		t.Errorf("after all was mended: %s", got)
	}
}

// TestDamagedRecord has a record that the scripts do not write: nothing is done to its hold, and it
// is said what is damaged.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	ctx := t.Context()
	w.setInventory(t, "room", holds.Asked{}, 1)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0]).HoldID
	records := holds.Key(w.namespace, "room", "records")
	line := w.client.HGet(ctx, records, hold.UUID).Val()
	for _, damaged := range []string{"", "held", "held 1 1 1 0 - ana", "held 1 1 1 0 - ana k stock", strings.Replace(line, " 1 0 ", " one 0 ", 1), strings.Replace(line, "held ", "held  ", 1)} {
		w.client.HSet(ctx, records, hold.UUID, damaged)
		w.service.Release(ctx, []holds.ReleaseRequest{{Cause: "c", Resource: "room", Hold: hold}}, func(_ int, r holds.Result) {
			if !errors.Is(r.Err, holds.ErrDamaged) {
				t.Errorf("%q: %+v", damaged, r)
			}
		})
	}
	w.client.HSet(ctx, records, hold.UUID, line)
	if got := brief(w.release(t, holds.ReleaseRequest{Hold: hold})); got != holds.EventHoldReleased {
		t.Errorf("after all was mended: %s", got)
	}
	w.atRest(t, "room")
}

// TestMayNotPublish places a hold as a user whom the server's ACL lets use no channel, while somebody waits
// for the locks: it is granted all the same, and the locks are free.
func TestMayNotPublish(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	ctx := t.Context()
	w.setInventory(t, "room", holds.Asked{}, 1)
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
		t.Error("the locks were not given back")
	}
}

// TestRevOfAnotherType has something else where changes of the inventory are counted: nothing is granted, because
// nobody knows whether what was read from Postgres is still so.
func TestRevOfAnotherType(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	w.setInventory(t, "room", slots("a"), 1)
	ctx, rev := t.Context(), holds.Key(w.namespace, "room", "rev")
	w.client.Del(ctx, rev)
	w.client.RPush(ctx, rev, "1")
	request := holds.PlaceRequest{Cause: "c", Resource: "room", User: "ana", RequestKey: "k", Asked: slots("a"), Quantity: 1, StoredAt: time.Now()}
	w.service.Place(ctx, []holds.PlaceRequest{request}, func(_ int, r holds.Result) {
		if !errors.Is(r.Err, holds.ErrDamaged) {
			t.Errorf("%+v, want an error for damage", r)
		}
	})
	w.client.Del(ctx, rev)
	created(t, w.place(t, request)[0])
}

// TestIndexOfAnEndedHold has the index name a hold of the user that has ended: it keeps nobody from the slots. And
// a hold that ends leaves the index of a later one alone.
func TestIndexOfAnEndedHold(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	w.setInventory(t, "room", slots("a"), 2)
	ctx, users := t.Context(), holds.Key(w.namespace, "room", "users")
	request := func(key string) holds.PlaceRequest {
		return holds.PlaceRequest{Resource: "room", User: "ana", RequestKey: key, Asked: slots("a")}
	}
	first := created(t, w.place(t, request("k1"))[0]).HoldID
	index := holds.IndexField("ana", "a")
	if id := w.client.HGet(ctx, users, index).Val(); id != first.UUID {
		t.Fatalf("the index names %q, want %s", id, first.UUID)
	}
	w.client.HDel(ctx, users, index) // as for a worker that kept it elsewhere
	second := created(t, w.place(t, request("k2"))[0]).HoldID
	w.release(t, holds.ReleaseRequest{Hold: first})
	rejected(t, w.place(t, request("k3"))[0], holds.ReasonAlreadyHolding)
	w.release(t, holds.ReleaseRequest{Hold: second})
	w.client.HSet(ctx, users, index, first.UUID)
	created(t, w.place(t, request("k4"))[0])
}
