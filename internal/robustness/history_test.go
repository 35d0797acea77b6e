package robustness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// history records the operations of several clients on one slot.
type history struct {
	load         *Load
	resource     string
	slot         string
	began        time.Time
	holds        atomic.Int64 // how many requests there were
	afterRebuild bool         // Redis was rebuilt in the meantime; see Fault.CausesRebuild

	mu         sync.Mutex
	operations []*operation
}

// operation is an operation whose answer complete adds later.
type operation struct {
	porcupine.Operation
	sent *sent
}

const (
	historyClients = 4
	historyRounds  = 4
	deadlineSkew   = 3 * time.Millisecond // Redis truncates times to milliseconds
)

func (h *history) since(t time.Time) int64 { return t.Sub(h.began).Nanoseconds() }

// do publishes the event of an operation and waits for its outcome. ok is false when none came within
// hardBound.
func (h *history) do(ctx context.Context, client int, op slotOp, event string, data any) (outcome, bool) {
	o := &operation{Operation: porcupine.Operation{ClientId: client, Input: op, Call: h.since(time.Now())}}
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

// client requests the slot some times, and confirms, cancels or abandons each hold that it gets. It
// stops early when loadEnded is closed.
func (h *history) client(ctx context.Context, client int, random *rand.Rand, loadEnded <-chan struct{}) {
	selection := holds.SlotSelection{Slots: []string{h.slot}}
	for range historyRounds {
		select {
		case <-loadEnded:
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
			RequestKey: "k-" + name, UserID: "u-" + name, ResourceID: h.resource, SlotSelection: selection,
			Quantity: 1, TTLSeconds: &ttl,
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

// decide confirms, cancels or abandons a hold at random.
func (h *history) decide(ctx context.Context, client, hold int, o outcome, random *rand.Rand) {
	confirm := func() bool {
		answer, ok := h.do(ctx, client, slotOp{verbConfirm, hold}, events.PaymentConfirmed,
			events.PaymentConfirmedData{HoldID: o.HoldID, PaymentID: fmt.Sprintf("p%d", hold)})
		return ok && answer.event == holds.EventHoldConfirmed
	}
	cancel := func() {
		h.do(ctx, client, slotOp{verbCancel, hold}, events.BookingCancelled,
			events.BookingCancelledData{HoldID: o.HoldID})
	}
	cancelReservation := func() {
		h.do(ctx, client, slotOp{verbCancelReservation, hold}, events.ReservationCancelled,
			events.ReservationCancelledData{HoldID: o.HoldID})
	}
	switch random.IntN(6) {
	case 0:
		cancel()
	case 1: // at the deadline
		wait(ctx, time.Until(o.ExpiresAt.Time)+time.Duration(random.IntN(20)-10)*time.Millisecond)
		if confirm() {
			cancelReservation()
		}
	case 2: // both at once
		var both sync.WaitGroup
		both.Go(cancel)
		paid := confirm()
		both.Wait()
		if paid {
			cancelReservation()
		}
	case 3: // after the deadline
		wait(ctx, time.Until(o.ExpiresAt.Time))
		if random.IntN(2) == 0 {
			cancel()
		}
	default:
		if confirm() {
			wait(ctx, time.Duration(random.IntN(300))*time.Millisecond)
			cancelReservation()
		}
	}
}

// complete returns the operations with their answers so far.
func (h *history) complete() []porcupine.Operation {
	h.mu.Lock()
	defer h.mu.Unlock()
	recorder := h.load.recorder
	recorder.mu.Lock()
	defer recorder.mu.Unlock()
	end := h.since(time.Now())
	var all []porcupine.Operation
	add := func(o porcupine.Operation) {
		o.ClientId = len(all) // porcupine wants one operation of a client at a time; here two may overlap
		all = append(all, o)
	}
	var cancels []porcupine.Operation // of reservations
	for _, o := range h.operations {
		o.Output, o.Return = slotAnswer{unknown: true}, end
		if len(o.sent.outcomes) > 0 {
			o.Return = h.since(o.sent.answeredAt)
		}
		if o.Input.(slotOp).verb == verbCancelReservation {
			cancels = append(cancels, o.Operation)
		}
	}
	for _, o := range h.operations {
		if len(o.sent.outcomes) == 0 {
			add(o.Operation)
			continue
		}
		answer := o.sent.outcomes[0]
		// Each worker sees the end of a reservation at another time, at the latest when its cancellation is answered.
		whileCancelled := func(c porcupine.Operation) bool { return c.Call < o.Return && o.Call < c.Return }
		if answer.Reason == holds.ReasonSoldOut && slices.ContainsFunc(cancels, whileCancelled) {
			continue
		}
		if h.afterRebuild && answer.Reason == holds.ReasonSoldOut {
			continue // a hold whose outcome was not published before the rebuild may have had the slot
		}
		o.Output = slotAnswer{done: answer.Reason == "", late: answer.Late, reason: answer.Reason}
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

// check returns an error when the history is not linearizable.
func (h *history) check() error {
	operations := h.complete()
	switch porcupine.CheckOperationsTimeout(slotModel, operations, time.Minute) {
	case porcupine.Illegal:
		text := ""
		for _, o := range operations {
			text += fmt.Sprintf("\n  %s  %9.3f ms to %9.3f ms",
				slotModel.DescribeOperation(o.Input, o.Output), float64(o.Call)/1e6, float64(o.Return)/1e6)
		}
		return fmt.Errorf("history of slot %s of %s is not linearizable:%s", h.slot, h.resource, text)
	case porcupine.Unknown:
		return fmt.Errorf("check of the history of slot %s of %s took longer than a minute", h.slot, h.resource)
	default:
		return nil
	}
}

// Histories records number histories at the same time, each on its own slot of the resource. It
// returns when all clients have finished, or soon after loadEnded is closed.
func (l *Load) Histories(ctx context.Context, resource string, number int, random *rand.Rand,
	loadEnded <-chan struct{},
) ([]*history, error) {
	names := make([]string, number)
	for i := range names {
		names[i] = fmt.Sprintf("H-%d", i)
	}
	set := l.publish(ctx, events.InventorySet, resource, events.InventorySetData{
		ResourceID: resource, SlotSelection: holds.SlotSelection{Slots: names}, Capacity: 1,
	})
	if o, ok := l.recorder.await(ctx, set, hardBound); !ok || o.event != holds.EventInventoryUpdated {
		return nil, fmt.Errorf("set capacity of %s: %q %s", resource, o.event, o.Reason)
	}
	all := make([]*history, number)
	var clients sync.WaitGroup
	for i := range all {
		h := &history{load: l, resource: resource, slot: names[i], began: time.Now()}
		all[i] = h
		for c := range historyClients {
			random := rand.New(rand.NewPCG(random.Uint64(), uint64(c)))
			clients.Go(func() { h.client(ctx, c, random, loadEnded) })
		}
	}
	clients.Wait()
	return all, nil
}
