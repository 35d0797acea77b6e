package events

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"holdfast/internal/holds"
)

// TestVerdict is the table of what is said of an event that is not published.
func TestVerdict(t *testing.T) {
	t.Parallel()
	now := holds.Time{Time: time.Date(2027, 5, 1, 12, 0, 0, 0, time.UTC)}
	before := func(d time.Duration) holds.Time { return holds.Time{Time: now.Add(-d)} }
	later := holds.Time{Time: now.Add(10 * time.Minute)}
	id := holds.HoldID{Resource: "room", UUID: "0192f5c4d0b07cc3a5d0f2f5a1b2c3d4"}
	lapsed := before(3 * time.Hour)
	outcome := func(event string, at holds.Time, data any) holds.Result {
		return holds.Result{Outcome: holds.Outcome{Event: event, Resource: "room", Hold: id, At: at, Data: data}}
	}
	failed := func(err error) holds.Result { return holds.Result{Err: err} }
	short := &holds.SoldOut{RetryAt: &later, Unavailable: []holds.SlotStock{{Slot: "A-1", Capacity: 2, Reserved: 1, Held: 1}, {Slot: "A-2", Capacity: 1, Held: 4}, {Slot: "A-3"}, {Slot: "A-4"}}}

	for name, c := range map[string]struct {
		result holds.Result
		lapsed *holds.Time
		want   Verdict
		kind   string // "" = as the verdict
	}{
		"granted": {outcome(holds.EventHoldCreated, now, holds.HoldCreated{ExpiresAt: later}), nil,
			Verdict{"would hold", "hold.created", "", "until 2027-05-01T12:10:00.000Z"}, ""},
		"granted before": {outcome(holds.EventHoldCreated, before(90*time.Minute), holds.HoldCreated{ExpiresAt: later}), nil,
			Verdict{"already answered", "hold.created", "", "1 h ago, about hold " + id.String()}, ""},
		"sold out": {outcome(holds.EventHoldRejected, now, holds.HoldRejected{Reason: holds.ReasonSoldOut, SoldOut: short}), nil,
			Verdict{"sold out", "hold.rejected", "sold_out", "A-1 has 0 left of 2, A-2 has 0 left of 1, A-3 has 0 left of 0, and 1 more, worth another try at 2027-05-01T12:10:00.000Z"}, ""},
		"sold out before": {outcome(holds.EventHoldRejected, before(time.Millisecond), holds.HoldRejected{Reason: holds.ReasonSoldOut, SoldOut: short}), nil,
			Verdict{"already answered", "hold.rejected", "sold_out", "0 s ago, about hold " + id.String()}, ""},
		"cancelled before it came": {outcome(holds.EventHoldRejected, before(time.Hour), holds.HoldRejected{Reason: holds.ReasonCancelled, Message: "m"}), nil,
			Verdict{"would be refused: cancelled", "hold.rejected", "cancelled", "m"}, ""},
		"invalid": {outcome(holds.EventHoldRejected, holds.Time{}, holds.HoldRejected{Reason: holds.ReasonInvalidRequest, Message: "check_in: has passed"}), nil,
			Verdict{"would be refused: invalid_request", "hold.rejected", "invalid_request", "check_in: has passed"}, ""},
		"paid": {outcome(holds.EventHoldConfirmed, now, holds.HoldConfirmed{}), nil, Verdict{"would confirm", "hold.confirmed", "", ""}, ""},
		"paid late": {outcome(holds.EventHoldConfirmed, now, holds.HoldConfirmed{Late: true}), nil,
			Verdict{"would confirm late", "hold.confirmed", "", "the hold has lapsed, and its slots are free"}, ""},
		"paid too late": {outcome(holds.EventConfirmRejected, now, holds.ConfirmRejected{Reason: holds.ReasonExpired}), &lapsed,
			Verdict{"hold lapsed 3 h ago", "hold.confirm_rejected", "expired", "the payment would have to be refunded"}, "hold lapsed"},
		"paid for a hold that lapsed, nobody knows when": {outcome(holds.EventConfirmRejected, now, holds.ConfirmRejected{Reason: holds.ReasonExpired}), nil,
			Verdict{"hold lapsed", "hold.confirm_rejected", "expired", "the payment would have to be refunded"}, ""},
		"refused payment": {outcome(holds.EventConfirmRejected, before(49*time.Hour), holds.ConfirmRejected{Reason: holds.ReasonExpired}), &lapsed,
			Verdict{"already answered", "hold.confirm_rejected", "expired", "2 days ago, about hold " + id.String()}, ""},
		"paid twice": {outcome(holds.EventConfirmRejected, now, holds.ConfirmRejected{Reason: holds.ReasonAlreadyConfirmed}), nil,
			Verdict{"hold is paid already", "hold.confirm_rejected", "already_confirmed", "the payment would have to be refunded"}, ""},
		"unknown hold": {outcome(holds.EventConfirmRejected, now, holds.ConfirmRejected{Reason: holds.ReasonUnknownHold}), nil,
			Verdict{"hold is not remembered", "hold.confirm_rejected", "unknown_hold", "the payment would have to be refunded"}, ""},
		"extended": {outcome(holds.EventHoldExtended, now, holds.HoldExtended{ExpiresAt: later}), nil,
			Verdict{"would extend", "hold.extended", "", "until 2027-05-01T12:10:00.000Z"}, ""},
		"extended too far": {outcome(holds.EventExtensionRejected, now, holds.ExtensionRejected{Reason: holds.ReasonLimitReached}), nil,
			Verdict{"would be refused: limit_reached", "hold.extension_rejected", "limit_reached", ""}, ""},
		"extended too late": {outcome(holds.EventExtensionRejected, holds.Time{}, holds.ExtensionRejected{Reason: holds.ReasonExpired}), &lapsed,
			Verdict{"hold lapsed 3 h ago", "hold.extension_rejected", "expired", ""}, "hold lapsed"},
		"released": {outcome(holds.EventHoldReleased, now, holds.HoldReleased{}), nil, Verdict{"would release", "hold.released", "", ""}, ""},
		"released again": {outcome(holds.EventReleaseRejected, holds.Time{}, holds.ReleaseRejected{Reason: holds.ReasonReleased}), nil,
			Verdict{"hold was given back", "hold.release_rejected", "released", ""}, ""},
		"released after it was paid": {outcome(holds.EventReleaseRejected, holds.Time{}, holds.ReleaseRejected{Reason: holds.ReasonConfirmed}), nil,
			Verdict{"hold is paid already", "hold.release_rejected", "confirmed", ""}, ""},
		"cancelled by key": {outcome(holds.EventBookingCancelled, holds.Time{}, holds.BookingCancelled{}), nil,
			Verdict{"would cancel", "booking.cancelled", "", "no request with this key was seen; one that comes will be refused"}, ""},
		"reservation cancelled": {outcome(holds.EventReservationCancelled, now, holds.ReservationCancelled{}), nil,
			Verdict{"would cancel the reservation", "reservation.cancelled", "", ""}, ""},
		"reservation unknown": {outcome(holds.EventCancelRejected, now, holds.CancelRejected{Reason: holds.ReasonUnknownReservation}), nil,
			Verdict{"would be refused: unknown_reservation", "reservation.cancel_rejected", "unknown_reservation", ""}, ""},
		"capacity": {outcome(holds.EventInventoryUpdated, holds.Time{}, holds.InventoryUpdated{}), nil, Verdict{"would set the capacity", "inventory.updated", "", ""}, ""},
		"capacity too low": {outcome(holds.EventInventoryRejected, holds.Time{}, holds.InventoryRejected{Reason: holds.ReasonBelowReserved, Field: "capacity"}), nil,
			Verdict{"would be refused: below_reserved", "inventory.rejected", "below_reserved", "capacity"}, ""},

		"malformed":  {failed(&UnprocessableError{ReasonMalformed, "data.quantity: want\x1b"}), nil, Verdict{"still malformed", "", "malformed", "data.quantity: want?"}, ""},
		"too large":  {failed(&UnprocessableError{ReasonTooLarge, "x"}), nil, Verdict{"still too large", "", "too_large", "x"}, ""},
		"of no type": {failed(&UnprocessableError{ReasonUnknownType, "x"}), nil, Verdict{"still of an unknown type", "", "unknown_type", "x"}, ""},
		"misplaced":  {failed(&UnprocessableError{ReasonSubjectMismatch, "x"}), nil, Verdict{"still on the wrong subject", "", "subject_mismatch", "x"}, ""},
		"a bug":      {failed(&panicError{"x"}), nil, Verdict{"still fails", "", "poison", "panic: x"}, ""},
		"its data":   {failed(fmt.Errorf("place: %w", &pgconn.PgError{Code: "22021", Message: "m"})), nil, Verdict{"still fails", "", "poison", "place: : m (SQLSTATE 22021)"}, ""},
		"busy": {failed(fmt.Errorf("release: %w", holds.ErrBusy)), nil,
			Verdict{"would have to wait", "", "", "other work on the same slots or hold is in the way; ask again"}, ""},
	} {
		got, err := verdictOf(c.result, c.lapsed, now)
		if err != nil || got != c.want {
			t.Errorf("%s: %v %+v, want %+v", name, err, got, c.want)
		}
		if c.kind == "" {
			c.kind = c.want.Verdict
		}
		if got.Kind() != c.kind {
			t.Errorf("%s: kind %q, want %q", name, got.Kind(), c.kind)
		}
	}
	for _, err := range []error{holds.ErrDataLost, errors.New("connection refused")} {
		if v, got := verdictOf(failed(err), nil, now); !errors.Is(got, err) {
			t.Errorf("an outage has the verdict %+v, %v", v, got)
		}
	}
}

// TestAge tells durations to people.
func TestAge(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "0 s", 900 * time.Millisecond: "0 s", 59 * time.Second: "59 s", time.Minute: "1 min", 119 * time.Minute: "1 h", 61 * time.Minute: "1 h",
		47 * time.Hour: "47 h", 49 * time.Hour: "2 days",
	} {
		if got := Age(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}
