package events

import (
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/holds"
)

// BookingRequestedData is the data of booking.requested.
type BookingRequestedData struct {
	RequestKey string `json:"request_key"` // 1 to 128 printable ASCII characters without space
	UserID     string `json:"user_id"`     // 1 to 128 printable ASCII characters without space
	ResourceID string `json:"resource_id"`
	holds.SlotSelection
	Quantity   int64          `json:"quantity"`             // 1 to 1,000,000 of each slot
	TTLSeconds *int64         `json:"ttl_seconds,omitzero"` // default: the worker's hold TTL
	Metadata   jsontext.Value `json:"metadata,omitzero"`    // an object of at most 4 KiB
}

// BookingCancelledData is the data of booking.cancelled: a hold, or a resource and a request key.
type BookingCancelledData struct {
	HoldID     string `json:"hold_id,omitzero"`
	ResourceID string `json:"resource_id,omitzero"`
	RequestKey string `json:"request_key,omitzero"`
}

// BookingExtendedData is the data of booking.extended.
type BookingExtendedData struct {
	HoldID     string `json:"hold_id"`
	TTLSeconds int64  `json:"ttl_seconds"` // from the decision on
}

// PaymentStartedData is the data of payment.started.
type PaymentStartedData struct {
	HoldID string `json:"hold_id"`
}

// ReservationCancelledData is the data of reservation.cancelled.
type ReservationCancelledData struct {
	HoldID string `json:"hold_id"` // of the hold that became the reservation
	Reason string `json:"reason,omitzero"`
}

// PaymentConfirmedData is the data of payment.confirmed.
type PaymentConfirmedData struct {
	HoldID    string `json:"hold_id"`
	PaymentID string `json:"payment_id"`      // 1 to 128 printable ASCII characters without space
	Amount    string `json:"amount,omitzero"` // decimal
	Currency  string `json:"currency,omitzero"`
}

// InventorySetData is the data of inventory.set.
type InventorySetData struct {
	ResourceID string `json:"resource_id"`
	holds.SlotSelection
	Capacity int64 `json:"capacity"`
}

// MessageID returns the Nats-Msg-Id of an inbound event. It contains the source, because the id of
// an event is unique within its source only. JetStream drops a message whose Nats-Msg-Id it has
// stored within the duplicate window.
func MessageID(source, id string) string { return source + "#" + id }
