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

// idHeader is the header of an event with its id. A dead letter has it too, so that the recorder finds
// the event even when its body is malformed.
const idHeader = "Robustness-Id"

// sent is an event that the load has published or tried to publish.
type sent struct {
	id       string
	kind     string // the name of the event
	resource string
	dead     bool // malformed: the right answer is a dead letter

	acked       bool      // JetStream has stored it; without an ack it may be stored or not
	copies      int       // how often it was published; each time may store a message
	outcomes    []outcome // in the order of the outbound stream
	deadLetters []string  // reasons
	answeredAt  time.Time
	answered    chan struct{} // closed at the first answer
}

// outcome has the members of an outcome that the suite reads.
type outcome struct {
	id    string // of the outcome
	event string // the name of the event, for example hold.created

	HoldID         string      `json:"hold_id"`
	PaymentID      string      `json:"payment_id"`
	Reason         string      `json:"reason"`
	CreatedAt      *holds.Time `json:"created_at"`
	ExpiresAt      *holds.Time `json:"expires_at"`
	RefundRequired bool        `json:"refund_required"`
	Late           bool        `json:"late"`
}

// holdRecord summarizes the outcomes of a hold.
type holdRecord struct {
	created  bool                       // has hold.created
	reported bool                       // has an outcome that only an existing hold can have
	deadline time.Time                  // the latest of all outcomes
	ends     map[string]bool            // the events that ended it
	late     bool                       // confirmed after it had expired
	payments map[string]map[string]bool // by payment: "confirmed" or the reason of the rejection
}

// Recorder records what the load of a round has published and how it was answered.
type Recorder struct {
	subjects events.Namespace

	mu          sync.Mutex
	events      map[string]*sent
	holdRecords map[string]*holdRecord
	unexpected  []string       // violations found while reading
	counts      map[string]int // outcomes and dead letters, by event and reason
	lastSeen    time.Time      // when the last answer was read
}

// NewRecorder returns an empty Recorder.
func NewRecorder(subjects events.Namespace) *Recorder {
	return &Recorder{
		subjects: subjects, events: make(map[string]*sent), holdRecords: make(map[string]*holdRecord),
		counts: make(map[string]int),
	}
}

// open records an event before its publication.
func (r *Recorder) open(id, kind, resource string, dead bool) *sent {
	s := &sent{id: id, kind: kind, resource: resource, dead: dead, answered: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events[id] = s
	return s
}

// copy records that the event is about to be published once more.
func (r *Recorder) copy(s *sent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.copies++
}

// ack records that JetStream has stored the event.
func (r *Recorder) ack(s *sent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.acked = true
}

// unanswered returns the number of acknowledged events without an answer, and up to five of them.
func (r *Recorder) unanswered() (n int, some []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.events {
		if s.acked && s.answeredAt.IsZero() {
			if n++; n <= 5 {
				some = append(some, s.kind+" "+s.id)
			}
		}
	}
	return n, some
}

// Follow reads outcomes and dead letters until ctx is done. It continues after failures of the servers.
func (r *Recorder) Follow(ctx context.Context, js jetstream.JetStream) {
	var both sync.WaitGroup
	for name, read := range map[string]func(jetstream.Msg){
		r.subjects.OutStream(): r.onOutcome, r.subjects.DLQStream(): r.onDeadLetter,
	} {
		both.Go(func() { follow(ctx, js, name, read) })
	}
	both.Wait()
}

// follow calls read for each message of a stream, once and in order, until ctx is done.
func follow(ctx context.Context, js jetstream.JetStream, stream string, read func(jetstream.Msg)) {
	next := uint64(1)
	for ctx.Err() == nil {
		if err := followFrom(ctx, js, stream, &next, read); err != nil {
			wait(ctx, 200*time.Millisecond)
		}
	}
}

// followFrom calls read for each message from the sequence *next on, and advances *next. It returns
// when no message has come for two seconds.
func followFrom(ctx context.Context, js jetstream.JetStream, stream string, next *uint64,
	read func(jetstream.Msg),
) error {
	const silenceMax = 2 * time.Second
	bounded, cancel := context.WithTimeout(ctx, silenceMax)
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
		m, err := messages.Next(jetstream.NextMaxWait(silenceMax))
		if err != nil {
			return nil // no message or no server: follow tries again
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

// onOutcome records a message of the outbound stream.
func (r *Recorder) onOutcome(m jetstream.Msg) {
	var e events.Envelope
	meta, err := m.Metadata()
	if err == nil {
		err = json.Unmarshal(m.Data(), &e)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		err = r.addOutcome(e)
	}
	if err != nil {
		r.unexpected = append(r.unexpected,
			fmt.Sprintf("%s has a malformed outcome: %v: %+v %s", r.subjects.OutStream(), err, meta, m.Data()))
	}
}

// addOutcome records an outcome. The caller holds mu.
func (r *Recorder) addOutcome(e events.Envelope) error {
	s := outcome{id: e.ID, event: eventOf(e.Type)}
	if err := json.Unmarshal(e.Data, &s); err != nil {
		return err
	}
	r.lastSeen = time.Now()
	kind := s.event
	if s.Reason != "" {
		kind += " " + s.Reason
	}
	r.counts[kind]++
	r.updateHold(s, e.Subject)
	if e.CausationID == "" {
		if s.event != holds.EventHoldExpired {
			r.unexpected = append(r.unexpected, "outcome without an event: "+e.ID+" "+s.event)
		}
	} else if ev := r.events[e.CausationID]; ev == nil {
		r.unexpected = append(r.unexpected, "outcome of an event that was never published: "+e.ID+" of "+e.CausationID)
	} else {
		ev.outcomes = append(ev.outcomes, s)
		ev.markAnswered()
	}
	return nil
}

func eventOf(ceType string) string {
	return strings.TrimSuffix(strings.TrimPrefix(ceType, "holdfast."), ".v1")
}

// markAnswered records the first answer. The caller holds Recorder.mu.
func (s *sent) markAnswered() {
	if s.answeredAt.IsZero() {
		s.answeredAt = time.Now()
		close(s.answered)
	}
}

// updateHold updates the record of a hold from an outcome. The end of a hold may come before its
// hold.created, because different consumers publish them. A rejected payment does not prove that the
// hold exists: payments of unknown holds are rejected too.
func (r *Recorder) updateHold(s outcome, hold string) {
	switch s.event {
	case holds.EventHoldCreated, holds.EventHoldExtended, holds.EventHoldReleased, holds.EventHoldExpired,
		holds.EventHoldConfirmed, holds.EventReservationCancelled, holds.EventConfirmRejected:
	default:
		return
	}
	h := r.holdRecords[hold]
	if h == nil {
		h = &holdRecord{ends: make(map[string]bool), payments: make(map[string]map[string]bool)}
		r.holdRecords[hold] = h
	}
	h.created = h.created || s.event == holds.EventHoldCreated
	h.reported = h.reported || s.event != holds.EventConfirmRejected
	if s.ExpiresAt != nil && s.ExpiresAt.After(h.deadline) {
		h.deadline = s.ExpiresAt.Time
	}
	switch s.event {
	case holds.EventHoldReleased, holds.EventHoldExpired:
		h.ends[s.event] = true
	case holds.EventHoldConfirmed:
		if s.Late {
			h.late = true
		} else {
			h.ends[s.event] = true
		}
		h.paid(s.PaymentID, "confirmed")
	case holds.EventConfirmRejected:
		if !s.RefundRequired {
			r.unexpected = append(r.unexpected, "payment of "+hold+" was rejected without refund_required")
		}
		h.paid(s.PaymentID, s.Reason)
	}
}

func (h *holdRecord) paid(payment, answer string) {
	if h.payments[payment] == nil {
		h.payments[payment] = make(map[string]bool)
	}
	h.payments[payment][answer] = true
}

// onDeadLetter records a message of the stream of dead letters.
func (r *Recorder) onDeadLetter(m jetstream.Msg) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reason, id := m.Headers().Get(events.HeaderDLQReason), m.Headers().Get(idHeader)
	r.counts["dead letter "+reason]++
	r.lastSeen = time.Now()
	if ev := r.events[id]; ev == nil || !ev.dead {
		r.unexpected = append(r.unexpected,
			fmt.Sprintf("dead letter %s (%s) of an event that should have an outcome: %s %s",
				reason, m.Headers().Get(events.HeaderDLQDetail), id, m.Headers().Get(events.HeaderDLQSubject)))
	} else {
		ev.deadLetters = append(ev.deadLetters, reason)
		ev.markAnswered()
	}
}

// await waits for the answer to an event, for at most within, and returns its first outcome. ok is
// false when there is none.
func (r *Recorder) await(ctx context.Context, s *sent, within time.Duration) (o outcome, ok bool) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-s.answered:
	case <-timer.C:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(s.outcomes) == 0 {
		return outcome{}, false
	}
	return s.outcomes[0], true
}

// lastAnswer returns when the last answer was read.
func (r *Recorder) lastAnswer() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lastSeen
}

// overdue returns the number of holds whose deadline is not after now and that have not ended, and up
// to five of them.
func (r *Recorder) overdue(now time.Time) (n int, some []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for hold, h := range r.holdRecords {
		if h.created && len(h.ends) == 0 && !h.deadline.After(now) {
			if n++; n <= 5 {
				some = append(some, hold)
			}
		}
	}
	return n, some
}

// violations returns the promises that the recorded answers break.
func (r *Recorder) violations() (found []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found = slices.Clone(r.unexpected)
	add := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	for _, id := range slices.Sorted(maps.Keys(r.events)) {
		s := r.events[id]
		ids := make(map[string]bool)
		for _, o := range s.outcomes {
			ids[o.id] = true
		}
		switch {
		case s.dead && len(ids) > 0:
			add("malformed event %s (%s) has an outcome", s.id, s.kind)
		case s.dead && len(s.deadLetters) > s.copies:
			add("malformed event %s (%s) has %d dead letters", s.id, s.kind, len(s.deadLetters))
		case len(ids) > 1:
			add("event %s (%s) has %d outcomes: %+v", s.id, s.kind, len(ids), s.outcomes)
		case s.acked && len(ids)+len(s.deadLetters) == 0:
			add("event %s (%s, %s) was acknowledged and has no outcome", s.id, s.kind, s.resource)
		}
	}
	for _, hold := range slices.Sorted(maps.Keys(r.holdRecords)) {
		h := r.holdRecords[hold]
		ends := slices.Sorted(maps.Keys(h.ends))
		if h.reported && !h.created {
			add("hold %s has no hold.created, and ended as %v", hold, ends)
		}
		if len(h.ends) > 1 {
			add("hold %s has several ends: %v", hold, ends)
		}
		if h.late && !h.ends[holds.EventHoldExpired] {
			add("hold %s was confirmed late and has not expired: %v", hold, ends)
		}
		confirmed := 0
		for payment, answers := range h.payments {
			if len(answers) > 1 {
				add("payment %s of hold %s has several answers: %v",
					payment, hold, slices.Sorted(maps.Keys(answers)))
			}
			if answers["confirmed"] {
				confirmed++
			}
		}
		if confirmed > 1 {
			add("hold %s was confirmed by %d payments", hold, confirmed)
		}
	}
	return found
}
