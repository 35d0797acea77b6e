package holds_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// TestSweep_SeveralWorkers_RestoreEachHoldOnce lets several workers sweep the same expired holds at
// the same time.
func TestSweep_SeveralWorkers_RestoreEachHoldOnce(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	const resources, each = 20, 10
	var all []holds.Outcome
	for r := range resources {
		name := fmt.Sprintf("room-%d", r)
		w.setInventory(t, name, holds.SlotSelection{}, each)
		for i := range each {
			o := w.place(t, holds.PlaceRequest{Resource: name, User: fmt.Sprintf("u%d", i), TTLSeconds: seconds(1)})
			created(t, o[0])
			all = append(all, o...)
		}
	}
	w.pass(t, time.Second)
	var workers sync.WaitGroup
	for range 4 {
		x := holds.NewExpirer(w.newService(w.client, w.locker(t), w.store), w, holds.ExpirerOptions{}, zerolog.Nop())
		workers.Go(func() {
			if err := x.SweepAndAnnounce(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	workers.Wait()
	if got, want := briefs(w.takeAnnounced()), briefsAs(holds.EventHoldExpired, all); !slices.Equal(got, want) {
		t.Errorf("announced %d, want each of %d once", len(got), len(want))
	}
	for r := range resources {
		w.assertNothingHeld(t, fmt.Sprintf("room-%d", r))
	}
}

// TestSweep_StrayDeadline_ExpiresNothing adds claimed, confirmed and released holds to due, as a
// corrupt or restored Redis may have them. The state of a hold decides, not due.
func TestSweep_StrayDeadline_ExpiresNothing(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	ctx := t.Context()
	w.setInventory(t, "room", holds.SlotSelection{}, 3)
	var ids []holds.HoldID
	for _, user := range []string{"claims", "pays", "cancels"} {
		ids = append(ids, created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: user, TTLSeconds: seconds(60)})[0]).HoldID)
	}
	w.claim(t, ids[0], "p")
	w.pay(t, ids[1], "p")
	w.release(t, holds.ReleaseRequest{Hold: ids[2]})
	for _, later := range []time.Duration{0, time.Hour} { // before their deadlines, and long after
		w.pass(t, later)
		for _, id := range ids {
			stacktest.Must(t, w.client.ZAdd(ctx, holds.Key(w.namespace, "room", "due"), redis.Z{Score: 1, Member: id.UUID}).Err())
		}
		if slot := w.available(t, "room", holds.SlotSelection{})[0]; slot.Held != 1 || slot.Reserved != 1 {
			t.Errorf("after a sweep of stray deadlines: %+v", slot)
		}
	}
	if expired := w.sweep(t); len(expired) != 0 {
		t.Errorf("expired: %v", briefs(expired))
	}
	wantBrief(t, w.pay(t, ids[0], "p"), holds.EventHoldConfirmed)
	w.assertNothingHeld(t, "room")
}

// TestSweep_RequestsWithoutEnd_TimerStillFires requests sweeps of one partition without end while a
// hold of another partition expires without a notification.
func TestSweep_RequestsWithoutEnd_TimerStillFires(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.expireWhileRequesting(t, holds.NewExpirer(w.service, w, holds.ExpirerOptions{}, zerolog.Nop()), "other")
}

// expireWhileRequesting lets a hold expire in another partition than that of resource, without a
// notification. Meanwhile it requests sweeps of the partition of resource without end. It waits
// until the hold's count is restored.
func (w *harness) expireWhileRequesting(t *testing.T, x *holds.Expirer, resource string) {
	t.Helper()
	runExpirer(t, x)
	stacktest.Eventually(t, "the subscription", func() bool { return x.NotificationError() == nil })
	other := elsewhere(resource)
	hold := w.onlyHold(t, other, 1).HoldID
	stacktest.Must(t, w.client.Del(t.Context(), holds.Key(w.namespace, other, "hold:"+hold.UUID)).Err()) // its expiry is not notified
	nudge := holds.Key(w.namespace, resource, "hold:0")
	stacktest.Eventually(t, "the count to be restored", func() bool {
		stacktest.Must(t, w.client.Publish(t.Context(), "__keyevent@0__:expired", nudge).Err())
		return w.heldCount(t, other) == "0"
	})
}

// TestSweep_ResourceCorrupt_RestoresOthers corrupts a resource whose partition is requested without
// end: a hold of another partition is restored.
func TestSweep_ResourceCorrupt_RestoresOthers(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.corrupt(t, "room")
	w.expireWhileRequesting(t, holds.NewExpirer(w.service, w, holds.ExpirerOptions{}, zerolog.Nop()), "room")
}

// TestSweep_DueWithoutEnd_RestoresOthers gives a resource more due holds before each round trip
// than one sweep expires.
func TestSweep_DueWithoutEnd_RestoresOthers(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	client := stacktest.ConnectRedis(t, w.redisURL)
	client.AddHook(beforePipeline{do: func([]redis.Cmder) error { return w.addDue(w.client, "room") }})
	x := holds.NewExpirer(w.newService(client, w.locker(t), w.store), w, holds.ExpirerOptions{}, zerolog.Nop())
	w.expireWhileRequesting(t, x, "room")
}

// TestSweep_DeadlinesAllTheTime_FewRounds lets holds of many resources expire one after the other, with
// notifications. The sweep does not read the agenda again for each.
func TestSweep_DeadlinesAllTheTime_FewRounds(t *testing.T) {
	t.Parallel()
	const resources, number = 100, 400
	w := newRealTimeHarness(t)
	for r := range resources {
		w.setInventory(t, fmt.Sprintf("room-%d", r), holds.SlotSelection{}, number)
	}
	var rounds atomic.Int64
	client := stacktest.ConnectRedis(t, w.redisURL)
	client.AddHook(beforePipeline{do: func(commands []redis.Cmder) error {
		if slices.ContainsFunc(commands, func(c redis.Cmder) bool { return slices.Contains(c.Args(), any(holds.DueMax)) }) {
			rounds.Add(1)
		}
		return nil
	}})
	began := time.Now()
	runExpirer(t, holds.NewExpirer(w.newService(client, w.locker(t), w.store), w, holds.ExpirerOptions{}, zerolog.Nop()))
	for i := range number {
		created(t, w.place(t, holds.PlaceRequest{
			Resource: fmt.Sprintf("room-%d", i%resources), User: fmt.Sprintf("u%d", i), TTLSeconds: seconds(1),
		})[0])
	}
	expired := 0
	stacktest.Eventually(t, "all holds to expire", func() bool { expired += len(w.takeAnnounced()); return expired == number })
	most := int64(time.Since(began)/holds.SweepPause) + 1
	if got := rounds.Load(); got < 2 || got > most {
		t.Errorf("%d rounds, want at least 2 and at most %d", got, most)
	}
}

// TestSweep_ResourceHasMoreDeadlines_NextRoundInTime lets one of two holds of a resource expire. The next round begins when
// the other one is due, though no other resource has a deadline.
func TestSweep_ResourceHasMoreDeadlines_NextRoundInTime(t *testing.T) {
	t.Parallel()
	const later = 100 * time.Millisecond
	w := newHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	for _, user := range []string{"ana", "ben"} {
		created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: user, TTLSeconds: seconds(1)})[0])
		w.pass(t, later)
	}
	w.pass(t, time.Second-3*later/2)
	next, err := w.expirer.NextRound(t.Context())
	stacktest.Must(t, err)
	if held := w.heldCount(t, "room"); held != "1" || next != later/2 {
		t.Errorf("%s are held after the first round, and the next one begins in %v, want %v", held, next, later/2)
	}
}

// TestSweep_PartitionSilent_RestoresOthers makes Redis not answer for one partition, like one of
// several servers that hangs, and gives the agenda of another partition a wrong type.
func TestSweep_PartitionSilent_RestoresOthers(t *testing.T) {
	t.Parallel()
	w := newHarnessOn(t, stacktest.StartRedis(t).RedisURL) // a server that knows no script yet
	silent := holds.EpochKey(w.namespace, "room")
	client := stacktest.ConnectRedis(t, w.redisURL)
	client.AddHook(silentKey{key: silent})
	const corrupt, other = "tent-0", "tent" // their agendas are read in other runs than that of the silent one
	stacktest.Must(t, w.client.Set(t.Context(), w.agenda(corrupt), "oops", 0).Err())
	w.onlyHold(t, other, 1)
	runExpirer(t, holds.NewExpirer(w.newService(client, w.locker(t), w.store), w, holds.ExpirerOptions{NoNotifications: true}, zerolog.Nop()))
	stacktest.Eventually(t, "the count to be restored", func() bool { return w.heldCount(t, other) == "0" })
}

// TestSweep_ResourcesCorrupt_RestAlone corrupts more resources of a partition than one round
// sweeps, and more than can pause. As many as possible pause, and a hold that is due later in the
// same partition is restored.
func TestSweep_ResourcesCorrupt_RestAlone(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	resources := samePartition(2*holds.DueMax + 1)
	good, corrupt := resources[0], resources[1:]
	w.setInventory(t, good, holds.SlotSelection{}, 1)
	hold := w.place(t, holds.PlaceRequest{Resource: good, User: "ana", TTLSeconds: seconds(1)})
	created(t, hold[0])
	w.corrupt(t, corrupt...)
	w.pass(t, time.Second)
	reports := 0
	w.service.OnCorruption(func(string) { reports++ })
	round := w.expirer.Rounds(time.Hour)
	for n := range 3 {
		resting, err := round(t.Context())
		if want := min(n+1, 2) * holds.DueMax; resting != want || reports != want || (err == nil) != (n == 2) {
			t.Errorf("after round %d %d resources pause, %d failures were reported: %v", n, resting, reports, err)
		}
	}
	if got := w.heldCount(t, good); got != "0" {
		t.Errorf("%s are held", got)
	}
	tireless := w.expirer.Rounds(-time.Second)
	for n := range 3 { // a failure is reported once
		if _, err := tireless(t.Context()); (err == nil) != (n == 2) {
			t.Errorf("round %d: %v", n, err)
		}
	}
	more := make([]string, holds.RestingMax)
	for i := range more {
		more[i] = fmt.Sprint("e", i)
	}
	w.corrupt(t, more...)
	for range 3 {
		if resting, _ := round(t.Context()); resting > holds.RestingMax {
			t.Errorf("%d resources pause", resting)
		}
	}
}

// TestSweep_OneResourceFull_TakesTurns makes more holds due on one resource than a round expires,
// and one hold on each of the other resources in the same run.
func TestSweep_OneResourceFull_TakesTurns(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	resources := samePartition(5)
	for _, resource := range resources[1:] {
		w.onlyHold(t, resource, 1)
	}
	w.pass(t, time.Second)
	round := w.expirer.Rounds(time.Second)
	for range 2 {
		stacktest.Must(t, w.addDue(w.client, resources[0]))
		if _, err := round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, resource := range resources[1:] {
		if got := w.heldCount(t, resource); got != "0" {
			t.Errorf("%s are held of %s", got, resource)
		}
	}
}

// TestSweep_AnnouncementsWait_HandsOutNoMoreThanFit lets more holds expire than may wait for their announcement, and
// announces none. All counts are restored, and no more holds are handed out than wait. Then each is announced once.
func TestSweep_AnnouncementsWait_HandsOutNoMoreThanFit(t *testing.T) {
	t.Parallel()
	const each, batches = holds.SweepMax - 20, 2
	w := newHarness(t)
	w.expirer.LimitQueue(batches)
	var all []holds.Outcome
	resources := []string{"a", "b", "c", "d", "e", "f", "g"}
	for _, resource := range resources {
		w.setInventory(t, resource, holds.SlotSelection{}, each)
		requests := make([]holds.PlaceRequest, each)
		for i := range requests {
			requests[i] = holds.PlaceRequest{Resource: resource, User: fmt.Sprint("user-", i), TTLSeconds: seconds(60)}
		}
		all = append(all, w.place(t, requests...)...)
	}
	w.pass(t, time.Minute)
	stacktest.Must(t, w.expirer.SweepOnly(t.Context()))
	handedOut, later := 0, fmt.Sprint("(", w.clock())
	for _, resource := range resources {
		if got := w.heldCount(t, resource); got != "0" {
			t.Errorf("%s are held of %s", got, resource)
		}
		departing := holds.Key(w.namespace, resource, "departing")
		handedOut += int(w.client.ZCount(t.Context(), departing, later, "+inf").Val())
	}
	sizes, _ := w.expirer.Queued()
	waiting := 0
	for _, size := range sizes {
		waiting += size
	}
	if handedOut != waiting || waiting == 0 || len(sizes) > batches || slices.Max(sizes) > holds.AnnounceMax {
		t.Errorf("of %d holds %d were handed out; batches of %d wait", len(all), handedOut, sizes)
	}
	var announced []holds.Outcome
	for range 3 {
		stacktest.Must(t, w.expirer.AnnounceLate(t.Context(), 0))
		announced = append(announced, w.takeAnnounced()...)
		w.pass(t, time.Second)
	}
	if got, want := briefs(announced), briefsAs(holds.EventHoldExpired, all); !slices.Equal(got, want) {
		t.Errorf("announced %d, want each of %d once", len(got), len(want))
	}
}

// TestSweep_AnnouncementsPutOff_RestoresOthers has no room for announcements, and in one partition more resources with
// an expired hold than a round sweeps. A hold that is due later is restored.
func TestSweep_AnnouncementsPutOff_RestoresOthers(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.expirer.LimitQueue(0)
	resources := samePartition(holds.DueMax + 2)
	last, others := resources[0], resources[1:]
	w.setInventory(t, last, holds.SlotSelection{}, 1)
	created(t, w.place(t, holds.PlaceRequest{Resource: last, User: "ana", TTLSeconds: seconds(2)})[0])
	for _, resource := range others {
		w.onlyHold(t, resource, 1)
	}
	round := w.expirer.Rounds(time.Second)
	for range 2 { // seconds
		w.pass(t, time.Second)
		for range 2 { // rounds, which sweep all that is due
			_, err := round(t.Context())
			stacktest.Must(t, err)
		}
	}
	if got := w.heldCount(t, last); got != "0" {
		t.Errorf("%s are held", got)
	}
	// The audit takes a resource that is put off for longer for one that the sweep overlooks.
	agenda := record.Keyspace(w.namespace).Agenda(record.Partition(last))
	if got, most := w.client.ZScore(t.Context(), agenda, last).Val(), float64(w.clock()+500); got == 0 || got > most {
		t.Errorf("the announcement is put off until %.0f, want at most %.0f", got, most)
	}
}

// addDue adds more entries to due of a resource than one run expires, all long ago. They have no
// holds.
func (w *harness) addDue(client *redis.Client, resource string) error {
	stray := make([]redis.Z, holds.SweepMax)
	for i := range stray {
		stray[i] = redis.Z{Score: 1, Member: uuid.NewString()}
	}
	ctx := context.Background()
	return errors.Join(client.ZAdd(ctx, holds.Key(w.namespace, resource, "due"), stray...).Err(),
		client.ZAdd(ctx, w.agenda(resource), redis.Z{Score: 1, Member: resource}).Err())
}

// agenda returns the key of the agenda that has a resource.
func (w *harness) agenda(resource string) string {
	return record.Keyspace(w.namespace).Agenda(record.Partition(resource))
}

// elsewhere returns a resource of another partition than those of some.
func elsewhere(some ...string) string {
	for i := 0; ; i++ {
		name := fmt.Sprint("tent-", i)
		if !slices.ContainsFunc(some, func(one string) bool { return record.Partition(one) == record.Partition(name) }) {
			return name
		}
	}
}

// corrupt adds to each resource a due hold whose record is corrupt.
func (w *harness) corrupt(t *testing.T, resources ...string) {
	t.Helper()
	pipe := w.client.Pipeline()
	for _, resource := range resources {
		pipe.HSet(t.Context(), holds.Key(w.namespace, resource, "records"), "x", "rubbish")
		pipe.ZAdd(t.Context(), holds.Key(w.namespace, resource, "due"), redis.Z{Score: 1, Member: "x"})
		pipe.ZAdd(t.Context(), w.agenda(resource), redis.Z{Score: 1, Member: resource})
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// beforePipeline is a hook that calls a function before each pipeline. If the function fails, the
// pipeline fails.
type beforePipeline struct {
	stacktest.PassHook
	do func([]redis.Cmder) error
}

func (h beforePipeline) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		if err := h.do(commands); err != nil {
			return err
		}
		return next(ctx, commands)
	}
}

// silentKey is a hook that never answers commands with this key as an argument, and passes the
// others on.
type silentKey struct {
	stacktest.PassHook
	key string
}

func (k silentKey) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		var received, unanswered []redis.Cmder
		for _, c := range commands {
			if slices.Contains(c.Args(), any(k.key)) {
				unanswered = append(unanswered, c)
			} else {
				received = append(received, c)
			}
		}
		err := next(ctx, received)
		if len(unanswered) > 0 {
			<-ctx.Done()
			err = context.Cause(ctx)
			for _, c := range unanswered {
				c.SetErr(err)
			}
		}
		return err
	}
}

// TestSweep_RedisOutage_LoggedAtBeginAndEnd fails all commands of the sweep, each with another error. It logs one line
// when the outage begins and one when it ends.
func TestSweep_RedisOutage_LoggedAtBeginAndEnd(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	var down atomic.Bool
	var failed atomic.Int64
	client := stacktest.ConnectRedis(t, w.redisURL)
	client.AddHook(beforePipeline{do: func(commands []redis.Cmder) error {
		if !down.Load() {
			return nil
		}
		err := fmt.Errorf("failure %d", failed.Add(1))
		for _, c := range commands {
			c.SetErr(err)
		}
		return err
	}})
	var log logBuffer
	down.Store(true)
	x := holds.NewExpirer(w.newService(client, w.locker(t), w.store), w, holds.ExpirerOptions{}, zerolog.New(&log))
	runExpirer(t, x)
	stacktest.Eventually(t, "several failed rounds", func() bool { return failed.Load() > 10 })
	if begun, ended := log.count("sweep failed"), log.count("sweep recovered"); begun != 1 || ended != 0 {
		t.Errorf("during the outage %d lines begin and %d end: %s", begun, ended, log.text.String())
	}
	down.Store(false)
	stacktest.Eventually(t, "the end of the outage", func() bool { return log.count("sweep recovered") > 0 })
	if begun, ended := log.count("sweep failed"), log.count("sweep recovered"); begun != 1 || ended != 1 {
		t.Errorf("after the outage %d lines begin and %d end", begun, ended)
	}
}

// TestSweep_NoNotifications_IsSoon lets holds expire one after the other, each granted after the sweep of the one
// before, with keyspace notifications off. At most 2 s late, says the contract, for 99.9 % of holds: on a busy machine
// one of these must be in time.
func TestSweep_NoNotifications_IsSoon(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	runExpirer(t, holds.NewExpirer(w.service, w, holds.ExpirerOptions{NoNotifications: true}, zerolog.Nop()))
	w.setInventory(t, "tent", holds.SlotSelection{}, 1)
	const holdsMax, limit = 5, 2 * time.Second
	var late []time.Duration
	for range holdsMax {
		hold := created(t, w.place(t, holds.PlaceRequest{Resource: "tent", User: "ana", TTLSeconds: seconds(1)})[0])
		var expired []holds.Outcome
		stacktest.Eventually(t, "hold.expired", func() bool { expired = append(expired, w.takeAnnounced()...); return len(expired) > 0 })
		data := expired[0].Data.(holds.HoldExpired)
		if data.HoldID != hold.HoldID {
			t.Fatalf("%s has expired, want %s", data.HoldID, hold.HoldID)
		}
		late = append(late, data.RestoredAt.Sub(data.ExpiresAt.Time))
		if late[len(late)-1] <= limit {
			return
		}
	}
	t.Errorf("%v late, want at most %v", late, limit)
}
