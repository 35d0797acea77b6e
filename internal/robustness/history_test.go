package robustness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// What clients did to a slot with capacity 1 is a history of operations, each with the times of its
// call (it is published) and its return (its outcome is seen). It is right if there is an order of
// them, each somewhere between its two times, in which the plain slot below gives the same
// answers (linearizability, checked by porcupine). That a deadline comes is an operation too, of
// nobody: at that very time, by the clock that Redis and this process share.

// slotVerb is what is done to a slot.
type slotVerb int

const (
	verbRequest slotVerb = iota
	verbConfirm
	verbCancel
	verbRefund // cancels the reservation
	verbDeadline
)

// slotOp is one operation. A client names holds by the number of the request that made them.
type slotOp struct {
	verb slotVerb
	hold int
}

// slotAnswer is what came of it.
type slotAnswer struct {
	unknown bool // no outcome was seen: it may have been done or not
	done    bool
	late    bool // a payment after the deadline has taken the slot again
	reason  string
}

// slotState is one slot: whose it is, and how far each hold has come.
type slotState struct {
	hold     int // 0 = it is free
	reserved bool
	ended    string // how each hold has ended, a letter for each, '.' while it has not
}

const holdsMax = 62 // in one history

// Letters of slotState.ended.
const (
	notEnded  = '.'
	expired   = 'x'
	released  = 'r'
	confirmed = 'c'
	paidLate  = 'l' // it has expired, and became a reservation then
)

func (s slotState) with(hold int, end byte) slotState {
	ended := []byte(s.ended)
	ended[hold] = end
	s.ended = string(ended)
	return s
}

// free is the state after a hold has ended without a reservation.
func (s slotState) free(hold int, end byte) slotState {
	s = s.with(hold, end)
	s.hold, s.reserved = 0, false
	return s
}

// endOf are the reasons by which a refusal names an end.
var endOf = map[string]byte{holds.ReasonExpired: expired, holds.ReasonReleased: released, holds.ReasonConfirmed: confirmed, holds.ReasonAlreadyConfirmed: confirmed}

// slotModel is what a slot with capacity 1 is.
var slotModel = (&porcupine.NondeterministicModel{
	Init: func() []any {
		fresh := make([]byte, holdsMax)
		for i := range fresh {
			fresh[i] = notEnded
		}
		return []any{slotState{ended: string(fresh)}}
	},
	Step: func(state, input, output any) []any {
		s, op, answer := state.(slotState), input.(slotOp), output.(slotAnswer)
		done, possible := s.do(op, answer.late)
		switch {
		case answer.unknown && possible:
			return []any{s, done}
		case answer.unknown:
			return []any{s}
		case answer.done && possible:
			return []any{done}
		case answer.done:
			return nil
		case s.refuses(op, answer.reason):
			return []any{s}
		default:
			return nil
		}
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v %+v", input, output) },
}).ToModel()

// do returns the state after an operation that is granted, if it can be.
func (s slotState) do(op slotOp, late bool) (after slotState, possible bool) {
	its := s.hold == op.hold
	switch op.verb {
	case verbRequest:
		after = s
		after.hold = op.hold
		return after, s.hold == 0 && s.ended[op.hold] == notEnded
	case verbConfirm:
		if late {
			after = s.with(op.hold, paidLate)
			after.hold, after.reserved = op.hold, true
			return after, s.hold == 0 && s.ended[op.hold] == expired
		}
		after = s.with(op.hold, confirmed)
		after.reserved = true
		return after, its && !s.reserved
	case verbCancel:
		return s.free(op.hold, released), its && !s.reserved
	case verbRefund:
		return s.free(op.hold, s.ended[op.hold]), its && s.reserved
	default: // verbDeadline: what is not held any more is left as it is
		if its && !s.reserved {
			return s.free(op.hold, expired), true
		}
		return s, true
	}
}

// refuses reports whether a refusal with a reason is right in a state.
func (s slotState) refuses(op slotOp, reason string) bool {
	switch op.verb {
	case verbRequest:
		return reason == holds.ReasonSoldOut && s.hold != 0
	case verbRefund:
		made := s.ended[op.hold] == confirmed || s.ended[op.hold] == paidLate
		return reason == holds.ReasonUnknownReservation && !made || reason == holds.ReasonAlreadyCancelled && made && s.hold != op.hold
	case verbConfirm:
		if reason == holds.ReasonSoldOut { // too late, and somebody else has it
			return s.ended[op.hold] == expired && s.hold != 0
		}
	default:
	}
	end := s.ended[op.hold]
	if end == paidLate && op.verb == verbCancel {
		end = expired
	}
	return endOf[reason] != 0 && end == endOf[reason]
}

// history is the operations of the clients of one slot.
type history struct {
	load     *Load
	resource string
	slot     string
	began    time.Time
	holds    atomic.Int64
	forgets  bool // see Fault

	mu         sync.Mutex
	operations []*operation
}

// operation is one that is still to be completed with its answer, when all are there.
type operation struct {
	porcupine.Operation
	sent *sent
}

const (
	historyClients = 4
	historyRounds  = 4
	deadlineSkew   = 3 * time.Millisecond // Redis tells times in whole milliseconds
)

func (h *history) since(t time.Time) int64 { return t.Sub(h.began).Nanoseconds() }

// do publishes an operation and waits for its outcome for as long as a customer would.
func (h *history) do(ctx context.Context, client int, op slotOp, event string, data any) (outcome, bool) {
	call := time.Now()
	o := &operation{Operation: porcupine.Operation{ClientId: client, Input: op, Call: h.since(call)}}
	s, m, err := h.load.event(event, h.resource, data)
	if err != nil {
		panic(err) // see Load.publish
	}
	o.sent = s
	h.mu.Lock()
	h.operations = append(h.operations, o)
	h.mu.Unlock()
	h.load.send(ctx, s, m, true)
	return h.load.recorder.await(ctx, s, hardBound)
}

// client requests the slot some times, and does something with it each time that it has it.
func (h *history) client(ctx context.Context, client int, random *rand.Rand, hurry <-chan struct{}) {
	selection := holds.SlotSelection{Slots: []string{h.slot}}
	for range historyRounds {
		select {
		case <-hurry:
			return
		default:
		}
		hold := int(h.holds.Add(1))
		if hold >= holdsMax {
			return
		}
		ttl := int64(1)
		name := fmt.Sprintf("%s-%d", h.slot, hold)
		o, ok := h.do(ctx, client, slotOp{verbRequest, hold}, events.BookingRequested, events.BookingRequestedData{
			RequestKey: "k-" + name, UserID: "u-" + name, ResourceID: h.resource, SlotSelection: selection, Quantity: 1, TTLSeconds: &ttl,
		})
		if !ok {
			return
		}
		if o.event != holds.EventHoldCreated {
			wait(ctx, time.Duration(random.IntN(500))*time.Millisecond)
			continue
		}
		h.decide(ctx, client, hold, o, random)
	}
}

// decide is what a client does with its hold.
func (h *history) decide(ctx context.Context, client, hold int, o outcome, random *rand.Rand) {
	confirm := func() bool {
		answer, ok := h.do(ctx, client, slotOp{verbConfirm, hold}, events.PaymentConfirmed, events.PaymentConfirmedData{HoldID: o.HoldID, PaymentID: fmt.Sprintf("p%d", hold)})
		return ok && answer.event == holds.EventHoldConfirmed
	}
	cancel := func() {
		h.do(ctx, client, slotOp{verbCancel, hold}, events.BookingCancelled, events.BookingCancelledData{HoldID: o.HoldID})
	}
	refund := func() {
		h.do(ctx, client, slotOp{verbRefund, hold}, events.ReservationCancelled, events.ReservationCancelledData{HoldID: o.HoldID})
	}
	switch random.IntN(6) {
	case 0:
		cancel()
	case 1: // at the deadline
		wait(ctx, time.Until(o.ExpiresAt.Time)+time.Duration(random.IntN(20)-10)*time.Millisecond)
		if confirm() {
			refund()
		}
	case 2: // two at once
		var both sync.WaitGroup
		both.Go(cancel)
		paid := confirm()
		both.Wait()
		if paid {
			refund()
		}
	case 3: // lapses
		wait(ctx, time.Until(o.ExpiresAt.Time))
		if random.IntN(2) == 0 {
			cancel()
		}
	default:
		if confirm() {
			wait(ctx, time.Duration(random.IntN(300))*time.Millisecond)
			refund()
		}
	}
}

// complete returns the operations with what is known of their answers now.
func (h *history) complete() []porcupine.Operation {
	h.mu.Lock()
	defer h.mu.Unlock()
	recorder := h.load.recorder
	recorder.mu.Lock()
	defer recorder.mu.Unlock()
	end := h.since(time.Now())
	var all []porcupine.Operation
	add := func(o porcupine.Operation) {
		o.ClientId = len(all) // two of one client may be on their way at once
		all = append(all, o)
	}
	for _, o := range h.operations {
		if len(o.sent.outcomes) == 0 {
			o.Output, o.Return = slotAnswer{unknown: true}, end
			add(o.Operation)
			continue
		}
		answer := o.sent.outcomes[0]
		if h.forgets && answer.Reason == holds.ReasonSoldOut {
			continue // to somebody whose hold was forgotten before it was told: it changes nothing
		}
		o.Output, o.Return = slotAnswer{done: answer.Reason == "", late: answer.Late, reason: answer.Reason}, h.since(o.sent.answeredAt)
		add(o.Operation)
		if op := o.Input.(slotOp); op.verb == verbRequest && answer.Reason == "" {
			at := answer.ExpiresAt.Time
			add(porcupine.Operation{
				Input: slotOp{verbDeadline, op.hold}, Call: h.since(at.Add(-deadlineSkew)),
				Output: slotAnswer{done: true}, Return: h.since(at.Add(deadlineSkew)),
			})
		}
	}
	return all
}

// check returns an error when no order explains the history.
func (h *history) check() error {
	operations := h.complete()
	switch porcupine.CheckOperationsTimeout(slotModel, operations, time.Minute) {
	case porcupine.Illegal:
		text := ""
		for _, o := range operations {
			text += fmt.Sprintf("\n  %s  %9.3f ms to %9.3f ms", slotModel.DescribeOperation(o.Input, o.Output), float64(o.Call)/1e6, float64(o.Return)/1e6)
		}
		return fmt.Errorf("no order explains what was done to slot %s of %s:%s", h.slot, h.resource, text)
	case porcupine.Unknown:
		return fmt.Errorf("the history of slot %s of %s could not be checked in time", h.slot, h.resource)
	default:
		return nil
	}
}

// Histories makes so many histories at the same time, each on a slot of its own, until all clients
// have done what they do or hurry is closed, and their operations are answered.
func (l *Load) Histories(ctx context.Context, resource string, number int, random *rand.Rand, hurry <-chan struct{}) ([]*history, error) {
	names := make([]string, number)
	for i := range names {
		names[i] = fmt.Sprintf("H-%d", i)
	}
	set := l.publish(ctx, events.InventorySet, resource, events.InventorySetData{ResourceID: resource, SlotSelection: holds.SlotSelection{Slots: names}, Capacity: 1})
	if o, ok := l.recorder.await(ctx, set, hardBound); !ok || o.event != holds.EventInventoryUpdated {
		return nil, fmt.Errorf("the capacity of %s was not set: %q %s", resource, o.event, o.Reason)
	}
	all := make([]*history, number)
	var clients sync.WaitGroup
	for i := range all {
		h := &history{load: l, resource: resource, slot: names[i], began: time.Now()}
		all[i] = h
		for c := range historyClients {
			its := rand.New(rand.NewPCG(random.Uint64(), uint64(c)))
			clients.Go(func() { h.client(ctx, c, its, hurry) })
		}
	}
	clients.Wait()
	return all, nil
}
