package queries

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/members"
)

// The bounds of one history.
const (
	historyWithin     = 4 * time.Second // for reading the streams
	historyReadMax    = 200_000         // messages of one stream
	historyEntriesMax = 500
	historyLead       = time.Hour // an event is searched from this long before its hold was created, by its worker's clock
)

// The kinds of entries of a history.
const (
	HistoryEvent       = "event"       // an inbound event
	HistoryOutcome     = "outcome"     // an outbound event
	HistoryDeadLetter  = "dead_letter" // an event that was dead-lettered
	HistoryPayment     = "payment"     // the answer to a payment, in Postgres
	HistoryReservation = "reservation" // the reservation, in Postgres, and its cancellation
)

// historyKinds are the kinds in the order in which one thing leads to the next.
var historyKinds = []string{HistoryEvent, HistoryPayment, HistoryReservation, HistoryOutcome, HistoryDeadLetter}

// HistoryEntry is one thing that happened to a hold.
type HistoryEntry struct {
	At          holds.Time     `json:"at"` // when it was stored; of Postgres, the time in the row
	Kind        string         `json:"kind"`
	Name        string         `json:"name"` // of the event or outcome, reason of the dead letter, what the row says
	Seq         uint64         `json:"seq,omitzero"`
	EventID     string         `json:"event_id,omitzero"`
	CausationID string         `json:"causation_id,omitzero"` // of an outcome: the id of its event
	Reason      string         `json:"reason,omitzero"`       // of a refusal
	Detail      string         `json:"detail,omitzero"`
	Data        jsontext.Value `json:"data,omitzero"` // members that are not private, or all when they are revealed
}

// History is everything that is known about a hold.
type History struct {
	HoldID  holds.HoldID    `json:"hold_id"`
	Hold    *holds.HoldView `json:"hold"`             // null when it is no longer remembered
	Entries []HistoryEntry  `json:"entries"`          // in the order of time
	Partial string          `json:"partial,omitzero"` // what was not read; "" when everything was
}

// ErrNoHistory is returned for a hold of which nothing is known.
var ErrNoHistory = fmt.Errorf("%w, and no event, outcome or row of it was found", ErrUnknownHold)

// History returns what happened to a hold: its events, outcomes and dead letters, and its rows in
// Postgres. It returns holds.ErrHoldID if id is not a hold id, and ErrNoHistory if nothing is known.
// Without reveal it leaves out user ids, metadata and payloads. A history that would take too long
// is partial.
func (i *Inquiry) History(ctx context.Context, id string, reveal bool) (History, error) {
	hold, err := holds.ParseHoldID(id)
	if err != nil {
		return History{}, err
	}
	h := &historian{
		i: i, hold: hold, reveal: reveal, createdAt: hold.CreatedAt(), causes: make(map[string]bool),
		inbound: make(map[uint64]bool), history: History{HoldID: hold, Entries: []HistoryEntry{}},
	}
	if h.createdAt.After(time.Now().Add(events.ClockSkewMax)) {
		h.createdAt = time.Unix(0, 0) // no worker has made such an id
	}
	view, found, err := i.querier.GetHold(ctx, hold)
	if err != nil {
		return History{}, err
	}
	if found {
		h.requestKey = view.RequestKey
		if !reveal {
			view = Hidden(view)
		}
		h.history.Hold = &view
	}
	if err := h.readRows(ctx); err != nil {
		return History{}, err
	}
	reading, cancel := context.WithTimeoutCause(ctx, historyWithin, errHistoryTooLong)
	defer cancel()
	for _, read := range []func(context.Context) error{h.readOutcomes, h.readEvents, h.readDeadLetters} {
		switch err := read(reading); {
		case errors.Is(err, errHistoryTooLong), err != nil && errors.Is(context.Cause(reading), errHistoryTooLong):
			h.history.Partial = cmp.Or(h.history.Partial, "too much is stored on this resource to read all of it in time")
		case err != nil:
			return History{}, err
		}
	}
	if len(h.history.Entries) == 0 && !found && h.history.Partial == "" {
		return History{}, ErrNoHistory
	}
	slices.SortStableFunc(h.history.Entries, func(a, b HistoryEntry) int {
		return cmp.Or(a.At.Compare(b.At.Time), cmp.Compare(slices.Index(historyKinds, a.Kind), slices.Index(historyKinds, b.Kind)),
			cmp.Compare(a.Seq, b.Seq))
	})
	return h.history, nil
}

// errHistoryTooLong ends the reading of a stream that has too many messages.
var errHistoryTooLong = errors.New("history too long")

// historian collects the history of one hold.
type historian struct {
	i          *Inquiry
	hold       holds.HoldID
	reveal     bool
	createdAt  time.Time
	requestKey string          // "" when it is not known
	causes     map[string]bool // the ids of the outcomes of the hold's events
	inbound    map[uint64]bool // the sequences of its events
	requested  bool            // the event that created the hold was found
	history    History
}

func (h *historian) add(entry HistoryEntry) {
	if len(h.history.Entries) == historyEntriesMax {
		h.history.Partial = fmt.Sprintf("there are more than %d entries", historyEntriesMax)
		return
	}
	h.history.Entries = append(h.history.Entries, entry)
}

// readRows adds the rows in Postgres.
func (h *historian) readRows(ctx context.Context) error {
	reservation, payments, err := h.i.ledger.HoldRows(ctx, h.hold, historyEntriesMax)
	if err != nil {
		return err
	}
	for _, p := range payments {
		h.add(HistoryEntry{
			At: p.DecidedAt, Kind: HistoryPayment, Name: p.Outcome, Reason: p.Reason,
			Data: encodeMembers(map[string]any{"payment_id": p.PaymentID, "late": p.Late}),
		})
	}
	if reservation == nil {
		return nil
	}
	data := map[string]any{
		"payment_id": reservation.PaymentID, "quantity": reservation.Quantity, "slots": reservation.Slots,
		"status": reservation.Status,
	}
	if h.reveal {
		data["user_id"] = reservation.UserID
	}
	h.add(HistoryEntry{At: reservation.ConfirmedAt, Kind: HistoryReservation, Name: "confirmed", Data: encodeMembers(data)})
	if !reservation.CancelledAt.IsZero() {
		h.add(HistoryEntry{At: reservation.CancelledAt, Kind: HistoryReservation, Name: "cancelled"})
	}
	return nil
}

func encodeMembers(members map[string]any) jsontext.Value {
	value, _ := json.Marshal(members, json.Deterministic(true)) // of these types it is never an error
	return value
}

// read passes the messages of a stream since a time to each, as long as they are few enough.
func (h *historian) read(
	ctx context.Context, name string, config jetstream.OrderedConsumerConfig, since time.Time, each func(m events.StoredMsg),
) error {
	stream, err := h.i.js.Stream(ctx, name)
	if err != nil {
		return fmt.Errorf("stream %s: %w", name, err)
	}
	config.DeliverPolicy, config.OptStartTime = jetstream.DeliverByStartTimePolicy, &since
	read := 0
	for m, err := range events.ReadAll(ctx, h.i.js, stream, config) {
		if err != nil {
			return fmt.Errorf("read stream %s: %w", name, err)
		}
		if read++; read > historyReadMax {
			return errHistoryTooLong
		}
		each(m)
	}
	return nil
}

// readOutcomes adds the outcomes of the hold. If there are none, the clock of its worker may have been ahead.
func (h *historian) readOutcomes(ctx context.Context) error {
	err := h.readOutcomesSince(ctx, h.createdAt.Add(-events.ClockSkewMax))
	if err == nil && len(h.causes) == 0 {
		err = h.readOutcomesSince(ctx, h.createdAt.Add(-historyLead))
	}
	return err
}

func (h *historian) readOutcomesSince(ctx context.Context, since time.Time) error {
	id := []byte(h.hold.String())
	config := jetstream.OrderedConsumerConfig{FilterSubjects: []string{h.i.ns.Out("*.*", h.hold.Resource)}}
	return h.read(ctx, h.i.ns.OutStream(), config, since, func(m events.StoredMsg) {
		if !bytes.Contains(m.Data, id) {
			return
		}
		var e events.Envelope
		if err := json.Unmarshal(m.Data, &e); err != nil {
			return // it is no outcome of a worker
		}
		data := members.LaxObject(e.Data)
		if e.Subject != string(id) && members.LaxText(data["hold_id"]) != string(id) {
			return
		}
		h.causes[e.ID] = true
		if key := members.LaxText(data["request_key"]); key != "" && e.Subject == string(id) {
			h.requestKey = key
		}
		name, _ := events.EventOf(e.Type)
		h.add(HistoryEntry{
			At: storedTime(m), Kind: HistoryOutcome, Name: name, Seq: m.Meta.Sequence.Stream, EventID: e.ID,
			CausationID: e.CausationID, Reason: members.LaxText(data["reason"]), Detail: members.LaxText(data["message"]),
			Data: h.visible(e.Data, publicInOutcome),
		})
	})
}

func storedTime(m events.StoredMsg) holds.Time { return holds.Time{Time: m.Meta.Timestamp.UTC()} }

// readEvents adds the events of the hold: those that led to its outcomes, and those that name it or
// its request. The event that created it may have waited long before: then all that is stored
// before it is read too.
func (h *historian) readEvents(ctx context.Context) error {
	config := jetstream.OrderedConsumerConfig{FilterSubjects: []string{h.i.ns.In("*.*", h.hold.Resource)}}
	if err := h.read(ctx, h.i.ns.InStream(), config, h.createdAt.Add(-historyLead), h.readEvent); err != nil {
		return err
	}
	if h.requested || len(h.causes) == 0 {
		return nil
	}
	return h.read(ctx, h.i.ns.InStream(), config, time.Unix(0, 0), func(m events.StoredMsg) {
		if !h.requested {
			h.readEvent(m)
		}
	})
}

func (h *historian) readEvent(m events.StoredMsg) {
	seq := m.Meta.Sequence.Stream
	if h.inbound[seq] {
		return
	}
	decoded, err := h.i.ns.Decode(m.Subject, m.Header, m.Data, m.Meta.Timestamp)
	answered := err == nil && h.causes[decoded.OutcomeID]
	if !answered && !h.names(m.Data) {
		return
	}
	h.inbound[seq] = true
	h.requested = h.requested || answered && decoded.Event == events.BookingRequested
	summary := events.Summarize(m.Subject, m.Header, m.Data)
	h.add(HistoryEntry{
		At: storedTime(m), Kind: HistoryEvent, Name: summary.Type, Seq: seq, EventID: summary.ID,
		Data: h.visible(eventData(m.Data), IsPublicMember),
	})
}

// names reports whether an event names the hold or the request that created it.
func (h *historian) names(body []byte) bool {
	escaped := bytes.IndexByte(body, '\\') >= 0 // maybe the request key
	if !escaped && !bytes.Contains(body, []byte(h.hold.UUID)) && (h.requestKey == "" || !bytes.Contains(body, []byte(h.requestKey))) {
		return false
	}
	data := members.LaxObject(eventData(body))
	if members.LaxText(data["hold_id"]) == h.hold.String() {
		return true
	}
	return h.requestKey != "" && members.LaxText(data["request_key"]) == h.requestKey && members.LaxText(data["resource_id"]) == h.hold.Resource
}

// eventData returns the data of an event in structured or binary mode.
func eventData(body []byte) jsontext.Value {
	if data := members.LaxObject(body)["data"]; data.Kind() == '{' {
		return data
	}
	return body
}

// readDeadLetters adds the dead letters of the hold's events.
func (h *historian) readDeadLetters(ctx context.Context) error {
	since := h.createdAt.Add(-historyLead)
	return h.read(ctx, h.i.ns.DLQStream(), jetstream.OrderedConsumerConfig{}, since, func(m events.StoredMsg) {
		l := h.i.ns.ReadDeadLetter(m)
		if !strings.HasSuffix(l.Subject, "."+h.hold.Resource) {
			return
		}
		if !h.names(l.Body) && (l.StreamSeq == 0 || !h.inbound[l.StreamSeq]) {
			return
		}
		h.add(HistoryEntry{
			At: storedTime(m), Kind: HistoryDeadLetter, Name: l.Reason, Seq: l.Seq, EventID: l.EventID,
			CausationID: l.EventID, Reason: l.Reason, Detail: l.Detail, Data: h.visible(eventData(l.Body), IsPublicMember),
		})
	})
}

// publicOutcome are the members of an outcome's data that are shown without reveal: what a worker has
// validated or chosen, but neither the user nor metadata.
var publicOutcome = map[string]bool{
	"resource_id": true, "hold_id": true, "request_key": true, "check_in": true, "check_out": true, "slots": true,
	"quantity": true, "payment_id": true, "reason": true, "field": true, "created_at": true,
	"expires_at": true, "extended_at": true, "released_at": true, "restored_at": true, "confirmed_at": true,
	"cancelled_at": true, "late": true, "refund_required": true, "replayed": true, "retry_at": true, "unavailable": true,
}

// The members of an inbound event's data that are shown without reveal, if they are texts or numbers. A
// publisher may write anything into the others, such as the reason of a cancellation, and into each of
// another kind: the event may have been refused before it was validated.
var (
	publicTexts = map[string]bool{
		"resource_id": true, "hold_id": true, "request_key": true, "check_in": true, "check_out": true, "slots": true, "payment_id": true,
	}
	publicNumbers = map[string]bool{"quantity": true, "ttl_seconds": true, "capacity": true}

	publicAttributes = map[string]bool{
		"specversion": true, "id": true, "source": true, "type": true, "time": true, "datacontenttype": true,
	}
)

// IsPublicMember reports whether a member of an inbound event's data is shown to operators without reveal: a text, a list of
// texts or a number, if the contract gives the member this kind.
func IsPublicMember(name string, value jsontext.Value) bool {
	switch value.Kind() {
	case '[':
		var texts []string
		return publicTexts[name] && json.Unmarshal(value, &texts, members.Lax) == nil
	case '"':
		return publicTexts[name]
	default:
		return value.Kind() == '0' && publicNumbers[name]
	}
}

// IsPublicAttribute reports whether a member of an event beside its data is shown without reveal, if it is a text.
func IsPublicAttribute(name string) bool { return publicAttributes[name] }

// IsPublicHeader reports whether a header of an event is shown to operators without reveal: an attribute of an event in
// binary mode, or a header of HTTP, traces and dead letters.
func IsPublicHeader(name string) bool {
	name = strings.ToLower(name)
	attribute, is := strings.CutPrefix(name, "ce-")
	return is && IsPublicAttribute(attribute) || name == "content-type" || name == "traceparent" ||
		name == "holdfast-reply-to" || strings.HasPrefix(name, "holdfast-dlq-")
}

func publicInOutcome(name string, _ jsontext.Value) bool { return publicOutcome[name] }

// visible returns the data of an event as the history shows it: as it is when it is revealed, else
// only the members that are public. It returns nil for what is no JSON object.
func (h *historian) visible(data jsontext.Value, isPublic func(name string, value jsontext.Value) bool) jsontext.Value {
	object := members.LaxObject(data)
	if object == nil {
		return nil
	}
	public := make(map[string]jsontext.Value, len(object))
	for name, value := range object {
		if h.reveal || isPublic(name, value) {
			public[name] = value
		}
	}
	value, err := json.Marshal(public, members.Lax, json.Deterministic(true))
	if err != nil {
		return nil
	}
	return value
}
