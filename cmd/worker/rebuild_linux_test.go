package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// rebuildSteps are all steps of a worker that detects a loss and rebuilds Redis.
var rebuildSteps = []string{
	"rebuild.noticed", "rebuild.told", "rebuild.condemned", "rebuild.begun", "rebuild.drained", "rebuild.marked", "rebuild.wiped",
	"rebuild.folding", "rebuild.folded", "rebuild.read",
	"rebuild.writing", "rebuild.verified", "rebuild.sealed", "rebuild.finished",
}

// newFlushedHarness returns a system whose Redis was flushed. It had two holds, one with a payment
// to answer, and a stock with three reservations. No worker runs.
func newFlushedHarness(t *testing.T) (s *harness, held, paid, payment string) {
	t.Helper()
	s, _ = newHarnessWithRedis(t, stack.Options{})
	held, paid, payment = s.bookTwo(t, func() {})
	stacktest.Must(t, s.redis.FlushAll(t.Context()).Err())
	return s, held, paid, payment
}

// bookTwo books two holds, and calls between after the first. The payment of the second is in time, but no worker
// reads it until the deadline has passed.
func (s *harness) bookTwo(t *testing.T, between func()) (held, paid, payment string) {
	t.Helper()
	setUp := s.startWorker()
	s.setInventory("hall", holds.SlotSelection{}, 3)
	held = s.answer(s.book("hall", "ana", "k1", holds.SlotSelection{}, hour)).Subject
	between()
	booked := s.answer(s.book("hall", "ben", "k2", holds.SlotSelection{}, soon))
	setUp.stop(t)
	payment = s.pay(booked.Subject, "p")
	s.awaitDeadline(t, booked)
	return held, booked.Subject, payment
}

// checkRecovered checks that a rebuild has restored what newFlushedHarness lost.
func (s *harness) checkRecovered(t *testing.T, held, paid, payment string) {
	t.Helper()
	if o := s.answer(payment); o.Type != events.Type(holds.EventHoldConfirmed) || o.Subject != paid {
		t.Errorf("the payment was answered with %s: %s", o.Type, o.Data)
	}
	again := s.answer(s.book("hall", "ana", "k1", holds.SlotSelection{}, hour))
	if data := decoded[holds.HoldCreated](t, again); again.Subject != held || !data.Replayed {
		t.Errorf("the repeated request was answered with %s: %s", again.Type, again.Data)
	}
	s.answer(s.book("hall", "cleo", "k3", holds.SlotSelection{}, hour))
	s.wantStock(4, 1, 2)
	if len(s.ofType(holds.EventHoldExpired)) != 0 || len(s.ofType(holds.EventHoldConfirmed)) != 1 {
		t.Error("a hold has expired, or was confirmed twice")
	}
	s.wantNoDeadLetters()
	s.auditFindsNothing(t)
}

// wantStock sets the capacity of the hall, and checks what is taken of it. Its answer follows all others.
func (s *harness) wantStock(capacity, reserved, held int64) {
	s.t.Helper()
	want := holds.SlotCounts{Slot: holds.StockSlot, Capacity: capacity, Reserved: reserved, Held: held}
	if slots := s.setInventory("hall", holds.SlotSelection{}, capacity); slots[0] != want {
		s.t.Errorf("the stock is %+v, want %+v", slots[0], want)
	}
}

// TestRebuild_KilledAtEachStep_NextFinishes kills a worker that rebuilds Redis with SIGKILL at each
// of its steps. The next worker starts the rebuild again and finishes it.
func TestRebuild_KilledAtEachStep_NextFinishes(t *testing.T) {
	killAtEachStep(t, rebuildSteps, newFlushedHarness)
}

// killAtEachStep kills a worker that recovers from a loss with SIGKILL at each of its steps. The next one must finish.
func killAtEachStep(t *testing.T, steps []string, lose func(*testing.T) (s *harness, held, paid, payment string)) {
	t.Parallel()
	eachStep(t, stacktest.Sample(t, steps), func(t *testing.T, step string) {
		s, held, paid, payment := lose(t)
		s.launch("HOLDFAST_FAILPOINT=" + step).killed(t)
		s.startWorker()
		s.checkRecovered(t, held, paid, payment)
	})
}

// eachStep runs a sub-test for each step, all at once, whatever the number of processors: they mostly wait.
func eachStep(t *testing.T, steps []string, test func(t *testing.T, step string)) {
	t.Helper()
	var all sync.WaitGroup
	defer all.Wait()
	for _, step := range steps {
		all.Go(func() { t.Run(step, func(t *testing.T) { test(t, step) }) })
	}
}

// TestRebuild_RebuilderStopped_AnotherFinishes stops the worker that rebuilds Redis at a step, for
// longer than its lease. Another worker rebuilds. When the first continues, it changes nothing and
// works like the others.
func TestRebuild_RebuilderStopped_AnotherFinishes(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	eachStep(t, rebuildSteps, func(t *testing.T, step string) {
		s, held, paid, payment := newFlushedHarness(t)
		before := s.epoch()
		stopped := s.launch("HOLDFAST_FAILPOINT=" + step + ":stop")
		stopped.awaitPaused(t)
		s.startWorker()
		s.checkRecovered(t, held, paid, payment)
		after := s.epoch()
		if !after.Complete || after.Name == before.Name {
			t.Errorf("the epoch is %+v", after)
		}
		stopped.goOn(t)
		stopped.awaitStarted(t)
		stopped.awaitReady(t)
		s.auditFindsNothing(t)
		if now := s.epoch(); now != after {
			t.Errorf("the epoch is %+v, it was %+v", now, after)
		}
		s.wantStock(5, 1, 2)
	})
}

// TestRedisLost_DuringRebuild_StartsOver loses Redis again during a rebuild, at each step: all of
// it, or the one partition that has data. The incomplete rebuild is not used, and another one
// follows.
func TestRedisLost_DuringRebuild_StartsOver(t *testing.T) {
	t.Parallel()
	steps := rebuildSteps[slices.Index(rebuildSteps, "rebuild.begun"):]
	var all sync.WaitGroup
	defer all.Wait()
	wholes := len(steps)
	for i, step := range append(slices.Clone(steps), "rebuild.writing", "rebuild.verified", "rebuild.sealed") {
		if !stacktest.Long(t.Name()) && i%3 != 0 {
			continue
		}
		partition := i >= wholes
		all.Go(func() {
			t.Run(fmt.Sprintf("%s partition=%v", step, partition), func(t *testing.T) {
				s, held, paid, payment := newFlushedHarness(t)
				worker := s.launch("HOLDFAST_FAILPOINT=" + step + ":stop")
				worker.awaitPaused(t)
				if partition {
					s.losePartition(t, "hall")
				} else {
					stacktest.Must(t, s.redis.FlushAll(t.Context()).Err())
				}
				worker.goOn(t)
				s.checkRecovered(t, held, paid, payment)
			})
		})
	}
}

// TestPartitionLost_OnlyOne_ItsHoldsAreRebuilt loses one partition. Its holds are rebuilt, and the
// others are unchanged.
func TestPartitionLost_OnlyOne_ItsHoldsAreRebuilt(t *testing.T) {
	t.Parallel()
	s, _ := newHarnessWithRedis(t, stack.Options{})
	s.startWorker()
	hold := make(map[string]string)
	for _, resource := range []string{"hall", "room"} {
		s.setInventory(resource, holds.SlotSelection{}, 2)
		hold[resource] = s.answer(s.book(resource, "ana", "k1", holds.SlotSelection{}, hour)).Subject
	}
	if record.Partition("hall") == record.Partition("room") {
		t.Fatal("both resources are in the same partition")
	}
	before := s.epoch()
	s.losePartition(t, "hall")
	s.awaitRebuilt(before)
	for _, resource := range []string{"hall", "room"} {
		again := s.answer(s.book(resource, "ana", "k1", holds.SlotSelection{}, hour))
		if data := decoded[holds.HoldCreated](t, again); again.Subject != hold[resource] || !data.Replayed {
			t.Errorf("the repeated request for %s was answered with %s: %s", resource, again.Type, again.Data)
		}
		if slots := s.setInventory(resource, holds.SlotSelection{}, 2); slots[0].Held != 1 {
			t.Errorf("%s: %d are held", resource, slots[0].Held)
		}
	}
	s.auditFindsNothing(t)
}

// TestRebuild_OutcomesMissing_ReportsGap loses Redis after the outbound stream was purged. The
// rebuild reports that the stream is incomplete. A hold without outcome is gone: its room is
// granted again, and its payment ends in a refund.
func TestRebuild_OutcomesMissing_ReportsGap(t *testing.T) {
	t.Parallel()
	s, _ := newHarnessWithRedis(t, stack.Options{})
	worker := s.startWorker()
	s.setInventory("hall", holds.SlotSelection{}, 1)
	hold := s.answer(s.book("hall", "ana", "k1", holds.SlotSelection{}, hour)).Subject
	stream, err := s.js.Stream(t.Context(), s.subjects.OutStream())
	if err == nil {
		err = stream.Purge(t.Context())
	}
	if err == nil {
		err = s.redis.FlushAll(t.Context()).Err()
	}
	stacktest.Must(t, err)
	other := s.wantAnswer(s.book("hall", "ben", "k2", holds.SlotSelection{}, hour), holds.EventHoldCreated)
	pay := func(hold, payment string) events.Envelope {
		return s.answer(s.pay(hold, payment))
	}
	refused := pay(hold, "p1")
	if data := decoded[holds.ConfirmRejected](t, refused); data.Reason != holds.ReasonUnknownHold || !data.RefundRequired {
		t.Errorf("ana's payment was answered with %s: %s", refused.Type, refused.Data)
	}
	if o := pay(other.Subject, "p2"); o.Type != events.Type(holds.EventHoldConfirmed) {
		t.Errorf("ben's payment was answered with %s: %s", o.Type, o.Data)
	}
	worker.stop(t) // else it may rebuild Redis before the command does
	if code, out := execute(t.Context(), append([]string{"rebuild", "--yes"}, s.serversAs("worker")...)...); code != exitOK ||
		!strings.Contains(out, "has no messages from before") || !strings.Contains(out, "refund_required") {
		t.Errorf("worker rebuild: %d %s", code, out)
	}
}

// TestRebuild_SeveralWorkers_OneRebuilds starts several workers on an empty Redis, and flushes it
// again while they run. Each time one of them rebuilds it, in one attempt, and the others continue
// with it.
func TestRebuild_SeveralWorkers_OneRebuilds(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	s, held, paid, payment := newFlushedHarness(t)
	first := s.epoch()
	s.sql(`UPDATE ` + s.namespace + `.partition_epochs SET generation = 9000000000000`) // from then on each epoch counts one
	var workers []*process
	for range 4 {
		workers = append(workers, s.launch())
	}
	for _, w := range workers {
		w.awaitStarted(t)
	}
	s.checkRecovered(t, held, paid, payment)
	if now := s.epoch(); now.Name != first.Name+"/9000000000001" {
		t.Errorf("after the first loss the epoch is %s", now.Name)
	}
	second := s.epoch()
	stacktest.Must(t, s.redis.FlushAll(t.Context()).Err())
	if now := s.awaitRebuilt(second); now.Name != first.Name+"/9000000000002" {
		t.Errorf("after the second loss the epoch is %s", now.Name)
	}
	for _, w := range workers {
		w.awaitReady(t)
	}
	s.auditFindsNothing(t)
}

// TestRebuild_StoppedWorkerResumes_DecisionRefused stops a worker before a decision while Redis is
// lost and other workers rebuild it. It continues before, or after, its event is redelivered to
// another worker. Redis refuses its decision.
func TestRebuild_StoppedWorkerResumes_DecisionRefused(t *testing.T) {
	t.Parallel()
	type resumption struct {
		step string
		late bool
	}
	var resumptions []resumption
	for _, step := range []string{"place.read", "place.decided", "confirm.claimed", "confirm.committed",
		"requests.published"} {
		for _, late := range []bool{false, true} {
			redelivered := step != "requests.published" && (late || strings.HasPrefix(step, "confirm"))
			if stacktest.Long(t.Name()) || !redelivered { // which takes long
				resumptions = append(resumptions, resumption{step, late})
			}
		}
	}
	for _, r := range resumptions {
		t.Run(fmt.Sprintf("%s late=%v", r.step, r.late), func(t *testing.T) {
			t.Parallel()
			stoppedWorkerResumes(t, r.step, r.late)
		})
	}
}

func stoppedWorkerResumes(t *testing.T, step string, late bool) {
	s, _ := newHarnessWithRedis(t, stack.Options{})
	setUp := s.startWorker()
	s.setInventory("room", holds.SlotSelection{}, 1)
	var ana string // the id of her event
	if strings.HasPrefix(step, "confirm") {
		booked := s.answer(s.book("room", "ana", "k-ana", holds.SlotSelection{}, soon))
		setUp.stop(t)
		setUp = s.startWorker("HOLDFAST_FAILPOINT=" + step + ":stop")
		ana = s.pay(booked.Subject, "p")
		setUp.awaitPaused(t)
		s.awaitDeadline(t, booked)
	} else {
		setUp.stop(t)
		setUp = s.startWorker("HOLDFAST_FAILPOINT=" + step + ":stop")
		ana = s.book("room", "ana", "k-ana", holds.SlotSelection{}, hour)
		setUp.awaitPaused(t)
	}
	var env []string
	if !late && !strings.HasPrefix(step, "confirm") { // its event is not redelivered
		s.waitForAcks(time.Hour)
		env = []string{"HOLDFAST_NO_MIGRATE=true"}
	}
	before := s.epoch()
	stacktest.Must(t, s.redis.FlushAll(t.Context()).Err())
	s.startWorker(env...)
	s.awaitRebuilt(before)
	goOn := func() {
		setUp.goOn(t)
		setUp.awaitReady(t)
	}
	if !late {
		goOn()
	}
	s.answer(ana)
	s.wantAnswer(s.book("room", "ben", "k-ben", holds.SlotSelection{}, hour), holds.EventHoldRejected)
	if late {
		goOn()
	}
	s.setInventory("room", holds.SlotSelection{}, 2)
	s.wantOneOutcome(ana)
	if n := len(s.ofType(holds.EventHoldCreated)); n != 1 {
		t.Errorf("%d holds were created", n)
	}
	s.auditFindsNothing(t)
}

// TestRedisLost_HoldsExpire_AnnouncedOnce has holds expire while Redis is empty. Each is announced
// once, and its room is free.
func TestRedisLost_HoldsExpire_AnnouncedOnce(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	s, _ := newHarnessWithRedis(t, stack.Options{})
	const number = 50
	setUp := s.startWorker()
	s.setInventory("hall", holds.SlotSelection{}, number)
	var last string
	for i := range number {
		last = s.book("hall", fmt.Sprintf("u%d", i), fmt.Sprintf("k%d", i), holds.SlotSelection{}, soon)
	}
	s.await("all holds", func(outcomes []events.Envelope, _ []nats.Header) bool {
		return len(ofType(outcomes, holds.EventHoldCreated)) == number
	})
	setUp.stop(t)
	before := s.epoch()
	stacktest.Must(t, s.redis.FlushAll(t.Context()).Err())
	s.awaitDeadline(t, s.answer(last))
	for range 3 {
		s.startWorker()
	}
	s.awaitRebuilt(before)
	s.awaitExpired(number)
	if slots := s.setInventory("hall", holds.SlotSelection{}, number); slots[0].Held != 0 {
		t.Errorf("%d are held", slots[0].Held)
	}
	if n := len(s.ofType(holds.EventHoldExpired)); n != number {
		t.Errorf("%d holds have expired, and %d were announced", number, n)
	}
	s.auditFindsNothing(t)
}

// TestCorruptCounter_NotHealed_RedisRebuilt corrupts a counter without a reconciler. The worker
// rebuilds Redis by itself.
func TestCorruptCounter_NotHealed_RedisRebuilt(t *testing.T) {
	t.Parallel()
	s, _ := newHarnessWithRedis(t, stack.Options{})
	s.startWorker("HOLDFAST_RECONCILE=off")
	s.setInventory("hall", seat, 2)
	s.answer(s.book("hall", "ana", "k1", seat, hour))
	key := fmt.Sprintf("%s:{%d}:hall:counts", s.namespace, record.Partition("hall"))
	stacktest.Must(t, s.redis.HSet(t.Context(), key, "A-12", "many").Err())
	before := s.epoch()
	selection := s.book("hall", "ben", "k2", seat, hour)
	s.awaitRebuilt(before)
	s.wantAnswer(selection, holds.EventHoldCreated)
	if got := s.counts("hall")["A-12"]; got != "2" {
		t.Errorf("%s held, want 2", got)
	}
}

// TestRebuild_Command_ComparesAndRebuilds compares, corrupts, compares again and rebuilds.
func TestRebuild_Command_ComparesAndRebuilds(t *testing.T) {
	t.Parallel()
	s, _ := newHarnessWithRedis(t, stack.Options{})
	s.startWorker("HOLDFAST_RECONCILE=off") // it would heal the corruption
	s.setInventory("hall", seat, 5)
	hold := s.answer(s.book("hall", "ana", "k1", seat, hour)).Subject
	command := func(args ...string) (code int, output string) {
		return execute(t.Context(), append(append([]string{"rebuild"}, args...), s.serversAs("worker")...)...)
	}
	if code, out := command(); code != exitUsage || !strings.Contains(out, "--yes") {
		t.Errorf("without a terminal: %d %s", code, out)
	}
	prefix := fmt.Sprintf("%s:{%d}:hall:", s.namespace, record.Partition("hall"))
	_, id, _ := strings.Cut(hold, ".")
	pipe := s.redis.Pipeline()
	pipe.HSet(t.Context(), prefix+"counts", "A-12", 3)
	pipe.Del(t.Context(), prefix+"request:k1")
	pipe.HDel(t.Context(), prefix+"records", id)
	pipe.HSet(t.Context(), prefix+"users", "eve", 1)
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code, out, _ := s.runAudit(); code == exitOK {
		t.Errorf("audited after the corruption: %d %s", code, out)
	}
	before := s.epoch()
	if code, out := command("--yes"); code != exitOK ||
		!strings.Contains(out, "1 live and 0 ended holds") && !strings.Contains(out, "already") {
		t.Errorf("worker rebuild: %d %s", code, out)
	}
	if s.awaitRebuilt(before); s.counts("hall")["A-12"] != "1" {
		t.Errorf("counts are %v", s.counts("hall"))
	}
	s.answer(s.book("hall", "ben", "k2", seat, hour))
	s.auditFindsNothing(t)
}

// TestRebuild_ForeignRedis_TakenOverByCommand replaces Redis by that of another database. The
// worker leaves it unchanged and decides nothing, until worker rebuild takes it over.
func TestRebuild_ForeignRedis_TakenOverByCommand(t *testing.T) {
	t.Parallel()
	s, _ := newHarnessWithRedis(t, stack.Options{})
	worker := s.startWorker()
	s.setInventory("hall", seat, 5)
	s.answer(s.book("hall", "ana", "k1", seat, hour))
	for p := range record.Partitions {
		stacktest.Must(t, s.redis.Set(t.Context(), fmt.Sprintf("%s:{%d}:epoch", s.namespace, p), "another", 0).Err())
	}
	stacktest.Eventually(t, "the worker to report it", func() bool {
		return strings.Contains(fmt.Sprint(worker.readiness(t).Details), "another database")
	})
	waiting := s.book("hall", "ben", "k2", seat, hour)
	if e := s.epoch(); !e.Complete || strings.Contains(e.Name, "/") {
		t.Errorf("the epoch is %+v", e)
	}
	if code, out := execute(t.Context(), append([]string{"rebuild", "--yes"}, s.serversAs("worker")...)...); code != exitOK {
		t.Fatalf("worker rebuild: %d %s", code, out)
	}
	s.wantAnswer(waiting, holds.EventHoldCreated)
	if got := s.counts("hall")["A-12"]; got != "2" {
		t.Errorf("%s held, want 2", got)
	}
}
