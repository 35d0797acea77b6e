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

// The reasons of dead letters, in the order in which they are checked.
const (
	ReasonTooLarge        = "too_large"
	ReasonMalformed       = "malformed"
	ReasonUnknownType     = "unknown_type"
	ReasonSubjectMismatch = "subject_mismatch"
	ReasonPoison          = "poison"
)

// DeadLetterReasons returns the reasons of dead letters, in the order in which they are checked.
func DeadLetterReasons() []string {
	return []string{ReasonTooLarge, ReasonMalformed, ReasonUnknownType, ReasonSubjectMismatch, ReasonPoison}
}

// Namespace is the name of a namespace. Its methods return the names of its subjects and streams.
type Namespace string

// InStream, OutStream, DLQStream and RunsStream return the names of the streams.
func (ns Namespace) InStream() string   { return strings.ToUpper(string(ns)) + "_IN" }
func (ns Namespace) OutStream() string  { return strings.ToUpper(string(ns)) + "_OUT" }
func (ns Namespace) DLQStream() string  { return strings.ToUpper(string(ns)) + "_DLQ" }
func (ns Namespace) RunsStream() string { return strings.ToUpper(string(ns)) + "_RUNS" }

// streams returns the names of the streams by the second token of their subjects, which is also the label stream.
func (ns Namespace) streams() map[string]string {
	return map[string]string{"in": ns.InStream(), "out": ns.OutStream(), "dlq": ns.DLQStream(), "runs": ns.RunsStream()}
}

// In returns the subject of an inbound event of a resource. The resource ">" matches all.
func (ns Namespace) In(event, resource string) string {
	return string(ns) + ".in." + event + "." + resource
}

// Out returns the subject of an outbound event of a resource.
func (ns Namespace) Out(event, resource string) string {
	return string(ns) + ".out." + event + "." + resource
}

// DLQ returns the subject of dead letters with a reason.
func (ns Namespace) DLQ(reason string) string { return string(ns) + ".dlq." + reason }

// Run returns the subject of the records of a run over dead letters.
func (ns Namespace) Run(id string) string { return string(ns) + ".runs." + id }

// Service returns the subject of an endpoint of the query service.
func (ns Namespace) Service(endpoint string) string { return string(ns) + ".svc." + endpoint }

// AllIn, AllOut, AllDLQ and AllRuns return the filters that match all subjects of a stream.
func (ns Namespace) AllIn() string   { return string(ns) + ".in.>" }
func (ns Namespace) AllOut() string  { return string(ns) + ".out.>" }
func (ns Namespace) AllDLQ() string  { return string(ns) + ".dlq.>" }
func (ns Namespace) AllRuns() string { return string(ns) + ".runs.>" }

// The beginning and the end of each CloudEvents type.
const (
	typePrefix  = "holdfast."
	typeVersion = ".v1"
)

// Type returns the CloudEvents type of an event.
func Type(event string) string { return typePrefix + event + typeVersion }

// EventOf returns the event of a CloudEvents type, and false if the type is not one of Holdfast's.
func EventOf(ceType string) (string, bool) {
	event, ours := strings.CutPrefix(ceType, typePrefix)
	if !ours {
		return "", false
	}
	return strings.CutSuffix(event, typeVersion)
}
