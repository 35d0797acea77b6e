package audit

import (
	"hash/maphash"
	"slices"
	"strings"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// outcomesOf lists the outcomes that each inbound event can have.
var outcomesOf = map[string][]string{
	events.BookingRequested:     {holds.EventHoldCreated, holds.EventHoldRejected},
	events.BookingExtended:      {holds.EventHoldExtended, holds.EventExtensionRejected},
	events.PaymentStarted:       {holds.EventHoldExtended, holds.EventExtensionRejected},
	events.BookingCancelled:     {holds.EventHoldReleased, holds.EventReleaseRejected, holds.EventBookingCancelled},
	events.PaymentConfirmed:     {holds.EventHoldConfirmed, holds.EventConfirmRejected},
	events.ReservationCancelled: {holds.EventReservationCancelled, holds.EventCancelRejected},
	events.InventorySet:         {holds.EventInventoryUpdated, holds.EventInventoryRejected},
}

// event is an inbound event that can be processed. Copies that were published several times are one
// event.
type event struct {
	seqs        []uint64 // of its copies
	stored      int64    // of the first copy, ms
	outcome     uint64   // sequence of its outcome in the outbound stream, 0 when it has none yet
	content     uint64   // hash of the outcome's content
	another     uint64   // sequence of a second outcome with the same id and different content, 0 for none
	name        string
	outcomeName string // the event of its outcome
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
	another uint64 // sequence of a dead letter of the same event with a different reason
	found   bool   // its event is in the inbound stream
}

// orphan is an outcome whose event was not found.
type orphan struct {
	outcome id
	seq     uint64
	stored  int64
	name    string
	content uint64
}

// hold has the outcomes about a hold and what Redis and Postgres have of it. Sequences are those of
// the outbound stream, 0 when no outcome was found. Times are in ms of Redis' clock, except stored
// times, which are NATS'.
type hold struct {
	id       id
	set      int32  // its slots, an index into its resource's sets; -1 when unknown
	guessed  bool   // createdAt is that of the id, by the clock of a worker: its hold.created was never published
	user     uint64 // sum64 of the user id
	key      uint64 // sum64 of the request key
	quantity int64

	created       uint64
	requestStored int64 // when its booking.requested was stored, 0 when unknown
	createdAt     int64
	createdStored int64 // when its hold.created was stored
	granted       int64 // the deadline that it was created with
	deadline      int64 // the latest that was published
	extended      uint64

	end         string // the outcome that ended it first, "" when none did
	endedBy     uint32 // identifies the end, see addEnd; short, because many are kept
	ended       uint64
	endedAt     int64 // of an expired hold its deadline
	endedStored int64

	otherEnd string // a second end that differs from the first
	other    uint64 // the sequence of that end

	extensions []extension
	extends    []*event // events that requested an extension

	answers       []answer
	reservation   *reservation
	lateOutcome   uint64
	lateAt        int64
	lateRequested int64 // when the late payment was stored, 0 when unknown

	cancelled       uint64
	cancelledAt     int64
	cancelledStored int64 // when the outcome in cancelled was stored
	// The latest moment of Redis' clock that was published before the cancellation of the
	// reservation was requested. The reservation took its slots until then at least. 0 when no
	// cancellation was requested.
	takenAtLeastUntil int64

	otherGrant    uint64 // sequence of a second grant with different content, 0 for none
	restoredEarly int64  // when its slots were given back, if that was before its deadline

	rec  *holdRecord // its record in Redis
	late *holdRecord // the record in Redis of the slots that a late payment took again
}

// extension is a hold.extended.
type extension struct {
	seq          uint64
	at, deadline int64
}

// answer is the answer to a payment: the published one, the one in Postgres, or both.
type answer struct {
	payment  string
	decision        // the published one
	outcome  uint64 // sequence of the published one, 0 for none
	another  uint64 // sequence of an outcome that answers the same payment differently
	row      *decision
	past     bool // by the row: it is confirmed, its hold has no reservation, and all its nights are over (see isPast)
}

// decision is what an answer says. at is 0 in a published refusal, which has no time.
type decision struct {
	confirmed bool
	late      bool
	reason    string
	at        int64
}

// reservation is a reservation in Postgres.
type reservation struct {
	resource    string // the row's, which SQL may have changed
	payment     string
	slots       []string
	quantity    int64
	confirmedAt int64
	cancelled   bool
	cancelledAt int64
}

// resource has all data about a resource.
type resource struct {
	name  string
	holds map[id]*hold

	slots    []slot
	slotOf   map[string]int32
	sets     [][]int32 // sets of slots
	setOf    map[string]int32
	setNames []string

	last *lastOutcomes // nil until lastOutcomes is called

	latest  int64 // the latest moment of Redis' clock in an outcome
	cancels []cancel

	inspected   bool // it was read in Redis, which has not lost its data
	lost        bool // Redis had lost its data when it was read
	unsure      bool // it is uncertain whether some counters are wrong
	now         int64
	differences []difference
}

// slot has what is known of a slot.
type slot struct {
	name     string
	capacity int64 // the highest that was published or that Postgres has
	known    int64 // when a capacity was first published, by NATS' clock in ms; 0 when only Postgres has one
	changes  []capacityChange
	lowest   int64 // the lowest capacity in changes
}

// changesMax bounds the changes of a slot in memory. When there are more, the earlier half is
// merged into one.
const changesMax = 200

// capacityChange is an inventory.set, or its outcome.
type capacityChange struct {
	capacity  int64
	requested int64 // when the event was stored; the later stored one wins, in any order of decisions
	answered  int64 // when its outcome was stored, maxTime when unknown
}

// inForce returns the highest published capacity of a slot that can have been in force when a hold
// was granted. requested is when its request was stored, reported when its grant was stored, both
// in ms.
func (s *slot) inForce(requested, reported int64) int64 {
	since := int64(-1) // changes requested before this were replaced when the hold was requested
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

// cancel is a request to cancel a reservation.
type cancel struct {
	stored int64
	hold   id
}

func (r *resource) hold(i id) *hold {
	h := r.holds[i]
	if h == nil {
		h = &hold{id: i, set: -1}
		r.holds[i] = h
	}
	return h
}

// slotNamed returns the index of a slot, which it adds if it is new.
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

// setNamed returns the index of a set of slots, whose names are sorted and joined by commas.
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

// addCapacity notes a capacity of a slot. stored is when it was published, in ms; 0 when Postgres
// has it.
func (r *resource) addCapacity(name string, capacity, stored int64) {
	s := &r.slots[r.slotNamed(name)]
	s.capacity = max(s.capacity, capacity)
	if stored > 0 && (s.known == 0 || stored < s.known) {
		s.known = stored
	}
}

// addCapacityChange notes a change of the capacity of a slot.
func (r *resource) addCapacityChange(name string, c capacityChange) {
	s := &r.slots[r.slotNamed(name)]
	if len(s.changes) == 0 || c.capacity < s.lowest {
		s.lowest = c.capacity
	}
	if len(s.changes) == changesMax {
		one := &s.changes[changesMax/2]
		for _, other := range s.changes[:changesMax/2] {
			one.capacity, one.requested, one.answered = max(one.capacity, other.capacity),
				max(one.requested, other.requested), max(one.answered, other.answered)
		}
		s.changes = slices.Delete(s.changes, 0, changesMax/2)
	}
	s.changes = append(s.changes, c)
}

// sum64 returns a hash of a text. Two texts have the same hash so rarely that it stands for the
// text.
func sum64(text string) uint64 { return maphash.String(contentSeed, text) }
