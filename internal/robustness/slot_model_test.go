package robustness

import (
	"fmt"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"holdfast/internal/holds"
)

// A history has the operations of clients on one slot with capacity 1. Each operation has the time of
// its call (its event is published) and of its return (its outcome is read). A history is correct if
// some order of the operations, each between its two times, gives the same answers from the model of
// a slot below (linearizability, checked by porcupine). The deadline of a hold is an operation as well,
// without a client: its call and its return are at the deadline, by the clock that Redis and this
// process share.

// slotVerb is the kind of an operation on a slot.
type slotVerb int

const (
	verbRequest slotVerb = iota
	verbConfirm
	verbCancel
	verbCancelReservation
	verbDeadline
)

// slotOp is one operation. hold is the number of the request that created the hold.
type slotOp struct {
	verb slotVerb
	hold int
}

// slotAnswer is the outcome of an operation.
type slotAnswer struct {
	unknown bool // no outcome was read: the operation may have happened or not
	done    bool
	late    bool   // a payment after the deadline has taken the slot again
	reason  string // of a rejection
}

// slotState is the state of one slot and of all its holds.
type slotState struct {
	hold     int    // the hold that has the slot, 0 when it is free
	reserved bool   // hold is a reservation
	ended    string // by hold: how it has ended, one of the bytes below
}

const holdsMax = 62 // in one history

// The bytes of slotState.ended.
const (
	notEnded  = '.'
	expired   = 'x'
	released  = 'r'
	confirmed = 'c'
	paidLate  = 'l' // expired, and became a reservation later
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

// endOf maps the reason of a rejection to the end of the hold that it reports.
var endOf = map[string]byte{
	holds.ReasonExpired: expired, holds.ReasonReleased: released,
	holds.ReasonConfirmed: confirmed, holds.ReasonAlreadyConfirmed: confirmed,
}

// slotModel is the model of a slot with capacity 1.
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
		case s.rejects(op, answer.reason):
			return []any{s}
		default:
			return nil
		}
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v %+v", input, output) },
}).ToModel()

// do returns the state after an operation that succeeds. possible is false if it cannot succeed.
func (s slotState) do(op slotOp, late bool) (after slotState, possible bool) {
	hasSlot := s.hold == op.hold
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
		return after, hasSlot && !s.reserved
	case verbCancel:
		return s.free(op.hold, released), hasSlot && !s.reserved
	case verbCancelReservation:
		return s.free(op.hold, s.ended[op.hold]), hasSlot && s.reserved
	default: // verbDeadline has no effect on a hold that has ended
		if hasSlot && !s.reserved {
			return s.free(op.hold, expired), true
		}
		return s, true
	}
}

// rejects reports whether the slot rejects an operation with this reason.
func (s slotState) rejects(op slotOp, reason string) bool {
	switch op.verb {
	case verbRequest:
		return reason == holds.ReasonSoldOut && s.hold != 0
	case verbCancelReservation:
		if s.ended[op.hold] == confirmed || s.ended[op.hold] == paidLate {
			return reason == holds.ReasonAlreadyCancelled && s.hold != op.hold
		}
		return reason == holds.ReasonUnknownReservation
	case verbConfirm:
		if reason == holds.ReasonSoldOut { // late, and another hold has the slot
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

// at returns an operation with the times of its call and its return, in ms.
func at(call, returned int64, verb slotVerb, hold int, answer slotAnswer) porcupine.Operation {
	return porcupine.Operation{
		Input: slotOp{verb, hold}, Call: call * int64(time.Millisecond),
		Output: answer, Return: returned * int64(time.Millisecond),
	}
}

var (
	granted = slotAnswer{done: true}
	late    = slotAnswer{done: true, late: true}
	unknown = slotAnswer{unknown: true}
)

func rejected(reason string) slotAnswer { return slotAnswer{reason: reason} }

// TestSlotModel_KnownHistories_AcceptedOrRejected checks histories that are known to be correct or not.
func TestSlotModel_KnownHistories_AcceptedOrRejected(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		legal   bool
		history []porcupine.Operation
	}{
		"one after the other": {true, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(20, 30, verbCancel, 1, granted),
			at(40, 50, verbRequest, 2, granted),
		}},
		"two holds have the slot": {false, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(20, 30, verbRequest, 2, granted),
			at(1000, 1001, verbDeadline, 1, granted),
		}},
		"cancelled while another request runs": {true, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(20, 40, verbRequest, 2, granted),
			at(15, 50, verbCancel, 1, granted),
		}},
		"sold out while it was free": {false, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(20, 30, verbCancel, 1, granted),
			at(40, 50, verbRequest, 2, rejected(holds.ReasonSoldOut)),
		}},
		"expires, and is held again": {true, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(1000, 1002, verbDeadline, 1, granted),
			at(1001, 1010, verbRequest, 2, granted),
		}},
		"held again before it expires": {false, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(1000, 1002, verbDeadline, 1, granted),
			at(900, 990, verbRequest, 2, granted),
		}},
		"sold out after it has expired": {false, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(1000, 1002, verbDeadline, 1, granted),
			at(1010, 1020, verbRequest, 2, rejected(holds.ReasonSoldOut)),
		}},
		"paid before the deadline, answered after it": {true, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(1000, 1002, verbDeadline, 1, granted),
			at(990, 1500, verbConfirm, 1, granted),
		}},
		"paid after the deadline": {false, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(1000, 1002, verbDeadline, 1, granted),
			at(1010, 1500, verbConfirm, 1, granted),
		}},
		"paid late, slot free": {true, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(1000, 1002, verbDeadline, 1, granted),
			at(1010, 1500, verbConfirm, 1, late),
			at(1600, 1610, verbRequest, 2, rejected(holds.ReasonSoldOut)),
			at(1700, 1710, verbCancelReservation, 1, granted), at(1800, 1810, verbRequest, 3, granted),
		}},
		"paid late, slot taken": {false, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(1000, 1002, verbDeadline, 1, granted),
			at(1010, 1020, verbRequest, 2, granted), at(1030, 1500, verbConfirm, 1, late),
		}},
		"rejected as expired before the deadline": {false, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(1000, 1002, verbDeadline, 1, granted),
			at(500, 600, verbConfirm, 1, rejected(holds.ReasonExpired)),
		}},
		"paid and cancelled": {false, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(20, 90, verbConfirm, 1, granted),
			at(20, 90, verbCancel, 1, granted),
		}},
		"paid, then cancel rejected": {true, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(20, 90, verbConfirm, 1, granted),
			at(20, 90, verbCancel, 1, rejected(holds.ReasonConfirmed)),
			at(1000, 1002, verbDeadline, 1, granted), at(1100, 1110, verbRequest, 2, rejected(holds.ReasonSoldOut)),
		}},
		"reservation cancelled twice": {false, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(20, 30, verbConfirm, 1, granted),
			at(40, 50, verbCancelReservation, 1, granted), at(60, 70, verbCancelReservation, 1, granted),
		}},
		"request without an outcome that happened": {true, []porcupine.Operation{
			at(0, 9000, verbRequest, 1, unknown), at(20, 30, verbRequest, 2, rejected(holds.ReasonSoldOut)),
		}},
		"request without an outcome that did not happen": {true, []porcupine.Operation{
			at(0, 9000, verbRequest, 1, unknown), at(20, 30, verbRequest, 2, granted),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range c.history {
				c.history[i].ClientId = i
			}
			if legal := porcupine.CheckOperations(slotModel, c.history); legal != c.legal {
				t.Errorf("legal %v, want %v", legal, c.legal)
			}
		})
	}
}
