package robustness

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// idHeader has the id of an event that is too malformed to have one, also in its dead letter.
const idHeader = "Robustness-Id"

// sent is an event that was published, or may have been.
type sent struct {
	id       string
	kind     string // the event, or what is wrong with it
	resource string
	dead     bool // it is malformed: a dead letter is its right answer

	called      time.Time
	acked       bool // JetStream has it; else nobody knows
	copies      int  // times that it was published as a message of its own
	outcomes    []outcome
	deadLetters []string // reasons
	answeredAt  time.Time
	answered    chan struct{} // closed at the first answer
}

// outcome is what an outcome says, as far as it matters here.
type outcome struct {
	id    string // of the outcome
	event string

	HoldID         string      `json:"hold_id"`
	PaymentID      string      `json:"payment_id"`
	Reason         string      `json:"reason"`
	CreatedAt      *holds.Time `json:"created_at"`
	ExpiresAt      *holds.Time `json:"expires_at"`
	RefundRequired bool        `json:"refund_required"`
	Late           bool        `json:"late"`
}

// holdRecord is what was told of a hold.
type holdRecord struct {
	created  bool            // its beginning was told
	reported bool            // or anything that only a hold can have
	deadline time.Time       // the latest that was told
	ends     map[string]bool // events that end it
	late     bool            // it was paid after it had lapsed
	payments map[string]map[string]bool
}

// Recorder is the load's own record of a round: what was published, and what was answered.
type Recorder struct {
	subjects events.Namespace

	mu          sync.Mutex
	events      map[string]*sent
	holdRecords map[string]*holdRecord
	unexpected  []string // outcomes and letters that cannot be
	counts      map[string]int
	changed     chan struct{} // closed and replaced with each answer
	lastSeen    time.Time
}

// NewRecorder returns an empty Book.
func NewRecorder(subjects events.Namespace) *Recorder {
	return &Recorder{subjects: subjects, events: make(map[string]*sent), holdRecords: make(map[string]*holdRecord), counts: make(map[string]int), changed: make(chan struct{})}
}

// open notes an event before it is published.
func (b *Recorder) open(id, kind, resource string, dead bool) *sent {
	s := &sent{id: id, kind: kind, resource: resource, dead: dead, called: time.Now(), answered: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events[id] = s
	return s
}

// copy notes that an event is published as a message of its own, which may be stored or not.
func (b *Recorder) copy(s *sent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.copies++
}

// ack notes that JetStream has an event.
func (b *Recorder) ack(s *sent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.acked = true
}

// unanswered counts acknowledged events that have no answer.
func (b *Recorder) unanswered() (n int, some []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.events {
		if s.acked && s.answeredAt.IsZero() {
			if n++; n <= 5 {
				some = append(some, s.kind+" "+s.id)
			}
		}
	}
	return n, some
}

// Follow reads what is answered until ctx is over. Servers may go and come meanwhile.
func (b *Recorder) Follow(ctx context.Context, js jetstream.JetStream) {
	var both sync.WaitGroup
	for name, read := range map[string]func(jetstream.Msg){b.subjects.OutStream(): b.onOutcome, b.subjects.DLQStream(): b.onDeadLetter} {
		both.Go(func() { follow(ctx, js, name, read) })
	}
	both.Wait()
}

// follow hands each message of a stream to read, once and in order.
func follow(ctx context.Context, js jetstream.JetStream, stream string, read func(jetstream.Msg)) {
	const patience, retry = 2 * time.Second, 200 * time.Millisecond
	next := uint64(1)
	for ctx.Err() == nil {
		err := followFrom(ctx, js, stream, &next, patience, read)
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(retry):
			}
		}
	}
}

// followFrom reads what there is from a sequence on, until nothing comes for a while.
func followFrom(ctx context.Context, js jetstream.JetStream, stream string, next *uint64, patience time.Duration, read func(jetstream.Msg)) error {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	consumer, err := js.OrderedConsumer(bounded, stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: *next, MaxResetAttempts: 1,
	})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullExpiry(time.Second), jetstream.StopAfter(10_000))
	if err != nil {
		return err
	}
	defer messages.Stop()
	stop := context.AfterFunc(ctx, messages.Stop)
	defer stop()
	for {
		m, err := messages.Next(jetstream.NextMaxWait(patience))
		if err != nil {
			return nil // nothing came, or nobody was there: it is asked anew
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		if meta.Sequence.Stream < *next {
			continue
		}
		*next = meta.Sequence.Stream + 1
		read(m)
	}
}

// onOutcome notes what OUT has.
func (b *Recorder) onOutcome(m jetstream.Msg) {
	var e events.Envelope
	meta, err := m.Metadata()
	if err == nil {
		err = json.Unmarshal(m.Data(), &e)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		err = b.addOutcome(e)
	}
	if err != nil {
		b.unexpected = append(b.unexpected, fmt.Sprintf("in %s is what is no outcome: %v: %+v %s", b.subjects.OutStream(), err, meta, m.Data()))
	}
}

// addOutcome notes an outcome. The caller holds mu.
func (b *Recorder) addOutcome(e events.Envelope) error {
	s := outcome{id: e.ID, event: eventOf(e.Type)}
	if err := json.Unmarshal(e.Data, &s); err != nil {
		return err
	}
	b.lastSeen = time.Now()
	word := s.event
	if s.Reason != "" {
		word += " " + s.Reason
	}
	b.counts[word]++
	b.updateHold(s, e.Subject)
	if e.CausationID == "" {
		if s.event != holds.EventHoldExpired {
			b.unexpected = append(b.unexpected, "an outcome of nothing: "+e.ID+" "+s.event)
		}
	} else if ev := b.events[e.CausationID]; ev == nil {
		b.unexpected = append(b.unexpected, "an outcome of an event that was never published: "+e.ID+" of "+e.CausationID)
	} else {
		ev.outcomes = append(ev.outcomes, s)
		b.markAnswered(ev)
	}
	b.wake()
	return nil
}

func eventOf(ceType string) string {
	return strings.TrimSuffix(strings.TrimPrefix(ceType, "holdfast."), ".v1")
}

func (b *Recorder) markAnswered(s *sent) {
	if s.answeredAt.IsZero() {
		s.answeredAt = time.Now()
		close(s.answered)
	}
}

func (b *Recorder) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// updateHold notes what an outcome tells of a hold. One consumer may tell of an end before another tells
// of the beginning. Whoever asks about a hold that never was is told so, which says nothing of it.
func (b *Recorder) updateHold(s outcome, hold string) {
	switch s.event {
	case holds.EventHoldCreated, holds.EventHoldExtended, holds.EventHoldReleased, holds.EventHoldExpired, holds.EventHoldConfirmed,
		holds.EventReservationCancelled, holds.EventConfirmRejected:
	default:
		return
	}
	l := b.holdRecords[hold]
	if l == nil {
		l = &holdRecord{ends: make(map[string]bool), payments: make(map[string]map[string]bool)}
		b.holdRecords[hold] = l
	}
	l.created = l.created || s.event == holds.EventHoldCreated
	l.reported = l.reported || s.event != holds.EventConfirmRejected
	if s.ExpiresAt != nil && s.ExpiresAt.After(l.deadline) {
		l.deadline = s.ExpiresAt.Time
	}
	switch s.event {
	case holds.EventHoldReleased, holds.EventHoldExpired:
		l.ends[s.event] = true
	case holds.EventHoldConfirmed:
		if s.Late {
			l.late = true
		} else {
			l.ends[s.event] = true
		}
		l.paid(s.PaymentID, "confirmed")
	case holds.EventConfirmRejected:
		if !s.RefundRequired {
			b.unexpected = append(b.unexpected, "a payment of "+hold+" was refused without refund_required")
		}
		l.paid(s.PaymentID, s.Reason)
	}
}

func (l *holdRecord) paid(payment, answer string) {
	if l.payments[payment] == nil {
		l.payments[payment] = make(map[string]bool)
	}
	l.payments[payment][answer] = true
}

// onDeadLetter notes what the stream of dead letters has.
func (b *Recorder) onDeadLetter(m jetstream.Msg) {
	b.mu.Lock()
	defer b.mu.Unlock()
	reason, id := m.Headers().Get(events.HeaderDLQReason), m.Headers().Get(idHeader)
	b.counts["dead letter "+reason]++
	b.lastSeen = time.Now()
	if ev := b.events[id]; ev == nil || !ev.dead {
		b.unexpected = append(b.unexpected, fmt.Sprintf("a dead letter %s (%s) of an event that should have an outcome: %s %s",
			reason, m.Headers().Get(events.HeaderDLQDetail), id, m.Headers().Get(events.HeaderDLQSubject)))
	} else {
		ev.deadLetters = append(ev.deadLetters, reason)
		b.markAnswered(ev)
	}
	b.wake()
}

// await waits for the answer to an event for at most so long, and returns its outcome.
func (b *Recorder) await(ctx context.Context, s *sent, within time.Duration) (o outcome, ok bool) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-s.answered:
	case <-timer.C:
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(s.outcomes) == 0 {
		return outcome{}, false
	}
	return s.outcomes[0], true
}

// lastAnswer is when the last answer was seen.
func (b *Recorder) lastAnswer() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lastSeen
}

// overdue counts the holds that have not ended though their deadline has passed at a time.
func (b *Recorder) overdue(now time.Time) (n int, some []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for hold, l := range b.holdRecords {
		if l.created && len(l.ends) == 0 && !l.deadline.After(now) {
			if n++; n <= 5 {
				some = append(some, hold)
			}
		}
	}
	return n, some
}

// violations compares all that was answered with what is promised of it.
func (b *Recorder) violations() (wrong []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wrong = slices.Clone(b.unexpected)
	for _, id := range slices.Sorted(maps.Keys(b.events)) {
		s := b.events[id]
		ids := make(map[string]bool)
		for _, o := range s.outcomes {
			ids[o.id] = true
		}
		switch {
		case s.dead && len(ids) > 0:
			wrong = append(wrong, fmt.Sprintf("malformed event %s (%s) has an outcome", s.id, s.kind))
		case s.dead && len(s.deadLetters) > s.copies:
			wrong = append(wrong, fmt.Sprintf("malformed event %s (%s) has %d dead letters", s.id, s.kind, len(s.deadLetters)))
		case len(ids) > 1:
			wrong = append(wrong, fmt.Sprintf("event %s (%s) has %d outcomes: %+v", s.id, s.kind, len(ids), s.outcomes))
		case s.acked && len(ids)+len(s.deadLetters) == 0:
			wrong = append(wrong, fmt.Sprintf("event %s (%s, %s) was acknowledged and has no outcome", s.id, s.kind, s.resource))
		}
	}
	for _, hold := range slices.Sorted(maps.Keys(b.holdRecords)) {
		l := b.holdRecords[hold]
		if l.reported && !l.created {
			wrong = append(wrong, fmt.Sprintf("hold %s has ended as %v, and that it began was never told", hold, slices.Sorted(maps.Keys(l.ends))))
		}
		if len(l.ends) > 1 {
			wrong = append(wrong, fmt.Sprintf("hold %s has ended as %v", hold, slices.Sorted(maps.Keys(l.ends))))
		}
		if l.late && !l.ends[holds.EventHoldExpired] {
			wrong = append(wrong, fmt.Sprintf("hold %s was confirmed late and has not expired: %v", hold, slices.Sorted(maps.Keys(l.ends))))
		}
		confirmed := 0
		for payment, answers := range l.payments {
			if len(answers) > 1 {
				wrong = append(wrong, fmt.Sprintf("payment %s of hold %s has answers %v", payment, hold, slices.Sorted(maps.Keys(answers))))
			}
			if answers["confirmed"] {
				confirmed++
			}
		}
		if confirmed > 1 {
			wrong = append(wrong, fmt.Sprintf("hold %s was confirmed by %d payments", hold, confirmed))
		}
	}
	return wrong
}
