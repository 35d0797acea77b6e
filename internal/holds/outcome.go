package holds

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/record"
)

// The outbound events.
const (
	EventHoldCreated          = "hold.created"
	EventHoldRejected         = "hold.rejected"
	EventHoldExtended         = "hold.extended"
	EventExtensionRejected    = "hold.extension_rejected"
	EventHoldReleased         = "hold.released"
	EventReleaseRejected      = "hold.release_rejected"
	EventHoldExpired          = "hold.expired"
	EventHoldConfirmed        = "hold.confirmed"
	EventConfirmRejected      = "hold.confirm_rejected"
	EventReservationCancelled = "reservation.cancelled"
	EventCancelRejected       = "reservation.cancel_rejected"
	EventInventoryUpdated     = "inventory.updated"
	EventInventoryRejected    = "inventory.rejected"
	EventBookingCancelled     = "booking.cancelled"
)

// The reasons of the rejecting events.
const (
	ReasonInvalidRequest     = "invalid_request"
	ReasonKeyReused          = "request_key_reused"
	ReasonCancelled          = "cancelled"
	ReasonAlreadyHolding     = "already_holding"
	ReasonHoldLimit          = "hold_limit"
	ReasonUnknownResource    = "unknown_resource"
	ReasonSoldOut            = "sold_out"
	ReasonLimitReached       = "limit_reached"
	ReasonAlreadyStarted     = "already_started"
	ReasonExpired            = "expired"
	ReasonReleased           = "released"
	ReasonConfirmed          = "confirmed"
	ReasonUnknownHold        = "unknown_hold"
	ReasonAlreadyConfirmed   = "already_confirmed"
	ReasonUnknownReservation = "unknown_reservation"
	ReasonAlreadyCancelled   = "already_cancelled"
	ReasonBelowReserved      = "below_reserved"
)

// Outcome is the one answer to an inbound event, or the expiry of a hold. A redelivered event gets
// the same outcome.
type Outcome struct {
	Event           string // one of the Event constants
	Resource        string
	Hold            HoldID // zero when the outcome concerns no hold
	At              Time   // when it was decided; zero when that is not remembered
	Data            OutcomeData
	RebuildMetadata RebuildMetadata
}

// RebuildMetadata contains what Redis or Postgres stores with an outcome in addition to its data. It is
// published with the outcome, so that both can be restored from the outbound stream.
type RebuildMetadata struct {
	Fingerprint  string // of a request's content; "" when its answer is not remembered
	FirstEventID string // the event that got this answer first; "" when this event did
	Started      bool   // the extension answered a payment.started

	// What Postgres stores in addition, for the case that it loses commits.
	Amount, Currency string         // of a payment; "" when it has none
	Position         StreamPosition // of an inventory.set; zero for other events
}

// StoredOutcome is an outcome as it was stored.
type StoredOutcome struct {
	Outcome
	ID       string // of the CloudEvent of the outcome; requests name it EventID
	StoredAt Time
}

// LogPosition is a position in the outbound stream: when the stream was created, which distinguishes
// it from another one of the same name, and the sequence of an outcome. StoredAt is when that outcome was stored, zero
// when that is not known. A stream whose older state was restored stores other outcomes, later, under the same sequences.
type LogPosition struct {
	Created  time.Time
	Seq      uint64
	StoredAt time.Time
}

// SameStream reports whether two positions are of the same stream. Postgres stores microseconds.
func (p LogPosition) SameStream(other LogPosition) bool {
	return p.Created.UnixMicro() == other.Created.UnixMicro()
}

// HoldData contains the members that every outcome of a hold has.
type HoldData struct {
	ResourceID string `json:"resource_id"`
	HoldID     HoldID `json:"hold_id,omitzero"`
	RequestKey string `json:"request_key,omitzero"`
	UserID     string `json:"user_id,omitzero"`
	SlotSelection
	Quantity *int64         `json:"quantity,omitzero"` // nil when no hold is known
	Metadata jsontext.Value `json:"metadata,omitzero"`
}

// HoldCreated is the data of hold.created.
type HoldCreated struct {
	HoldData
	CreatedAt Time `json:"created_at"`
	ExpiresAt Time `json:"expires_at"`
	Replayed  bool `json:"replayed,omitzero"` // another event got this answer first
}

// HoldRejected is the data of hold.rejected. HoldID is set only for already_holding, to the
// existing hold.
type HoldRejected struct {
	HoldData
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Field   string `json:"field,omitzero"` // of invalid_request
	*SoldOut
	Replayed bool `json:"replayed,omitzero"`
}

// SoldOut contains the additional members of a hold.rejected with the reason sold_out.
type SoldOut struct {
	Unavailable []SlotCounts `json:"unavailable"`
	RetryAt     *Time        `json:"retry_at"` // earliest deadline that may free enough; nil when none can
}

// SlotCounts contains the numbers of one slot.
type SlotCounts = record.SlotCounts

// HoldExtended is the data of hold.extended.
type HoldExtended struct {
	HoldData
	ExtendedAt Time `json:"extended_at"`
	ExpiresAt  Time `json:"expires_at"` // the deadline, which never becomes earlier
}

// ExtensionRejected is the data of hold.extension_rejected. Nothing was changed.
type ExtensionRejected struct {
	HoldData
	Reason string `json:"reason"`
	Field  string `json:"field,omitzero"` // of invalid_request
}

// HoldReleased is the data of hold.released.
type HoldReleased struct {
	HoldData
	ReleasedAt Time `json:"released_at"`
}

// HoldExpired is the data of hold.expired.
type HoldExpired struct {
	HoldData
	ExpiresAt  Time `json:"expires_at"`  // the deadline
	RestoredAt Time `json:"restored_at"` // when the counts were restored
}

// HoldConfirmed is the data of hold.confirmed.
type HoldConfirmed struct {
	HoldData
	PaymentID   string `json:"payment_id"`
	ConfirmedAt Time   `json:"confirmed_at"`  // the moment of the claim
	Late        bool   `json:"late,omitzero"` // the hold had expired, and its slots were still free
}

// ConfirmRejected is the data of hold.confirm_rejected.
type ConfirmRejected struct {
	HoldData
	PaymentID      string `json:"payment_id"`
	Reason         string `json:"reason"`
	RefundRequired bool   `json:"refund_required"` // always true
}

// ReleaseRejected is the data of hold.release_rejected.
type ReleaseRejected struct {
	HoldData
	Reason string `json:"reason"`
}

// ReservationCancelled is the data of reservation.cancelled.
type ReservationCancelled struct {
	HoldData
	CancelledAt Time `json:"cancelled_at"` // read after the capacity was given back
}

// CancelRejected is the data of reservation.cancel_rejected.
type CancelRejected struct {
	HoldData
	Reason string `json:"reason"`
}

// BookingCancelled is the data of booking.cancelled: no request with this key was received, and a
// later one is rejected.
type BookingCancelled struct {
	ResourceID string `json:"resource_id"`
	RequestKey string `json:"request_key"`
}

// InventoryUpdated is the data of inventory.updated.
type InventoryUpdated struct {
	ResourceID string       `json:"resource_id"`
	Slots      []SlotCounts `json:"slots"`
}

// InventoryRejected is the data of inventory.rejected.
type InventoryRejected struct {
	ResourceID string `json:"resource_id"`
	Reason     string `json:"reason"`
	Field      string `json:"field,omitzero"`
}
