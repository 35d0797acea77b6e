package holds_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// samePartition returns the names of n resources of one partition.
func samePartition(n int) (names []string) {
	for i := 0; len(names) < n; i++ {
		if name := fmt.Sprint("s", i); len(names) == 0 || record.Partition(name) == record.Partition(names[0]) {
			names = append(names, name)
		}
	}
	return names
}

// TestExpire_CallsShareRun_RespectSweepLimit makes more holds due on some resources of a partition
// than a script expires. The calls in one run together expire no more than that, and report that
// more are due.
func TestExpire_CallsShareRun_RespectSweepLimit(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	const each = holds.SweepMax - 50
	resources := samePartition(3)
	var requests []holds.PlaceRequest
	for _, resource := range resources {
		w.setInventory(t, resource, holds.SlotSelection{}, each)
		for i := range each {
			requests = append(requests, holds.PlaceRequest{Resource: resource, User: fmt.Sprint("user-", i), TTLSeconds: seconds(60)})
		}
	}
	for _, o := range w.place(t, requests...) {
		created(t, o)
	}
	w.pass(t, time.Minute)
	due := func() (n int64) {
		for _, resource := range resources {
			n += w.client.ZCard(t.Context(), holds.Key(w.namespace, resource, "due")).Val()
		}
		return n
	}
	for left := int64(3 * each); left > 0; {
		again, err := w.service.ExpireOnce(t.Context(), resources...)
		stacktest.Must(t, err)
		left = max(left-holds.SweepMax, 0)
		if got := due(); got != left || again[len(again)-1] != (left > 0) {
			t.Fatalf("%d are due, want %d; more: %v", got, left, again)
		}
	}
}

// TestSweep_IndexIsTooEarly_CorrectsIndex sets an entry of due to a time before the deadline of its
// hold: the hold stays, and the entry is corrected.
func TestSweep_IndexIsTooEarly_CorrectsIndex(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	ctx := t.Context()
	hold := w.onlyHold(t, "room", 600)
	due := holds.Key(w.namespace, "room", "due")
	w.client.ZAdd(ctx, due, redis.Z{Score: 1, Member: hold.HoldID.UUID})
	rejected(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0], holds.ReasonSoldOut)
	if at := w.client.ZScore(ctx, due, hold.HoldID.UUID).Val(); int64(at) != hold.ExpiresAt.UnixMilli() {
		t.Errorf("due has %v, the hold %v", int64(at), hold.ExpiresAt.UnixMilli())
	}
}

// TestService_CountCorrupt_RefusesOnlyItsResource makes a hold due whose count is lower than its
// quantity. Nothing is decided on its resource, which is reported, but other resources in the same run are decided.
// After the repair the hold expires.
func TestService_CountCorrupt_RefusesOnlyItsResource(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	ctx := t.Context()
	resources := samePartition(2)
	for _, resource := range resources {
		w.setInventory(t, resource, holds.SlotSelection{}, 5)
	}
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: resources[0], User: "ana", Quantity: 2, TTLSeconds: seconds(60)})[0])
	w.pass(t, time.Minute)
	counts := holds.Key(w.namespace, resources[0], "counts")
	reported := make(map[string]bool)
	w.service.OnCorruption(func(resource string) { reported[resource] = true })
	for _, count := range []string{"1", "x", "-2", "2.5"} {
		w.client.HSet(ctx, counts, holds.StockSlot, count)
		requests := []holds.PlaceRequest{newRequest(resources[0]), newRequest(resources[1])}
		for i, r := range w.service.Place(ctx, requests) {
			if corrupt := errors.Is(r.Err, holds.ErrCorrupt); corrupt != (i == 0) || !corrupt && r.Err != nil {
				t.Errorf("a count of %s: place on %s: %+v", count, requests[i].Resource, r)
			}
		}
		for _, r := range w.service.Confirm(ctx, []holds.ConfirmRequest{{Hold: hold.HoldID, PaymentID: "p"}}) {
			if !errors.Is(r.Err, holds.ErrCorrupt) {
				t.Errorf("a count of %s: confirm: %+v", count, r)
			}
		}
	}
	if len(reported) != 1 || !reported[resources[0]] {
		t.Errorf("reported corruption of %v", reported)
	}
	w.client.HSet(ctx, counts, holds.StockSlot, "2")
	if expired := w.sweep(t); len(expired) != 1 || expired[0].Hold != hold.HoldID {
		t.Errorf("expired: %+v", expired)
	}
	w.assertNothingHeld(t, resources[0])
}

// TestService_CountsLost_GrantsNothing removes the counts of a resource while a hold of it is held, alone and with the users or the
// deadlines, which a claimed hold does not have. Neither the next request nor a query takes them for zero. When no hold is live, there are no counts.
func TestService_CountsLost_GrantsNothing(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	ctx := t.Context()
	hold := w.onlyHold(t, "room", 600)
	key := func(name string) string { return holds.Key(w.namespace, "room", name) }
	for _, lost := range [][]string{{"counts"}, {"counts", "users"}, {"counts", "due"}} {
		for _, name := range lost {
			w.client.Rename(ctx, key(name), key("aside:"+name))
		}
		if r := w.tryPlace(newRequest("room")); !errors.Is(r.Err, holds.ErrCorrupt) {
			t.Errorf("without %v: place: %+v", lost, r)
		}
		if got, err := w.service.Availability(ctx, "room", holds.SlotSelection{}); !errors.Is(err, holds.ErrCorrupt) {
			t.Errorf("without %v: availability: %+v, %v", lost, got, err)
		}
		for _, name := range lost {
			w.client.Rename(ctx, key("aside:"+name), key(name))
		}
	}
	w.release(t, holds.ReleaseRequest{Resource: "room", Hold: hold.HoldID})
	if n := w.client.Exists(ctx, key("counts"), key("users"), key("due")).Val(); n != 0 {
		t.Errorf("%d keys are left without live holds", n)
	}
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0])
}

// TestScripts_ServerFollowedOlderDataSinceItsMark_Refuse makes a Redis follow older data and become
// primary again in the half-second in which scripts have marked it as the primary. The older data has
// no mark, because marks are not replicated.
func TestScripts_ServerFollowedOlderDataSinceItsMark_Refuse(t *testing.T) {
	t.Parallel()
	own, older := stacktest.StartRedis(t), stacktest.StartRedis(t)
	client, replica := stacktest.ConnectRedis(t, own.RedisURL), stacktest.ConnectRedis(t, older.RedisURL)
	stacktest.ReplicaOf(t, replica, client) // with its first replica a server starts a new history
	w := newHarnessOn(t, own.RedisURL).stopClock(t)
	w.setInventory(t, "room", slots("a"), 5)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", Selection: slots("a")})[0])
	stacktest.Eventually(t, "the hold to be replicated", func() bool {
		return replica.HLen(t.Context(), holds.Key(w.namespace, "room", "records")).Val() == 1
	})
	stacktest.Promote(t, replica)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben", Selection: slots("a")})[0])
	stacktest.ReplicaOf(t, client, replica)
	stacktest.Promote(t, client)
	w.assertRefused(t, "room")
}

// TestScripts_ServerFollowedOlderDataWithItsMark_RefuseAfterHalfASecond makes a Redis follow data that
// was copied from it together with its mark.
func TestScripts_ServerFollowedOlderDataWithItsMark_RefuseAfterHalfASecond(t *testing.T) {
	t.Parallel()
	own, first, older := stacktest.StartRedis(t), stacktest.StartRedis(t), stacktest.StartRedis(t)
	client, replica := stacktest.ConnectRedis(t, own.RedisURL), stacktest.ConnectRedis(t, older.RedisURL)
	stacktest.ReplicaOf(t, stacktest.ConnectRedis(t, first.RedisURL), client)
	w := newHarnessOn(t, own.RedisURL).stopClock(t)
	w.setInventory(t, "room", slots("a"), 5)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", Selection: slots("a")})[0])
	stacktest.ReplicaOf(t, replica, client) // copies the mark
	stacktest.Promote(t, replica)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben", Selection: slots("a")})[0])
	stacktest.ReplicaOf(t, client, replica)
	stacktest.Promote(t, client)
	w.pass(t, 500*time.Millisecond)
	w.assertRefused(t, "room")
}

// assertRefused checks that no script decides about a resource.
func (w *harness) assertRefused(t *testing.T, resource string) {
	t.Helper()
	if r := w.tryPlace(newRequest(resource)); !errors.Is(r.Err, holds.ErrDataLost) {
		t.Errorf("place: %+v", r)
	}
	if found, err := w.service.Availability(t.Context(), resource, slots("a")); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("availability: %+v %v", found, err)
	}
}

// TestScripts_EpochOfWrongType_RefuseEachCallOfRun replaces the epoch of one partition by a hash, and releases holds
// of that partition and of another one in one run. Only the hold of the other partition is released.
func TestScripts_EpochOfWrongType_RefuseEachCallOfRun(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	ctx := t.Context()
	two := samePartition(2)
	resources := []string{elsewhere(two[0]), two[0], two[1]}
	var requests []holds.ReleaseRequest
	for _, resource := range resources {
		hold := w.onlyHold(t, resource, 600)
		requests = append(requests, holds.ReleaseRequest{EventID: uuid.NewString(), Hold: hold.HoldID, Resource: resource})
	}
	key := holds.EpochKey(w.namespace, resources[1])
	epoch := w.client.Get(ctx, key).Val()
	w.client.Del(ctx, key)
	w.client.HSet(ctx, key, "a", "b")
	for i, r := range w.service.Release(ctx, requests) {
		if wrong := i > 0; errors.Is(r.Err, holds.ErrCorrupt) != wrong || !wrong && r.Err != nil {
			t.Errorf("release of the hold on %s returns %+v", resources[i], r)
		}
	}
	w.client.Set(ctx, key, epoch, 0)
	for i, r := range requests {
		want := holds.Held
		if i == 0 {
			want = holds.Released
		}
		if view, _, err := w.service.GetHold(ctx, r.Hold); err != nil || view.State != want {
			t.Errorf("the hold on %s is %s, want %s: %v", r.Resource, view.State, want, err)
		}
	}
}
