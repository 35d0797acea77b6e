package recovery

import (
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"holdfast/internal/holds"
	"holdfast/internal/record"
)

// Reservation is what a hold has become.
type Reservation struct {
	Hold        holds.HoldID
	PaymentID   string
	ConfirmedAt holds.Time
	Late        bool // it had lapsed before
}

// Projection is what Redis has had, put together from what was told. Outcomes may come in any order and
// more than once: they are stored by several workers, and some are repeated. What they say does
// not depend on it: a hold ends once, whenever it is told, the latest deadline wins over the
// others, and the latest answer to a request key over those before.
//
// It is used for one Redis that is filled again, or compared, and then dropped.
type Projection struct {
	policies holds.Policies

	mu        sync.Mutex
	applied   uint64 // outcomes
	resources map[string]*projectedResource
}

type projectedResource struct {
	holds      map[string]*projectedHold     // by UUID
	answers    map[string]*projectedAnswer   // by request key
	extensions map[string]projectedExtension // by cause
	refused    map[string]struct{}           // cancellations that were refused, by cause
	lastGrant  int64                         // when somebody was granted something last, ms
}

// projectedHold is what is known of a hold. Times are in ms, 0 = not told.
type projectedHold struct {
	tail          string // of its record: user request_key slots asked metadata
	quantity      int64
	created       int64
	deadline      int64
	firstDeadline int64 // the deadline that it was created with
	started       int64
	state         holds.State // held, unless something else was told
	ended         int64
	by            string
	ownTail       bool // tail is from its own hold.created

	// The payment that has taken its slots again, the payment and the cancellation that wait; "" = none.
	lateBy, paidBy, cancelledBy string
	lateAt, paidAt, cancelledAt int64
}

// projectedAnswer is what is remembered under a request key, but for its key.
type projectedAnswer struct {
	record.Answer
	hold string // UUID of the hold that was created
}

type projectedExtension struct {
	hold, word   string
	at, deadline int64
}

// NewProjection returns an empty Past. The policies must be those of the workers, at least one.
func NewProjection(policies holds.Policies) *Projection {
	return &Projection{policies: policies, resources: make(map[string]*projectedResource)}
}

// unknown stands for a word of a remembered line that nobody knows any more.
const unknown = "-"

// Apply adds an outcome. It returns an error when the outcome is none that a worker tells.
func (p *Projection) Apply(t holds.StoredOutcome) error {
	info, err := holdInfoOf(t.Data) // before the lock: several goroutines tell at a time
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applied++
	switch data := t.Data.(type) {
	case holds.HoldCreated:
		return p.applyCreated(t, data, info)
	case holds.HoldRejected:
		return p.applyRejected(t, data)
	case holds.HoldExtended:
		h := p.hold(info)
		at, deadline := data.ExtendedAt.UnixMilli(), data.ExpiresAt.UnixMilli()
		h.deadline = max(h.deadline, deadline)
		if t.RebuildMetadata.Started {
			h.started = at
		}
		p.addExtension(data.HoldID, t.ID, projectedExtension{data.HoldID.UUID, "extended", at, deadline})
	case holds.ExtensionRejected:
		remembered := data.Reason == holds.ReasonLimitReached || data.Reason == holds.ReasonAlreadyStarted
		if remembered && !t.At.IsZero() && info.id.UUID != "" {
			h := p.hold(info)
			at := t.At.UnixMilli()
			if data.Reason == holds.ReasonAlreadyStarted && h.started == 0 {
				h.started = at // when it was is not told yet
			}
			p.addExtension(data.HoldID, t.ID, projectedExtension{data.HoldID.UUID, data.Reason, at, 0})
		}
	case holds.ReleaseRejected:
		p.resource(data.ResourceID).refused[t.ID] = struct{}{}
	case holds.HoldReleased:
		p.endHold(p.hold(info), holds.Released, data.ReleasedAt, t.ID)
	case holds.HoldExpired:
		h := p.hold(info)
		h.deadline = max(h.deadline, data.ExpiresAt.UnixMilli())
		p.endHold(h, holds.Expired, data.RestoredAt, unknown)
	case holds.HoldConfirmed:
		p.hold(info)
		p.applyReservation(Reservation{data.HoldID, data.PaymentID, data.ConfirmedAt, data.Late})
	case holds.BookingCancelled:
		at := t.At
		if at.IsZero() {
			at = t.StoredAt
		}
		p.addAnswer(data.ResourceID, data.RequestKey, &projectedAnswer{Answer: record.Answer{
			Word: holds.ReasonCancelled, Fingerprint: unknown, EventID: t.ID, Detail: "-", Selection: "-", At: at.UnixMilli(),
		}})
	}
	return nil
}

func (p *Projection) applyCreated(t holds.StoredOutcome, data holds.HoldCreated, info holdInfo) error {
	h := p.hold(info)
	if !h.ownTail && !data.Replayed {
		h.tail = info.tail
	}
	h.ownTail = h.ownTail || !data.Replayed
	h.created, h.firstDeadline = data.CreatedAt.UnixMilli(), data.ExpiresAt.UnixMilli()
	h.deadline = max(h.deadline, h.firstDeadline)
	r := p.resource(data.HoldID.Resource)
	r.lastGrant = max(r.lastGrant, h.created)
	p.addAnswer(data.ResourceID, data.RequestKey, completeAnswer(t, data.Replayed, projectedAnswer{hold: data.HoldID.UUID, Answer: record.Answer{
		Word: "created", At: h.created, Selection: "-",
		Detail: record.Created{UUID: data.HoldID.UUID, Deadline: h.firstDeadline}.String(),
	}}))
	return nil
}

func (p *Projection) applyRejected(t holds.StoredOutcome, data holds.HoldRejected) error {
	a := record.Answer{Word: data.Reason, At: t.At.UnixMilli(), Detail: "-", Metadata: string(data.Metadata)}
	switch data.Reason {
	case holds.ReasonInvalidRequest, holds.ReasonKeyReused:
		return nil // not remembered
	case holds.ReasonCancelled:
		p.addAnswer(data.ResourceID, data.RequestKey, &projectedAnswer{Answer: record.Answer{
			Word: holds.ReasonCancelled, Fingerprint: unknown, EventID: unknown, Detail: "-", Selection: "-", At: a.At,
		}})
		return nil
	case holds.ReasonAlreadyHolding:
		a.Detail = data.HoldID.UUID
	case holds.ReasonSoldOut:
		if data.SoldOut == nil {
			return fmt.Errorf("outcome %s: sold out of what?", t.ID)
		}
		a.Detail = shortageOf(data.SoldOut).String()
	}
	var err error
	if a.Selection, err = data.Compact(); err != nil {
		return err
	}
	p.addAnswer(data.ResourceID, data.RequestKey, completeAnswer(t, data.Replayed, projectedAnswer{Answer: a}))
	return nil
}

// completeAnswer adds to an answer what the outcome's data does not tell of it. An outcome of a worker
// that did not store that yet has the answer be that to any content, and to this event first unless
// it says that it was not.
func completeAnswer(t holds.StoredOutcome, replayed bool, a projectedAnswer) *projectedAnswer {
	a.Fingerprint, a.EventID = t.RebuildMetadata.Fingerprint, t.RebuildMetadata.FirstEventID
	if a.Fingerprint == "" {
		a.Fingerprint = unknown
	}
	if a.EventID == "" {
		a.EventID = t.ID
		if replayed {
			a.EventID = unknown
		}
	}
	return &a
}

// shortageOf returns the detail of an answer that refuses because slots are sold out.
func shortageOf(s *holds.SoldOut) record.Shortage {
	var detail record.Shortage
	if s.RetryAt != nil {
		detail.RetryAt = s.RetryAt.UnixMilli()
	}
	for _, slot := range s.Unavailable {
		detail.Slots = append(detail.Slots, record.ShortSlot(slot))
	}
	return detail
}

// resource returns what is known of a resource.
func (p *Projection) resource(id string) *projectedResource {
	r := p.resources[id]
	if r == nil {
		r = &projectedResource{
			holds: make(map[string]*projectedHold), answers: make(map[string]*projectedAnswer),
			extensions: make(map[string]projectedExtension), refused: make(map[string]struct{}),
		}
		p.resources[id] = r
	}
	return r
}

// holdInfo is what an outcome tells of its hold.
type holdInfo struct {
	id       holds.HoldID
	tail     string
	quantity int64
}

// holdInfoOf returns what an outcome tells of its hold, nothing when it is about none.
func holdInfoOf(data any) (info holdInfo, err error) {
	var hold holds.HoldData
	switch data := data.(type) {
	case holds.HoldCreated:
		hold = data.HoldData
	case holds.HoldExtended:
		hold = data.HoldData
	case holds.ExtensionRejected:
		if data.UserID == "" {
			return info, nil // of an unknown hold
		}
		hold = data.HoldData
	case holds.HoldReleased:
		hold = data.HoldData
	case holds.HoldExpired:
		hold = data.HoldData
	case holds.HoldConfirmed:
		hold = data.HoldData
	default:
		return info, nil
	}
	if hold.HoldID.UUID == "" || hold.UserID == "" || hold.RequestKey == "" || hold.Quantity == nil {
		return info, fmt.Errorf("an outcome about hold %s does not tell what it is", hold.HoldID)
	}
	info.id, info.quantity = hold.HoldID, *hold.Quantity
	tail, err := hold.RecordTail()
	info.tail = tail.String()
	return info, err
}

// hold returns what is known of a hold, with what an outcome tells of it.
func (p *Projection) hold(info holdInfo) *projectedHold {
	r := p.resource(info.id.Resource)
	h := r.holds[info.id.UUID]
	if h == nil {
		h = &projectedHold{tail: info.tail, quantity: info.quantity, state: holds.Held}
		r.holds[info.id.UUID] = h
	}
	return h
}

// addAnswer keeps the latest answer to a request key. Of two of the same time the one that knows more
// is kept: the outcome of the event that was answered first, not of one that asked again.
func (p *Projection) addAnswer(resource, key string, a *projectedAnswer) {
	answers := p.resource(resource).answers
	before := answers[key]
	if before == nil || a.At > before.At || a.At == before.At && before.EventID == unknown {
		answers[key] = a
	}
}

func (p *Projection) addExtension(hold holds.HoldID, cause string, x projectedExtension) {
	p.resource(hold.Resource).extensions[cause] = x
}

// endHold ends a hold, which happens once.
func (*Projection) endHold(h *projectedHold, state holds.State, at holds.Time, by string) {
	h.state, h.ended, h.by = state, at.UnixMilli(), by
}

// ApplyReservation adds that a hold has become a reservation.
func (p *Projection) ApplyReservation(r Reservation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applyReservation(r)
}

func (p *Projection) applyReservation(r Reservation) {
	its := p.resource(r.Hold.Resource)
	h := its.holds[r.Hold.UUID]
	switch {
	case h == nil:
	case r.Late:
		h.lateBy, h.lateAt = r.PaymentID, r.ConfirmedAt.UnixMilli()
		its.lastGrant = max(its.lastGrant, h.lateAt)
	default:
		h.state, h.ended, h.by = holds.Confirmed, r.ConfirmedAt.UnixMilli(), r.PaymentID
	}
}

// ResetPending forgets which payments and cancellations wait: they are asked for again.
func (p *Projection) ResetPending() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.resources {
		for _, h := range r.holds {
			h.paidBy, h.cancelledBy = "", ""
		}
	}
}

// AddPendingPayment adds a payment that has no answer yet. Of several the one that comes first here counts.
func (p *Projection) AddPendingPayment(r holds.ConfirmRequest, storedAt holds.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.resource(r.Hold.Resource).holds[r.Hold.UUID]; h != nil && h.paidBy == "" {
		h.paidBy, h.paidAt = r.PaymentID, storedAt.UnixMilli()
	}
}

// AddPendingCancellation adds a cancellation that has not been acknowledged yet.
func (p *Projection) AddPendingCancellation(r holds.ReleaseRequest, storedAt holds.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	its := p.resource(r.Resource)
	if _, refused := its.refused[r.EventID]; refused {
		return
	}
	id := r.Hold.UUID
	if a := its.answers[r.RequestKey]; id == "" && a != nil {
		id = a.hold
	}
	if h := its.holds[id]; h != nil && h.cancelledBy == "" {
		h.cancelledBy, h.cancelledAt = r.EventID, storedAt.UnixMilli()
	}
}

// resolution is what has become of a hold, as far as anybody can know.
type resolution struct {
	state       holds.State
	ended       int64
	by          string
	unannounced bool // its hold.expired was not told
}

// resolve decides what was not told: somebody may have decided it and died. What is made live again here must
// have been live when Redis was lost, or its slots may be somebody else's by now.
//
//   - A cancellation that waits and came in time may have released the hold, and will: it is released.
//   - A payment that waits and came in time keeps the hold from lapsing: the customer has paid. But
//     whoever was granted something on the resource after the deadline may have its slots, since
//     what is due is lapsed before anything is granted.
//   - For the same reason a hold has lapsed when somebody was granted something after its deadline,
//     also if the clock of this Redis has not reached it.
func (p *Projection) resolve(r *projectedResource, id string, h *projectedHold) resolution {
	created, deadline := p.created(id, h), p.deadline(id, h)
	switch {
	case h.state != holds.Held:
		return resolution{state: h.state, ended: h.ended, by: h.by}
	case h.cancelledBy != "" && h.cancelledAt < deadline:
		return resolution{state: holds.Released, ended: max(h.cancelledAt, created), by: h.cancelledBy}
	case h.paidBy != "" && h.paidAt < deadline && r.lastGrant < deadline:
		return resolution{state: holds.Confirming, ended: max(h.paidAt, created), by: h.paidBy}
	case deadline <= r.lastGrant:
		return resolution{state: holds.Expired, ended: r.lastGrant, by: "-", unannounced: true}
	default:
		return resolution{state: holds.Held, by: "-"}
	}
}

// OpenHolds returns the holds of which no end is known.
func (p *Projection) OpenHolds() []holds.HoldID {
	p.mu.Lock()
	defer p.mu.Unlock()
	var ids []holds.HoldID
	for resource, r := range p.resources {
		for id, h := range r.holds {
			if h.state == holds.Held {
				ids = append(ids, holds.HoldID{Resource: resource, UUID: id})
			}
		}
	}
	return ids
}

// created is when a hold was created. One whose hold.created was not stored, because its worker
// died before, was created when its id was made, nearly.
func (p *Projection) created(id string, h *projectedHold) int64 {
	if h.created != 0 {
		return h.created
	}
	var parsed uuid.UUID
	_, _ = hex.Decode(parsed[:], []byte(id)) // it has passed ParseHoldID
	seconds, nanos := parsed.Time().UnixTime()
	return seconds*1000 + nanos/1e6
}

// requestKeyTTLMS is how long what ended or was answered at a time is remembered. All are in ms.
func (p *Projection) requestKeyTTLMS(at int64) int64 {
	return p.policies.At(time.UnixMilli(at)).RequestKeyTTL.Milliseconds()
}

// deadline is that of a hold, the policy's where none was told.
func (p *Projection) deadline(id string, h *projectedHold) int64 {
	if h.deadline != 0 {
		return h.deadline
	}
	created := p.created(id, h)
	return created + p.policies.At(time.UnixMilli(created)).HoldTTL.Milliseconds()
}
