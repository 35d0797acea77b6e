package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/failpoint"
)

// The ways in which a replay of a letter ends without an outcome. What has an outcome ends with
// its event, like hold.created.
const (
	ReplayDeadLettered = "dead_lettered" // it is a letter again, a new one
	ReplayDuplicate    = "repeated"      // the stream had it already from this letter: nothing was published
	ReplayNoOutcome    = "no_answer"     // published, and no outcome came in time
	ReplayNotFound     = "gone"          // the letter is not there: it was taken by somebody else, or by a run that was killed
	ReplayFailed       = "failed"
)

// outcomeGrace is how long outcomes are waited for when nothing more is to be done.
const outcomeGrace = 2 * time.Second

// RunResult is what became of one letter in a run.
type RunResult struct {
	Seq     uint64 `json:"seq"`
	EventID string `json:"event_id"`
	Result  string `json:"result"` // the outcome's event, Discarded, or one of the words above
	Reason  string `json:"reason,omitzero"`
	Detail  string `json:"detail,omitzero"`
}

// Replayer publishes events of dead letters again and follows their outcomes. Publish is called
// by one goroutine, so that the events are stored in its order; everything else by any.
type Replayer struct {
	d       *DeadLetters
	inbox   string
	sub     *nats.Subscription
	timeout time.Duration

	mu      sync.Mutex
	pending map[string]chan *nats.Msg // by the inbox of each event
	sent    int

	storedIDs map[string]struct{} // message ids that a run has stored before it was resumed
}

// Replayer returns a Replayer that waits for so long for each answer: a PubAck, a removal, an
// outcome. The caller calls Close.
func (d *DeadLetters) Replayer(timeout time.Duration) (*Replayer, error) {
	r := &Replayer{d: d, inbox: d.c.nc.NewInbox(), timeout: timeout, pending: make(map[string]chan *nats.Msg)}
	var err error
	if r.sub, err = d.c.nc.Subscribe(r.inbox+".*", r.deliverReply); err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	return r, nil
}

// Close ends the subscription to outcomes.
func (r *Replayer) Close() { _ = r.sub.Unsubscribe() } // only fails when the connection is closed

func (r *Replayer) deliverReply(m *nats.Msg) {
	r.mu.Lock()
	waiting := r.pending[m.Subject]
	delete(r.pending, m.Subject)
	r.mu.Unlock()
	if waiting != nil {
		waiting <- m
	}
}

// Resume finds the events that a run has stored already. Publish does not publish them a second time: JetStream
// knows their message ids for the duplicate window of the inbound stream only.
func (r *Replayer) Resume(ctx context.Context, log *RunLog) error {
	stream, err := r.d.c.js.Stream(ctx, r.d.c.ns.InStream())
	if err != nil {
		return fmt.Errorf("stream %s: %w", r.d.c.ns.InStream(), err)
	}
	since := log.startedAt.Add(-events.ClockSkewMax)
	config := jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since, HeadersOnly: true,
	}
	r.storedIDs = make(map[string]struct{})
	for m, err := range events.ReadAll(ctx, stream, config) {
		if err != nil {
			return fmt.Errorf("read stream %s: %w", r.d.c.ns.InStream(), err)
		}
		if id := m.Headers().Get(jetstream.MsgIDHeader); strings.HasPrefix(id, r.d.c.ns.DLQStream()+"-") {
			r.storedIDs[id] = struct{}{}
		}
	}
	return nil
}

// MessageID is the Nats-Msg-Id under which the event of a letter is replayed. It is made of the
// stream, when that was created (sequences begin at 1 in a new one) and the letter's sequence:
// a run that is resumed knows by it what it has published (Resume), while
// a later letter of the same event has another. variant tells apart what may be published of one
// letter: copies that were edited, replays that keep it.
func (r *Replayer) MessageID(seq uint64, variant string) string {
	info := r.d.stream.CachedInfo()
	id := info.Config.Name + "-" + strconv.FormatInt(info.Created.UnixMilli(), 36) + "-" + strconv.FormatUint(seq, 10)
	if variant != "" {
		id += "-" + variant
	}
	return id
}

// Replay is an event on its way.
type Replay struct {
	r             *Replayer
	deadLetter    *events.DeadLetter
	message       *nats.Msg
	inbox         string
	ack           jetstream.PubAckFuture
	reply         chan *nats.Msg
	alreadyStored bool // it was stored before the run was resumed
}

// Publish publishes a message, the event of a letter or an edited copy of it, under a message id.
func (r *Replayer) Publish(l *events.DeadLetter, m *nats.Msg, messageID string) (*Replay, error) {
	r.mu.Lock()
	r.sent++
	p := &Replay{r: r, deadLetter: l, message: m, inbox: r.inbox + "." + strconv.Itoa(r.sent), reply: make(chan *nats.Msg, 1)}
	r.pending[p.inbox] = p.reply
	r.mu.Unlock()
	m.Header.Set(jetstream.MsgIDHeader, messageID)
	m.Header.Set(events.HeaderReplyTo, p.inbox)
	if _, p.alreadyStored = r.storedIDs[messageID]; p.alreadyStored {
		return p, nil
	}
	var err error
	if p.ack, err = r.d.c.js.PublishMsgAsync(m); err != nil && !events.IsTooLarge(err) {
		p.dropReply()
		return nil, fmt.Errorf("publish on %s: %w", m.Subject, err)
	}
	return p, nil
}

// stored waits until the event is stored. An event that filled its message may be too large with
// the headers of a replay: then it is published without those, first without the wish to be told
// its outcome, then without its message id.
func (p *Replay) stored(ctx context.Context) (ack *jetstream.PubAck, err error) {
	if p.alreadyStored {
		return &jetstream.PubAck{Duplicate: true}, nil
	}
	err = nats.ErrMaxPayload
	if p.ack != nil {
		select {
		case ack = <-p.ack.Ok():
			return ack, nil
		case err = <-p.ack.Err():
		case <-ctx.Done():
			err = fmt.Errorf("no answer within %s: it may be stored or not", p.r.timeout)
		}
	}
	for _, header := range []string{events.HeaderReplyTo, jetstream.MsgIDHeader} {
		if events.IsTooLarge(err) {
			p.message.Header.Del(header)
			ack, err = p.r.d.c.js.PublishMsg(ctx, p.message)
		}
	}
	return ack, err
}

func (p *Replay) dropReply() {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	delete(p.r.pending, p.inbox)
}

// Wait waits until the event is stored, removes the letter unless it is kept, and waits for
// the outcome. When ctx is over, what was begun is finished, and only the wait is cut short.
func (p *Replay) Wait(ctx context.Context, keep bool) RunResult {
	defer p.dropReply()
	result := RunResult{Seq: p.deadLetter.Seq, EventID: p.deadLetter.EventID}
	finishing, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.r.timeout)
	defer cancel()
	ack, err := p.stored(finishing)
	if err != nil {
		return result.withError(fmt.Errorf("publish: %w", err))
	}
	failpoint.Hit("replay.stored")
	if !keep {
		err := p.r.d.Remove(finishing, p.deadLetter.Seq)
		if err != nil && !errors.Is(err, ErrDeadLetterNotFound) { // another operator may have removed it
			return result.withError(fmt.Errorf("it was published, but its letter is still there: %w", err))
		}
	}
	failpoint.Hit("replay.removed")
	switch {
	case ack.Duplicate:
		result.Result = ReplayDuplicate
		return result
	case p.message.Header.Get(events.HeaderReplyTo) == "":
		result.Result, result.Detail = ReplayNoOutcome, "the event is too large to ask for its outcome"
		return result
	}
	patience := time.NewTimer(p.r.timeout)
	defer patience.Stop()
	hurry := context.AfterFunc(ctx, func() { patience.Reset(min(p.r.timeout, outcomeGrace)) })
	defer hurry()
	select {
	case m := <-p.reply:
		return result.withReply(m)
	case <-patience.C:
		result.Result = ReplayNoOutcome
		return result
	}
}

// withError is the result of a letter that something went wrong with.
func (r RunResult) withError(err error) RunResult {
	r.Result, r.Detail = ReplayFailed, err.Error()
	return r
}

// withReply is the result of a letter whose event has an outcome or is a letter again.
func (r RunResult) withReply(m *nats.Msg) RunResult {
	answer, err := ParseReply(m.Header.Get(events.HeaderContentType), m.Data)
	switch {
	case err != nil:
		return r.withError(err)
	case answer.DeadLetter != nil:
		r.Result, r.Reason, r.Detail = ReplayDeadLettered, answer.DeadLetter.Error, answer.DeadLetter.Detail
	default:
		event, _ := events.EventOf(answer.Envelope.Type)
		var data struct {
			Reason string `json:"reason"`
		}
		_ = json.Unmarshal(answer.Envelope.Data, &data) // an outcome that grants has no reason
		r.Result, r.Reason = event, data.Reason
	}
	return r
}
