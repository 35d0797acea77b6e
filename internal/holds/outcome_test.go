package holds_test

import (
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestOutcomeData_EachEvent_MarshalsExactly checks the exact JSON of the data of every outbound
// event: the names of the members, null and absent members, and three digits in every time.
func TestOutcomeData_EachEvent_MarshalsExactly(t *testing.T) {
	t.Parallel()
	id, err := holds.ParseHoldID("room.0192f5c4d0b07cc3a5d0f2f5a1b2c3d4")
	stacktest.Must(t, err)
	at := holds.TimeFromMillis(time.Date(2026, 11, 21, 9, 0, 0, 120_000_000, time.UTC).UnixMilli())
	whole := holds.Time{Time: at.Truncate(time.Second)}
	quantity, none := int64(2), int64(0)
	nights := holds.HoldData{
		ResourceID: "room", HoldID: id, RequestKey: "k", UserID: "u", Quantity: &quantity,
		SlotSelection: holds.SlotSelection{CheckIn: "2026-12-01", CheckOut: "2026-12-03"}, Metadata: []byte(`{"a":1}`),
	}
	slotsHold := nights
	slotsHold.HoldID, slotsHold.SlotSelection, slotsHold.Metadata = holds.HoldID{}, holds.SlotSelection{Slots: []string{"A-2", "A-1"}}, nil
	stockHold := slotsHold
	stockHold.SlotSelection, stockHold.Quantity = holds.SlotSelection{}, &none
	bare := holds.HoldData{ResourceID: "room", HoldID: id}
	const (
		hold     = `"resource_id":"room","hold_id":"room.0192f5c4d0b07cc3a5d0f2f5a1b2c3d4"`
		ofNights = hold + `,"request_key":"k","user_id":"u","check_in":"2026-12-01","check_out":"2026-12-03","quantity":2,"metadata":{"a":1}`
		ofSlots  = `"resource_id":"room","request_key":"k","user_id":"u","slots":["A-2","A-1"],"quantity":2`
		ofStock  = `"resource_id":"room","request_key":"k","user_id":"u","quantity":0`
	)
	for want, data := range map[string]any{
		`{` + ofNights + `,"created_at":"2026-11-21T09:00:00.120Z","expires_at":"2026-11-21T09:00:00.000Z"}`:                 holds.HoldCreated{HoldData: nights, CreatedAt: at, ExpiresAt: whole},
		`{` + ofNights + `,"created_at":"2026-11-21T09:00:00.120Z","expires_at":"2026-11-21T09:00:00.000Z","replayed":true}`: holds.HoldCreated{HoldData: nights, CreatedAt: at, ExpiresAt: whole, Replayed: true},
		`{` + ofSlots + `,"reason":"hold_limit","message":"m"}`:                                                              holds.HoldRejected{HoldData: slotsHold, Reason: holds.ReasonHoldLimit, Message: "m"},
		`{` + ofNights + `,"reason":"already_holding","message":"m"}`:                                                        holds.HoldRejected{HoldData: nights, Reason: holds.ReasonAlreadyHolding, Message: "m"},
		`{` + ofStock + `,"reason":"invalid_request","message":"m","field":"quantity"}`:                                      holds.HoldRejected{HoldData: stockHold, Reason: holds.ReasonInvalidRequest, Message: "m", Field: "quantity"},
		`{` + ofSlots + `,"reason":"sold_out","message":"m","unavailable":[{"slot":"A-1","capacity":1,"reserved":0,"held":1}],"retry_at":"2026-11-21T09:00:00.120Z"}`: holds.HoldRejected{
			HoldData: slotsHold, Reason: holds.ReasonSoldOut, Message: "m",
			SoldOut: &holds.SoldOut{Unavailable: []holds.SlotCounts{{Slot: "A-1", Capacity: 1, Held: 1}}, RetryAt: &at},
		},
		`{` + ofSlots + `,"reason":"sold_out","message":"m","unavailable":[{"slot":"A-1","capacity":1,"reserved":1,"held":0}],"retry_at":null,"replayed":true}`: holds.HoldRejected{
			HoldData: slotsHold, Reason: holds.ReasonSoldOut, Message: "m", Replayed: true,
			SoldOut: &holds.SoldOut{Unavailable: []holds.SlotCounts{{Slot: "A-1", Capacity: 1, Reserved: 1}}},
		},
		`{` + ofNights + `,"released_at":"2026-11-21T09:00:00.120Z"}`:                                         holds.HoldReleased{HoldData: nights, ReleasedAt: at},
		`{` + hold + `,"reason":"unknown_hold"}`:                                                              holds.ReleaseRejected{HoldData: bare, Reason: holds.ReasonUnknownHold},
		`{` + ofNights + `,"expires_at":"2026-11-21T09:00:00.000Z","restored_at":"2026-11-21T09:00:00.120Z"}`: holds.HoldExpired{HoldData: nights, ExpiresAt: whole, RestoredAt: at},
		`{` + ofNights + `,"payment_id":"p","confirmed_at":"2026-11-21T09:00:00.120Z"}`:                       holds.HoldConfirmed{HoldData: nights, PaymentID: "p", ConfirmedAt: at},
		`{` + hold + `,"payment_id":"p","reason":"unknown_hold","refund_required":true}`:                      holds.ConfirmRejected{HoldData: bare, PaymentID: "p", Reason: holds.ReasonUnknownHold, RefundRequired: true},
		`{"resource_id":"room","request_key":"k"}`:                                                            holds.BookingCancelled{ResourceID: "room", RequestKey: "k"},
		`{"resource_id":"room","slots":[{"slot":"A-1","capacity":2,"reserved":1,"held":1}]}`:                  holds.InventoryUpdated{ResourceID: "room", Slots: []holds.SlotCounts{{Slot: "A-1", Capacity: 2, Reserved: 1, Held: 1}}},
		`{"resource_id":"room","reason":"invalid_request","field":"capacity"}`:                                holds.InventoryRejected{ResourceID: "room", Reason: holds.ReasonInvalidRequest, Field: "capacity"},
	} {
		got, err := json.Marshal(data)
		if err != nil || string(got) != want {
			t.Errorf("%T: %v\n\tgot  %s\n\twant %s", data, err, got, want)
		}
	}
	var back holds.Time
	if err := json.Unmarshal([]byte(`"2026-11-21T09:00:00.120Z"`), &back); err != nil || back != at {
		t.Errorf("parsed as %v: %v", back, err)
	}
	if err := json.Unmarshal([]byte(`"2026-11-21T09:00:00Z"`), &back); err == nil {
		t.Errorf("a time without milliseconds was accepted")
	}
}
