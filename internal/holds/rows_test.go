package holds_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// trips counts the round trips of a client.
type trips struct{ atomic.Int64 }

func (*trips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (n *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, c redis.Cmder) error { n.Add(1); return next(ctx, c) }
}

func (n *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cs []redis.Cmder) error { n.Add(1); return next(ctx, cs) }
}

// cachingWorld returns a world whose locks allow a decision in one step, and counts its reads of inventory rows.
func cachingWorld(t *testing.T) (w *world, rows *meddled) {
	t.Helper()
	switch strategy := os.Getenv("HOLDFAST_LOCK_STRATEGY"); strategy {
	case "redlock", "optimistic":
		t.Skipf("%s decides in two steps", strategy)
	}
	w = newRealTimeWorld(t)
	rows = &meddled{Inventory: w.store, meddle: func(int) {}}
	w.service = w.newService(w.client, w.locker(t), rows)
	return w, rows
}

// booking is a request of a user of its own.
func booking(resource string) holds.PlaceRequest {
	return holds.PlaceRequest{
		Cause: uuid.NewString(), RequestKey: uuid.NewString(), Resource: resource, User: uuid.NewString(), Quantity: 1, StoredAt: time.Now(),
	}
}

func TestPlace_RowsCached_TakesOneTripToRedisAndNoneToPostgres(t *testing.T) {
	t.Parallel()
	w, rows := cachingWorld(t)
	resources := sameScope(2)
	resources = append(resources, "another-partition")
	var requests []holds.PlaceRequest
	for _, resource := range resources {
		w.setInventory(t, resource, slots("a", "b", "c"), 5)
		for _, asked := range []holds.Asked{slots("a", "b"), slots("b", "c")} {
			request := booking(resource)
			request.Asked = asked
			requests = append(requests, request)
		}
	}
	place := func() {
		t.Helper()
		for i := range requests {
			requests[i].Cause, requests[i].RequestKey, requests[i].User = uuid.NewString(), uuid.NewString(), uuid.NewString()
		}
		w.service.Place(t.Context(), requests, func(i int, r holds.Result) {
			if r.Err != nil || r.Outcome.Event != holds.EventHoldCreated {
				t.Errorf("%s: %+v", requests[i].Resource, r)
			}
		})
	}
	w.hears(t, w.service)
	place() // reads the rows, and makes the script known
	place()
	counter := new(trips)
	w.client.AddHook(counter)
	rows.reads = 0
	w.hears(t, w.service)
	counter.Store(0)
	requests = slices.DeleteFunc(requests, func(r holds.PlaceRequest) bool { return slices.Equal(r.Asked.Slots, []string{"b", "c"}) })
	place()
	if n := counter.Load(); n != 1 || rows.reads != 0 {
		t.Errorf("%d round trips to Redis and %d reads of Postgres, want 1 and 0", n, rows.reads)
	}
	for _, resource := range resources {
		if n := w.client.Exists(t.Context(), holds.Key(w.namespace, resource, "locks")).Val(); n != 0 {
			t.Errorf("%s: locks are left", resource)
		}
	}
}

func TestPlace_RowsMayHaveChanged_ReadsPostgres(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, w *world){
		"rev was bumped": func(t *testing.T, w *world) {
			if err := w.client.Incr(t.Context(), holds.Key(w.namespace, "room", "rev")).Err(); err != nil {
				t.Fatal(err)
			}
		},
		"a change was heard": func(t *testing.T, w *world) {
			if err := w.service.InventoryChanged(t.Context(), "room"); err != nil {
				t.Fatal(err)
			}
			w.hears(t, w.service)
		},
		"any row may have changed": func(t *testing.T, w *world) {
			if err := w.service.InventoryChanged(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			w.hears(t, w.service)
		},
		"changes may have been missed": func(t *testing.T, w *world) {
			w.service.InventoryUnheard()
			w.hears(t, w.service)
		},
		"changes are not heard now": func(_ *testing.T, w *world) { w.service.InventoryUnheard() },
		"the last proof is too old": func(t *testing.T, w *world) {
			now, err := w.service.Now(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			w.service.InventoryHeard(holds.Time{Time: now.Add(-holds.ReadAge - time.Millisecond)})
		},
		"the rows are of other slots": func(_ *testing.T, _ *world) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, rows := cachingWorld(t)
			w.setInventory(t, "room", slots("a", "b"), 2)
			place := func(slot string) {
				t.Helper()
				request := booking("room")
				request.Asked = slots(slot)
				w.service.Place(t.Context(), []holds.PlaceRequest{request}, func(_ int, r holds.Result) {
					if r.Err != nil {
						t.Error(r.Err)
					}
				})
			}
			w.hears(t, w.service)
			place("a")
			// A change by SQL that nothing has reported yet.
			w.execute(t, `UPDATE inventory SET capacity = 1`)
			change(t, w)
			rows.reads = 0
			request := booking("room")
			request.Asked = slots("a")
			if name == "the rows are of other slots" {
				request.Asked = slots("a", "b")
			}
			w.service.Place(t.Context(), []holds.PlaceRequest{request}, func(_ int, r holds.Result) {
				if r.Err != nil || r.Outcome.Event != holds.EventHoldRejected {
					t.Errorf("one is held of one: %+v", r)
				}
			})
			if rows.reads != 1 {
				t.Errorf("%d reads of Postgres, want 1", rows.reads)
			}
		})
	}
}

// TestPlace_ReadBeforeListening_IsNotCached reads rows while the worker begins to listen: a change between the reading
// and that moment was not heard.
func TestPlace_ReadBeforeListening_IsNotCached(t *testing.T) {
	t.Parallel()
	w, rows := cachingWorld(t)
	w.setInventory(t, "room", holds.Asked{}, 2)
	w.hears(t, w.service)
	rows.meddle = func(read int) {
		if read == 1 {
			w.execute(t, `UPDATE inventory SET capacity = 1`)
			w.service.InventoryUnheard()
			w.hears(t, w.service)
		}
	}
	for range 2 {
		w.service.Place(t.Context(), []holds.PlaceRequest{booking("room")}, func(_ int, r holds.Result) {
			if r.Err != nil {
				t.Error(r.Err)
			}
		})
	}
	if rows.reads != 2 {
		t.Errorf("%d reads of Postgres, want 2", rows.reads)
	}
	if held := w.client.HGet(t.Context(), holds.Key(w.namespace, "room", "counts"), holds.StockSlot).Val(); held != "1" {
		t.Errorf("%s are held, want 1", held)
	}
}

// TestPlace_SlotLockedByAnother_WaitsForIt has another hold the lock of one slot of a request whose rows are cached.
func TestPlace_SlotLockedByAnother_WaitsForIt(t *testing.T) {
	t.Parallel()
	if strategy := os.Getenv("HOLDFAST_LOCK_STRATEGY"); strategy != "" && strategy != "range" {
		t.Skipf("%s has no locks in the Redis of the holds", strategy)
	}
	w, _ := cachingWorld(t)
	w.setPolicy(t, func(p *holds.Policy) { p.LockWait = 10 * time.Millisecond })
	ctx, request := t.Context(), booking("room")
	request.Asked = slots("a", "b", "c")
	w.setInventory(t, "room", request.Asked, 5)
	w.hears(t, w.service)
	created(t, w.place(t, request)[0])
	counts := w.client.HGetAll(ctx, holds.Key(w.namespace, "room", "counts")).Val()

	locks := holds.Key(w.namespace, "room", "locks")
	until := time.Now().Add(time.Hour).UnixMilli()
	w.client.HSet(ctx, locks, "b", fmt.Sprintf("-:1.another %d", until))
	other := booking("room")
	other.Asked = request.Asked
	w.service.Place(ctx, []holds.PlaceRequest{other}, func(_ int, r holds.Result) {
		if !errors.Is(r.Err, holds.ErrBusy) {
			t.Errorf("a slot is another's: %+v", r)
		}
	})
	if now := w.client.HGetAll(ctx, holds.Key(w.namespace, "room", "counts")).Val(); fmt.Sprint(now) != fmt.Sprint(counts) {
		t.Errorf("counts are %v, they were %v", now, counts)
	}
	w.client.HSet(ctx, locks, "b", "-:1.another 1") // its lease is over
	w.hears(t, w.service)
	created(t, w.place(t, other)[0])
}

// TestPlace_CapacityChangedBySQL_SeesItOnceHeard changes capacity by SQL while a worker listens and has the rows cached.
func TestPlace_CapacityChangedBySQL_SeesItOnceHeard(t *testing.T) {
	t.Parallel()
	w, rows := cachingWorld(t)
	ctx, stop := context.WithCancel(t.Context())
	watched := make(chan error)
	go func() { watched <- w.store.Watch(ctx, w.service, zerolog.Nop()) }()
	t.Cleanup(func() {
		stop()
		if err := <-watched; err != nil {
			t.Error(err)
		}
	})
	w.setInventory(t, "room", holds.Asked{}, 1_000_000)
	place := func() (o holds.Outcome) {
		t.Helper()
		w.service.Place(ctx, []holds.PlaceRequest{booking("room")}, func(_ int, r holds.Result) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			o = r.Outcome
		})
		return o
	}
	stacktest.Eventually(t, "a decision on cached rows", func() bool {
		before := rows.reads
		place()
		return rows.reads == before
	})
	rev := func() string { return w.client.Get(ctx, holds.Key(w.namespace, "room", "rev")).Val() }
	before := rev()
	w.execute(t, `UPDATE inventory SET capacity = 1`)
	stacktest.Eventually(t, "a change of rev", func() bool { return rev() != before })
	if o := place(); o.Event != holds.EventHoldRejected || !strings.Contains(fmt.Sprintf("%+v", o.Data), holds.ReasonSoldOut) {
		t.Errorf("the capacity is 1: %+v", o)
	}
}

// TestPlace_OnePartitionLost_RefusesOnlyItsOwn has the calls of two partitions share a run, and takes the epoch of one away.
func TestPlace_OnePartitionLost_RefusesOnlyItsOwn(t *testing.T) {
	t.Parallel()
	w, _ := cachingWorld(t)
	resources := []string{"one", "two"}
	if holds.Partition(resources[0]) == holds.Partition(resources[1]) {
		t.Fatal("want two partitions")
	}
	for _, resource := range resources {
		w.setInventory(t, resource, holds.Asked{}, 5)
	}
	for _, lost := range resources {
		epoch := holds.Key(w.namespace, lost, "")
		epoch = epoch[:strings.Index(epoch, "}")+2] + "epoch"
		value := w.client.Get(t.Context(), epoch).Val()
		if w.client.Del(t.Context(), epoch).Val() != 1 {
			t.Fatalf("no key %s", epoch)
		}
		w.hears(t, w.service)
		w.service.Place(t.Context(), []holds.PlaceRequest{booking("one"), booking("two")}, func(i int, r holds.Result) {
			if is := errors.Is(r.Err, holds.ErrDataLost); is != (resources[i] == lost) {
				t.Errorf("%s is lost; place on %s: %+v", lost, resources[i], r)
			}
		})
		w.client.Set(t.Context(), epoch, value, 0)
	}
}

// TestPlace_NextNights_AreReadWithThoseBefore places a hold of some nights, and then of others near them.
func TestPlace_NextNights_AreReadWithThoseBefore(t *testing.T) {
	t.Parallel()
	w, rows := cachingWorld(t)
	night := func(n int) string { return time.Now().UTC().AddDate(0, 0, 100+n).Format(holds.DateFormat) }
	w.setInventory(t, "room", holds.Asked{CheckIn: night(0), CheckOut: night(40)}, 1)
	w.hears(t, w.service)
	for i, c := range []struct {
		from, to, reads int
		event           string
	}{
		{10, 13, 1, holds.EventHoldCreated},
		{12, 15, 1, holds.EventHoldRejected}, // one night is held
		{13, 16, 1, holds.EventHoldCreated},
		{26, 27, 1, holds.EventHoldCreated},
		{38, 41, 2, holds.EventHoldRejected}, // the last is not sold at all
		{39, 41, 2, holds.EventHoldRejected},
	} {
		request := booking("room")
		request.Asked = holds.Asked{CheckIn: night(c.from), CheckOut: night(c.to)}
		w.service.Place(t.Context(), []holds.PlaceRequest{request}, func(_ int, r holds.Result) {
			if r.Err != nil || r.Outcome.Event != c.event || rows.reads != c.reads {
				t.Errorf("request %d: %+v after %d reads, want %s after %d", i, r, rows.reads, c.event, c.reads)
			}
		})
	}
}
