package holds_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestLastReplicaGone has the last replica of a Redis leave. After a while the server begins a new history,
// which continues no other: it is still the one that has everything, and nothing is filled again.
func TestLastReplicaGone(t *testing.T) {
	t.Parallel()
	own, replica := stacktest.StartRedis(t), stacktest.StartRedis(t)
	w := newWorldOn(t, own.RedisURL)
	ctx := t.Context()
	keeper := w.newKeeper(&retold{world: w}, "w1", holds.NewTenure())
	check := func() holds.Epoch {
		t.Helper()
		e, err := keeper.Check(ctx)
		if err != nil || !e.Written || e.Name != w.epoch {
			t.Fatalf("the epoch is %+v %v", e, err)
		}
		return e
	}
	before := check()
	if err := w.client.ConfigSet(ctx, "repl-backlog-ttl", "1").Err(); err != nil {
		t.Fatal(err)
	}
	follower := newClient(t, replica.RedisURL)
	stacktest.Follow(t, follower, w.client)
	if check() != before {
		t.Error("with a replica it is taken for another server")
	}
	before = check() // with its first replica it has begun a new history
	stacktest.Lead(t, follower)
	_, history, _ := strings.Cut(before.Server, " ")
	stacktest.Eventually(t, "a new history", func() bool {
		check() // as a worker does all the time
		return !strings.Contains(w.client.Info(ctx, "replication").Val(), history)
	})
	check()
	if after := check(); after.Server == before.Server || strings.Fields(after.Server)[0] != strings.Fields(before.Server)[0] {
		t.Errorf("the server is noted as %q, it was %q", after.Server, before.Server)
	}
}

// TestForgottenHistory has a Redis follow another with older data, be a master again and forget that it
// ever followed, while no worker looks. Whoever looks then takes it for another server.
func TestForgottenHistory(t *testing.T) {
	t.Parallel()
	own, older := stacktest.StartRedis(t), stacktest.StartRedis(t)
	w := newWorldOn(t, own.RedisURL)
	ctx := t.Context()
	if e, err := w.newKeeper(&retold{world: w}, "w1", holds.NewTenure()).Check(ctx); err != nil || !e.Written {
		t.Fatalf("the epoch is %+v %v", e, err)
	}
	if err := w.client.ConfigSet(ctx, "repl-backlog-ttl", "1").Err(); err != nil {
		t.Fatal(err)
	}
	run := strings.Fields(info(t, w.client, "server", "run_id"))
	other := newClient(t, older.RedisURL)
	stacktest.Follow(t, other, w.client) // it has all there is now, and nothing that comes
	stacktest.Lead(t, other)
	stacktest.Follow(t, w.client, other)
	stacktest.Lead(t, w.client)
	stacktest.Eventually(t, "the history to be forgotten", func() bool {
		return strings.Trim(info(t, w.client, "replication", "master_replid2"), "0") == ""
	})
	if again := strings.Fields(info(t, w.client, "server", "run_id")); again[0] != run[0] {
		t.Fatalf("it was restarted: %v, %v before", again, run)
	}
	e, err := w.newKeeper(&retold{world: w}, "w2", holds.NewTenure()).Check(ctx)
	if err != nil || e.Written || !strings.Contains(e.Why, "another server") {
		t.Errorf("the epoch is %+v %v", e, err)
	}
}

// TestFollowedBetweenLooks has a Redis follow older data, with the same epoch, and lead again between two looks of
// a Keeper, while the connections of a worker stay. No script decides on what is there.
func TestFollowedBetweenLooks(t *testing.T) {
	t.Parallel()
	own, older := stacktest.StartRedis(t), stacktest.StartRedis(t)
	w := newWorldOn(t, own.RedisURL)
	ctx := t.Context()
	w.told = []holds.Told{}
	w.setInventory(t, "room", holds.Asked{}, 2)
	tenure := holds.NewTenure()
	keeper := w.newKeeper(&retold{world: w}, "w1", tenure)
	if _, err := keeper.Check(ctx); err != nil {
		t.Fatal(err)
	}
	w.tenure = tenure
	w.renew(t)
	paid := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	replica := newClient(t, older.RedisURL)
	stacktest.Follow(t, replica, w.client)
	for range 2 { // with its first replica the server has begun a new history: it is noted, and then known
		if e, err := keeper.Check(ctx); err != nil || !e.Written {
			t.Fatalf("with its first replica, the epoch is %+v %v", e, err)
		}
	}
	if view, found, err := w.newService(replica, w.locker(t), w.store).Lookup(ctx, paid.HoldID); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("looked up on a replica, which may lag: %+v %v %v", view, found, err)
	}
	stacktest.Lead(t, replica)
	if o := w.pay(t, paid.HoldID, "p"); o.Event != holds.EventHoldConfirmed {
		t.Fatalf("paid: %+v", o)
	}
	connection := w.client.ClientID(ctx).Val()
	stacktest.Follow(t, w.client, replica)
	stacktest.Lead(t, w.client)
	if now := w.client.ClientID(ctx).Val(); now != connection {
		t.Fatalf("the connection is %d, it was %d", now, connection)
	}

	lost := func(what string) func(int, holds.Result) {
		return func(_ int, r holds.Result) {
			if !errors.Is(r.Err, holds.ErrDataLost) {
				t.Errorf("%s: %+v", what, r)
			}
		}
	}
	w.now = time.Now()
	w.pass(t, time.Hour) // there the hold lapses
	if err := w.expirer.SweepAndAnnounce(ctx); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("swept: %v", err)
	}
	w.service.Place(ctx, []holds.PlaceRequest{{Cause: "c1", Resource: "room", User: "ben", RequestKey: "k", Quantity: 1}}, lost("placed"))
	w.service.Confirm(ctx, []holds.ConfirmRequest{{Hold: paid.HoldID, PaymentID: "q"}}, lost("paid"))
	w.service.Release(ctx, []holds.ReleaseRequest{{Cause: "c3", Resource: "room", Hold: paid.HoldID}}, lost("released"))
	w.service.Extend(ctx, []holds.ExtendRequest{{Cause: "c4", Hold: paid.HoldID}}, lost("extended"))
	if !tenure.TakeDoubt(w.epoch) {
		t.Error("the Keeper was not told")
	}
	if e, err := keeper.Check(ctx); err != nil || e.Written {
		t.Errorf("then the epoch is %+v %v", e, err)
	}
}

// TestDoubted has a script not find the epoch where the Keeper does: the connection may lead elsewhere, so all
// are made anew.
func TestDoubted(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	ctx := t.Context()
	tenure := holds.NewTenure()
	keeper := w.newKeeper(&retold{world: w}, "w1", tenure)
	options := stacktest.RedisOptions(w.redisURL)
	keeper.Guard.Watch(options)
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	connection := func(doubted string) int64 {
		t.Helper()
		tenure.Doubt(doubted)
		if e, err := keeper.Check(ctx); err != nil || !e.Written {
			t.Fatalf("the epoch is %+v %v", e, err)
		}
		id, err := client.ClientID(ctx).Result()
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	first := connection("")
	if now := connection("that of before"); now != first {
		t.Error("connections were closed because of another epoch")
	}
	second := connection(w.epoch)
	if second == first {
		t.Error("a connection that may lead elsewhere is still used")
	}
	if now := connection(""); now != second {
		t.Error("connections are closed again and again")
	}
}

// info returns what a Redis says of itself.
func info(t *testing.T, client *redis.Client, section, field string) string {
	t.Helper()
	for line := range strings.Lines(client.Info(t.Context(), section).Val()) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name == field {
			return value
		}
	}
	return ""
}

// TestDamageOfBefore finds damage under an epoch that was replaced meanwhile. What was filled in since is
// not condemned for it.
func TestDamageOfBefore(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	w.told = []holds.Told{}
	w.setInventory(t, "room", holds.Asked{}, 2)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	tenure := holds.NewTenure()
	keeper := w.newKeeper(&retold{world: w}, "w1", tenure)
	if e, err := keeper.Check(t.Context()); err != nil || !e.Written {
		t.Fatalf("the epoch is %+v %v", e, err)
	}
	w.tenure = tenure
	w.renew(t)
	if err := w.client.Set(t.Context(), holds.Key(w.namespace, "room", "records"), "nonsense", 0).Err(); err != nil {
		t.Fatal(err)
	}
	w.service.Place(t.Context(), []holds.PlaceRequest{{Cause: "c", Resource: "room", User: "ben", RequestKey: "k", Quantity: 1}}, func(_ int, r holds.Result) {
		if !errors.Is(r.Err, holds.ErrDamaged) {
			t.Fatalf("placed: %+v", r)
		}
	})
	tenure.AgeDamage()
	w.loseAndRebuild(t, &retold{}) // by another, for the same damage
	if e, err := keeper.Check(t.Context()); err != nil || !e.Written {
		t.Errorf("the epoch is %+v %v", e, err)
	}
}

// TestEpochOfAnotherType has somebody make a list of an epoch. It is lost then.
func TestEpochOfAnotherType(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	w.told = []holds.Told{}
	w.setInventory(t, "room", holds.Asked{}, 2)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	key := holds.EpochKey(w.namespace, "room")
	pipe := w.client.TxPipeline()
	pipe.Del(t.Context(), key)
	pipe.RPush(t.Context(), key, "nonsense")
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	keeper := w.newKeeper(&retold{world: w}, "w1", holds.NewTenure())
	if e, err := keeper.Check(t.Context()); err != nil || e.Written {
		t.Errorf("the epoch is %+v %v", e, err)
	}
	keeper.DoNotWait()
	if r, err := keeper.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil || r.Live != 1 {
		t.Errorf("filled in %+v %v", r, err)
	}
}

// TestGuard lets commands through to the server that is known, and to no other.
func TestGuard(t *testing.T) {
	t.Parallel()
	own, other := stacktest.StartRedis(t), stacktest.StartRedis(t)
	guard := holds.NewGuard()
	guardedClient := func(url string) *redis.Client {
		options := stacktest.RedisOptions(url)
		guard.Watch(options)
		client := redis.NewClient(options)
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	right, wrong := guardedClient(own.RedisURL), guardedClient(other.RedisURL)
	ctx := t.Context()
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, holds.ErrDataLost) {
			t.Errorf("%s: %v, want it refused", what, err)
		}
	}
	refused("before anything is known", right.Ping(ctx).Err())

	world := newWorldOn(t, own.RedisURL)
	e, err := world.store.Epoch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	guard.Open(e.Server)
	if err := right.Set(ctx, "key", "value", 0).Err(); err != nil {
		t.Errorf("to the server that is known: %v", err)
	}
	refused("to another", wrong.Set(ctx, "key", "value", 0).Err())
	if n := newClient(t, other.RedisURL).Exists(ctx, "key").Val(); n != 0 {
		t.Error("it was written nevertheless")
	}

	// A connection that there is, is cut when nothing is to be sent any more.
	conn := right.Conn()
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	guard.Close("closed")
	if err := conn.Ping(ctx).Err(); err == nil {
		t.Error("a connection outlives the guard's closing")
	}
	refused("while it is closed", right.Ping(ctx).Err())
	guard.Open(e.Server)
	if err := right.Ping(ctx).Err(); err != nil {
		t.Errorf("after it was opened again: %v", err)
	}

	// Whoever follows another is not written to, whoever it is.
	host, port, _ := strings.Cut(newClient(t, other.RedisURL).Options().Addr, ":")
	if err := newClient(t, own.RedisURL).ReplicaOf(ctx, host, port).Err(); err != nil {
		t.Fatal(err)
	}
	guard.Close("closed")
	guard.Open(e.Server)
	if err := right.Ping(ctx).Err(); err == nil || errors.Is(err, holds.ErrDataLost) {
		t.Errorf("to a replica: %v, want it refused as such", err)
	}
}

// TestDamageLeft finds damage that nobody heals. It is left to who might until a while has passed.
func TestDamageLeft(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	w.told = []holds.Told{}
	w.setInventory(t, "room", holds.Asked{}, 2)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	tenure := holds.NewTenure()
	keeper := w.newKeeper(&retold{world: w}, "w1", tenure)
	keeper.DoNotWait()
	if _, err := keeper.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.tenure = tenure
	w.renew(t)
	if err := w.client.HSet(t.Context(), holds.Key(w.namespace, "room", "records"), hold.HoldID.UUID, "nonsense").Err(); err != nil {
		t.Fatal(err)
	}
	find := func() {
		t.Helper()
		w.service.Release(t.Context(), []holds.ReleaseRequest{{Cause: "c", Resource: "room", Hold: hold.HoldID}}, func(_ int, r holds.Result) {
			if !errors.Is(r.Err, holds.ErrDamaged) {
				t.Fatalf("released: %+v", r)
			}
		})
	}
	find()
	if e, err := keeper.Check(t.Context()); err != nil || !e.Written {
		t.Errorf("when it was found first, the epoch is %+v %v", e, err)
	}
	tenure.AgeDamage()
	find()
	if e, err := keeper.Check(t.Context()); err != nil || e.Written || !strings.Contains(e.Why, "damaged data in redis") {
		t.Errorf("when it was found for long, the epoch is %+v %v", e, err)
	}
	if r, err := keeper.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil || r.Live != 1 {
		t.Errorf("filled in %+v %v", r, err)
	}
	if _, err := keeper.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if o := w.release(t, holds.ReleaseRequest{Hold: hold.HoldID}); o.Event != holds.EventHoldReleased {
		t.Errorf("then: %+v", o)
	}
}

// TestDamageInTime goes through when damage is one that nobody has healed.
func TestDamageInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tenure := holds.NewTenure()
		unhealed := func(epoch string, want bool) {
			t.Helper()
			if err := tenure.TakeDamage(epoch); (err != nil) != want {
				t.Errorf("under %s: %v, want one: %v", epoch, err, want)
			}
		}
		tenure.NoteDamage("e1", "room", holds.ErrDamaged)
		unhealed("e1", false)
		time.Sleep(holds.HealWithin - time.Nanosecond)
		tenure.NoteDamage("e1", "room", holds.ErrDamaged)
		unhealed("e1", false)
		time.Sleep(time.Nanosecond)
		unhealed("e1", false) // not found again
		tenure.NoteDamage("e1", "hall", holds.ErrDamaged)
		unhealed("e1", false) // of another resource
		tenure.NoteDamage("e1", "room", holds.ErrDamaged)
		unhealed("e1", true)
		unhealed("e1", true) // until it is healed
		unhealed("e2", false)
		unhealed("e1", false) // forgotten with its epoch

		tenure.NoteDamage("e2", "room", holds.ErrDamaged)
		time.Sleep(holds.DamageForgotten + 1)
		unhealed("e2", false)
		tenure.NoteDamage("e2", "room", holds.ErrDamaged) // once more, later
		unhealed("e2", false)
		time.Sleep(holds.HealWithin)
		tenure.NoteDamage("e2", "room", holds.ErrDamaged)
		unhealed("e2", true)
		time.Sleep(holds.DamageForgotten + 1)
		unhealed("e2", false)

		for i := range holds.DamagedMax {
			tenure.NoteDamage("e3", fmt.Sprint(i), holds.ErrDamaged)
		}
		tenure.NoteDamage("e3", "one more", holds.ErrDamaged)
		time.Sleep(holds.HealWithin)
		tenure.NoteDamage("e3", "one more", holds.ErrDamaged)
		unhealed("e3", false)
	})
}
