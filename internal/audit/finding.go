package audit

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"holdfast/internal/holds"
)

// Kind is the kind of a difference.
type Kind string

// Differences within the streams.
const (
	NoOutcome           Kind = "no_outcome"            // an event was acknowledged and has no outcome
	TwoOutcomes         Kind = "two_outcomes"          // an event has more than one
	WrongOutcome        Kind = "wrong_outcome"         // its outcome cannot follow from such an event
	OutcomeWithoutEvent Kind = "outcome_without_event" // or a dead letter without an event
	Unreadable          Kind = "unreadable"            // a message of the outbound stream is not an outcome
	TwoEnds             Kind = "two_ends"              // a hold ended more than once
	NoEnd               Kind = "no_end"                // a hold is past its deadline and has no end
	AfterEnd            Kind = "after_end"             // a hold was extended, released or paid after its deadline
	// an outcome is stored on the subject of another event or resource
	Misplaced Kind = "misplaced"
	// a request key, or a user and slots, had two live holds at a time
	TwoGrants    Kind = "two_grants"
	NeverGranted Kind = "never_granted" // a hold that was extended, paid or ended was never granted
	EndedEarly   Kind = "ended_early"   // a hold expired before its deadline
	Oversold     Kind = "oversold"      // more of a slot was taken than its capacity
)

// Differences between Redis and the outcomes of a hold.
const (
	HoldLost        Kind = "hold_lost"    // it was granted and not ended, and Redis has no record of it
	HoldStillLive   Kind = "hold_undead"  // its end was published, and in Redis it is live
	HoldUnannounced Kind = "hold_untold"  // Redis has it, and no outcome grants it
	HoldDiffers     Kind = "hold_differs" // Redis has another deadline, quantity, user or other slots
	EndUnannounced  Kind = "end_untold"   // it has ended in Redis, and no outcome ends it
	ClaimStuck      Kind = "claim_stuck"  // a payment has claimed it and is not in progress
)

// Differences between Postgres and the outcomes of a hold, and within Postgres.
const (
	// the answers to a payment, or to the payments of a hold, contradict each other
	TwoAnswers                Kind = "two_answers"
	AnswerDiffers             Kind = "answer_differs"
	AnswerUnrecorded          Kind = "answer_unrecorded" // it was published, and Postgres does not have it
	AnswerUnannounced         Kind = "answer_untold"     // Postgres has it, and no outcome was published
	ReservationWithoutPayment Kind = "reservation_without_payment"
	PaymentWithoutReservation Kind = "payment_without_reservation"
	CancellationDiffers       Kind = "cancellation_differs"
	Reserved                  Kind = "reserved" // inventory.reserved differs from the sum of the reservations
	OutOfBounds               Kind = "out_of_bounds"
	CommitLost                Kind = "commit_lost" // Postgres lost what was published, and it cannot be put back
	NoConstraint              Kind = "no_constraint"
)

// Differences within Redis, compared with what holds/doc.go describes.
const (
	DataLost      Kind = "data_lost" // the epoch of a partition is missing or different
	Counter       Kind = "counter"   // how much of a slot live holds take
	Users         Kind = "users"     // how many live holds a user has
	Due           Kind = "due"       // the deadline index
	Departing     Kind = "departing" // the list of expiries to announce
	Tombstone     Kind = "tombstone" // the list of records to delete
	Index         Kind = "index"     // the index of a user's holds by their slots
	HoldKey       Kind = "hold_key"  // the key whose expiry notifies workers
	RequestAnswer Kind = "request"   // the answer to the request of a live hold
	AnswerCorrupt Kind = "answer"    // an answer to a request or an extension that cannot be read
	RecordCorrupt Kind = "record"    // a record that cannot be read
	Agenda        Kind = "agenda"    // when the sweep visits a resource next
	Rev           Kind = "rev"       // the revision of capacity and reserved
	WrongType     Kind = "type"      // a key of a wrong type
	Residue       Kind = "residue"   // a key that is left over
)

// Event names an event or an outcome in its stream.
type Event struct {
	Stream string     `json:"stream"`
	Seq    uint64     `json:"seq"`
	ID     string     `json:"id"`
	Type   string     `json:"type"`
	Time   holds.Time `json:"time"` // when it was stored
}

// Finding is one difference between what is stored and what should be. Its texts are safe to print.
type Finding struct {
	Kind      Kind   `json:"kind"`
	Resource  string `json:"resource_id"` // "" when it is about no resource
	Item      string `json:"item"`        // the slot, hold, payment, user or key
	Where     string `json:"where"`       // the key, stream or table
	Expected  string `json:"expected"`
	Found     string `json:"found"`
	Text      string `json:"text"`            // what differs, in a sentence
	After     *Event `json:"after"`           // the first event after which it can be true, nil when unknown
	Remedy    string `json:"remedy"`          // what the operator can do
	Automatic bool   `json:"automatic"`       // Repair can do it
	Result    Result `json:"result,omitzero"` // what Repair did, "" before it has run

	difference difference // in Redis, or of what is reserved
	resourceID string     // as stored, of what is reserved
	seq        uint64     // of After in its stream, 0 when unknown
	inbound    bool       // After is in the inbound stream
	personal   bool       // Item, Where and the texts name a user, who must not appear in a log
}

// key identifies a finding across two readings.
func (f *Finding) key() string {
	return strings.Join([]string{string(f.Kind), f.Resource, f.Item, f.Where}, "\x00")
}

// same reports whether two readings have found the same difference.
func (f *Finding) same(other *Finding) bool {
	if f.key() != other.key() {
		return false
	}
	return f.difference == difference{} || f.difference.same(other.difference)
}

// both returns the findings that two readings have, as the second has them.
func both(first, second []*Finding) []*Finding {
	before := make(map[string][]*Finding)
	for _, f := range first {
		before[f.key()] = append(before[f.key()], f)
	}
	return slices.DeleteFunc(second, func(f *Finding) bool { return !slices.ContainsFunc(before[f.key()], f.same) })
}

// resourcesOf returns the resources that findings are about, sorted.
func resourcesOf(found []*Finding) []string {
	names := make(map[string]struct{})
	for _, f := range found {
		names[f.Resource] = struct{}{}
	}
	return slices.Sorted(maps.Keys(names))
}

// quoted returns a text from outside in a form that is safe to print, cut to 80 characters.
func quoted(text string) string {
	const most = 80
	if holds.ValidName(text) && len(text) <= most {
		return text
	}
	if len(text) > most {
		text = text[:most] + "..."
	}
	return strconv.QuoteToASCII(text)
}

// moment formats a time in ms for people.
func moment(ms int64) string { return holds.TimeFromMillis(ms).Format(holds.TimeFormat) }

// momentIn formats a time in a reply of Redis for people. A reply that is no number is quoted.
func momentIn(text string) string {
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return quoted(text)
	}
	return moment(ms)
}
