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

// TestSupervisor_LastReplicaGone_KeepsEpoch has the last replica of a Redis leave. After a while the server begins a new history,
// which continues no other: it is still the one that has everything, and nothing is filled again.
func TestSupervisor_LastReplicaGone_KeepsEpoch(t *testing.T) {
	t.Parallel()
	own, replica := stacktest.StartRedis(t), stacktest.StartRedis(t)
	w := newHarnessOn(t, own.RedisURL)
	ctx := t.Context()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", holds.NewEpochTerm())
	check := func() holds.Epoch {
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
	if e, err := w.newSupervisor(&replayLog{harness: w}, "w1", holds.NewEpochTerm()).Check(ctx); err != nil || !e.Complete {
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
	e, err := w.newSupervisor(&replayLog{harness: w}, "w2", holds.NewEpochTerm()).Check(ctx)
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
	w.outcomes = []holds.StoredOutcome{}
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	epochTerm := holds.NewEpochTerm()
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
	if view, found, err := w.newService(replica, w.locker(t), w.store).GetHold(ctx, paid.HoldID); !errors.Is(err, holds.ErrDataLost) {
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
	w.pass(t, time.Hour) // there the hold lapses
	if err := w.expirer.SweepAndAnnounce(ctx); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("swept: %v", err)
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
	epochTerm := holds.NewEpochTerm()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", epochTerm)
	options := stacktest.RedisOptions(w.redisURL)
	supervisor.Guard.Attach(options)
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	connection := func(doubted string) int64 {
		t.Helper()
		epochTerm.ReportMismatch(doubted)
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
	w.outcomes = []holds.StoredOutcome{}
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	epochTerm := holds.NewEpochTerm()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", epochTerm)
	if e, err := supervisor.Check(t.Context()); err != nil || !e.Complete {
		t.Fatalf("the epoch is %+v %v", e, err)
	}
	w.term = epochTerm
	w.startNewTerm(t)
	if err := w.client.Set(t.Context(), holds.Key(w.namespace, "room", "records"), "nonsense", 0).Err(); err != nil {
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
	w.outcomes = []holds.StoredOutcome{}
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	key := holds.EpochKey(w.namespace, "room")
	pipe := w.client.TxPipeline()
	pipe.Del(t.Context(), key)
	pipe.RPush(t.Context(), key, "nonsense")
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", holds.NewEpochTerm())
	if e, err := supervisor.Check(t.Context()); err != nil || e.Complete {
		t.Errorf("the epoch is %+v %v", e, err)
	}
	supervisor.SkipDrain()
	if r, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil || r.Live != 1 {
		t.Errorf("filled in %+v %v", r, err)
	}
}

// TestConnGuard_OtherServer_IsRefused lets commands through to the server that is known, and to no other.
func TestConnGuard_OtherServer_IsRefused(t *testing.T) {
	t.Parallel()
	own, other := stacktest.StartRedis(t), stacktest.StartRedis(t)
	guard := holds.NewConnGuard()
	guardedClient := func(url string) *redis.Client {
		options := stacktest.RedisOptions(url)
		guard.Attach(options)
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

	h := newHarnessOn(t, own.RedisURL)
	e, err := h.store.Epoch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	guard.Allow(e.Server)
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
	guard.Block("closed")
	if err := conn.Ping(ctx).Err(); err == nil {
		t.Error("a connection outlives the guard's closing")
	}
	refused("while it is closed", right.Ping(ctx).Err())
	guard.Allow(e.Server)
	if err := right.Ping(ctx).Err(); err != nil {
		t.Errorf("after it was opened again: %v", err)
	}

	// Whoever follows another is not written to, whoever it is.
	host, port, _ := strings.Cut(newClient(t, other.RedisURL).Options().Addr, ":")
	if err := newClient(t, own.RedisURL).ReplicaOf(ctx, host, port).Err(); err != nil {
		t.Fatal(err)
	}
	guard.Block("closed")
	guard.Allow(e.Server)
	if err := right.Ping(ctx).Err(); err == nil || errors.Is(err, holds.ErrDataLost) {
		t.Errorf("to a replica: %v, want it refused as such", err)
	}
}

// TestSupervisor_CorruptionNotHealed_InvalidatesEpoch finds damage that nobody heals. It is left to who might until a while has passed.
func TestSupervisor_CorruptionNotHealed_InvalidatesEpoch(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.outcomes = []holds.StoredOutcome{}
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	epochTerm := holds.NewEpochTerm()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", epochTerm)
	supervisor.SkipDrain()
	if _, err := supervisor.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.term = epochTerm
	w.startNewTerm(t)
	if err := w.client.HSet(t.Context(), holds.Key(w.namespace, "room", "records"), hold.HoldID.UUID, "nonsense").Err(); err != nil {
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
	if o := w.release(t, holds.ReleaseRequest{Hold: hold.HoldID}); o.Event != holds.EventHoldReleased {
		t.Errorf("then: %+v", o)
	}
}

// TestEpochTerm_CorruptionPersists_IsReported goes through when damage is one that nobody has healed.
func TestEpochTerm_CorruptionPersists_IsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		epochTerm := holds.NewEpochTerm()
		unhealed := func(epoch string, want bool) {
			t.Helper()
			if err := epochTerm.TakeCorruption(epoch); (err != nil) != want {
				t.Errorf("under %s: %v, want one: %v", epoch, err, want)
			}
		}
		epochTerm.NoteCorruption("e1", "room", holds.ErrCorrupt)
		unhealed("e1", false)
		time.Sleep(holds.HealWithin - time.Nanosecond)
		epochTerm.NoteCorruption("e1", "room", holds.ErrCorrupt)
		unhealed("e1", false)
		time.Sleep(time.Nanosecond)
		unhealed("e1", false) // not found again
		epochTerm.NoteCorruption("e1", "hall", holds.ErrCorrupt)
		unhealed("e1", false) // of another resource
		epochTerm.NoteCorruption("e1", "room", holds.ErrCorrupt)
		unhealed("e1", true)
		unhealed("e1", true) // until it is healed
		unhealed("e2", false)
		unhealed("e1", false) // forgotten with its epoch

		epochTerm.NoteCorruption("e2", "room", holds.ErrCorrupt)
		time.Sleep(holds.CorruptionForgottenAfter + 1)
		unhealed("e2", false)
		epochTerm.NoteCorruption("e2", "room", holds.ErrCorrupt) // once more, later
		unhealed("e2", false)
		time.Sleep(holds.HealWithin)
		epochTerm.NoteCorruption("e2", "room", holds.ErrCorrupt)
		unhealed("e2", true)
		time.Sleep(holds.CorruptionForgottenAfter + 1)
		unhealed("e2", false)

		for i := range holds.CorruptionsMax {
			epochTerm.NoteCorruption("e3", fmt.Sprint(i), holds.ErrCorrupt)
		}
		epochTerm.NoteCorruption("e3", "one more", holds.ErrCorrupt)
		time.Sleep(holds.HealWithin)
		epochTerm.NoteCorruption("e3", "one more", holds.ErrCorrupt)
		unhealed("e3", false)
	})
}
