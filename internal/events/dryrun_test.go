package events

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/postgres"
)

// TestNewDryRunResult_EachResult_HasText is the table of the results of dry runs.
func TestNewDryRunResult_EachResult_HasText(t *testing.T) {
	t.Parallel()
	now := holds.Time{Time: time.Date(2027, 5, 1, 12, 0, 0, 0, time.UTC)}
	before := func(d time.Duration) holds.Time { return holds.Time{Time: now.Add(-d)} }
	later := holds.Time{Time: now.Add(10 * time.Minute)}
	id := holds.HoldID{Resource: "room", UUID: "0192f5c4d0b07cc3a5d0f2f5a1b2c3d4"}
	expiredAt := before(3 * time.Hour)
	outcome := func(event string, at holds.Time, data holds.OutcomeData) holds.Result {
		return holds.Result{Outcome: holds.Outcome{Event: event, Resource: "room", Hold: id, At: at, Data: data}}
	}
	failed := func(err error) holds.Result { return holds.Result{Err: err} }
	short := &holds.SoldOut{RetryAt: &later, Unavailable: []holds.SlotCounts{{Slot: "A-1", Capacity: 2, Reserved: 1, Held: 1}, {Slot: "A-2", Capacity: 1, Held: 4}, {Slot: "A-3"}, {Slot: "A-4"}}}

	for name, c := range map[string]struct {
		result    holds.Result
		expiredAt *holds.Time
		want      DryRunResult
		kind      string // "": the text
	}{
		"granted": {outcome(holds.EventHoldCreated, now, holds.HoldCreated{ExpiresAt: later}), nil,
			DryRunResult{"would hold", "hold.created", "", "until 2027-05-01T12:10:00.000Z"}, ""},
		"granted before": {outcome(holds.EventHoldCreated, before(90*time.Minute), holds.HoldCreated{ExpiresAt: later}), nil,
			DryRunResult{"already answered", "hold.created", "", "1 h ago, about hold " + id.String()}, ""},
		"sold out": {outcome(holds.EventHoldRejected, now, holds.HoldRejected{Reason: holds.ReasonSoldOut, SoldOut: short}), nil,
			DryRunResult{"sold out", "hold.rejected", "sold_out", "A-1 has 0 left of 2, A-2 has 0 left of 1, A-3 has 0 left of 0, and 1 more, retry at 2027-05-01T12:10:00.000Z"}, ""},
		"sold out before": {outcome(holds.EventHoldRejected, before(time.Millisecond), holds.HoldRejected{Reason: holds.ReasonSoldOut, SoldOut: short}), nil,
			DryRunResult{"already answered", "hold.rejected", "sold_out", "0 s ago, about hold " + id.String()}, ""},
		"cancelled before the request": {outcome(holds.EventHoldRejected, before(time.Hour), holds.HoldRejected{Reason: holds.ReasonCancelled, Message: "m"}), nil,
			DryRunResult{"would be refused: cancelled", "hold.rejected", "cancelled", "m"}, ""},
		"invalid": {outcome(holds.EventHoldRejected, holds.Time{}, holds.HoldRejected{Reason: holds.ReasonInvalidRequest, Message: "check_in: has passed"}), nil,
			DryRunResult{"would be refused: invalid_request", "hold.rejected", "invalid_request", "check_in: has passed"}, ""},
		"paid": {outcome(holds.EventHoldConfirmed, now, holds.HoldConfirmed{}), nil, DryRunResult{"would confirm", "hold.confirmed", "", ""}, ""},
		"paid late": {outcome(holds.EventHoldConfirmed, now, holds.HoldConfirmed{Late: true}), nil,
			DryRunResult{"would confirm late", "hold.confirmed", "", "the hold has expired, and its slots are free"}, ""},
		"paid too late": {outcome(holds.EventConfirmRejected, now, holds.ConfirmRejected{Reason: holds.ReasonExpired}), &expiredAt,
			DryRunResult{"hold expired 3 h ago", "hold.confirm_rejected", "expired", "the payment would have to be refunded"}, "hold expired"},
		"paid too late, expiry time unknown": {outcome(holds.EventConfirmRejected, now, holds.ConfirmRejected{Reason: holds.ReasonExpired}), nil,
			DryRunResult{"hold expired", "hold.confirm_rejected", "expired", "the payment would have to be refunded"}, ""},
		"refused payment": {outcome(holds.EventConfirmRejected, before(49*time.Hour), holds.ConfirmRejected{Reason: holds.ReasonExpired}), &expiredAt,
			DryRunResult{"already answered", "hold.confirm_rejected", "expired", "2 days ago, about hold " + id.String()}, ""},
		"paid twice": {outcome(holds.EventConfirmRejected, now, holds.ConfirmRejected{Reason: holds.ReasonAlreadyConfirmed}), nil,
			DryRunResult{"hold is already paid", "hold.confirm_rejected", "already_confirmed", "the payment would have to be refunded"}, ""},
		"unknown hold": {outcome(holds.EventConfirmRejected, now, holds.ConfirmRejected{Reason: holds.ReasonUnknownHold}), nil,
			DryRunResult{"unknown hold", "hold.confirm_rejected", "unknown_hold", "the payment would have to be refunded"}, ""},
		"extended": {outcome(holds.EventHoldExtended, now, holds.HoldExtended{ExpiresAt: later}), nil,
			DryRunResult{"would extend", "hold.extended", "", "until 2027-05-01T12:10:00.000Z"}, ""},
		"extended too far": {outcome(holds.EventExtensionRejected, now, holds.ExtensionRejected{Reason: holds.ReasonLimitReached}), nil,
			DryRunResult{"would be refused: limit_reached", "hold.extension_rejected", "limit_reached", ""}, ""},
		"extended too late": {outcome(holds.EventExtensionRejected, holds.Time{}, holds.ExtensionRejected{Reason: holds.ReasonExpired}), &expiredAt,
			DryRunResult{"hold expired 3 h ago", "hold.extension_rejected", "expired", ""}, "hold expired"},
		"released": {outcome(holds.EventHoldReleased, now, holds.HoldReleased{}), nil, DryRunResult{"would release", "hold.released", "", ""}, ""},
		"released again": {outcome(holds.EventReleaseRejected, holds.Time{}, holds.ReleaseRejected{Reason: holds.ReasonReleased}), nil,
			DryRunResult{"hold was released", "hold.release_rejected", "released", ""}, ""},
		"released after it was paid": {outcome(holds.EventReleaseRejected, holds.Time{}, holds.ReleaseRejected{Reason: holds.ReasonConfirmed}), nil,
			DryRunResult{"hold is already paid", "hold.release_rejected", "confirmed", ""}, ""},
		"cancelled by key": {outcome(holds.EventBookingCancelled, holds.Time{}, holds.BookingCancelled{}), nil,
			DryRunResult{"would cancel", "booking.cancelled", "", "no request has this key; a later one will be refused"}, ""},
		"reservation cancelled": {outcome(holds.EventReservationCancelled, now, holds.ReservationCancelled{}), nil,
			DryRunResult{"would cancel the reservation", "reservation.cancelled", "", ""}, ""},
		"reservation unknown": {outcome(holds.EventCancelRejected, now, holds.CancelRejected{Reason: holds.ReasonUnknownReservation}), nil,
			DryRunResult{"would be refused: unknown_reservation", "reservation.cancel_rejected", "unknown_reservation", ""}, ""},
		"capacity": {outcome(holds.EventInventoryUpdated, holds.Time{}, holds.InventoryUpdated{}), nil, DryRunResult{"would set the capacity", "inventory.updated", "", "also of slots whose capacity was set since: publisher inventory show has it"}, ""},
		"capacity too low": {outcome(holds.EventInventoryRejected, holds.Time{}, holds.InventoryRejected{Reason: holds.ReasonBelowReserved, Field: "capacity"}), nil,
			DryRunResult{"would be refused: below_reserved", "inventory.rejected", "below_reserved", "capacity"}, ""},

		"malformed":  {failed(&UnprocessableError{ReasonMalformed, "data.quantity: want\x1b"}), nil, DryRunResult{"still malformed", "", "malformed", "data.quantity: want?"}, ""},
		"too large":  {failed(&UnprocessableError{ReasonTooLarge, "x"}), nil, DryRunResult{"still too large", "", "too_large", "x"}, ""},
		"of no type": {failed(&UnprocessableError{ReasonUnknownType, "x"}), nil, DryRunResult{"still of an unknown type", "", "unknown_type", "x"}, ""},
		"misplaced":  {failed(&UnprocessableError{ReasonSubjectMismatch, "x"}), nil, DryRunResult{"still on the wrong subject", "", "subject_mismatch", "x"}, ""},
		"a panic":    {failed(&panicError{"x"}), nil, DryRunResult{"still fails", "", "poison", "panic: x"}, ""},
		"rejected":   {failed(fmt.Errorf("place: %w", postgres.WrapError(&pgconn.PgError{Code: "22021", Message: "m"}))), nil, DryRunResult{"still fails", "", "poison", "place: : m (SQLSTATE 22021)"}, ""},
		"busy": {failed(fmt.Errorf("release: %w", holds.ErrBusy)), nil,
			DryRunResult{"would have to wait", "", "", "other work on the same slots or hold is in the way; try again"}, ""},
	} {
		got, err := newDryRunResult(c.result, c.expiredAt, now)
		if err != nil || got != c.want {
			t.Errorf("%s: %v %+v, want %+v", name, err, got, c.want)
		}
		if c.kind == "" {
			c.kind = c.want.Text
		}
		if got.Label() != c.kind {
			t.Errorf("%s: kind %q, want %q", name, got.Label(), c.kind)
		}
	}
	for _, err := range []error{holds.ErrDataLost, errors.New("connection refused")} {
		if v, got := newDryRunResult(failed(err), nil, now); !errors.Is(got, err) {
			t.Errorf("an outage has the result %+v, %v", v, got)
		}
	}
}

// TestHumanize_Durations_InLargestUnit formats durations.
func TestHumanize_Durations_InLargestUnit(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "0 s", 900 * time.Millisecond: "0 s", 59 * time.Second: "59 s", time.Minute: "1 min", 119 * time.Minute: "1 h", 61 * time.Minute: "1 h",
		47 * time.Hour: "47 h", 49 * time.Hour: "2 days",
	} {
		if got := Humanize(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}

// fakeDryRunner is a DryRunner. Its clock stands still, and it refuses payments as too late.
type fakeDryRunner struct {
	*echo
	down bool // Redis is down
}

var fakeNow = holds.Time{Time: time.Date(2027, 5, 1, 12, 0, 0, 0, time.UTC)}

func (d *fakeDryRunner) Now(context.Context) (holds.Time, error) {
	if d.down {
		return holds.Time{}, holds.ErrDataLost
	}
	return fakeNow, nil
}

func (d *fakeDryRunner) Confirm(_ context.Context, requests []holds.ConfirmRequest) []holds.Result {
	results := make([]holds.Result, len(requests))
	for i, r := range requests {
		results[i] = holds.Result{Outcome: holds.Outcome{
			Event: holds.EventConfirmRejected, Resource: r.Hold.Resource, Hold: r.Hold, At: fakeNow, Data: holds.ConfirmRejected{Reason: holds.ReasonExpired},
		}}
	}
	return results
}

func (d *fakeDryRunner) GetHold(_ context.Context, id holds.HoldID) (holds.HoldView, bool, error) {
	return holds.HoldView{HoldID: id, ExpiresAt: holds.Time{Time: fakeNow.Add(-3 * time.Hour)}}, id.Resource == "room", nil
}

// TestDryRun_EachEvent_ReportsOutcome runs events dry, with the code that decides them.
func TestDryRun_EachEvent_ReportsOutcome(t *testing.T) {
	t.Parallel()
	dry := &fakeDryRunner{echo: &echo{seen: make(map[string]int)}}
	dry.setFault(func(key string, _ int) error {
		switch key {
		case "bug":
			panic("a bug")
		case "outage":
			return context.DeadlineExceeded
		}
		return nil
	})
	dryRun := func(subject string, header nats.Header, body string) (DryRunResult, error) {
		return ns.DryRun(t.Context(), dry, &nats.Msg{Subject: subject, Header: header, Data: []byte(body)}, zerolog.Nop())
	}
	type event struct {
		subject, body string
		header        nats.Header
	}
	message := func(subject, body string) event { return event{subject, body, nats.Header{"traceparent": {"t"}}} }
	binary := message(onPayment, `{"hold_id":"`+holdID+`","payment_id":"p"}`)
	binary.header = nats.Header{
		"Content-Type": {"application/json"}, "ce-specversion": {"1.0"}, "ce-id": {"e%201"}, "ce-source": {"/s"}, "ce-type": {"holdfast.payment.confirmed.v1"},
	}
	for name, c := range map[string]struct {
		m    event
		want DryRunResult
	}{
		"decided":      {message(onRequest, keyed("k")), DryRunResult{"would be refused: echo", "hold.rejected", "echo", "k"}},
		"expired":      {binary, DryRunResult{"hold expired 3 h ago", "hold.confirm_rejected", "expired", "the payment would have to be refunded"}},
		"malformed":    {message(onRequest, "no JSON"), DryRunResult{"still malformed", "", "malformed", "body: not one JSON text in UTF-8, at byte 1"}},
		"misplaced":    {message("holdfast.in.booking.requested.hall", keyed("k")), DryRunResult{"still on the wrong subject", "", "subject_mismatch", "the event belongs on " + ns.In(BookingRequested, "room")}},
		"too large":    {message(onRequest, strings.Repeat("x", BodyMax+1)), DryRunResult{"still too large", "", "too_large", "the body is larger than 64 KiB"}},
		"a bug":        {message(onRequest, keyed("bug")), DryRunResult{"still fails", "", "poison", "panic: a bug"}},
		"no subject":   {message("", keyed("k")), DryRunResult{"still on the wrong subject", "", "subject_mismatch", "the event belongs on " + ns.In(BookingRequested, "room")}},
		"not ours yet": {message(onRequest, strings.Replace(keyed("k"), ".v1", ".v2", 1)), DryRunResult{"still of an unknown type", "", "unknown_type", "type: must be holdfast.<event>.v1 such as holdfast.booking.requested.v1, found another type: the events are booking.cancelled, booking.extended, booking.requested, inventory.set, payment.confirmed, payment.started, reservation.cancelled"}},
	} {
		if got, err := dryRun(c.m.subject, c.m.header, c.m.body); err != nil || got != c.want {
			t.Errorf("%s: %v %+v, want %+v", name, err, got, c.want)
		}
	}
	if v, err := dryRun(onRequest, nil, keyed("outage")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("in an outage: %v %+v", err, v)
	}
	dry.down = true
	if v, err := dryRun(onRequest, nil, ""); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("after data loss: %v %+v", err, v)
	}
}
