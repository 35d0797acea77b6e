package events

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"

	"holdfast/internal/holds"
)

// Inbound is a valid inbound event.
type Inbound struct {
	ID                string // from the publisher, unique within the source
	Source            string
	OutcomeID         string
	previousOutcomeID string // OutcomeID as the previous version derived it; "" when that was the same
	TraceParent       string

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

func unprocessable(reason, detail string) error { return &UnprocessableError{reason, oneLine(detail)} }

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
		return nil, unprocessable(ReasonUnknownType, unknownType(envelope.Type))
	}
	in := &Inbound{
		ID:          envelope.ID,
		Source:      envelope.Source,
		TraceParent: traceParent(header),
		Event:       event,
	}
	r := &reader{members: splitObject(envelope.Data)}
	in.Request, in.Resource = decode(r)
	if r.err != nil {
		var wrong *malformedError
		_ = errors.As(r.err, &wrong) // reader has no other errors
		if r.has("specversion") && r.has("data") {
			return nil, unprocessable(ReasonMalformed, "data: must be the event's data alone, found a whole CloudEvent in it")
		}
		return nil, unprocessable(ReasonMalformed, "data."+wrong.detail)
	}
	in.OutcomeID = outcomeID(envelope.Source, envelope.ID, body)
	if binary {
		in.previousOutcomeID = in.OutcomeID
		in.OutcomeID = outcomeID(envelope.Source, envelope.ID, body, envelope.Type, in.Resource)
	}
	in.identify(storedAt)
	return in, nil
}

// outcomeIDs returns the ids that the outcome of the event may have.
func (in *Inbound) outcomeIDs() []string {
	if in.previousOutcomeID == "" {
		return []string{in.OutcomeID}
	}
	return []string{in.OutcomeID, in.previousOutcomeID}
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

// unknownType returns the detail of an unknown type, with a hint at the type that was probably
// meant.
func unknownType(given string) string {
	found := "another type"
	event, ours := strings.CutPrefix(strings.ToLower(given), "holdfast.")
	event, version := strings.CutSuffix(event, ".v1")
	_, inbound := decoders[event]
	_, otherVersion := decoders[event[:max(0, strings.LastIndexByte(event, '.'))]]
	switch {
	case inbound && ours && version:
		found = "it in other capitals"
	case inbound && version:
		found = "it without holdfast. at its beginning"
	case inbound:
		found = "it without its version .v1"
	case otherVersion:
		found = "another version of a known event"
	case ours && version:
		found = "an event that cannot be asked for"
	}
	return "type: must be holdfast.<event>.v1 such as " + Type(BookingRequested) + ", found " + found
}

// traceParentMax is the longest traceparent that an outcome repeats, in bytes. One of version 00 has 55. A
// longer one could make the headers of an outcome too large to be stored.
const traceParentMax = 256

// traceParent returns the traceparent of an event, "" for none.
func traceParent(header nats.Header) string {
	if parent := header.Get(headerTraceParent); len(parent) <= traceParentMax {
		return parent
	}
	return ""
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
var decoders = map[string]func(r *reader) (request any, resource string){
	BookingRequested: func(r *reader) (any, string) {
		request := &holds.PlaceRequest{
			Resource:   r.resource(),
			RequestKey: r.name("request_key"),
			User:       r.name("user_id"),
			Selection:  r.slotSelection(holds.SlotsMax),
			Quantity:   r.integer("quantity"),
			TTLSeconds: r.optionalInteger("ttl_seconds"),
			Metadata:   r.metadata(),
		}
		return request, request.Resource
	},
	BookingExtended: func(r *reader) (any, string) {
		request := &holds.ExtendRequest{Hold: r.holdID(), TTLSeconds: r.integer("ttl_seconds")}
		return request, request.Hold.Resource
	},
	PaymentStarted: func(r *reader) (any, string) {
		request := &holds.ExtendRequest{Hold: r.holdID(), PaymentStarted: true}
		return request, request.Hold.Resource
	},
	BookingCancelled: func(r *reader) (any, string) {
		if !r.has("hold_id") {
			request := &holds.ReleaseRequest{Resource: r.resource(), RequestKey: r.name("request_key")}
			return request, request.Resource
		}
		if r.has("request_key") {
			r.fail("request_key", "must not be together with hold_id, found both")
		}
		hold := r.holdID()
		return &holds.ReleaseRequest{Hold: hold, Resource: hold.Resource}, hold.Resource
	},
	PaymentConfirmed: func(r *reader) (any, string) {
		request := &holds.ConfirmRequest{Hold: r.holdID(), PaymentID: r.name("payment_id")}
		if r.has("amount") {
			request.Amount = r.amount()
		}
		if r.has("currency") {
			request.Currency = r.name("currency")
		}
		return request, request.Hold.Resource
	},
	ReservationCancelled: func(r *reader) (any, string) {
		request := &holds.CancelRequest{Hold: r.holdID()}
		if r.has("reason") {
			request.Reason = r.text("reason")
		}
		return request, request.Hold.Resource
	},
	InventorySet: func(r *reader) (any, string) {
		request := &holds.InventoryRequest{
			Resource:  r.resource(),
			Selection: r.slotSelection(holds.InventorySlotsMax),
			Capacity:  r.integer("capacity"),
		}
		return request, request.Resource
	},
}

var decimal = regexp.MustCompile(`^-?[0-9]{1,30}(\.[0-9]{1,30})?$`)

func (r *reader) amount() string {
	const want = `a decimal in a string such as "12.50"`
	text := r.textOf("amount", want)
	if !decimal.MatchString(text) {
		r.failFound("amount", want, unlike(text))
	}
	return text
}

// slotSelection reads a slot selection: nights, a list of at most slotsMax slots, or neither.
func (r *reader) slotSelection(slotsMax int) holds.SlotSelection {
	nights := r.has("check_in") || r.has("check_out")
	switch {
	case nights && r.has("slots"):
		r.fail("slots", "must not be together with nights, found both")
		return holds.SlotSelection{}
	case nights:
		return holds.SlotSelection{CheckIn: r.date("check_in"), CheckOut: r.date("check_out")}
	case r.has("slots"):
		return holds.SlotSelection{Slots: r.slots(slotsMax)}
	}
	return holds.SlotSelection{}
}

func (r *reader) date(name string) string {
	const want = `a date of the calendar such as "2026-12-31"`
	text := r.textOf(name, want)
	if _, err := time.Parse(holds.DateFormat, text); err != nil {
		r.failFound(name, want, unlike(text))
	}
	return text
}

func (r *reader) slots(limit int) []string {
	const want = "a list of 1 to %d slots"
	value := r.raw("slots", '[', fmt.Sprintf(want, limit))
	if value == nil {
		return nil
	}
	var list []jsontext.Value
	if err := json.Unmarshal(value, &list); err != nil || len(list) == 0 || len(list) > limit {
		r.failFound("slots", fmt.Sprintf(want, limit), fmt.Sprintf("%d", len(list)))
		return nil
	}
	names, seen := make([]string, len(list)), make(map[string]struct{}, len(list))
	for i, element := range list {
		one := reader{members: members{{"slots", element}}}
		names[i] = one.matching("slots", holds.SlotPattern, holds.ValidSlot)
		if one.err != nil && r.err == nil {
			r.err = one.err
		}
		if _, repeated := seen[names[i]]; repeated {
			r.fail("slots", "must not repeat a slot, found one twice")
		}
		seen[names[i]] = struct{}{}
	}
	return names
}
