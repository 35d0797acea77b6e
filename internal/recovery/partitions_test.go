package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// twoResources returns two resources of different partitions.
func twoResources() (one, other string) {
	one, other = "room", "hall"
	if record.Partition(one) == record.Partition(other) {
		panic("both are in one partition")
	}
	return one, other
}

// losePartition removes all keys of a resource's partition.
func (w *harness) losePartition(t *testing.T, resource string) {
	t.Helper()
	pattern := record.Keyspace(w.namespace).Partition(record.Partition(resource)) + "*"
	keys, err := w.client.Keys(t.Context(), pattern).Result()
	if err == nil {
		err = w.client.Del(t.Context(), keys...).Err()
	}
	if err != nil {
		t.Fatalf("lose: %v", err)
	}
}

// tryPlace requests a hold and publishes the answer.
func (w *harness) tryPlace(t *testing.T, service *holds.Service, resource, key string) (holds.Outcome, error) {
	t.Helper()
	request := holds.PlaceRequest{EventID: key, RequestKey: key, Resource: resource, User: key, Quantity: 1}
	for _, r := range service.Place(t.Context(), []holds.PlaceRequest{request}) {
		if r.Err == nil {
			w.publish(key, r.Outcome)
		}
		return r.Outcome, r.Err
	}
	panic("no result")
}

// TestSupervisor_PartitionLost_OthersDecide removes one partition. Its requests and payments wait, also
// in one batch with others. The others are decided meanwhile, and stay as they were when it is rebuilt.
func TestSupervisor_PartitionLost_OthersDecide(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	ctx := t.Context()
	lost, whole := twoResources()
	for _, resource := range []string{lost, whole} {
		w.setInventory(t, resource, holds.SlotSelection{}, 4)
	}
	w.term = recovery.NewEpochTerm()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", w.term)
	supervisor.Drain = 0
	w.startNewTerm(t)
	if _, err := checkAll(t, supervisor); err != nil {
		t.Fatal(err)
	}
	live := created(t, w.place(t, holds.PlaceRequest{Resource: lost, User: "ana"})[0])
	held := created(t, w.place(t, holds.PlaceRequest{Resource: whole, User: "ana"})[0])
	w.losePartition(t, lost)
	epoch, err := checkOne(t, supervisor, lost)
	if err != nil || epoch.Complete || !strings.HasPrefix(epoch.Why, "epoch missing") {
		t.Fatalf("epoch is %+v %v", epoch, err)
	}

	rebuilding := func(what string, err error) {
		t.Helper()
		if _, is := errors.AsType[*holds.RebuildingError](err); !is {
			t.Errorf("%s: %v, want a RebuildingError", what, err)
		}
	}
	if _, err := w.tryPlace(t, w.service, lost, "k1"); err == nil {
		t.Error("a request was decided in the lost partition")
	}
	if o, err := w.tryPlace(t, w.service, whole, "k2"); err != nil || o.Event != holds.EventHoldCreated {
		t.Errorf("a request in the other partition: %+v %v", o, err)
	}
	requests := []holds.PlaceRequest{
		{EventID: "c3", RequestKey: "k3", Resource: lost, User: "ben", Quantity: 1},
		{EventID: "c4", RequestKey: "k4", Resource: whole, User: "ben", Quantity: 1},
	}
	for i, r := range w.service.Place(ctx, requests) {
		if i == 0 {
			rebuilding("a request in a batch with others", r.Err)
		} else if r.Err != nil {
			t.Errorf("a request in a batch with the lost partition: %v", r.Err)
		}
	}
	paid := w.service.Confirm(ctx, []holds.ConfirmRequest{{Hold: live.HoldID, PaymentID: "p"}, {Hold: held.HoldID, PaymentID: "p"}})
	rebuilding("a payment", paid[0].Err)
	if paid[1].Err != nil || paid[1].Outcome.Event != holds.EventHoldConfirmed {
		t.Errorf("a payment in the other partition: %+v", paid[1])
	}
	cancelled := w.service.Cancel(ctx, []holds.CancelRequest{{EventID: "c5", Hold: live.HoldID}, {EventID: "c6", Hold: held.HoldID}})
	rebuilding("a cancellation", cancelled[0].Err)
	if cancelled[1].Err != nil || cancelled[1].Outcome.Event != holds.EventReservationCancelled {
		t.Errorf("a cancellation in the other partition: %+v", cancelled[1])
	}
	_, err = w.service.Availability(ctx, lost, holds.SlotSelection{})
	rebuilding("availability", err)
	if n := w.held(t, whole); n != 2 {
		t.Errorf("%d held in the other partition, want 2", n)
	}
	if err := w.term.Paused(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("partition %d: ", record.Partition(lost))) {
		t.Errorf("paused: %v", err)
	}

	stop := w.run(t, supervisor)
	stacktest.Eventually(t, "the partition to be rebuilt", func() bool { return w.term.Paused() == nil })
	stop()
	epochs, err := w.store.Epochs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for p, e := range epochs {
		name := w.epoch
		if p == record.Partition(lost) {
			name += "/2"
		}
		if e.Name != name || !e.Complete {
			t.Errorf("epoch of partition %d is %+v", p, e)
		}
	}
	if n := w.held(t, lost); n != 1 {
		t.Errorf("%d held in the rebuilt partition, want 1", n)
	}
	if n := w.held(t, whole); n != 2 {
		t.Errorf("%d held in the other partition after the rebuild, want 2", n)
	}
	if o := w.pay(t, live.HoldID, "p"); o.Event != holds.EventHoldConfirmed {
		t.Errorf("payment after the rebuild: %+v", o)
	}
}

// run runs a supervisor until the returned function is called.
func (w *harness) run(t *testing.T, supervisors ...*recovery.Supervisor) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, supervisor := range supervisors {
		running.Go(func() {
			if err := supervisor.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	return stop
}

// TestSupervisor_PartitionsLostTwoWorkers_NothingOversold removes partitions again and again, while two
// workers decide and rebuild. Each resource sells what it has, and no more.
func TestSupervisor_PartitionsLostTwoWorkers_NothingOversold(t *testing.T) {
	t.Parallel()
	const capacity, losses = 5, 2
	w := newRealTimeHarness(t)
	resources := make([]string, 6)
	for i := range resources {
		resources[i] = fmt.Sprintf("room-%d", i)
		w.setInventory(t, resources[i], holds.SlotSelection{}, capacity)
	}
	outcomes := &lockedLog{replayLog: &replayLog{harness: w}}
	var services []*holds.Service
	var supervisors []*recovery.Supervisor
	for _, name := range []string{"w1", "w2"} {
		w.term = recovery.NewEpochTerm()
		supervisor := w.newSupervisor(outcomes, name, w.term)
		supervisor.Drain = 0 // each buyer publishes before it removes the partition
		supervisors = append(supervisors, supervisor)
		services = append(services, w.newService(t, w.client, w.store))
	}
	stop := w.run(t, supervisors...)
	var buyers sync.WaitGroup
	sold := make([]int, len(resources))
	for i, resource := range resources {
		buyers.Go(func() {
			for n := range 2 * capacity {
				key := fmt.Sprintf("%s-%d", resource, n)
				stacktest.Eventually(t, key, func() bool {
					o, err := w.tryPlace(t, services[n%2], resource, key)
					if err != nil && !errors.Is(err, holds.ErrDataLost) {
						t.Errorf("%s: %v", key, err)
					}
					if err == nil && o.Event == holds.EventHoldCreated {
						sold[i]++
					}
					return err == nil
				})
				if n < losses && i < 2 {
					w.losePartition(t, resource)
				}
			}
		})
	}
	buyers.Wait()
	stop()
	for i, n := range sold {
		if n != capacity {
			t.Errorf("%d sold of %s, want %d", n, resources[i], capacity)
		}
	}
}

// lockedLog is a replayLog that several workers read while others publish.
type lockedLog struct{ *replayLog }

func (l *lockedLog) Outcomes(
	_ context.Context, _ time.Time, after uint64, each func(holds.StoredOutcome) error, _ func(done, all uint64),
) (last uint64, err error) {
	l.mu.Lock()
	outcomes := slices.Clone(l.outcomes)
	l.mu.Unlock()
	for _, outcome := range outcomes[after:] {
		if err := each(outcome); err != nil {
			return 0, err
		}
	}
	return uint64(len(outcomes)), nil
}

func (*lockedLog) Unacknowledged(
	context.Context, func(holds.ConfirmRequest, holds.Time), func(holds.ReleaseRequest, holds.Time),
) error {
	return nil
}
