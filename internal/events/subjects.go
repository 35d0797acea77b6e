package events

import "strings"

// The inbound events.
const (
	BookingRequested     = "booking.requested"
	BookingExtended      = "booking.extended"
	BookingCancelled     = "booking.cancelled"
	PaymentStarted       = "payment.started"
	PaymentConfirmed     = "payment.confirmed"
	ReservationCancelled = "reservation.cancelled"
	InventorySet         = "inventory.set"
)

// The reasons of dead letters, in the order in which they are found.
const (
	ReasonTooLarge        = "too_large"
	ReasonMalformed       = "malformed"
	ReasonUnknownType     = "unknown_type"
	ReasonSubjectMismatch = "subject_mismatch"
	ReasonPoison          = "poison"
)

// Namespace builds every subject and stream name, for the namespace that it is.
type Namespace string

// InStream, OutStream, DLQStream and RunsStream are the names of the streams.
func (ns Namespace) InStream() string   { return strings.ToUpper(string(ns)) + "_IN" }
func (ns Namespace) OutStream() string  { return strings.ToUpper(string(ns)) + "_OUT" }
func (ns Namespace) DLQStream() string  { return strings.ToUpper(string(ns)) + "_DLQ" }
func (ns Namespace) RunsStream() string { return strings.ToUpper(string(ns)) + "_RUNS" }

// In is the subject of an inbound event about a resource; ">" as the resource means any.
func (ns Namespace) In(event, resource string) string {
	return string(ns) + ".in." + event + "." + resource
}

// Out is the subject of an outbound event about a resource.
func (ns Namespace) Out(event, resource string) string {
	return string(ns) + ".out." + event + "." + resource
}

// DLQ is the subject of dead letters with a reason.
func (ns Namespace) DLQ(reason string) string { return string(ns) + ".dlq." + reason }

// Run is the subject of the records of a run over dead letters.
func (ns Namespace) Run(id string) string { return string(ns) + ".runs." + id }

// Service is the subject of an endpoint of the service that answers queries.
func (ns Namespace) Service(endpoint string) string { return string(ns) + ".svc." + endpoint }

// AllIn, AllOut, AllDLQ and AllRuns cover a stream.
func (ns Namespace) AllIn() string   { return string(ns) + ".in.>" }
func (ns Namespace) AllOut() string  { return string(ns) + ".out.>" }
func (ns Namespace) AllDLQ() string  { return string(ns) + ".dlq.>" }
func (ns Namespace) AllRuns() string { return string(ns) + ".runs.>" }

// Type is the CloudEvents type of an event.
func Type(event string) string { return "holdfast." + event + ".v1" }

// EventOf is the event of a CloudEvents type, or false when it is none of ours.
func EventOf(ceType string) (string, bool) {
	event, ours := strings.CutPrefix(ceType, "holdfast.")
	if !ours {
		return "", false
	}
	return strings.CutSuffix(event, ".v1")
}
