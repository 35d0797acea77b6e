package events

import (
	"cmp"
	"maps"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/holds"
	"holdfast/internal/members"
)

// Inbound is a valid inbound event.
type Inbound struct {
	ID          string // from the publisher, unique within the source
	Source      string
	OutcomeID   string
	TraceParent string

	Event    string // like BookingRequested
	Resource string

	// Request is a *holds.PlaceRequest, ExtendRequest, ReleaseRequest, ConfirmRequest, CancelRequest or
	// InventoryRequest.
	Request any
}

// UnprocessableError is the error of an event that can never be processed. The event gets a dead
// letter.
type UnprocessableError struct {
	Reason string // ReasonTooLarge, ReasonMalformed, ReasonUnknownType or ReasonSubjectMismatch
	Detail string // for the dead letter
}

func unprocessable(reason, detail string) error { return &UnprocessableError{reason, OneLine(detail)} }

func (e *UnprocessableError) Error() string { return e.Reason + ": " + e.Detail }

// Decode decodes and validates an inbound event that JetStream stored at storedAt. Every error is
// an *UnprocessableError, the first one that applies.
func (ns Namespace) Decode(subject string, header nats.Header, body []byte, storedAt time.Time) (*Inbound, error) {
	in, err := DecodeEvent(header, body, storedAt)
	if err != nil {
		return nil, err
	}
	if want := ns.In(in.Event, in.Resource); subject != want {
		return nil, unprocessable(ReasonSubjectMismatch, "the event belongs on "+want)
	}
	return in, nil
}

// DecodeEvent is Decode without a check of the subject, for an event that is not published yet.
func DecodeEvent(header nats.Header, body []byte, storedAt time.Time) (*Inbound, error) {
	if len(body) > BodyMax {
		return nil, unprocessable(ReasonTooLarge, "the body is larger than 64 KiB")
	}
	envelope, binary, err := decodeEnvelope(header, body)
	if err != nil {
		return nil, unprocessable(ReasonMalformed, err.Error())
	}
	event, ours := EventOf(envelope.Type)
	decode, known := decoders[event]
	if !ours || !known {
		return nil, unprocessable(ReasonUnknownType, unknownType())
	}
	in := &Inbound{
		ID:          envelope.ID,
		Source:      envelope.Source,
		TraceParent: traceParent(header),
		Event:       event,
	}
	data, _ := members.Parse("data", envelope.Data) // decodeEnvelope has found it valid
	r := members.NewReader(data)
	in.Request, in.Resource = decode(r)
	if err := r.Err(); err != nil {
		if r.Has("specversion") && r.Has("data") {
			return nil, unprocessable(ReasonMalformed, "data: must be the event's data alone, found a whole CloudEvent in it")
		}
		return nil, unprocessable(ReasonMalformed, "data."+err.Error())
	}
	var besides []string
	if binary {
		besides = []string{envelope.Type, in.Resource}
	}
	in.OutcomeID = outcomeID(envelope.Source, envelope.ID, body, besides...)
	in.identify(storedAt)
	return in, nil
}

// identify sets the event id of the request, and when the event was stored.
func (in *Inbound) identify(storedAt time.Time) {
	switch r := in.Request.(type) {
	case *holds.PlaceRequest:
		r.EventID, r.StoredAt = in.OutcomeID, storedAt
	case *holds.ExtendRequest:
		r.EventID, r.StoredAt = in.OutcomeID, storedAt
	case *holds.ReleaseRequest:
		r.EventID = in.OutcomeID
	case *holds.CancelRequest:
		r.EventID = in.OutcomeID
	case *holds.InventoryRequest:
		r.EventID, r.Position.At = in.OutcomeID, storedAt
	}
}

// unknownType returns the detail of an unknown type.
func unknownType() string {
	return "type: must be holdfast.<event>.v1 such as " + Type(BookingRequested) + ", found another type: the events are " +
		strings.Join(slices.Sorted(maps.Keys(decoders)), ", ")
}

// traceParentMax is the longest traceparent that an outcome repeats, in bytes. One of version 00 has 55. A
// longer one could make the headers of an outcome too large to be stored.
const traceParentMax = 256

// traceParent returns the traceparent of an event, "" for none. Tracing libraries that use the carrier of HTTP
// headers write its name in HTTP's form.
func traceParent(header nats.Header) string {
	parent := cmp.Or(header.Get(headerTraceParent), header.Get(textproto.CanonicalMIMEHeaderKey(headerTraceParent)))
	if len(parent) > traceParentMax {
		return ""
	}
	return parent
}

// inboxMax is the longest inbox that gets a reply, in bytes. A server closes the connection of a
// client that exceeds its control line (4 KiB by default), and nats.go does not connect again.
const inboxMax = 1 << 10

// replyTo returns the inbox that gets a copy of the outcome, "" for none.
func replyTo(header nats.Header) string {
	inbox := header.Get(HeaderReplyTo)
	if !strings.HasPrefix(inbox, inboxPrefix) || len(inbox) > inboxMax || strings.ContainsAny(inbox, "*> \t\r\n") {
		return ""
	}
	return inbox
}

// decoders decode the data of each event into its request (see Inbound), and return the resource.
var decoders = map[string]func(r *members.Reader) (request any, resource string){
	BookingRequested: func(r *members.Reader) (any, string) {
		request := &holds.PlaceRequest{
			Resource:   r.Resource(),
			RequestKey: r.Name("request_key"),
			User:       r.Name("user_id"),
			Selection:  r.SlotSelection(holds.SlotsMax),
			Quantity:   r.Integer("quantity"),
			TTLSeconds: r.OptionalInteger("ttl_seconds"),
			Metadata:   r.Metadata(),
		}
		return request, request.Resource
	},
	BookingExtended: func(r *members.Reader) (any, string) {
		request := &holds.ExtendRequest{Hold: r.HoldID(), TTLSeconds: r.Integer("ttl_seconds")}
		return request, request.Hold.Resource
	},
	PaymentStarted: func(r *members.Reader) (any, string) {
		request := &holds.ExtendRequest{Hold: r.HoldID(), PaymentStarted: true}
		return request, request.Hold.Resource
	},
	BookingCancelled: func(r *members.Reader) (any, string) {
		if !r.Has("hold_id") {
			request := &holds.ReleaseRequest{Resource: r.Resource(), RequestKey: r.Name("request_key")}
			return request, request.Resource
		}
		if r.Has("request_key") {
			r.Fail("request_key", "must not be together with hold_id, found both")
		}
		hold := r.HoldID()
		return &holds.ReleaseRequest{Hold: hold, Resource: hold.Resource}, hold.Resource
	},
	PaymentConfirmed: func(r *members.Reader) (any, string) {
		request := &holds.ConfirmRequest{Hold: r.HoldID(), PaymentID: r.Name("payment_id")}
		if r.Has("amount") {
			request.Amount = r.Amount()
		}
		if r.Has("currency") {
			request.Currency = r.Name("currency")
		}
		return request, request.Hold.Resource
	},
	ReservationCancelled: func(r *members.Reader) (any, string) {
		request := &holds.CancelRequest{Hold: r.HoldID()}
		if r.Has("reason") {
			request.Reason = r.Text("reason")
		}
		return request, request.Hold.Resource
	},
	InventorySet: func(r *members.Reader) (any, string) {
		request := &holds.InventoryRequest{
			Resource:  r.Resource(),
			Selection: r.SlotSelection(holds.InventorySlotsMax),
			Capacity:  r.Integer("capacity"),
		}
		return request, request.Resource
	},
}
