package locking_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"holdfast/internal/stack/stacktest"
)

// These tests force the failures of the methods that teams write themselves, by stopping a sale at
// a step.

const oversellCapacity = 20

// All buyers read before any buyer writes: all find room.
func TestSale_WithoutLock_Oversells(t *testing.T) {
	t.Parallel()
	const buyers = 50
	for _, name := range []string{"no lock", "none"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newSaleHarness(t, 1, oversellCapacity, buyers)
			open := sellerNamed(t, name).open(t, m)
			var reading sync.WaitGroup
			reading.Add(buyers)
			s := m.sale
			s.between = func(step string) {
				if step == stepRead {
					reading.Done()
					reading.Wait()
				}
			}
			var all sync.WaitGroup
			for range buyers {
				all.Go(func() {
					if sold, err := open(s).sell(t.Context()); err != nil || !sold {
						t.Errorf("sold %v, %v, want a sale to each of %d for %d units", sold, err, buyers, oversellCapacity)
					}
				})
			}
			all.Wait()
			if units := m.oversold(t, buyers); units != buyers-1 {
				t.Errorf("%d units are not counted, want all but one", units)
			}
		})
	}
}

// A lease expires before its holder unlocks. The next sale holds the lock by then. It loses the
// lock if the unlock deletes another owner's lock, and a third sale locks while the second is
// working.
func TestSale_UnlockAfterLease_NeedsOwnerCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		seller, late string // step of the first sale at which its lease expires
		oversells    bool
	}{
		{"SETNX, plain DEL", stepWritten, true},
		{"SET NX, GET then DEL", stepOwned, true},
		{sellerCareful, stepWritten, false},
	} {
		t.Run(c.seller, func(t *testing.T) {
			t.Parallel()
			m := newSaleHarness(t, 1, oversellCapacity, 3)
			open := sellerNamed(t, c.seller).open(t, m)
			for range oversellCapacity - 2 {
				if sold, err := open(m.sale).sell(t.Context()); err != nil || !sold {
					t.Fatalf("sold %v, %v", sold, err)
				}
			}
			first := sellUntil(t, open, m.sale, c.late)
			first.awaitStop(t)
			m.endLease(t)
			second := sellUntil(t, open, m.sale, stepRead)
			second.awaitStop(t)
			sold := first.finish(t)
			third := sellUntil(t, open, m.sale, stepBlocked)
			third.awaitStopOrEnd(t)
			sold += second.finish(t) + third.finish(t)
			want := int64(2)
			if c.oversells {
				want++
			}
			if sold != want {
				t.Errorf("sold %d of the last 2, want %d", sold, want)
			}
		})
	}
}

// endLease ends the lease of the first slot's lock now.
func (m *saleHarness) endLease(t *testing.T) {
	t.Helper()
	key := m.locks()[0]
	stacktest.Must(t, m.client.PExpire(t.Context(), key, time.Millisecond).Err())
	stacktest.Eventually(t, "the end of a lease", func() bool {
		return m.client.Exists(t.Context(), key).Val() == 0
	})
}

// A holder dies after it has set its lock and before it has set the expiry.
func TestSale_CrashBeforeExpire_LocksForever(t *testing.T) {
	t.Parallel()
	m := newSaleHarness(t, 1, oversellCapacity, 2)
	open := sellerNamed(t, "SETNX, then EXPIRE").open(t, m)
	diesAt := func(step string, after int) error {
		ctx, die := context.WithCancel(t.Context())
		defer die()
		s := m.sale
		s.between = func(at string) {
			if at == step {
				if after--; after == 0 {
					die()
				}
			}
		}
		_, err := open(s).sell(ctx)
		return err
	}
	if err := diesAt(stepSet, 1); !errors.Is(err, context.Canceled) {
		t.Fatalf("the first sale ended with %v", err)
	}
	const never = -1 // go-redis' value for no expiry
	if left := m.client.PTTL(t.Context(), m.locks()[0]).Val(); left != never {
		t.Errorf("the remaining lock expires in %v", left)
	}
	if err := diesAt(stepBlocked, 3); !errors.Is(err, context.Canceled) {
		t.Errorf("the next sale was not blocked: %v", err)
	}
}

// A lease expires before its holder writes: the write is not refused. A script that checks its token or the time
// refuses it, see TestStrategy_HolderPausedPastLease_WorkIsRefused.
func TestSale_WriteAfterLease_NeedsTokenCheck(t *testing.T) {
	t.Parallel()
	m := newSaleHarness(t, 1, 1, 2)
	open := sellerNamed(t, sellerCareful).open(t, m)
	first := sellUntil(t, open, m.sale, stepRead)
	first.awaitStop(t)
	m.endLease(t)
	sold, err := open(m.sale).sell(t.Context())
	if err != nil || !sold {
		t.Fatalf("the second sale: sold %v, %v", sold, err)
	}
	if all := 1 + first.finish(t); all != 2 {
		t.Errorf("sold %d of the last unit, want 2", all)
	}
}

type saleResult struct {
	sold bool
	err  error
}

// stoppedSale is a sale that stops when it first reaches a step, until finish is called.
type stoppedSale struct {
	stopped, on chan struct{}
	result      chan saleResult
	ended       *saleResult
}

// sellUntil starts a sale that stops at a step.
func sellUntil(t *testing.T, open func(sale) seller, s sale, step string) *stoppedSale {
	t.Helper()
	b := &stoppedSale{stopped: make(chan struct{}), on: make(chan struct{}), result: make(chan saleResult, 1)}
	var once sync.Once
	s.between = func(at string) {
		if at == step {
			once.Do(func() { close(b.stopped) })
			<-b.on
		}
	}
	ctx := t.Context()
	go func() {
		sold, err := open(s).sell(ctx)
		b.result <- saleResult{sold, err}
	}()
	return b
}

// awaitStop waits until the sale has stopped.
func (b *stoppedSale) awaitStop(t *testing.T) {
	t.Helper()
	if b.awaitStopOrEnd(t); b.ended != nil {
		t.Fatalf("a sale did not reach its step: sold %v, %v", b.ended.sold, b.ended.err)
	}
}

// awaitStopOrEnd waits until the sale has stopped or ended.
func (b *stoppedSale) awaitStopOrEnd(t *testing.T) {
	t.Helper()
	select {
	case <-b.stopped:
	case r := <-b.result:
		b.ended = &r
	}
}

// finish continues the sale, waits for its end and returns the number of units sold.
func (b *stoppedSale) finish(t *testing.T) (units int64) {
	t.Helper()
	close(b.on)
	if b.ended == nil {
		r := <-b.result
		b.ended = &r
	}
	if b.ended.err != nil {
		t.Fatal(b.ended.err)
	}
	if b.ended.sold {
		return 1
	}
	return 0
}
