package locking_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"holdfast/internal/locking"
)

// A history contains operations on locks with the times of their call and return. It is correct if
// the operations have an order, each within its two times, in which a simple table of owners gives
// the same answers (linearizability, checked by porcupine).

// lockOp locks or unlocks a set of keys, one bit for each.
type lockOp struct {
	client  int
	keys    uint8
	release bool
}

// lockOutput says whether the keys were locked, or were still held when they were unlocked.
type lockOutput struct {
	held  bool
	fence int64
}

// table contains the owner of each key, -1 for none, and the last fencing token.
type table struct {
	owner [lockKeys]int
	fence int64
}

const lockKeys = 5

// lockModel is the model of a lock. A strict lock may refuse only keys that another owner holds.
func lockModel(strict bool) porcupine.Model {
	return porcupine.Model{
		Init: func() any {
			var t table
			for i := range t.owner {
				t.owner[i] = -1
			}
			return t
		},
		Step: func(state, input, output any) (bool, any) {
			t, op, answer := state.(table), input.(lockOp), output.(lockOutput)
			wanted, free := -1, true
			if op.release {
				wanted = op.client
			}
			for i, owner := range t.owner {
				if op.keys&(1<<i) != 0 && owner != wanted {
					free = false
				}
			}
			if !answer.held {
				return !op.release && (!free || !strict), t
			}
			if !free || !op.release && answer.fence != 0 && answer.fence <= t.fence {
				return false, t
			}
			for i := range t.owner {
				switch {
				case op.keys&(1<<i) == 0:
				case op.release:
					t.owner[i] = -1
				default:
					t.owner[i] = op.client
				}
			}
			t.fence = max(t.fence, answer.fence)
			return true, t
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v %+v", input, output) },
	}
}

// history collects the operations of several clients.
type history struct {
	mu         sync.Mutex
	began      time.Time
	operations []porcupine.Operation
}

// record records the result of do.
func (h *history) record(client int, input any, do func() any) any {
	call := time.Since(h.began).Nanoseconds()
	output := do()
	back := time.Since(h.began).Nanoseconds()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, porcupine.Operation{ClientId: client, Input: input, Call: call, Output: output,
		Return: back})
	return output
}

func (h *history) check(t *testing.T, model porcupine.Model) porcupine.CheckResult {
	t.Helper()
	result := porcupine.CheckOperationsTimeout(model, h.operations, time.Minute)
	if result == porcupine.Unknown {
		t.Fatal("the history could not be checked in time: make it shorter")
	}
	return result
}

// lockAndUnlock lets a client try to lock some keys and release them if it holds them.
func (k harness) lockAndUnlock(t *testing.T, h *history, l *locking.Locker, client int, bits uint8) {
	var names []string
	for i := range lockKeys {
		if bits&(1<<i) != 0 {
			names = append(names, fmt.Sprint("key-", i))
		}
	}
	var lock *locking.Lock
	answer := h.record(client, lockOp{client, bits, false}, func() any {
		lock = try(t, l, "", k.keySet(names...))
		return lockOutput{lock.Held, lock.Fence}
	})
	if answer.(lockOutput).held {
		h.record(client, lockOp{client, bits, true}, func() any {
			return lockOutput{held: l.Unlock(t.Context(), lock) == nil}
		})
	}
}

// TestStrategy_ConcurrentHistories_AreLinearizable checks histories of locks under contention.
func TestStrategy_ConcurrentHistories_AreLinearizable(t *testing.T) {
	const histories, clients, rounds = 10, 6, 15
	eachExclusive(t, func(t *testing.T, s subject, k harness) {
		l := k.locker(t, s, long)
		for range histories {
			h := &history{began: time.Now()}
			var all sync.WaitGroup
			for c := range clients {
				all.Go(func() {
					for range rounds {
						k.lockAndUnlock(t, h, l, c, uint8(1+rand.IntN(1<<lockKeys-1)))
					}
				})
			}
			all.Wait()
			// Each of Redlock's contenders may get a minority, and then none gets the key.
			if h.check(t, lockModel(s.servers == 0)) == porcupine.Illegal {
				t.Fatalf("this history is not linearizable: %+v", h.operations)
			}
		}
	})
}

// TestNone_SharedKey_HistoryIsIllegal shows that the check finds an illegal history: two owners
// hold the same key.
func TestNone_SharedKey_HistoryIsIllegal(t *testing.T) {
	t.Parallel()
	s := subjects[len(subjects)-1]
	k := newHarness(t, s)
	l := k.locker(t, s, long)
	h := &history{began: time.Now()}
	for c := range 2 {
		h.record(c, lockOp{c, 1, false}, func() any { return lockOutput{held: try(t, l, "", k.keySet("key-0")).Held} })
	}
	if h.check(t, lockModel(true)) != porcupine.Illegal {
		t.Error("two owners hold the same key, but the history is accepted")
	}
}

// TestExec_ConcurrentCounters_AreLinearizable checks histories of the work itself: each operation
// increments the value that it has read. Optimistic also guarantees this.
func TestExec_ConcurrentCounters_AreLinearizable(t *testing.T) {
	const clients, rounds = 8, 10
	counter := porcupine.Model{
		Init: func() any { return 0 },
		Step: func(state, _, output any) (bool, any) { return state == output, state.(int) + 1 },
	}
	eachRefusingLateWork(t, func(t *testing.T, s subject, k harness) {
		l := k.locker(t, s, long)
		h := &history{began: time.Now()}
		var all sync.WaitGroup
		for c := range clients {
			all.Go(func() {
				for range rounds {
					h.record(c, nil, func() any {
						before, err := k.contend(t.Context(), l, k.keySet("a", fmt.Sprint(c)), func() func() { return func() {} })
						if err != nil {
							t.Error(err)
						}
						return before
					})
				}
			})
		}
		all.Wait()
		if h.check(t, counter) == porcupine.Illegal {
			t.Errorf("this history is not linearizable: %+v", h.operations)
		}
	})
}
