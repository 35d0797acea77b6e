package recovery

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/record"
)

// Reservation is a hold that has become a reservation in Postgres.
type Reservation struct {
	Hold        holds.HoldID
	PaymentID   string
	ConfirmedAt holds.Time
	Late        bool // the hold had expired before
}

// Projection computes from the published outcomes what Redis must have. Outcomes may be applied in any
// order and more than once: several workers store them, and some are repeated. The result does not
// depend on the order: a hold ends once, the latest of its deadlines wins, and so does the latest
// answer to a request key.
//
// One goroutine uses it at a time.
type Projection struct {
	policies  holds.Policies
	applied   uint64 // number of outcomes
	weight    int    // bytes of what was applied since the last cut, about, or read for a resume
	resources map[string]*projectedResource
}

type projectedResource struct {
	holds    map[string]*projectedHold // by UUID
	answers  map[string]*record.Answer // by request key
	refused  map[string]struct{}       // event ids of rejected cancellations
	grants   grants                    // those that may have expired a hold
	rejected map[string]struct{}       // hold and payment of rejected payments
}

// grant is a grant on a resource, also one to a late payment. Times are in ms.
type grant struct {
	at       int64 // by Redis' clock
	storedAt int64 // when its outcome was stored, storedAtAny when that is unknown
}

// clockSkewMS is how far the clock of NATS may be behind that of Redis, in ms: four times what the preflight accepts. A hold
// that was published so shortly before its deadline may expire rather than be sold twice.
const clockSkewMS = 1000

// storedAtAny makes a grant one that may have been made after any hold.
const storedAtAny = math.MaxInt64

// grants are the last grants on a resource: those without a later one that was also stored later. There is more than
// one only when the clock of Redis was set back, or when outcomes were not stored in the order of the grants.
type grants []grant

func (g *grants) add(one grant) {
	covers := func(a, b grant) bool { return a.at >= b.at && a.storedAt >= b.storedAt }
	if !slices.ContainsFunc(*g, func(other grant) bool { return covers(other, one) }) {
		*g = append(slices.DeleteFunc(*g, func(other grant) bool { return covers(one, other) }), one)
	}
}

// addGrants adds the grants of holds and of their late payments. It leaves out those that Redis has: what followed from
// them, Redis has, too.
func (p *Projection) addGrants() {
	for _, r := range p.resources {
		for _, h := range r.holds {
			if h.Created != 0 && h.stored == nil {
				r.grants.add(grant{h.Created, cmp.Or(h.PublishedAt, storedAtAny)})
			}
			if h.LateBy != "" && (h.stored == nil || h.stored.late == "") {
				r.grants.add(grant{h.LateAt, cmp.Or(h.LatePublishedAt, storedAtAny)})
			}
		}
	}
}

// lastSince returns the time of the last grant that may have been made after a hold. Of a hold that was published only
// after its deadline that may be any: it was created at an unknown time before.
func (g grants) lastSince(h *projectedHold) (last int64) {
	for _, one := range g {
		if one.storedAt >= h.PublishedAt || h.PublishedAt >= h.FirstDeadline-clockSkewMS {
			last = max(last, one.at)
		}
	}
	return last
}

// projectedHold is what the outcomes, Redis and the pending events say of a hold. Times are in ms.
type projectedHold struct {
	holdFacts
	announced bool        // its hold.expired is stored
	stored    *storedHold // nil when Redis does not have it, or has nothing

	// The pending payment and the pending cancellation, each "" when there is none.
	paidBy, cancelledBy string
	paidAt, cancelledAt int64
}

// holdFacts are what some of the outcomes say of a hold, with zero values for what they do not say. Times are in ms.
type holdFacts struct {
	Tail          string      `json:"tail,omitzero"` // of its record, see record.Tail
	OwnTail       bool        `json:"own,omitzero"`  // Tail is from its own hold.created
	Quantity      int64       `json:"quantity,omitzero"`
	Created       int64       `json:"created,omitzero"`
	Deadline      int64       `json:"deadline,omitzero"`
	FirstDeadline int64       `json:"first,omitzero"` // the deadline that it was created with
	Started       int64       `json:"started,omitzero"`
	State         holds.State `json:"state,omitzero"` // "" while it is held
	Ended         int64       `json:"ended,omitzero"`
	By            string      `json:"by,omitzero"`
	PublishedAt   int64       `json:"published,omitzero"` // when its own hold.created was stored first
	LateBy        string      `json:"late_by,omitzero"`   // the payment that has taken its slots again
	LateAt        int64       `json:"late_at,omitzero"`
	// When the hold.confirmed of LateBy was stored first, 0 when Postgres alone has that payment.
	LatePublishedAt int64 `json:"late_published,omitzero"`

	Extensions map[string]extension `json:"extensions,omitzero"` // by event id
}

// extension is the answer to an extension. Times are in ms.
type extension struct {
	Word     string `json:"word"`
	At       int64  `json:"at"`
	Deadline int64  `json:"deadline,omitzero"`
}

// NewProjection returns an empty Projection. Policies are those of the workers, at least one.
func NewProjection(policies holds.Policies) *Projection {
	return &Projection{policies: policies, resources: make(map[string]*projectedResource)}
}

// unknown replaces a word of a remembered line that no outcome has.
const unknown = "-"

// Apply adds an outcome. It returns an error when no worker publishes such an outcome.
func (p *Projection) Apply(t holds.StoredOutcome) error {
	info, err := holdInfoOf(t.Data)
	if err != nil {
		return err
	}
	p.applied++
	p.weight += outcomeWeight + len(info.tail)
	switch data := t.Data.(type) {
	case holds.HoldCreated:
		p.applyCreated(t, data, info)
	case holds.HoldRejected:
		return p.applyRejected(t, data)
	case holds.HoldExtended:
		h := p.hold(info)
		at, deadline := data.ExtendedAt.UnixMilli(), data.ExpiresAt.UnixMilli()
		h.Deadline = max(h.Deadline, deadline)
		if t.RebuildMetadata.Started {
			h.Started = at
		}
		h.addExtension(t.ID, extension{"extended", at, deadline})
	case holds.ExtensionRejected:
		remembered := data.Reason == holds.ReasonLimitReached || data.Reason == holds.ReasonAlreadyStarted
		if remembered && !t.At.IsZero() && info.id.UUID != "" {
			h := p.hold(info)
			at := t.At.UnixMilli()
			if data.Reason == holds.ReasonAlreadyStarted && h.Started == 0 {
				h.Started = at // until the outcome with the time is applied
			}
			h.addExtension(t.ID, extension{data.Reason, at, 0})
		}
	case holds.ReleaseRejected:
		p.resource(data.ResourceID).refused[t.ID] = struct{}{}
	case holds.HoldReleased:
		p.hold(info).end(holds.Released, data.ReleasedAt, t.ID)
	case holds.HoldExpired:
		h := p.hold(info)
		h.Deadline = max(h.Deadline, data.ExpiresAt.UnixMilli())
		h.announced = true
		h.end(holds.Expired, data.RestoredAt, unknown)
	case holds.HoldConfirmed:
		h := p.hold(info)
		if data.Late {
			h.LatePublishedAt = firstStored(h.LatePublishedAt, storedMS(t))
		}
		h.reserve(Reservation{data.HoldID, data.PaymentID, data.ConfirmedAt, data.Late})
	case holds.ConfirmRejected:
		p.RejectPayment(data.HoldID, data.PaymentID)
	case holds.BookingCancelled:
		at := t.At
		if at.IsZero() {
			at = t.StoredAt
		}
		p.addAnswer(data.ResourceID, data.RequestKey, cancelledAnswer(at, t.ID))
	}
	return nil
}

func (p *Projection) applyCreated(t holds.StoredOutcome, data holds.HoldCreated, info holdInfo) {
	h := p.hold(info)
	if !h.OwnTail && !data.Replayed {
		h.Tail = info.tail
	}
	h.OwnTail = h.OwnTail || !data.Replayed
	h.Created, h.FirstDeadline = data.CreatedAt.UnixMilli(), data.ExpiresAt.UnixMilli()
	h.Deadline = max(h.Deadline, h.FirstDeadline)
	if !data.Replayed {
		h.PublishedAt = firstStored(h.PublishedAt, storedMS(t))
	}
	a := record.Answer{
		Word: "created", At: h.Created, Selection: "-",
		Detail: record.Created{UUID: data.HoldID.UUID, Deadline: h.FirstDeadline}.String(),
	}
	p.addAnswer(data.ResourceID, data.RequestKey, completeAnswer(t, data.Replayed, a))
}

// firstStored returns the earlier one of two times at which an outcome was stored, in ms. Each is 0 when it is unknown.
func firstStored(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// storedMS returns when an outcome was stored, in ms, 0 when that is unknown.
func storedMS(t holds.StoredOutcome) int64 {
	if t.StoredAt.IsZero() {
		return 0
	}
	return t.StoredAt.UnixMilli()
}

func (p *Projection) applyRejected(t holds.StoredOutcome, data holds.HoldRejected) error {
	a := record.Answer{Word: data.Reason, At: t.At.UnixMilli(), Detail: "-", Metadata: string(data.Metadata)}
	switch data.Reason {
	case holds.ReasonInvalidRequest, holds.ReasonKeyReused:
		return nil // not remembered
	case holds.ReasonCancelled:
		p.addAnswer(data.ResourceID, data.RequestKey, cancelledAnswer(t.At, unknown))
		return nil
	case holds.ReasonAlreadyHolding:
		a.Detail = data.HoldID.UUID
	case holds.ReasonSoldOut:
		if data.SoldOut == nil {
			return fmt.Errorf("outcome %s: sold_out without slots", t.ID)
		}
		a.Detail = shortageOf(data.SoldOut).String()
	}
	var err error
	if a.Selection, err = data.Compact(); err != nil {
		return err
	}
	p.addAnswer(data.ResourceID, data.RequestKey, completeAnswer(t, data.Replayed, a))
	return nil
}

// cancelledAnswer returns the answer to a request that was cancelled by its key.
func cancelledAnswer(at holds.Time, eventID string) record.Answer {
	return record.Answer{
		Word: holds.ReasonCancelled, Fingerprint: unknown, EventID: eventID, Detail: "-", Selection: "-", At: at.UnixMilli(),
	}
}

// completeAnswer adds to an answer what is not in the data of the outcome. For an outcome of a worker that did not store
// RebuildMetadata yet the fingerprint is unknown, which matches any content that the hold's record does not contradict,
// and the event is the one that was answered first, unless the outcome is a replay.
func completeAnswer(t holds.StoredOutcome, replayed bool, a record.Answer) record.Answer {
	answered := t.ID
	if replayed {
		answered = unknown
	}
	a.Fingerprint = cmp.Or(t.RebuildMetadata.Fingerprint, unknown)
	a.EventID = cmp.Or(t.RebuildMetadata.FirstEventID, answered)
	return a
}

// shortageOf returns the detail of the answer sold_out.
func shortageOf(s *holds.SoldOut) record.Shortage {
	detail := record.Shortage{Slots: s.Unavailable}
	if s.RetryAt != nil {
		detail.RetryAt = s.RetryAt.UnixMilli()
	}
	return detail
}

// resource returns the state of a resource. It creates it when it is missing.
func (p *Projection) resource(id string) *projectedResource {
	r := p.resources[id]
	if r == nil {
		r = &projectedResource{
			holds: make(map[string]*projectedHold), answers: make(map[string]*record.Answer),
			refused: make(map[string]struct{}), rejected: make(map[string]struct{}),
		}
		p.resources[id] = r
	}
	return r
}

// holdInfo is what an outcome says of its hold.
type holdInfo struct {
	id       holds.HoldID
	tail     string
	quantity int64
}

// holdInfoOf returns what an outcome says of its hold, the zero holdInfo when it concerns no hold.
func holdInfoOf(data holds.OutcomeData) (info holdInfo, err error) {
	hold := data.Hold()
	switch data.(type) {
	case holds.HoldCreated, holds.HoldExtended, holds.HoldReleased, holds.HoldExpired, holds.HoldConfirmed:
	case holds.ExtensionRejected:
		if hold.UserID == "" {
			return info, nil // of an unknown hold
		}
	default:
		return info, nil
	}
	if hold.HoldID.UUID == "" || hold.UserID == "" || hold.RequestKey == "" || hold.Quantity == nil {
		return info, fmt.Errorf("outcome of hold %s lacks hold data", hold.HoldID)
	}
	info.id, info.quantity = hold.HoldID, *hold.Quantity
	tail, err := hold.RecordTail()
	info.tail = tail.String()
	return info, err
}

// hold returns the state of a hold. It creates it from an outcome when it is missing.
func (p *Projection) hold(info holdInfo) *projectedHold {
	r := p.resource(info.id.Resource)
	h := r.holds[info.id.UUID]
	if h == nil {
		h = &projectedHold{holdFacts: holdFacts{Tail: info.tail, Quantity: info.quantity}}
		r.holds[info.id.UUID] = h
	}
	return h
}

// addAnswer keeps the latest answer to a request key. Of two with the same time it keeps the one with
// an event id: the outcome of the event that was answered first, not of a replay.
func (p *Projection) addAnswer(resource, key string, a record.Answer) {
	p.weight += len(a.Detail) + len(a.Selection) + len(a.Metadata)
	answers := p.resource(resource).answers
	before := answers[key]
	if before == nil || a.At > before.At || a.At == before.At && before.EventID == unknown {
		answers[key] = &a
	}
}

// createdHold returns the UUID of the hold that was created according to an answer, "" when none was.
func createdHold(a *record.Answer) (string, error) {
	if a.Word != "created" {
		return "", nil
	}
	detail, err := record.ParseCreated(a.Detail)
	return detail.UUID, err
}

func (h *holdFacts) addExtension(eventID string, x extension) {
	if h.Extensions == nil {
		h.Extensions = make(map[string]extension)
	}
	h.Extensions[eventID] = x
}

// end ends a hold. A hold ends once.
func (h *holdFacts) end(state holds.State, at holds.Time, by string) {
	h.State, h.Ended, h.By = state, at.UnixMilli(), by
}

// reserve notes that a hold has become a reservation.
func (h *holdFacts) reserve(r Reservation) {
	if r.Late {
		h.LateBy, h.LateAt = r.PaymentID, r.ConfirmedAt.UnixMilli()
	} else {
		h.end(holds.Confirmed, r.ConfirmedAt, r.PaymentID)
	}
}

// ApplyReservation adds a reservation.
func (p *Projection) ApplyReservation(r Reservation) {
	if h := p.resource(r.Hold.Resource).holds[r.Hold.UUID]; h != nil {
		h.reserve(r)
	}
}

// addPending adds payments without a decision, and cancellations that are not acknowledged yet. Of several for one hold
// the first counts.
func (p *Projection) addPending(e pendingEvents) {
	for _, payment := range e.payments {
		h := p.resource(payment.Hold.Resource).holds[payment.Hold.UUID]
		if h != nil && h.paidBy == "" {
			h.paidBy, h.paidAt = payment.PaymentID, payment.At.UnixMilli()
		}
	}
	for _, c := range e.cancellations {
		resource := p.resource(c.request.Resource)
		if _, refused := resource.refused[c.request.EventID]; refused {
			continue
		}
		id := c.request.Hold.UUID
		if a := resource.answers[c.request.RequestKey]; id == "" && a != nil {
			id, _ = createdHold(a) // from an outcome, or checked by addStoredAnswer
		}
		if h := resource.holds[id]; h != nil && h.cancelledBy == "" {
			h.cancelledBy, h.cancelledAt = c.request.EventID, c.storedAt.UnixMilli()
		}
	}
}

// resolution is the state of a hold after all outcomes and pending events.
type resolution struct {
	state       holds.State
	ended       int64
	by          string
	unannounced bool // no outcome has its hold.expired
}

// resolve decides what no outcome says: a worker may have decided it and died before it published. A
// hold that becomes live here must have been live when Redis was lost, else its slots may have been
// granted again.
//
//   - A pending cancellation that was stored before the deadline may have released the hold, and will
//     release it: the hold is released.
//   - A pending payment that was stored before the deadline keeps the hold from expiring: the customer
//     has paid. But when something was granted on the resource after the deadline, that grant may have
//     taken its slots, because every grant expires due holds first.
//   - For the same reason a hold has expired when something was granted after its deadline, even if the
//     clock of this Redis has not reached that deadline.
//
// A grant that was made before the hold has not expired it, whatever its time is: the clock may have been ahead.
func (p *Projection) resolve(r *projectedResource, id string, h *projectedHold) resolution {
	created, deadline, lastGrant := p.created(id, h), p.deadline(id, h), r.grants.lastSince(h)
	switch {
	case h.State != "":
		return resolution{state: h.State, ended: h.Ended, by: h.By}
	case r.isClaimed(id, h):
		return resolution{state: holds.Confirming, ended: h.stored.claimedAt, by: h.stored.claimedBy}
	case h.cancelledBy != "" && h.cancelledAt < deadline:
		return resolution{state: holds.Released, ended: max(h.cancelledAt, created), by: h.cancelledBy}
	case h.paidBy != "" && h.paidAt < deadline && lastGrant < deadline:
		return resolution{state: holds.Confirming, ended: max(h.paidAt, created), by: h.paidBy}
	case deadline <= lastGrant:
		return resolution{state: holds.Expired, ended: lastGrant, by: "-", unannounced: true}
	default:
		return resolution{state: holds.Held, by: "-"}
	}
}

// OpenHolds returns the holds whose end is not known.
func (p *Projection) OpenHolds() []holds.HoldID {
	var ids []holds.HoldID
	for resource, r := range p.resources {
		for id, h := range r.holds {
			if h.State == "" {
				ids = append(ids, holds.HoldID{Resource: resource, UUID: id})
			}
		}
	}
	return ids
}

// created returns the time at which a hold was created, in ms. When its hold.created is missing it is
// the time in its UUID, which comes from the worker's clock shortly before.
func (p *Projection) created(id string, h *projectedHold) int64 {
	if h.Created != 0 {
		return h.Created
	}
	return holds.HoldID{UUID: id}.CreatedAt().UnixMilli()
}

// requestKeyTTLMS returns how long a hold or an answer of the given time is remembered. Both are in ms.
func (p *Projection) requestKeyTTLMS(at int64) int64 {
	return p.policies.At(time.UnixMilli(at)).RequestKeyTTL.Milliseconds()
}

// deadline returns the deadline of a hold in ms. When no outcome has one it follows from the policy.
func (p *Projection) deadline(id string, h *projectedHold) int64 {
	if h.Deadline != 0 {
		return h.Deadline
	}
	created := p.created(id, h)
	return created + p.policies.At(time.UnixMilli(created)).HoldTTL.Milliseconds()
}
