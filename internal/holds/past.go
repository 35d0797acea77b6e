package holds

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Told is an outcome as it was stored.
type Told struct {
	Outcome
	ID       string // of the event that tells it: the cause of what it tells
	StoredAt Time
}

// Reservation is what a hold has become.
type Reservation struct {
	Hold        HoldID
	PaymentID   string
	ConfirmedAt Time
	Late        bool // it had lapsed before
}

// Past is what Redis has had, put together from what was told. Outcomes may come in any order and
// more than once: they are stored by several workers, and some are repeated. What they say does
// not depend on it: a hold ends once, whenever it is told, the latest deadline wins over the
// others, and the latest answer to a request key over those before.
//
// It is used for one Redis that is filled again, or compared, and then dropped.
type Past struct {
	policies Policies

	mu        sync.Mutex
	told      uint64 // outcomes
	resources map[string]*pastResource
}

type pastResource struct {
	holds      map[string]*pastHold     // by UUID
	answers    map[string]*pastAnswer   // by request key
	extensions map[string]pastExtension // by cause
	refused    map[string]struct{}      // cancellations that were refused, by cause
	latest     int64                    // when somebody was granted something last, ms
}

// pastHold is what is known of a hold. Times are in ms, 0 = not told.
type pastHold struct {
	tail     string // of its record: user request_key slots asked metadata
	quantity int64
	created  int64
	deadline int64
	first    int64 // the deadline that it was created with
	started  int64
	state    State // held, unless something else was told
	ended    int64
	by       string
	certain  bool // tail is from its own hold.created

	// The payment that has taken its slots again, the payment and the cancellation that wait; "" = none.
	lateBy, paidBy, cancelledBy string
	lateAt, paidAt, cancelledAt int64
}

// pastAnswer is what is remembered under a request key, but for its key.
type pastAnswer struct {
	word, fingerprint, cause, detail, asked, metadata string
	at                                                int64
	hold                                              string // UUID of the hold that was created
}

type pastExtension struct {
	hold, word   string
	at, deadline int64
}

// NewPast returns an empty Past. The policies must be those of the workers, at least one.
func NewPast(policies Policies) *Past {
	return &Past{policies: policies, resources: make(map[string]*pastResource)}
}

// unknown stands for a word of a remembered line that nobody knows any more.
const unknown = "-"

// Tell adds an outcome. It returns an error when the outcome is none that a worker tells.
func (p *Past) Tell(t Told) error {
	about, err := toldOf(t.Data) // before the lock: several goroutines tell at a time
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told++
	switch data := t.Data.(type) {
	case HoldCreated:
		return p.tellCreated(t, data, about)
	case HoldRejected:
		return p.tellRejected(t, data)
	case HoldExtended:
		h := p.hold(about)
		at, deadline := data.ExtendedAt.UnixMilli(), data.ExpiresAt.UnixMilli()
		h.deadline = max(h.deadline, deadline)
		if t.Memory.Started {
			h.started = at
		}
		p.extension(data.HoldID, t.ID, pastExtension{data.HoldID.UUID, "extended", at, deadline})
	case ExtensionRejected:
		remembered := data.Reason == ReasonLimitReached || data.Reason == ReasonAlreadyStarted
		if remembered && !t.At.IsZero() && about.id.UUID != "" {
			h := p.hold(about)
			at := t.At.UnixMilli()
			if data.Reason == ReasonAlreadyStarted && h.started == 0 {
				h.started = at // when it was is not told yet
			}
			p.extension(data.HoldID, t.ID, pastExtension{data.HoldID.UUID, data.Reason, at, 0})
		}
	case ReleaseRejected:
		p.resource(data.ResourceID).refused[t.ID] = struct{}{}
	case HoldReleased:
		p.end(p.hold(about), Released, data.ReleasedAt, t.ID)
	case HoldExpired:
		h := p.hold(about)
		h.deadline = max(h.deadline, data.ExpiresAt.UnixMilli())
		p.end(h, Expired, data.RestoredAt, unknown)
	case HoldConfirmed:
		p.hold(about)
		p.reserve(Reservation{data.HoldID, data.PaymentID, data.ConfirmedAt, data.Late})
	case BookingCancelled:
		at := t.At
		if at.IsZero() {
			at = t.StoredAt
		}
		p.answer(data.ResourceID, data.RequestKey, &pastAnswer{
			word: ReasonCancelled, fingerprint: unknown, cause: t.ID, detail: "-", asked: "-", at: at.UnixMilli(),
		})
	}
	return nil
}

func (p *Past) tellCreated(t Told, data HoldCreated, about toldHold) error {
	h := p.hold(about)
	if !h.certain && !data.Replayed {
		h.tail = about.tail
	}
	h.certain = h.certain || !data.Replayed
	h.created, h.first = data.CreatedAt.UnixMilli(), data.ExpiresAt.UnixMilli()
	h.deadline = max(h.deadline, h.first)
	r := p.resource(data.HoldID.Resource)
	r.latest = max(r.latest, h.created)
	p.answer(data.ResourceID, data.RequestKey, t.remembered(data.Replayed, pastAnswer{
		word: "created", at: h.created, asked: "-", hold: data.HoldID.UUID,
		detail: data.HoldID.UUID + ":" + strconv.FormatInt(h.first, 10),
	}))
	return nil
}

func (p *Past) tellRejected(t Told, data HoldRejected) error {
	a := pastAnswer{word: data.Reason, at: t.At.UnixMilli(), detail: "-", metadata: string(data.Metadata)}
	switch data.Reason {
	case ReasonInvalidRequest, ReasonKeyReused:
		return nil // not remembered
	case ReasonCancelled:
		p.answer(data.ResourceID, data.RequestKey, &pastAnswer{
			word: ReasonCancelled, fingerprint: unknown, cause: unknown, detail: "-", asked: "-", at: a.at,
		})
		return nil
	case ReasonAlreadyHolding:
		a.detail = data.HoldID.UUID
	case ReasonSoldOut:
		if data.SoldOut == nil {
			return fmt.Errorf("outcome %s: sold out of what?", t.ID)
		}
		a.detail = shortageLine(data.SoldOut)
	}
	var err error
	if a.asked, err = data.compact(); err != nil {
		return err
	}
	p.answer(data.ResourceID, data.RequestKey, t.remembered(data.Replayed, a))
	return nil
}

// remembered adds to an answer what the outcome's data does not tell of it. An outcome of a worker
// that did not store that yet has the answer be that to any content, and to this event first unless
// it says that it was not.
func (t Told) remembered(replayed bool, a pastAnswer) *pastAnswer {
	a.fingerprint, a.cause = t.Memory.Fingerprint, t.Memory.Cause
	if a.fingerprint == "" {
		a.fingerprint = unknown
	}
	if a.cause == "" {
		a.cause = t.ID
		if replayed {
			a.cause = unknown
		}
	}
	return &a
}

// shortageLine is parseShortage the other way round.
func shortageLine(s *SoldOut) string {
	retryAt := "-"
	if s.RetryAt != nil {
		retryAt = strconv.FormatInt(s.RetryAt.UnixMilli(), 10)
	}
	rows := make([]string, len(s.Unavailable))
	for i, row := range s.Unavailable {
		rows[i] = fmt.Sprintf("%s:%d:%d:%d", row.Slot, row.Capacity, row.Reserved, row.Held)
	}
	return retryAt + "|" + strings.Join(rows, ",")
}

// resource returns what is known of a resource.
func (p *Past) resource(id string) *pastResource {
	r := p.resources[id]
	if r == nil {
		r = &pastResource{
			holds: make(map[string]*pastHold), answers: make(map[string]*pastAnswer),
			extensions: make(map[string]pastExtension), refused: make(map[string]struct{}),
		}
		p.resources[id] = r
	}
	return r
}

// toldHold is what an outcome tells of its hold.
type toldHold struct {
	id       HoldID
	tail     string
	quantity int64
}

// toldOf returns what an outcome tells of its hold, nothing when it is about none.
func toldOf(data any) (about toldHold, err error) {
	var hold HoldData
	switch data := data.(type) {
	case HoldCreated:
		hold = data.HoldData
	case HoldExtended:
		hold = data.HoldData
	case ExtensionRejected:
		if data.UserID == "" {
			return about, nil // of an unknown hold
		}
		hold = data.HoldData
	case HoldReleased:
		hold = data.HoldData
	case HoldExpired:
		hold = data.HoldData
	case HoldConfirmed:
		hold = data.HoldData
	default:
		return about, nil
	}
	if hold.HoldID.UUID == "" || hold.UserID == "" || hold.RequestKey == "" || hold.Quantity == nil {
		return about, fmt.Errorf("an outcome about hold %s does not tell what it is", hold.HoldID)
	}
	about.id, about.quantity = hold.HoldID, *hold.Quantity
	about.tail, err = tailOf(hold)
	return about, err
}

// hold returns what is known of a hold, with what an outcome tells of it.
func (p *Past) hold(about toldHold) *pastHold {
	r := p.resource(about.id.Resource)
	h := r.holds[about.id.UUID]
	if h == nil {
		h = &pastHold{tail: about.tail, quantity: about.quantity, state: Held}
		r.holds[about.id.UUID] = h
	}
	return h
}

// tailOf is parseTail the other way round.
func tailOf(data HoldData) (string, error) {
	names, err := data.names(nightsWindow{max: math.MaxInt})
	if err != nil {
		return "", fmt.Errorf("hold %s: %w", data.HoldID, err)
	}
	asked, err := data.compact()
	if err != nil {
		return "", err
	}
	return strings.Join([]string{data.UserID, data.RequestKey, joinSlots(names), asked, string(data.Metadata)}, " "), nil
}

// answer keeps the latest answer to a request key. Of two of the same time the one that knows more
// is kept: the outcome of the event that was answered first, not of one that asked again.
func (p *Past) answer(resource, key string, a *pastAnswer) {
	answers := p.resource(resource).answers
	before := answers[key]
	if before == nil || a.at > before.at || a.at == before.at && before.cause == unknown {
		answers[key] = a
	}
}

func (p *Past) extension(hold HoldID, cause string, x pastExtension) {
	p.resource(hold.Resource).extensions[cause] = x
}

// end ends a hold, which happens once.
func (*Past) end(h *pastHold, state State, at Time, by string) {
	h.state, h.ended, h.by = state, at.UnixMilli(), by
}

// Reserve adds that a hold has become a reservation.
func (p *Past) Reserve(r Reservation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserve(r)
}

func (p *Past) reserve(r Reservation) {
	its := p.resource(r.Hold.Resource)
	h := its.holds[r.Hold.UUID]
	switch {
	case h == nil:
	case r.Late:
		h.lateBy, h.lateAt = r.PaymentID, r.ConfirmedAt.UnixMilli()
		its.latest = max(its.latest, h.lateAt)
	default:
		h.state, h.ended, h.by = Confirmed, r.ConfirmedAt.UnixMilli(), r.PaymentID
	}
}

// Ask forgets which payments and cancellations wait: they are asked for again.
func (p *Past) Ask() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.resources {
		for _, h := range r.holds {
			h.paidBy, h.cancelledBy = "", ""
		}
	}
}

// Claim adds a payment that has no answer yet. Of several the one that comes first here counts.
func (p *Past) Claim(r ConfirmRequest, storedAt Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.resource(r.Hold.Resource).holds[r.Hold.UUID]; h != nil && h.paidBy == "" {
		h.paidBy, h.paidAt = r.PaymentID, storedAt.UnixMilli()
	}
}

// Cancel adds a cancellation that has not been acknowledged yet.
func (p *Past) Cancel(r ReleaseRequest, storedAt Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	its := p.resource(r.Resource)
	if _, refused := its.refused[r.Cause]; refused {
		return
	}
	id := r.Hold.UUID
	if a := its.answers[r.RequestKey]; id == "" && a != nil {
		id = a.hold
	}
	if h := its.holds[id]; h != nil && h.cancelledBy == "" {
		h.cancelledBy, h.cancelledAt = r.Cause, storedAt.UnixMilli()
	}
}

// fate is what has become of a hold, as far as anybody can know.
type fate struct {
	state     State
	ended     int64
	by        string
	departing bool // its hold.expired was not told
}

// fate decides what was not told: somebody may have decided it and died. What is made live again here must
// have been live when Redis was lost, or its slots may be somebody else's by now.
//
//   - A cancellation that waits and came in time may have released the hold, and will: it is released.
//   - A payment that waits and came in time keeps the hold from lapsing: the customer has paid. But
//     whoever was granted something on the resource after the deadline may have its slots, since
//     what is due is lapsed before anything is granted.
//   - For the same reason a hold has lapsed when somebody was granted something after its deadline,
//     also if the clock of this Redis has not reached it.
func (p *Past) fate(r *pastResource, id string, h *pastHold) fate {
	created, deadline := p.created(id, h), p.deadline(id, h)
	switch {
	case h.state != Held:
		return fate{state: h.state, ended: h.ended, by: h.by}
	case h.cancelledBy != "" && h.cancelledAt < deadline:
		return fate{state: Released, ended: max(h.cancelledAt, created), by: h.cancelledBy}
	case h.paidBy != "" && h.paidAt < deadline && r.latest < deadline:
		return fate{state: Confirming, ended: max(h.paidAt, created), by: h.paidBy}
	case deadline <= r.latest:
		return fate{state: Expired, ended: r.latest, by: "-", departing: true}
	default:
		return fate{state: Held, by: "-"}
	}
}

// Held returns the holds of which no end is known.
func (p *Past) Held() []HoldID {
	p.mu.Lock()
	defer p.mu.Unlock()
	var ids []HoldID
	for resource, r := range p.resources {
		for id, h := range r.holds {
			if h.state == Held {
				ids = append(ids, HoldID{resource, id})
			}
		}
	}
	return ids
}

// created is when a hold was created. One whose hold.created was not stored, because its worker
// died before, was created when its id was made, nearly.
func (p *Past) created(id string, h *pastHold) int64 {
	if h.created != 0 {
		return h.created
	}
	var parsed uuid.UUID
	_, _ = hex.Decode(parsed[:], []byte(id)) // it has passed ParseHoldID
	seconds, nanos := parsed.Time().UnixTime()
	return seconds*1000 + nanos/1e6
}

// memory is how long what ended or was answered at a time is remembered. All are in ms.
func (p *Past) memory(at int64) int64 {
	return p.policies.At(time.UnixMilli(at)).RequestKeyTTL.Milliseconds()
}

// deadline is that of a hold, the policy's where none was told.
func (p *Past) deadline(id string, h *pastHold) int64 {
	if h.deadline != 0 {
		return h.deadline
	}
	created := p.created(id, h)
	return created + p.policies.At(time.UnixMilli(created)).HoldTTL.Milliseconds()
}
