package audit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/audit"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// TestReconciler_BudgetExhausted_HealsWhatIsReported leaves no budget for a round, which rests. A
// resource that is reported meanwhile is healed at once.
func TestReconciler_BudgetExhausted_HealsWhatIsReported(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	w := s.newReconciler(true)
	w.Exhaust()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Round(ctx) }()
	for i := range int64(20) { // a round that does not rest has ended by then, and heals no more
		s.redis.HSet(t.Context(), s.key("hall", "counts"), "A-1", "x")
		w.RecheckSoon("hall")
		stacktest.Eventually(t, "the counter to be healed", func() bool {
			return w.measured("holdfast.audit.healed") == i+1
		})
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("the round ended without an error")
	}
}

// TestReconciler_ReportedWhileInspected_Rests reports a resource that is not healed during each of its own inspections, as a
// query or a script does that comes meanwhile. It rests nevertheless, while another one is healed again and again.
func TestReconciler_ReportedWhileInspected_Rests(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.redis.ZAdd(t.Context(), s.key("hall", "due"), redis.Z{Score: 4e12, Member: uuidOf(s.released)}) // see leftToOperator
	w := s.newReconciler(true)
	inspected := 0 // commands, more than one for each inspection
	s.redis.AddHook(commandHook{each: func(args []any) {
		if slices.ContainsFunc(args, func(arg any) bool { return arg == s.key("hall", "") }) {
			inspected++
			w.RecheckSoon("hall")
		}
	}})
	w.Exhaust()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	w.RecheckSoon("hall")
	go func() { done <- w.Round(ctx) }()
	const heals = 20
	for i := range int64(heals) {
		s.redis.HSet(t.Context(), s.key("tent", "counts"), "stock", "x")
		w.RecheckSoon("tent")
		stacktest.Eventually(t, "the counter to be healed", func() bool {
			return w.measured("holdfast.audit.healed") == i+1
		})
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("the round ended without an error")
	}
	if inspected == 0 || inspected >= heals {
		t.Errorf("the resource was inspected by %d commands while another one was healed %d times", inspected, heals)
	}
}

// TestReconciler_SavedTime_NotSpentAtOnce checks that a round leaves the servers to others for most of the time
// also while it spends what it has saved.
func TestReconciler_SavedTime_NotSpentAtOnce(t *testing.T) {
	r := audit.NewReconciler(audit.Backends{}, nil, nil, audit.ReconcilerOptions{}, nil, zerolog.Nop())
	for range 20 {
		if got := r.RestAfter(5 * time.Millisecond); got < 45*time.Millisecond {
			t.Fatalf("rests %v after 5 ms of work, want at least 45 ms", got)
		}
	}
}

// TestReconciler_LongQuery_RestsForAllOfIt spends much more than a round may save, as the sum of a table does that is not in
// memory, and then as much as a process that was suspended.
func TestReconciler_LongQuery_RestsForAllOfIt(t *testing.T) {
	r := audit.NewReconciler(audit.Backends{}, nil, nil, audit.ReconcilerOptions{Share: 0.01}, nil, zerolog.Nop())
	if got := r.RestAfter(2 * time.Second); got < 180*time.Second || got > 200*time.Second {
		t.Errorf("rests %v after 2 s of work, want 100 times that, less what is saved", got)
	}
	if got := r.RestAfter(24 * time.Hour); got > time.Hour {
		t.Errorf("rests %v after a suspension", got)
	}
}

// TestReconciler_HoldEndedWithoutTime_NothingFreed changes the state of a live hold's record by hand. A round that
// heals leaves the counters and the deadlines alone.
func TestReconciler_HoldEndedWithoutTime_NothingFreed(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	before := s.heldData()
	s.changeRecord(s.live, func(words []string) { words[0] = "expired" })
	s.newReconciler(true).round("record, left")
	s.wantNothingFreed(before)
}

// leftToOperator are the corruptions that a repair can repair and a Reconciler leaves to operators,
// because they could be the trace of a lost hold.
var leftToOperator = []string{"an ended hold is due", "an unknown hold is due", "an index of an unknown user"}

// TestReconciler_EachCorruption_Healed corrupts Redis in each way that can be repaired, one after
// another. A round of a Reconciler heals it, logs it and counts it. A Reconciler that may only
// report changes nothing.
func TestReconciler_EachCorruption_Healed(t *testing.T) {
	t.Parallel()
	repairable := slices.DeleteFunc(slices.Clone(inRedis), func(d corruption) bool {
		// the sweep removes it
		return !d.repairable || slices.Contains(leftToOperator, d.name) ||
			d.name == "the agenda has a finished resource"
	})
	for part := range slices.Chunk(repairable, 10) {
		t.Run(strings.ReplaceAll(part[0].name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			for _, d := range part {
				s.checkHealed(d)
			}
		})
	}
}

func (s *scene) checkHealed(d corruption) {
	s.Helper()
	ctx := s.Context()
	quiet := s.newReconciler(true)
	s.must(quiet.Round(ctx))
	if got := quiet.logged(); len(got) > 0 || quiet.measured("holdfast.audit.differences") > 0 ||
		quiet.measured("holdfast.audit.resources") != 2 || quiet.measured("holdfast.audit.rounds") != 1 {
		s.Fatalf("before %q it logged %v", d.name, got)
	}
	d.apply(s)
	want := strings.Fields(d.wantKinds)
	reporting := s.newReconciler(false)
	for range 2 { // a difference that stays is logged once
		s.must(reporting.Round(ctx))
	}
	if got := reporting.logged(); !slices.Equal(got, suffixed(want, ", left")) {
		s.Errorf("when %q it logged %v, want %v", d.name, got, suffixed(want, ", left"))
	}
	if got := reporting.measured("holdfast.audit.left"); got != int64(len(want)) ||
		reporting.measured("holdfast.audit.differences") != got || reporting.measured("holdfast.audit.healed") != 0 {
		s.Errorf("when %q, %d differences are left, want %d", d.name, got, len(want))
	}
	if report := s.audit(audit.Options{}); !slices.Equal(kinds(report), want) {
		s.Errorf("the reporting Reconciler has changed data, when %q:\n%s", d.name, findingsText(report))
	}

	healing := s.newReconciler(true)
	s.must(healing.Round(ctx))
	got := healing.logged()
	// A corrected index is no residue any more, if it was read in this order.
	if !slices.Equal(got, want) && !slices.Equal(append(got, "residue"), want) ||
		healing.measured("holdfast.audit.left") != 0 || healing.measured("holdfast.audit.healed") != int64(len(got)) {
		s.Errorf("when %q it logged %v, want %v healed", d.name, got, want)
	}
	s.wantNoFindings()
	if s.redis.Exists(ctx, s.key("hall", "departing")).Val() == 1 { // an expiry is announced again
		s.startWorkers(1)
		stacktest.Eventually(s, "the announcement",
			func() bool { return s.redis.Exists(ctx, s.key("hall", "departing")).Val() == 0 })
		s.stopWorkers()
	}
}

// TestReconciler_TraceOfLostHold_OnlyReported corrupts what a repair can repair and what could be
// the trace of a lost hold. It is reported and left to operators.
func TestReconciler_TraceOfLostHold_OnlyReported(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, d := range inRedis {
		if slices.Contains(leftToOperator, d.name) {
			d.apply(s)
		}
	}
	s.newReconciler(true).round("due, left", "due, left", "residue, left")
}

func suffixed(words []string, suffix string) (all []string) {
	for _, word := range words {
		all = append(all, word+suffix)
	}
	return all
}

// TestReconciler_RecordLost_NothingFreed removes a record, as data loss would. The slots of the
// hold are not freed, and the difference is reported.
func TestReconciler_RecordLost_NothingFreed(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.redis.HDel(t.Context(), s.key("hall", "records"), uuidOf(s.other))
	w := s.newReconciler(true)
	w.round("counter, left", "due, left", "residue, left", "residue, left", "users, left")
	s.wantCount("hall", "A-1", "3")
	// The counters may be corrupt as well. They are still not lowered.
	s.redis.HSet(t.Context(), s.key("hall", "counts"), "A-2", "1", "A-1", "x")
	s.must(w.Round(t.Context()))
	if got := s.redis.HMGet(t.Context(), s.key("hall", "counts"), "A-1", "A-2").Val(); got[0] != "x" || got[1] != "2" {
		t.Errorf("the counters are %v, want the low one raised and the other unchanged", got)
	}
}

// TestReconciler_RecordAndUserLost_NothingFreed removes the record and everything counted for its
// user. The deadline still shows that the hold existed.
func TestReconciler_RecordAndUserLost_NothingFreed(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.redis.HDel(t.Context(), s.key("hall", "records"), uuidOf(s.other))
	s.redis.HDel(t.Context(), s.key("hall", "users"), "olga", record.IndexField("olga", "A-1"))
	s.must(s.newReconciler(true).Round(t.Context()))
	s.wantCount("hall", "A-1", "3")
}

// failAfterRepair fails every command after the first script that repairs.
type failAfterRepair struct {
	stacktest.PassHook
	repaired bool
}

func (h *failAfterRepair) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		repairs := func(c redis.Cmder) bool {
			return slices.Contains(c.Args(), any("counter")) || slices.Contains(c.Args(), any("users"))
		}
		if !slices.ContainsFunc(commands, repairs) {
			return next(ctx, commands)
		}
		if h.repaired {
			err := errors.New("connection lost")
			for _, c := range commands {
				c.SetErr(err)
			}
			return err
		}
		err := next(ctx, commands)
		h.repaired = err == nil
		return err
	}
}

// TestReconciler_DiesAfterFirstStep_CountersComplete corrupts, or removes, a hash with more fields than one
// repair writes in a step, and fails the repair after its first step. The hash is then complete or
// untouched.
func TestReconciler_DiesAfterFirstStep_CountersComplete(t *testing.T) {
	t.Parallel()
	for test, name := range map[string]string{"counts": "counts", "users": "users", "counts gone": "counts"} {
		t.Run(test, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			ctx := t.Context()
			slots := make([]string, 250)
			for i := range slots {
				slots[i] = fmt.Sprintf("S-%03d", i)
			}
			w.startWorkers(1)
			w.setInventory("hall", 1000, slots...)
			w.placeMany("hall", 150, slots[:1])
			for i := range 5 {
				if w.request("hall", fmt.Sprintf("u%d", i), time.Hour, 1, slots[i*50:i*50+50]...) == "" {
					t.Fatal("refused")
				}
			}
			w.stopWorkers()
			key := w.key("hall", name)
			before := w.redis.HGetAll(ctx, key).Val()
			w.redis.Del(ctx, key)
			if test != "counts gone" {
				w.redis.RPush(ctx, key, "oops")
			}
			hook := &failAfterRepair{}
			s := &scene{harness: w}
			s.hookRedis(hook)
			if err := s.newReconciler(true).Round(ctx); err == nil || !hook.repaired {
				t.Fatalf("the repair did not fail: %v", err)
			}
			if after := w.redis.HGetAll(ctx, key).Val(); len(before) < 200 || !maps.Equal(before, after) {
				t.Errorf("%d fields after one step, before %d", len(after), len(before))
			}
		})
	}
}

// TestReconciler_ClaimedRecordLost_NothingFreed removes the record of a hold with a claimed
// payment, which has no deadline. Only its user's number of holds still shows that it existed.
func TestReconciler_ClaimedRecordLost_NothingFreed(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	s.redis.HDel(ctx, s.key("hall", "records"), uuidOf(s.other))
	s.redis.ZRem(ctx, s.key("hall", "due"), uuidOf(s.other))
	s.redis.Del(ctx, s.key("hall", "hold:"+uuidOf(s.other)))
	w := s.newReconciler(true)
	for range 3 {
		s.must(w.Round(ctx))
	}
	if got := w.logged(); !slices.Equal(got, []string{"counter, left", "residue, left", "users, left"}) {
		t.Errorf("it logged %v", got)
	}
	for _, key := range []string{"users", "counts"} {
		s.redis.Rename(ctx, s.key("hall", key), s.key("hall", "kept"))
		s.redis.RPush(ctx, s.key("hall", key), "oops")
		s.must(w.Round(ctx))
		if got := s.redis.Type(ctx, s.key("hall", key)).Val(); got != "list" {
			t.Errorf("the %s are a %s: what they were is lost", key, got)
		}
		s.redis.Rename(ctx, s.key("hall", "kept"), s.key("hall", key))
	}
}

// TestReconciler_ReservedWrong_OnlyReported makes Postgres' sums wrong. They are reported and left
// to operators.
func TestReconciler_ReservedWrong_OnlyReported(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.execute(`UPDATE inventory SET reserved = 3 WHERE slot = 'A-1'`)
	w := s.newReconciler(true)
	w.round("reserved, left")
	if left := w.measured("holdfast.audit.left"); left != 1 {
		t.Errorf("%d differences are left, want 1", left)
	}
	s.execute(`UPDATE inventory SET reserved = 1 WHERE slot = 'A-1'`)
	s.must(w.Round(t.Context()))
	if got := w.measured("holdfast.audit.left"); got != 0 {
		t.Errorf("%d differences are left", got)
	}
}

// TestReconciler_CorruptionReported_RechecksSoon reports a corrupt resource to a running
// Reconciler.
func TestReconciler_CorruptionReported_RechecksSoon(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	w := s.newReconciler(true)
	ctx := t.Context()
	w.start()
	stacktest.Eventually(t, "the first round", func() bool { return w.measured("holdfast.audit.rounds") == 1 })
	s.redis.HSet(ctx, s.key("hall", "counts"), "A-1", "x")
	w.RecheckSoon("hall")
	w.RecheckSoon("no resource\n")
	stacktest.Eventually(t, "the counter to be healed", func() bool {
		return s.redis.HGet(ctx, s.key("hall", "counts"), "A-1").Val() == "3"
	})
	if got := w.measured("holdfast.audit.rounds"); got != 1 {
		t.Errorf("it took %d rounds", got)
	}
}

// TestReconciler_EpochLost_DoesNothing removes the epoch. The Reconciler must not interfere with a
// rebuild.
func TestReconciler_EpochLost_DoesNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.redis.HSet(t.Context(), s.key("hall", "counts"), "A-1", "7")
	s.redis.Del(t.Context(), strings.TrimSuffix(s.agenda("hall"), "agenda")+"epoch")
	w := s.newReconciler(true)
	w.round()
	s.wantCount("hall", "A-1", "7")
	report := s.wantFindings("data_lost")
	if got := strings.Join(report.Inconclusive, "\n"); !strings.Contains(got, "resources that could not be read in redis") ||
		!strings.HasSuffix(got, ": 1") {
		t.Errorf("inconclusive: %s", got)
	}
	w.RecheckSoon("hall")
}

// TestReconciler_PaymentUnanswered_ReportedAfterADay claims a hold by a payment whose event is
// lost. It is reported when the claim is a day old. The payment, published again, makes a
// reservation of it.
func TestReconciler_PaymentUnanswered_ReportedAfterADay(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, c := range []struct {
		ago  time.Duration
		want []string
	}{{23 * time.Hour, nil}, {25 * time.Hour, []string{"claim_stuck, left"}}} {
		s.claimOther(c.ago)
		s.newReconciler(true).round(c.want...)
	}
	s.wantFindings("claim_stuck")
	s.startWorkers(1)
	if got := s.pay(s.other, "p-olga"); got != events.Type(holds.EventHoldConfirmed) {
		t.Errorf("the payment was answered %s", got)
	}
	s.stopWorkers()
	s.newReconciler(true).round()
}

// tombstoneTTL returns how long the record of a hold is still remembered.
func (s *scene) tombstoneTTL(resource, hold string) time.Duration {
	s.Helper()
	until, err := s.redis.ZScore(s.Context(), s.key(resource, "tombstones"), uuidOf(hold)).Result()
	s.must(err)
	return time.UnixMilli(int64(until)).Sub(s.redis.Time(s.Context()).Val())
}

// TestReconciler_PolicyStored_DecidesTombstones removes the tombstone of an ended hold. The Reconciler
// writes it again with the request-key-ttl of the stored policy, which differs from the default.
func TestReconciler_PolicyStored_DecidesTombstones(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.storePolicy(2 * memory)
	term := recovery.NewEpochTerm()
	s.checkEpoch(s.newSupervisor(term), true)
	s.redis.ZRem(t.Context(), s.key("hall", "tombstones"), uuidOf(s.paid))
	s.must(s.newReconcilerWithTerm(term, true).Round(t.Context()))
	if got := s.tombstoneTTL("hall", s.paid); got < 2*memory-time.Minute || got > 2*memory {
		t.Errorf("the record is remembered for %v, want %v", got, 2*memory)
	}
}

// TestReconciler_Outage_LoggedAtBeginAndEnd fails several attempts to take the lease. The
// Reconciler logs one line when the outage begins and one when it ends.
func TestReconciler_Outage_LoggedAtBeginAndEnd(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	leases := &faultyLeases{Leases: s.store}
	leases.down.Store(true)
	w := s.newReconcilerWith(leases, s.term, true)
	w.start()
	stacktest.Eventually(t, "several failures", func() bool { return leases.failed.Load() >= 2 })
	leases.down.Store(false)
	lines := func(text string) int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return strings.Count(w.log.String(), text)
	}
	stacktest.Eventually(t, "the end of the outage", func() bool { return lines("reconciliation recovered") > 0 })
	if n := lines("reconciliation round failed"); n != 1 {
		t.Errorf("%d lines report the begin of the outage: %s", n, w.log.String())
	}
}

// useRedis gives the Reconcilers of a scene another Redis, which has the epochs and nothing else.
func (s *scene) useRedis(client redis.UniversalClient) {
	s.Helper()
	s.backends.Redis = client
	for p := range record.Partitions {
		s.must(client.Set(s.Context(), record.Keyspace(s.namespace).Epoch(p), s.term.Current().Partition(p).Name, 0).Err())
	}
}

// TestReconciler_OneShardDown_ChecksOthers corrupts a counter on each of three primaries, of which one is down. A
// round heals those of the others, and its error names the one. It is not counted as complete.
func TestReconciler_OneShardDown_ChecksOthers(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	cluster := stacktest.StartRedisCluster(t, 3, 0)
	client := cluster.ClusterClient()
	s.useRedis(client)
	counter := make(map[int]string) // by node
	for i := 0; len(counter) < len(cluster.Nodes); i++ {
		key := s.key(fmt.Sprintf("hall-%d", i), "counts")
		if node := cluster.NodeOf(key); counter[node] == "" {
			counter[node] = key
			s.must(client.HSet(t.Context(), key, "A-1", "3").Err())
		}
	}
	const down = 1
	s.must(cluster.Nodes[down].Kill())
	w := s.newReconciler(true)
	err := w.Round(t.Context())
	if err == nil || !strings.Contains(err.Error(), "redis shard "+cluster.Addr(down)+" not checked") {
		t.Errorf("the round returned %v", err)
	}
	for node, key := range counter {
		if found, err := client.HGet(t.Context(), key, "A-1").Result(); node != down && !errors.Is(err, redis.Nil) {
			t.Errorf("the counter on server %d is %q: %v", node, found, err)
		}
	}
	if n := w.measured("holdfast.audit.rounds"); n != 0 {
		t.Errorf("%d rounds were counted", n)
	}
}

// TestReconciler_LargeResource_RepairedWithoutRests makes a counter wrong of a resource that is repaired in pages. Other
// repairs are excluded meanwhile, for a time that would be over if the round rested as it does elsewhere.
func TestReconciler_LargeResource_RepairedWithoutRests(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.startWorkers(1)
	s.setInventory("large", 1_000_000, "a")
	s.placeMany("large", audit.RepairRecordsMax+1, []string{"a"})
	s.stopWorkers()
	s.redis.HIncrBy(t.Context(), s.key("large", "counts"), "a", 5)
	w := s.newReconciler(true)
	rests := 0
	w.OnWait(func() {
		rests++
		if s.redis.Exists(t.Context(), s.key("large", "lock")).Val() > 0 {
			t.Error("the round rests while it excludes other repairs")
		}
	})
	if w.round("counter"); rests == 0 {
		t.Error("the round did not rest")
	}
}

// TestReconciler_ManyCounters_ReadOnce makes many counters of a resource too high. Each is compared in the step that
// repairs it, and the others are not read again for that.
func TestReconciler_ManyCounters_ReadOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	client := stacktest.ConnectRedis(t, stacktest.StartRedis(t).RedisURL)
	s.useRedis(client)
	const counters = 100
	for i := range counters {
		s.must(client.HSet(t.Context(), s.key("hall", "counts"), fmt.Sprintf("A-%d", i), "3").Err())
	}
	w := s.newReconciler(true)
	s.must(w.Round(t.Context()))
	if healed := w.measured("holdfast.audit.healed"); healed != counters {
		t.Errorf("%d counters healed, want %d", healed, counters)
	}
	stats := client.InfoMap(t.Context(), "commandstats").Val()["Commandstats"]["cmdstat_hgetall"]
	var calls int
	if _, err := fmt.Sscanf(stats, "calls=%d", &calls); err != nil || calls >= counters {
		t.Errorf("all counters were read %d times for %d repairs: %v", calls, counters, err)
	}
}

// TestReconciler_LeaseLostBetweenRounds_Forgets lets another worker take the lease while a Reconciler rests. It does not
// report any more what only the other one can know now.
func TestReconciler_LeaseLostBetweenRounds_Forgets(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.execute(`UPDATE inventory SET reserved = 3 WHERE slot = 'A-1'`)
	leases := &faultyLeases{Leases: s.store}
	w := s.newReconcilerWith(leases, s.term, true)
	w.Pace(time.Millisecond, time.Hour)
	w.start()
	stacktest.Eventually(t, "the difference", func() bool { return w.measured("holdfast.audit.left") == 1 })
	leases.taken.Store(true)
	stacktest.Eventually(t, "it to be forgotten", func() bool { return w.measured("holdfast.audit.left") == 0 })
}

// TestReconciler_RoundFails_DifferencesStay lets rounds fail after Redis was read. What they have found stays reported,
// and is logged once.
func TestReconciler_RoundFails_DifferencesStay(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.redis.HSet(t.Context(), s.key("hall", "counts"), "A-1", "x")
	s.execute(`ALTER TABLE reservations RENAME TO hidden`)
	w := s.newReconciler(false)
	for range 2 {
		if w.Round(t.Context()) == nil {
			t.Error("a round succeeded without reservations")
		}
	}
	if got := w.logged(); !slices.Equal(got, []string{"counter, left"}) || w.measured("holdfast.audit.left") != 1 {
		t.Errorf("logged %v, %d left, want the counter once", got, w.measured("holdfast.audit.left"))
	}
	s.execute(`ALTER TABLE hidden RENAME TO reservations`)
	s.redis.HSet(t.Context(), s.key("hall", "counts"), "A-1", "3")
	s.must(w.Round(t.Context()))
	if left := w.measured("holdfast.audit.left"); left != 0 {
		t.Errorf("%d left after a round without differences", left)
	}
}
