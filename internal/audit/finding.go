package audit

import (
	"strconv"
	"strings"

	"holdfast/internal/holds"
)

// Kind is what kind of difference a finding is.
type Kind string

// What the streams tell.
const (
	NoOutcome           Kind = "no_outcome"            // an event was acknowledged and has no outcome
	TwoOutcomes         Kind = "two_outcomes"          // an event has more than one
	WrongOutcome        Kind = "wrong_outcome"         // its outcome is not one that such an event can have
	OutcomeWithoutEvent Kind = "outcome_without_event" // or a dead letter
	Unreadable          Kind = "unreadable"            // what is in the outbound stream is no outcome
	TwoEnds             Kind = "two_ends"              // a hold ended more than once
	NoEnd               Kind = "no_end"                // a hold is over, and nothing tells how it ended
	AfterEnd            Kind = "after_end"             // a hold was extended, released or paid after its deadline
	Misplaced           Kind = "misplaced"             // an outcome is stored on a subject that is not its own
	TwoGrants           Kind = "two_grants"            // a request key, or a user and slots, had two live holds at a time
	NeverGranted        Kind = "never_granted"         // a hold that was extended, paid or ended was never granted
	EndedEarly          Kind = "ended_early"           // a hold lapsed before its deadline
	Oversold            Kind = "oversold"              // more was taken of a slot than there was
)

// What Redis says of a hold, and what was told of it.
const (
	HoldLost        Kind = "hold_lost"    // it was granted and is not over, and Redis does not know it
	HoldStillLive   Kind = "hold_undead"  // its end was told, and Redis takes it for live
	HoldUnannounced Kind = "hold_untold"  // Redis has it, and it was never told
	HoldDiffers     Kind = "hold_differs" // Redis has another deadline, quantity, user or other slots
	EndUnannounced  Kind = "end_untold"   // it has ended in Redis, and that was never told
	ClaimStuck      Kind = "claim_stuck"  // a payment has claimed it, and is not being decided
)

// What Postgres has.
const (
	TwoAnswers                Kind = "two_answers" // a payment, or the payments of a hold, have answers that exclude each other
	AnswerDiffers             Kind = "answer_differs"
	AnswerUnrecorded          Kind = "answer_unrecorded" // it was told, and Postgres does not have it
	AnswerUnannounced         Kind = "answer_untold"     // Postgres has it, and it was never told
	ReservationWithoutPayment Kind = "reservation_without_payment"
	PaymentWithoutReservation Kind = "payment_without_reservation"
	CancellationDiffers       Kind = "cancellation_differs"
	Reserved                  Kind = "reserved" // inventory.reserved is not the sum of the reservations
	OutOfBounds               Kind = "out_of_bounds"
	NoConstraint              Kind = "no_constraint"
)

// What Redis has, as holds/doc.go tells it.
const (
	DataLost      Kind = "data_lost" // the epoch of a partition is missing or another one
	Counter       Kind = "counter"   // what live holds take of a slot
	Users         Kind = "users"     // how many a user has
	Due           Kind = "due"       // the deadline index
	Departing     Kind = "departing" // what is to be announced
	Tombstone     Kind = "tombstone" // what is to be dropped
	Index         Kind = "index"     // the user's hold on just these slots
	HoldKey       Kind = "hold_key"  // the key whose expiry is the hint
	RequestAnswer Kind = "request"   // the answer to the request of a live hold
	RecordCorrupt Kind = "record"    // a record that cannot be read
	Agenda        Kind = "agenda"    // when to look at a resource next
	Rev           Kind = "rev"       // counts the changes of capacity and reserved
	WrongType     Kind = "type"      // a key that is not of its type
	Residue       Kind = "residue"   // a key that nothing needs any more
)

// Event is an event or an outcome in its stream.
type Event struct {
	Stream string     `json:"stream"`
	Seq    uint64     `json:"seq"`
	ID     string     `json:"id"`
	Type   string     `json:"type"`
	Time   holds.Time `json:"time"` // when it was stored
}

// Finding is one difference between what is and what should be. Its texts are safe to print.
type Finding struct {
	Kind      Kind   `json:"kind"`
	Resource  string `json:"resource_id"` // "" when it is about none
	Item      string `json:"item"`        // the slot, hold, payment, user or key that it is about
	Where     string `json:"where"`       // the key, stream or table
	Expected  string `json:"expected"`
	Found     string `json:"found"`
	Text      string `json:"text"`            // all of it in a sentence
	After     *Event `json:"after"`           // the first event after which it can have been so, nil when none is known
	Remedy    string `json:"remedy"`          // what is to be done
	Automatic bool   `json:"automatic"`       // Repair does it
	Result    Result `json:"result,omitzero"` // what Repair did, "" = it has not tried

	difference difference // in Redis
	seq        uint64     // of After in its stream
	inbound    bool       // which is the inbound one
	personal   bool       // Item, Where and the texts name a user: that is not for a log
}

// key is what makes two looks find the same.
func (f *Finding) key() string {
	return strings.Join([]string{string(f.Kind), f.Resource, f.Item, f.Where}, "\x00")
}

// same reports whether two looks have found the same.
func (f *Finding) same(other *Finding) bool {
	if f.key() != other.key() {
		return false
	}
	return f.difference == difference{} || f.difference.same(other.difference)
}

// quoted makes a text from outside safe to print, and not too long.
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

// moment is a time in ms for people.
func moment(ms int64) string { return holds.TimeFromMillis(ms).Format(holds.TimeFormat) }

// momentIn is a time in a reply of Redis for people, or the reply as it is.
func momentIn(text string) string {
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return quoted(text)
	}
	return moment(ms)
}
