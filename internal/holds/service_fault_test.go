package holds_test

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/stack/stacktest"
)

// replyLosingService returns a service that loses the reply of its n-th round trip of scripts from
// now. It takes no locks, so that every round trip belongs to the verb.
func (w *harness) replyLosingService(t *testing.T, n int32) *holds.Service {
	t.Helper()
	client := stacktest.ConnectRedis(t, stacktest.Shared().RedisURL)
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
	wantBrief(t, w.pay(t, hold.HoldID, "p"), holds.EventHoldConfirmed)
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

	boat := w.onlyHold(t, "boat", 600)
	start := holds.ExtendRequest{EventID: uuid.NewString(), Hold: boat.HoldID, PaymentStarted: true}
	expectReplyLost(t, slices.All(w.replyLosingService(t, 1).Extend(ctx, []holds.ExtendRequest{start})))
	wantBrief(t, w.extend(t, start), holds.EventHoldExtended)
	release := holds.ReleaseRequest{EventID: uuid.NewString(), Hold: boat.HoldID, Resource: "boat"}
	expectReplyLost(t, slices.All(w.replyLosingService(t, 1).Release(ctx, []holds.ReleaseRequest{release})))
	wantBrief(t, w.release(t, release), holds.EventHoldReleased)
	wantBrief(t, w.release(t, holds.ReleaseRequest{Hold: boat.HoldID}), "hold.release_rejected released")
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
	hold := w.expiredHold(t, "tent")
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
	w.claim(t, hold, "p")
	expectReplyLost(t, slices.All(w.replyLosingService(t, 2).Confirm(ctx, paid))) // settle.lua
	wantBrief(t, w.pay(t, hold, "p"), "hold.confirmed late")
	if slot := w.available(t, "tent", holds.SlotSelection{})[0]; slot.Reserved != 1 || slot.Held != 0 {
		t.Fatalf("after lost replies: %+v", slot)
	}
	w.assertNothingHeld(t, "tent")

	// Capacity is cut after the slot was taken again: Postgres rejects the payment, and the slot is
	// free.
	hold = w.expiredHold(t, "boat")
	expectReplyLost(t, slices.All(w.replyLosingService(t, 2).Confirm(ctx, []holds.ConfirmRequest{{Hold: hold, PaymentID: "p"}})))
	w.setInventory(t, "boat", holds.SlotSelection{}, 0)
	wantBrief(t, w.pay(t, hold, "p"), "hold.confirm_rejected sold_out")
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

// TestBumpRevisions_CapacityChangedBySQL_BumpsRev changes capacities by plain SQL, as an upstream
// system may at any time. A notification of Postgres bumps rev, also after the connection was cut,
// and for any statement.
func TestBumpRevisions_CapacityChangedBySQL_BumpsRev(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.watchInventory(t)
	rev := func(resource string) string {
		return w.client.Get(t.Context(), holds.Key(w.namespace, resource, "rev")).Val()
	}
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
	w.service = w.newService(w.client, newLocker(t, locking.NewNone(w.client)), afterFirstRead(w.store, func() { noticed("room", `UPDATE inventory SET capacity = 0`) }))
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
	stacktest.Must(t, w.client.ConfigSet(ctx, "maxmemory", "1").Err())
	if r := w.tryPlace(newRequest("room")); r.Err == nil {
		t.Errorf("granted without memory: %+v", r)
	}
	wantBrief(t, w.pay(t, ids[0], "p"), holds.EventHoldConfirmed)
	wantBrief(t, w.release(t, holds.ReleaseRequest{Hold: ids[1]}), holds.EventHoldReleased)
	stacktest.Eventually(t, "the deadline", func() bool { return len(w.sweep(t)) == 1 })
	w.assertNothingHeld(t, "room")
}

// TestService_EpochLost_Refuses flushes the scripts, and then removes the epoch and writes another one. Neither is
// reported as corruption.
func TestService_EpochLost_Refuses(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	ctx, key := t.Context(), holds.EpochKey(w.namespace, "room")
	w.setInventory(t, "room", holds.SlotSelection{}, 5)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	stacktest.Must(t, w.client.ScriptFlush(ctx).Err())
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0])

	w.service.OnCorruption(func(resource string) { t.Errorf("reported corruption of %s", resource) })
	release := holds.ReleaseRequest{EventID: uuid.NewString(), Resource: "room", Hold: hold.HoldID}
	w.client.Del(ctx, key)
	for _, other := range []string{"other", w.epoch} {
		if r := w.tryPlace(newRequest("room")); !errors.Is(r.Err, holds.ErrDataLost) {
			t.Errorf("before the epoch is %s: place: %+v", other, r)
		}
		if r := w.service.Release(ctx, []holds.ReleaseRequest{release})[0]; !errors.Is(r.Err, holds.ErrDataLost) {
			t.Errorf("before the epoch is %s: release: %+v", other, r)
		}
		stacktest.Must(t, w.client.Set(ctx, key, other, 0).Err())
	}
	wantBrief(t, w.release(t, release), holds.EventHoldReleased)
}

// TestRelease_RecordCorrupt_ChangesNothing writes a record that the scripts do not write. The
// release does nothing to its hold, and the error names the corrupt value.
func TestRelease_RecordCorrupt_ChangesNothing(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	ctx := t.Context()
	hold := w.onlyHold(t, "room", 600).HoldID
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
	wantBrief(t, w.release(t, holds.ReleaseRequest{Hold: hold}), holds.EventHoldReleased)
	w.assertNothingHeld(t, "room")
}

// TestPlace_PublishForbiddenByACL_IsGranted places a hold as a user whose ACL allows no channel,
// while an acquisition waits for the locks. The hold is granted, and the locks are free.
func TestPlace_PublishForbiddenByACL_IsGranted(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	ctx := t.Context()
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	stacktest.Must(t, w.client.Do(ctx, "acl", "setuser", w.namespace, "on", ">secret", "~*", "+@all", "resetchannels").Err())
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
	request := newRequest("room")
	request.Selection = slots("a")
	if r := w.tryPlace(request); !errors.Is(r.Err, holds.ErrCorrupt) {
		t.Errorf("%+v, want ErrCorrupt", r)
	}
	w.client.Del(ctx, rev)
	created(t, w.place(t, request)[0])
}
