package events

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"holdfast/internal/holds"
)

// BookingRequestedData is the data of booking.requested.
type BookingRequestedData struct {
	RequestKey string `json:"request_key"` // 1 to 128 printable ASCII characters without space
	UserID     string `json:"user_id"`     // likewise
	ResourceID string `json:"resource_id"`
	holds.SlotSelection
	Quantity   int64          `json:"quantity"`             // 1 to 1,000,000 of each slot
	TTLSeconds *int64         `json:"ttl_seconds,omitzero"` // nil = the worker's default
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
	TTLSeconds int64  `json:"ttl_seconds"` // from now on
}

// PaymentStartedData is the data of payment.started.
type PaymentStartedData struct {
	HoldID string `json:"hold_id"`
}

// ReservationCancelledData is the data of reservation.cancelled.
type ReservationCancelledData struct {
	HoldID string `json:"hold_id"` // that the reservation was made of
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

// Request is an inbound event to be published.
type Request struct {
	Subject  string
	Envelope Envelope
}

// NewRequest returns a new event about a resource, with an id of its own. source says who
// publishes it, as a URI reference.
func (ns Namespace) NewRequest(event, resource, source string, data any) (Request, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Request{}, fmt.Errorf("new event id: %w", err)
	}
	encoded, err := json.Marshal(data)
	if err != nil {
		return Request{}, fmt.Errorf("encode %s: %w", event, err)
	}
	return Request{ns.In(event, resource), Envelope{
		SpecVersion: "1.0", ID: id.String(), Source: source, Type: Type(event),
		DataContentType: contentTypeJSON, Data: encoded,
	}}, nil
}

// Message returns the NATS message of a request, in structured mode.
func (r Request) Message() (*nats.Msg, error) {
	return message(r.Subject, MessageID(r.Envelope.Source, r.Envelope.ID), r.Envelope)
}

// MessageID returns the Nats-Msg-Id of an inbound event. The id of an event is unique within its source
// only, and JetStream drops a message whose Nats-Msg-Id it has just stored.
func MessageID(source, id string) string { return source + "#" + id }
