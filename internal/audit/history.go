package audit

import (
	"hash/fnv"
	"hash/maphash"
	"iter"
	"slices"
	"strings"
	"time"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// name is an index in names: what is kept by the million has no text in it.
type name uint8

// names are the events, inbound and outbound.
var names = []string{
	"?",
	events.BookingRequested, events.BookingExtended, events.BookingCancelled, events.PaymentStarted, events.PaymentConfirmed,
	events.ReservationCancelled, events.InventorySet,
	holds.EventHoldCreated, holds.EventHoldRejected, holds.EventHoldExtended, holds.EventExtensionRejected,
	holds.EventHoldReleased, holds.EventReleaseRejected, holds.EventHoldExpired, holds.EventHoldConfirmed,
	holds.EventConfirmRejected, holds.EventCancelRejected, holds.EventInventoryUpdated, holds.EventInventoryRejected,
}

func nameOf(text string) name { return name(max(0, slices.Index(names, text))) }

func (n name) String() string { return names[n] }

// outcomesOf are the outcomes that an inbound event can have, as the contract has them.
var outcomesOf = map[string][]string{
	events.BookingRequested:     {holds.EventHoldCreated, holds.EventHoldRejected},
	events.BookingExtended:      {holds.EventHoldExtended, holds.EventExtensionRejected},
	events.PaymentStarted:       {holds.EventHoldExtended, holds.EventExtensionRejected},
	events.BookingCancelled:     {holds.EventHoldReleased, holds.EventReleaseRejected, holds.EventBookingCancelled},
	events.PaymentConfirmed:     {holds.EventHoldConfirmed, holds.EventConfirmRejected},
	events.ReservationCancelled: {holds.EventReservationCancelled, holds.EventCancelRejected},
	events.InventorySet:         {holds.EventInventoryUpdated, holds.EventInventoryRejected},
}

// event is an inbound event that can be processed. What was published twice is one event.
type event struct {
	seq         uint64   // of its first copy
	copies      []uint64 // of the others
	stored      int64    // of the first copy, ms
	outcome     uint64   // sequence of its outcome in the outbound stream, 0 = none yet
	content     uint64   // of the outcome
	name        name
	outcomeName name // its outcome
}

// each calls f for every copy of the event.
func (e *event) each(f func(seq uint64)) {
	f(e.seq)
	for _, seq := range e.copies {
		f(seq)
	}
}

// unprocessable is an inbound event whose outcome can only be a dead letter.
type unprocessable struct {
	seq      uint64
	stored   int64
	consumer string
}

// deadLetter is a dead letter.
type deadLetter struct {
	seq     uint64 // in the stream of dead letters
	reason  string
	another uint64 // sequence of a letter of the same event with another reason
	found   bool   // its event is in the inbound stream
}

// orphan is an outcome whose event was not found.
type orphan struct {
	outcome id
	seq     uint64
	stored  int64
	name    name
	content uint64
}

// hold is what was told of a hold, what Redis and Postgres have of it. Sequences are those of the
// outbound stream, 0 = it was not told; times are in ms of Redis' clock, unless they are stored times.
type hold struct {
	id       id
	set      int32  // its slots, an index in its resource's sets; -1 = not known
	user     uint64 // sum64 of it, as of key
	key      uint64 // of its request
	quantity int64

	created       uint64
	requestStored int64 // when the event was stored that asked for it, 0 = not known
	createdAt     int64
	createdStored int64 // when created was stored
	granted       int64 // the deadline that it was created with
	deadline      int64 // the latest that was told
	extended      uint64

	end         name // what ended it first, 0 = nothing was told
	endedBy     uint32
	ended       uint64
	endedAt     int64 // of a lapsed hold its deadline
	endedStored int64

	more *more
	rec  *holdRecord // what Redis remembers
	late *holdRecord // likewise, of what a late payment took again
}

// more is what only some holds have.
type more struct {
	otherEnd      name // another end than the first
	other         uint64
	extensions    []extension
	extends       []*event // that asked for one
	answers       []answer
	reservation   *reservation
	lateOutcome   uint64
	lateAt        int64
	cancelled     uint64
	cancelledAt   int64
	otherGrant    uint64 // sequence of another grant of it, 0 = it was told once, or the same again
	restoredEarly int64  // when its slots were given back, if that was before its deadline
	// The latest moment of Redis' clock that was told before anybody asked for the reservation to
	// be cancelled: until then at least it took its slots. 0 = nobody asked.
	takenAtLeastUntil int64
}

func (h *hold) extra() *more {
	if h.more == nil {
		h.more = new(more)
	}
	return h.more
}

// extension is a hold.extended.
type extension struct {
	seq          uint64
	at, deadline int64
}

// answer is the answer to a payment, as it was told, as Postgres has it, or both.
type answer struct {
	payment   string
	confirmed bool
	late      bool
	reason    string
	at        int64
	outcome   uint64
	another   uint64 // sequence of an outcome that answers the same payment otherwise
	row       *row
}

// row is a payment in Postgres.
type row struct {
	confirmed bool
	late      bool
	reason    string
	at        int64
}

// reservation is one in Postgres.
type reservation struct {
	payment     string
	slots       []string
	quantity    int64
	confirmedAt int64
	cancelled   bool
	cancelledAt int64
}

// resource is what is known of a resource.
type resource struct {
	name  string
	holds map[id]*hold

	slots    []slot
	slotOf   map[string]int32
	sets     [][]int32 // of slots
	setOf    map[string]int32
	setNames []string

	misplaced []uint64 // outcomes on its subject that are about another's holds

	latest  int64 // the latest moment of Redis' clock that an outcome has told
	cancels []cancel

	inspected   bool // and Redis has not lost its data
	lost        bool // it had, when it was looked at
	now         int64
	differences []difference
}

// slot is what is known of a slot.
type slot struct {
	name     string
	capacity int64 // the highest that was ever told
	known    int64 // when it was told first, by NATS' clock in ms; 0 = only Postgres has it
	changes  []capacityChange
	lowest   int64 // of changes
}

// changesMax is how many changes of a slot are kept in mind: of more, the earlier are taken for one.
const changesMax = 200

// capacityChange is an inventory.set, or what was answered to one.
type capacityChange struct {
	capacity  int64
	requested int64 // when the event was stored: a later one wins, in whatever order they are decided
	answered  int64 // when it was answered, maxTime = that is not known
}

// inForce is the most that can have been for sale of a slot, by what was told of it, when a hold was granted whose
// request was stored at asked and answered at told.
func (s *slot) inForce(requested, reported int64) int64 {
	since := int64(-1) // what was set before this was over by asked
	for _, c := range s.changes {
		if c.answered < requested-cancelMargin {
			since = max(since, c.requested)
		}
	}
	if since < 0 || requested == 0 {
		return s.capacity
	}
	most := int64(0)
	for _, c := range s.changes {
		if c.requested >= since && c.requested < reported+cancelMargin {
			most = max(most, c.capacity)
		}
	}
	return min(most, s.capacity)
}

// cancel is a wish that a reservation be cancelled.
type cancel struct {
	stored int64
	hold   id
}

func newResource(name string) *resource {
	return &resource{name: name, holds: make(map[id]*hold), slotOf: make(map[string]int32), setOf: make(map[string]int32)}
}

func (r *resource) hold(i id) *hold {
	h := r.holds[i]
	if h == nil {
		h = &hold{id: i, set: -1}
		r.holds[i] = h
	}
	return h
}

// slotNamed returns a slot's index.
func (r *resource) slotNamed(name string) int32 {
	i, found := r.slotOf[name]
	if !found {
		i = int32(len(r.slots))
		name = strings.Clone(name)
		r.slotOf[name] = i
		r.slots = append(r.slots, slot{name: name})
	}
	return i
}

// setNamed returns the index of a set of slots, sorted and with commas.
func (r *resource) setNamed(names string) int32 {
	i, found := r.setOf[names]
	if !found {
		i = int32(len(r.sets))
		names = strings.Clone(names)
		r.setOf[names] = i
		var set []int32
		for name := range strings.SplitSeq(names, ",") {
			set = append(set, r.slotNamed(name))
		}
		r.sets, r.setNames = append(r.sets, set), append(r.setNames, names)
	}
	return i
}

// addCapacity notes a capacity that a slot has had.
func (r *resource) addCapacity(name string, capacity, stored int64) {
	s := &r.slots[r.slotNamed(name)]
	s.capacity = max(s.capacity, capacity)
	if stored > 0 && (s.known == 0 || stored < s.known) {
		s.known = stored
	}
}

// addCapacityChange notes a change of a capacity.
func (r *resource) addCapacityChange(name string, c capacityChange) {
	s := &r.slots[r.slotNamed(name)]
	if len(s.changes) == 0 || c.capacity < s.lowest {
		s.lowest = c.capacity
	}
	if len(s.changes) == changesMax {
		one := &s.changes[changesMax/2]
		for _, other := range s.changes[:changesMax/2] {
			one.capacity, one.requested, one.answered = max(one.capacity, other.capacity), max(one.requested, other.requested), max(one.answered, other.answered)
		}
		s.changes = slices.Delete(s.changes, 0, changesMax/2)
	}
	s.changes = append(s.changes, c)
}

// slotsOf returns the slots that are meant, sorted; none when that cannot be told.
func slotsOf(a holds.SlotSelection) iter.Seq[string] {
	return func(yield func(string) bool) {
		switch {
		case a.CheckIn != "":
			in, err := time.Parse(holds.DateFormat, a.CheckIn)
			out, wrong := time.Parse(holds.DateFormat, a.CheckOut)
			if err != nil || wrong != nil || out.Sub(in) > holds.InventorySlotsMax*24*time.Hour {
				return
			}
			for night := in; night.Before(out); night = night.AddDate(0, 0, 1) {
				if !yield(night.Format(holds.DateFormat)) {
					return
				}
			}
		case a.Slots != nil:
			for _, slot := range slices.Sorted(slices.Values(a.Slots)) {
				if !yield(slot) {
					return
				}
			}
		default:
			yield(holds.StockSlot)
		}
	}
}

// sum64 tells texts apart, however many there are.
func sum64(text string) uint64 { return maphash.String(contentSeed, text) }

// sum32 tells texts apart that are kept by the million.
func sum32(text string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text)) // a hash never returns an error
	return h.Sum32()
}
