package robustness

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"holdfast/internal/holds"
)

// at is an operation from one moment to another, in ms.
func at(from, to int64, verb slotVerb, hold int, answer slotAnswer) porcupine.Operation {
	return porcupine.Operation{Input: slotOp{verb, hold}, Call: from * int64(time.Millisecond), Output: answer, Return: to * int64(time.Millisecond)}
}

var (
	granted = slotAnswer{done: true}
	late    = slotAnswer{done: true, late: true}
	unknown = slotAnswer{unknown: true}
)

func refused(reason string) slotAnswer { return slotAnswer{reason: reason} }

// TestSlotModel_KnownHistories_AcceptedOrRejected has the checker judge histories of which it is known whether they are right.
func TestSlotModel_KnownHistories_AcceptedOrRejected(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		legal   bool
		history []porcupine.Operation
	}{
		"one after the other": {true, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(20, 30, verbCancel, 1, granted), at(40, 50, verbRequest, 2, granted),
		}},
		"two have the slot": {false, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(20, 30, verbRequest, 2, granted), at(1000, 1001, verbDeadline, 1, granted),
		}},
		"two have the slot, one has not given it back yet": {true, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(20, 40, verbRequest, 2, granted), at(15, 50, verbCancel, 1, granted),
		}},
		"sold out while it was free": {false, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(20, 30, verbCancel, 1, granted), at(40, 50, verbRequest, 2, refused(holds.ReasonSoldOut)),
		}},
		"it lapses, and is had again": {true, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(1000, 1002, verbDeadline, 1, granted), at(1001, 1010, verbRequest, 2, granted),
		}},
		"it is had again before it lapses": {false, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(1000, 1002, verbDeadline, 1, granted), at(900, 990, verbRequest, 2, granted),
		}},
		"sold out after it has lapsed": {false, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(1000, 1002, verbDeadline, 1, granted), at(1010, 1020, verbRequest, 2, refused(holds.ReasonSoldOut)),
		}},
		"paid before the deadline, answered after it": {true, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(1000, 1002, verbDeadline, 1, granted), at(990, 1500, verbConfirm, 1, granted),
		}},
		"paid after the deadline": {false, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(1000, 1002, verbDeadline, 1, granted), at(1010, 1500, verbConfirm, 1, granted),
		}},
		"paid late, and free": {true, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(1000, 1002, verbDeadline, 1, granted), at(1010, 1500, verbConfirm, 1, late),
			at(1600, 1610, verbRequest, 2, refused(holds.ReasonSoldOut)), at(1700, 1710, verbRefund, 1, granted), at(1800, 1810, verbRequest, 3, granted),
		}},
		"paid late, and had by another": {false, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(1000, 1002, verbDeadline, 1, granted), at(1010, 1020, verbRequest, 2, granted), at(1030, 1500, verbConfirm, 1, late),
		}},
		"refused as lapsed before it has": {false, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(1000, 1002, verbDeadline, 1, granted), at(500, 600, verbConfirm, 1, refused(holds.ReasonExpired)),
		}},
		"paid and cancelled": {false, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(20, 90, verbConfirm, 1, granted), at(20, 90, verbCancel, 1, granted),
		}},
		"paid, and so not cancelled": {true, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(20, 90, verbConfirm, 1, granted), at(20, 90, verbCancel, 1, refused(holds.ReasonConfirmed)),
			at(1000, 1002, verbDeadline, 1, granted), at(1100, 1110, verbRequest, 2, refused(holds.ReasonSoldOut)),
		}},
		"a reservation is given back twice": {false, []porcupine.Operation{
			at(0, 10, verbRequest, 1, granted), at(20, 30, verbConfirm, 1, granted), at(40, 50, verbRefund, 1, granted), at(60, 70, verbRefund, 1, granted),
		}},
		"nobody knows whether it was requested, and it was": {true, []porcupine.Operation{
			at(0, 9000, verbRequest, 1, unknown), at(20, 30, verbRequest, 2, refused(holds.ReasonSoldOut)),
		}},
		"nobody knows whether it was requested, and it was not": {true, []porcupine.Operation{
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
