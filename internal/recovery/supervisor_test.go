package recovery_test

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// checkAll lets a supervisor check the servers, and returns the epoch of all partitions after that.
func checkAll(t *testing.T, supervisor *recovery.Supervisor) (recovery.Epoch, error) {
	t.Helper()
	epochs, err := supervisor.Check(t.Context())
	return common(t, epochs), err
}

// checkOne lets a supervisor check the servers, and returns the epoch of a resource's partition after
// that. It fails the test when another partition is lost.
func checkOne(t *testing.T, supervisor *recovery.Supervisor, resource string) (recovery.Epoch, error) {
	t.Helper()
	epochs, err := supervisor.Check(t.Context())
	p := record.Partition(resource)
	if lost := record.AllPartitions &^ epochs.Complete(); lost&^record.PartitionSetOf(p) != 0 {
		t.Errorf("%v are lost", lost)
	}
	return epochs[p], err
}

// TestSupervisor_LastReplicaGone_KeepsEpoch removes the last replica of a Redis. After a while the server starts
// a new history that continues no other: it is still the same server, and nothing is rebuilt.
func TestSupervisor_LastReplicaGone_KeepsEpoch(t *testing.T) {
	t.Parallel()
	own, replica := stacktest.StartRedis(t), stacktest.StartRedis(t)
	w := newHarnessOn(t, own.RedisURL)
	ctx := t.Context()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", recovery.NewEpochTerm())
	check := func() recovery.Epoch {
		t.Helper()
		e, err := checkAll(t, supervisor)
		if err != nil || !e.Complete || e.Name != w.epoch {
			t.Fatalf("epoch is %+v %v", e, err)
		}
		return e
	}
	before := check()
	if err := w.client.ConfigSet(ctx, "repl-backlog-ttl", "1").Err(); err != nil {
		t.Fatal(err)
	}
	follower := stacktest.ConnectRedis(t, replica.RedisURL)
	stacktest.ReplicaOf(t, follower, w.client)
	if check() != before {
		t.Error("the epoch changed when a replica came")
	}
	before = check() // with its first replica the server has started a new history
	stacktest.Promote(t, follower)
	_, history, _ := strings.Cut(before.Server, " ")
	stacktest.Eventually(t, "a new history", func() bool {
		check() // as a worker does every 500 ms
		return !strings.Contains(w.client.Info(ctx, "replication").Val(), history)
	})
	check()
	run := func(e recovery.Epoch) string { return strings.Fields(e.Server)[0] }
	if after := check(); after.Server == before.Server || run(after) != run(before) {
		t.Errorf("stored server is %q, it was %q", after.Server, before.Server)
	}
}

// TestSupervisor_HistoryForgotten_DetectsLoss makes a Redis follow another one with older data, become master
// again and forget that it followed, without a check meanwhile. The next check takes it for another server.
func TestSupervisor_HistoryForgotten_DetectsLoss(t *testing.T) {
	t.Parallel()
	own, older := stacktest.StartRedis(t), stacktest.StartRedis(t)
	w := newHarnessOn(t, own.RedisURL)
	ctx := t.Context()
	first := w.newSupervisor(&replayLog{harness: w}, "w1", recovery.NewEpochTerm())
	if e, err := checkAll(t, first); err != nil || !e.Complete {
		t.Fatalf("epoch is %+v %v", e, err)
	}
	if err := w.client.ConfigSet(ctx, "repl-backlog-ttl", "1").Err(); err != nil {
		t.Fatal(err)
	}
	run := strings.Fields(info(t, w.client, "server", "run_id"))
	other := stacktest.ConnectRedis(t, older.RedisURL)
	stacktest.ReplicaOf(t, other, w.client) // it has the present data, and no later writes
	stacktest.Promote(t, other)
	stacktest.ReplicaOf(t, w.client, other)
	stacktest.Promote(t, w.client)
	stacktest.Eventually(t, "the history to be forgotten", func() bool {
		return strings.Trim(info(t, w.client, "replication", "master_replid2"), "0") == ""
	})
	if again := strings.Fields(info(t, w.client, "server", "run_id")); again[0] != run[0] {
		t.Fatalf("the server was restarted: %v, it was %v", again, run)
	}
	e, err := checkAll(t, w.newSupervisor(&replayLog{harness: w}, "w2", recovery.NewEpochTerm()))
	if err != nil || e.Complete || !strings.Contains(e.Why, "another server") {
		t.Errorf("epoch is %+v %v", e, err)
	}
}

// TestSupervisor_ServerFollowedOlderData_ScriptsRefuse makes a Redis follow older data with the same epoch, and
// become master again between two checks, while the connections of a worker stay open. No script decides on
// that data.
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
	replica := stacktest.ConnectRedis(t, older.RedisURL)
	stacktest.ReplicaOf(t, replica, w.client)
	for range 2 { // with its first replica the server has started a new history: one check stores it, the next knows it
		if e, err := checkAll(t, supervisor); err != nil || !e.Complete {
			t.Fatalf("with its first replica: epoch is %+v %v", e, err)
		}
	}
	view, found, err := w.newService(t, replica, w.store).GetHold(ctx, paid.HoldID)
	if !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("hold read from a replica, which may lag: %+v %v %v", view, found, err)
	}
	stacktest.Promote(t, replica)
	if o := w.pay(t, paid.HoldID, "p"); o.Event != holds.EventHoldConfirmed {
		t.Fatalf("payment: %+v", o)
	}
	connection := w.client.ClientID(ctx).Val()
	stacktest.ReplicaOf(t, w.client, replica)
	stacktest.Promote(t, w.client)
	if now := w.client.ClientID(ctx).Val(); now != connection {
		t.Fatalf("connection is %d, want %d", now, connection)
	}

	lost := func(what string, results iter.Seq2[int, holds.Result]) {
		t.Helper()
		for _, r := range results {
			if !errors.Is(r.Err, holds.ErrDataLost) {
				t.Errorf("%s: %+v", what, r)
			}
		}
	}
	w.now = time.Now()
	w.pass(time.Hour) // the hold expires there
	if _, err := w.service.Availability(ctx, "room", holds.SlotSelection{}); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("availability: %v", err)
	}
	request := holds.PlaceRequest{EventID: "c1", Resource: "room", User: "ben", RequestKey: "k", Quantity: 1}
	lost("place", w.service.Place(ctx, []holds.PlaceRequest{request}))
	lost("confirm", slices.All(w.service.Confirm(ctx, []holds.ConfirmRequest{{Hold: paid.HoldID, PaymentID: "q"}})))
	release := holds.ReleaseRequest{EventID: "c3", Resource: "room", Hold: paid.HoldID}
	lost("release", slices.All(w.service.Release(ctx, []holds.ReleaseRequest{release})))
	lost("extend", slices.All(w.service.Extend(ctx, []holds.ExtendRequest{{EventID: "c4", Hold: paid.HoldID}})))
	if epochTerm.TakeMismatches(w.epoch) != record.PartitionSetOf(record.Partition("room")) {
		t.Error("no mismatch was reported")
	}
	if e, err := checkAll(t, supervisor); err != nil || e.Complete {
		t.Errorf("after that the epoch is %+v %v", e, err)
	}
}

// TestSupervisor_EpochMismatchReported_Reconnects reports that a script has not found the epoch, which the
// supervisor finds. The connection of the script may lead to another server, so all are closed.
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
	connection := func(mismatched string) int64 {
		t.Helper()
		epochTerm.Report(0, mismatched, "", holds.ErrDataLost)
		if e, err := checkAll(t, supervisor); err != nil || !e.Complete {
			t.Fatalf("epoch is %+v %v", e, err)
		}
		id, err := client.ClientID(ctx).Result()
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	first := connection("")
	if now := connection("an older epoch"); now != first {
		t.Error("connections were closed for another epoch")
	}
	second := connection(w.epoch)
	if second == first {
		t.Error("a connection that may lead to another server is still used")
	}
	if now := connection(""); now != second {
		t.Error("connections were closed without a new report")
	}
}

// info returns a field of INFO.
func info(t *testing.T, client *redis.Client, section, field string) string {
	t.Helper()
	return recovery.InfoFields(client.Info(t.Context(), section).Val())[field]
}

// TestSupervisor_CorruptionOfOldEpoch_IsIgnored reports corruption under an epoch that was replaced meanwhile.
// The new epoch stays valid.
func TestSupervisor_CorruptionOfOldEpoch_IsIgnored(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	epochTerm := recovery.NewEpochTerm()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", epochTerm)
	if e, err := checkAll(t, supervisor); err != nil || !e.Complete {
		t.Fatalf("epoch is %+v %v", e, err)
	}
	w.term = epochTerm
	w.startNewTerm(t)
	if err := w.client.Set(t.Context(), w.key("room", "records"), "nonsense", 0).Err(); err != nil {
		t.Fatal(err)
	}
	request := holds.PlaceRequest{EventID: "c", Resource: "room", User: "ben", RequestKey: "k", Quantity: 1}
	for _, r := range w.service.Place(t.Context(), []holds.PlaceRequest{request}) {
		if !errors.Is(r.Err, holds.ErrCorrupt) {
			t.Fatalf("place: %+v", r)
		}
	}
	epochTerm.AgeCorruptions()
	w.loseAndRebuild(t, &replayLog{}) // by another worker, for the same corruption
	if e, err := checkAll(t, supervisor); err != nil || !e.Complete {
		t.Errorf("epoch is %+v %v", e, err)
	}
}

// TestSupervisor_NoAnswer_IsUnreachable lets Redis hang, and then refuse what the supervisor reads. Only in the first
// case do events have to wait: a server that refuses one command may still decide.
func TestSupervisor_NoAnswer_IsUnreachable(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	_, proxy := stacktest.ProxyTo(t, w.redisURL)
	w.redisOptions.Addr = proxy.Addr()
	term := recovery.NewEpochTerm()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", term)
	check := func(when string, unreachable bool) {
		t.Helper()
		_, err := supervisor.Check(t.Context())
		found := term.Unreachable()
		if (found != nil) != unreachable || found != nil && found.Error() != err.Error() {
			t.Errorf("%s redis is unreachable: %v; the check has found: %v", when, found, err)
		}
		if named, is := errors.AsType[*holds.UnreachableError](found); found != nil && (!is || named.Postgres) {
			t.Errorf("%s the outage is one of postgres: %#v", when, found)
		}
	}
	check("at first", false)
	proxy.Set(stacktest.Downstream, stacktest.Toxics{Stall: true})
	supervisor.InspectTimeout = 100 * time.Millisecond
	check("when it hangs", true)
	proxy.Set(stacktest.Downstream, stacktest.Toxics{})
	supervisor.InspectTimeout = time.Minute
	check("when it answers again", false)
	if err := w.client.Do(t.Context(), "ACL", "SETUSER", w.redisOptions.Username, "-info").Err(); err != nil {
		t.Fatal(err)
	}
	check("when it refuses a command", false)
}

// TestSupervisor_NewerFormat_NothingIsDecided checks a Redis whose data has a newer format.
func TestSupervisor_NewerFormat_NothingIsDecided(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	key := record.Keyspace(w.namespace).Format()
	if err := w.client.Set(t.Context(), key, recovery.Format+1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	term := recovery.NewEpochTerm()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", term)
	if _, err := checkAll(t, supervisor); !errors.Is(err, recovery.ErrUnknownFormat) || term.Current().Ready != 0 {
		t.Errorf("%v are ready: %v", term.Current().Ready, err)
	}
	if err := w.client.Set(t.Context(), key, recovery.Format, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := checkAll(t, supervisor); err != nil || term.Current().Ready != record.AllPartitions {
		t.Errorf("with the present format %v are ready: %v", term.Current().Ready, err)
	}
}

// TestSupervisor_EpochKeyHasWrongType_Rebuilds replaces the epoch of a partition by a list.
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
	if e, err := checkOne(t, supervisor, "room"); err != nil || e.Complete {
		t.Errorf("epoch is %+v %v", e, err)
	}
	supervisor.Drain = 0
	if r, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil || r.Live != 1 {
		t.Errorf("rebuilt %+v %v", r, err)
	}
}

// TestSupervisor_AnotherEpoch_SaysWhichIsOlder gives a partition another epoch of the same database. The reason says whether
// Redis or Postgres is from before.
func TestSupervisor_AnotherEpoch_SaysWhichIsOlder(t *testing.T) {
	t.Parallel()
	for stored, want := range map[string]string{"/9000000000000000": "newer epoch: Postgres is", "/0": "older epoch: the data is"} {
		w := newRealTimeHarness(t)
		key := record.Keyspace(w.namespace).Epoch(record.Partition("room"))
		w.client.Set(t.Context(), key, w.epoch+stored, 0)
		supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", recovery.NewEpochTerm())
		if e, err := checkOne(t, supervisor, "room"); err != nil || e.Complete || !strings.HasPrefix(e.Why, want) {
			t.Errorf("epoch is %+v %v, want %s", e, err, want)
		}
	}
}

// TestSupervisor_CorruptionNotHealed_InvalidatesEpoch reports corruption that is not healed, of a record that no script can
// parse, and of metadata, which no script reads. The epoch stays valid until healWithin has passed.
func TestSupervisor_CorruptionNotHealed_InvalidatesEpoch(t *testing.T) {
	t.Parallel()
	for name, corrupt := range map[string]func(line string) string{
		"record":   func(string) string { return "nonsense" },
		"metadata": func(line string) string { return strings.TrimSuffix(line, "}") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testCorruptionNotHealed(t, corrupt)
		})
	}
}

func testCorruptionNotHealed(t *testing.T, corrupt func(line string) string) {
	t.Helper()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	hold := created(t, w.place(t, holds.PlaceRequest{
		Resource: "room", User: "ana", Metadata: jsontext.Value(`{"cart":"c"}`),
	})[0])
	epochTerm := recovery.NewEpochTerm()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", epochTerm)
	supervisor.Drain = 0
	if _, err := supervisor.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.term = epochTerm
	w.startNewTerm(t)
	records, id := w.key("room", "records"), hold.HoldID.UUID
	line := w.client.HGet(t.Context(), records, id).Val()
	if err := w.client.HSet(t.Context(), records, id, corrupt(line)).Err(); err != nil {
		t.Fatal(err)
	}
	report := func() {
		t.Helper()
		request := holds.ReleaseRequest{EventID: "c", Resource: "room", Hold: hold.HoldID}
		for _, r := range w.service.Release(t.Context(), []holds.ReleaseRequest{request}) {
			if !errors.Is(r.Err, holds.ErrCorrupt) {
				t.Fatalf("release: %+v", r)
			}
		}
	}
	report()
	if e, err := checkOne(t, supervisor, "room"); err != nil || !e.Complete {
		t.Errorf("found once: epoch is %+v %v", e, err)
	}
	epochTerm.AgeCorruptions()
	report()
	e, err := checkOne(t, supervisor, "room")
	if err != nil || e.Complete || !strings.Contains(e.Why, holds.ErrCorrupt.Error()) {
		t.Errorf("found for long: epoch is %+v %v", e, err)
	}
	if r, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil || r.Live != 1 {
		t.Errorf("rebuilt %+v %v", r, err)
	}
	if _, err := supervisor.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if o := w.release(t, hold.HoldID, "released"); o.Event != holds.EventHoldReleased {
		t.Errorf("release after the rebuild: %+v", o)
	}
}

// TestSupervisor_RebuildTakenOver_IsLogged takes the lease of a rebuild that has begun, as another worker does when this one
// was too slow to renew it. The supervisor logs that once, and not that it cannot begin afterwards.
func TestSupervisor_RebuildTakenOver_IsLogged(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.lose(t)
	takeOver := func(context.Context, time.Time, uint64) {
		w.execute(t, "UPDATE partition_epochs SET rebuilder = 'another', leased_until = now() + interval '1 min'")
	}
	var began atomic.Int64
	supervisor := w.newSupervisorWith(&overtakenEpochs{w.store, func() { began.Add(1) }},
		&replayLog{harness: w, onOutcomes: takeOver}, "w1", recovery.NewEpochTerm())
	var logged strings.Builder
	supervisor.Log = zerolog.New(zerolog.SyncWriter(&logged))
	stop := w.run(t, supervisor)
	stacktest.Eventually(t, "the supervisor to try again", func() bool { return began.Load() >= 3 })
	stop()
	if log := logged.String(); strings.Count(log, "recovery of redis failed") != 1 ||
		!strings.Contains(log, recovery.ErrEpochChanged.Error()) {
		t.Errorf("logged %s", log)
	}
}

// checkedEpochs is an EpochStore that counts how often a check reads the epochs and a rebuild begins.
type checkedEpochs struct {
	*overtakenEpochs
	reads atomic.Int64
}

func (s *checkedEpochs) State(ctx context.Context, worker string) (recovery.PostgresState, error) {
	s.reads.Add(1)
	return s.overtakenEpochs.State(ctx, worker)
}

// TestSupervisor_RebuildFails_LeavesNextToOthers has a worker that cannot rebuild, because it does not reach NATS. It does not
// begin again at its next checks, and another worker rebuilds.
func TestSupervisor_RebuildFails_LeavesNextToOthers(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.lose(t)
	var began atomic.Int64
	epochs := &checkedEpochs{overtakenEpochs: &overtakenEpochs{w.store, func() { began.Add(1) }}}
	failed := make(chan int64, 1)
	cutOff := &replayLog{harness: w, onUnacknowledged: func() error {
		select {
		case failed <- epochs.reads.Load():
		default: // it has begun again
		}
		return errors.New("no answer")
	}}
	supervisor := w.newSupervisorWith(epochs, cutOff, "w1", recovery.NewEpochTerm())
	supervisor.Drain, supervisor.RetryAfter = 0, time.Hour
	stop := w.run(t, supervisor)
	before := <-failed
	stacktest.Eventually(t, "more checks", func() bool { return epochs.reads.Load() >= before+5 })
	w.recover(t, &replayLog{}, "a test")
	stop()
	if n := began.Load(); n != 1 {
		t.Errorf("it has begun %d rebuilds", n)
	}
}
