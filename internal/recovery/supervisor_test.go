package recovery_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// TestSupervisor_LastReplicaGone_KeepsEpoch has the last replica of a Redis leave. After a while the server begins a new history,
// which continues no other: it is still the one that has everything, and nothing is filled again.
func TestSupervisor_LastReplicaGone_KeepsEpoch(t *testing.T) {
	t.Parallel()
	own, replica := stacktest.StartRedis(t), stacktest.StartRedis(t)
	w := newHarnessOn(t, own.RedisURL)
	ctx := t.Context()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", recovery.NewEpochTerm())
	check := func() recovery.Epoch {
		t.Helper()
		e, err := supervisor.Check(ctx)
		if err != nil || !e.Complete || e.Name != w.epoch {
			t.Fatalf("the epoch is %+v %v", e, err)
		}
		return e
	}
	before := check()
	if err := w.client.ConfigSet(ctx, "repl-backlog-ttl", "1").Err(); err != nil {
		t.Fatal(err)
	}
	follower := newClient(t, replica.RedisURL)
	stacktest.ReplicaOf(t, follower, w.client)
	if check() != before {
		t.Error("with a replica it is taken for another server")
	}
	before = check() // with its first replica it has begun a new history
	stacktest.Promote(t, follower)
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

// TestSupervisor_HistoryForgotten_DetectsLoss has a Redis follow another with older data, be a master again and forget that it
// ever followed, while no worker looks. Whoever looks then takes it for another server.
func TestSupervisor_HistoryForgotten_DetectsLoss(t *testing.T) {
	t.Parallel()
	own, older := stacktest.StartRedis(t), stacktest.StartRedis(t)
	w := newHarnessOn(t, own.RedisURL)
	ctx := t.Context()
	if e, err := w.newSupervisor(&replayLog{harness: w}, "w1", recovery.NewEpochTerm()).Check(ctx); err != nil || !e.Complete {
		t.Fatalf("the epoch is %+v %v", e, err)
	}
	if err := w.client.ConfigSet(ctx, "repl-backlog-ttl", "1").Err(); err != nil {
		t.Fatal(err)
	}
	run := strings.Fields(info(t, w.client, "server", "run_id"))
	other := newClient(t, older.RedisURL)
	stacktest.ReplicaOf(t, other, w.client) // it has all there is now, and nothing that comes
	stacktest.Promote(t, other)
	stacktest.ReplicaOf(t, w.client, other)
	stacktest.Promote(t, w.client)
	stacktest.Eventually(t, "the history to be forgotten", func() bool {
		return strings.Trim(info(t, w.client, "replication", "master_replid2"), "0") == ""
	})
	if again := strings.Fields(info(t, w.client, "server", "run_id")); again[0] != run[0] {
		t.Fatalf("it was restarted: %v, %v before", again, run)
	}
	e, err := w.newSupervisor(&replayLog{harness: w}, "w2", recovery.NewEpochTerm()).Check(ctx)
	if err != nil || e.Complete || !strings.Contains(e.Why, "another server") {
		t.Errorf("the epoch is %+v %v", e, err)
	}
}

// TestSupervisor_ServerFollowedOlderData_ScriptsRefuse has a Redis follow older data, with the same epoch, and lead again between two looks of
// a Keeper, while the connections of a worker stay. No script decides on what is there.
func TestSupervisor_ServerFollowedOlderData_ScriptsRefuse(t *testing.T) {
	t.Parallel()
	own, older := stacktest.StartRedis(t), stacktest.StartRedis(t)
	w := newHarnessOn(t, own.RedisURL)
	ctx := t.Context()
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	epochTerm := recovery.NewEpochTerm()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", epochTerm)
	if _, err := supervisor.Check(ctx); err != nil {
		t.Fatal(err)
	}
	w.term = epochTerm
	w.startNewTerm(t)
	paid := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	replica := newClient(t, older.RedisURL)
	stacktest.ReplicaOf(t, replica, w.client)
	for range 2 { // with its first replica the server has begun a new history: it is noted, and then known
		if e, err := supervisor.Check(ctx); err != nil || !e.Complete {
			t.Fatalf("with its first replica, the epoch is %+v %v", e, err)
		}
	}
	if view, found, err := w.newService(t, replica, w.store).GetHold(ctx, paid.HoldID); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("looked up on a replica, which may lag: %+v %v %v", view, found, err)
	}
	stacktest.Promote(t, replica)
	if o := w.pay(t, paid.HoldID, "p"); o.Event != holds.EventHoldConfirmed {
		t.Fatalf("paid: %+v", o)
	}
	connection := w.client.ClientID(ctx).Val()
	stacktest.ReplicaOf(t, w.client, replica)
	stacktest.Promote(t, w.client)
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
	w.pass(time.Hour) // there the hold lapses
	if _, err := w.service.Availability(ctx, "room", holds.SlotSelection{}); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("availability: %v", err)
	}
	w.service.Place(ctx, []holds.PlaceRequest{{EventID: "c1", Resource: "room", User: "ben", RequestKey: "k", Quantity: 1}}, lost("placed"))
	w.service.Confirm(ctx, []holds.ConfirmRequest{{Hold: paid.HoldID, PaymentID: "q"}}, lost("paid"))
	w.service.Release(ctx, []holds.ReleaseRequest{{EventID: "c3", Resource: "room", Hold: paid.HoldID}}, lost("released"))
	w.service.Extend(ctx, []holds.ExtendRequest{{EventID: "c4", Hold: paid.HoldID}}, lost("extended"))
	if !epochTerm.TakeMismatch(w.epoch) {
		t.Error("the Keeper was not told")
	}
	if e, err := supervisor.Check(ctx); err != nil || e.Complete {
		t.Errorf("then the epoch is %+v %v", e, err)
	}
}

// TestSupervisor_EpochMismatchReported_Reconnects has a script not find the epoch where the Keeper does: the connection may lead elsewhere, so all
// are made anew.
func TestSupervisor_EpochMismatchReported_Reconnects(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	ctx := t.Context()
	epochTerm := recovery.NewEpochTerm()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", epochTerm)
	options := stacktest.RedisOptions(w.redisURL)
	supervisor.Guard.Attach(options)
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	connection := func(doubted string) int64 {
		t.Helper()
		epochTerm.Report(doubted, "", holds.ErrDataLost)
		if e, err := supervisor.Check(ctx); err != nil || !e.Complete {
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

// TestSupervisor_CorruptionOfOldEpoch_IsIgnored finds damage under an epoch that was replaced meanwhile. What was filled in since is
// not condemned for it.
func TestSupervisor_CorruptionOfOldEpoch_IsIgnored(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	epochTerm := recovery.NewEpochTerm()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", epochTerm)
	if e, err := supervisor.Check(t.Context()); err != nil || !e.Complete {
		t.Fatalf("the epoch is %+v %v", e, err)
	}
	w.term = epochTerm
	w.startNewTerm(t)
	if err := w.client.Set(t.Context(), w.key("room", "records"), "nonsense", 0).Err(); err != nil {
		t.Fatal(err)
	}
	w.service.Place(t.Context(), []holds.PlaceRequest{{EventID: "c", Resource: "room", User: "ben", RequestKey: "k", Quantity: 1}}, func(_ int, r holds.Result) {
		if !errors.Is(r.Err, holds.ErrCorrupt) {
			t.Fatalf("placed: %+v", r)
		}
	})
	epochTerm.AgeCorruptions()
	w.loseAndRebuild(t, &replayLog{}) // by another, for the same damage
	if e, err := supervisor.Check(t.Context()); err != nil || !e.Complete {
		t.Errorf("the epoch is %+v %v", e, err)
	}
}

// TestSupervisor_EpochKeyHasWrongType_Rebuilds has somebody make a list of an epoch. It is lost then.
func TestSupervisor_EpochKeyHasWrongType_Rebuilds(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	key := record.Keyspace(w.namespace).Epoch(record.Partition("room"))
	pipe := w.client.TxPipeline()
	pipe.Del(t.Context(), key)
	pipe.RPush(t.Context(), key, "nonsense")
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", recovery.NewEpochTerm())
	if e, err := supervisor.Check(t.Context()); err != nil || e.Complete {
		t.Errorf("the epoch is %+v %v", e, err)
	}
	supervisor.Drain = 0
	if r, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil || r.Live != 1 {
		t.Errorf("filled in %+v %v", r, err)
	}
}

// TestSupervisor_CorruptionNotHealed_InvalidatesEpoch finds damage that nobody heals. It is left to who might until a while has passed.
func TestSupervisor_CorruptionNotHealed_InvalidatesEpoch(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	epochTerm := recovery.NewEpochTerm()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", epochTerm)
	supervisor.Drain = 0
	if _, err := supervisor.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.term = epochTerm
	w.startNewTerm(t)
	if err := w.client.HSet(t.Context(), w.key("room", "records"), hold.HoldID.UUID, "nonsense").Err(); err != nil {
		t.Fatal(err)
	}
	find := func() {
		t.Helper()
		w.service.Release(t.Context(), []holds.ReleaseRequest{{EventID: "c", Resource: "room", Hold: hold.HoldID}}, func(_ int, r holds.Result) {
			if !errors.Is(r.Err, holds.ErrCorrupt) {
				t.Fatalf("released: %+v", r)
			}
		})
	}
	find()
	if e, err := supervisor.Check(t.Context()); err != nil || !e.Complete {
		t.Errorf("when it was found first, the epoch is %+v %v", e, err)
	}
	epochTerm.AgeCorruptions()
	find()
	if e, err := supervisor.Check(t.Context()); err != nil || e.Complete || !strings.Contains(e.Why, "corrupt data in redis") {
		t.Errorf("when it was found for long, the epoch is %+v %v", e, err)
	}
	if r, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil || r.Live != 1 {
		t.Errorf("filled in %+v %v", r, err)
	}
	if _, err := supervisor.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if o := w.release(t, hold.HoldID, "released"); o.Event != holds.EventHoldReleased {
		t.Errorf("then: %+v", o)
	}
}
