package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/failpoint"
)

// The results of replays without an outcome. The result of a replay with an outcome is the type of
// the outcome, such as hold.created.
const (
	ReplayDeadLettered = "dead_lettered" // the event has a new dead letter
	ReplayNoOutcome    = "no_answer"     // the event is stored, and no outcome came in time
	ReplayNotFound     = "gone"          // the dead letter was removed, by another operator or by a killed run
	ReplayFailed       = "failed"
	ReplaySkipped      = "skipped" // the event was dead-lettered again after RunLimits.MaxReplays replays
)

// outcomeGrace bounds the wait for an outcome after the operator has interrupted the run.
const outcomeGrace = 2 * time.Second

// RunResult is the result of one dead letter in a run.
type RunResult struct {
	Seq     uint64 `json:"seq"`
	EventID string `json:"event_id"`
	Result  string `json:"result"` // the type of the outcome, Discarded, or one of the constants above
	Reason  string `json:"reason,omitzero"`
	Detail  string `json:"detail,omitzero"`
}

// replayer publishes the events of dead letters and follows their outcomes. One goroutine calls
// publish, so that the events are stored in its order.
type replayer struct {
	*DeadLetters
	timeout time.Duration // of each wait: for a PubAck, for the removal of a dead letter, for an outcome

	// Of a resumed run:
	earlier     map[uint64]RunResult // results of the dead letters whose events an earlier process stored; nil before resume
	byMessageID map[string]uint64    // the dead letters that are left
	scanned     uint64               // the inbound stream was read up to this message
	scannedAt   time.Time            // when the last read of it began
}

// resume finds the events that a run has stored since it began, and their results. They must not be published once
// more: JetStream drops duplicates by their message ids only within the duplicate window of the inbound stream. A later
// call finds what the earlier process has stored since.
func (r *replayer) resume(ctx context.Context, log *RunLog, variant string) error {
	r.scannedAt = time.Now()
	stream, err := r.openStream(ctx, r.ns.InStream())
	if err != nil {
		return err
	}
	if r.earlier == nil {
		r.earlier, r.byMessageID = make(map[uint64]RunResult), make(map[string]uint64, len(log.Left))
		for _, seq := range log.Left {
			r.byMessageID[r.messageID(seq, variant)] = seq
		}
	}
	last := stream.CachedInfo().State.LastSeq
	if last <= r.scanned {
		return nil
	}
	config := events.HeadersSince(log.startedAt)
	if r.scanned > 0 {
		config.DeliverPolicy, config.OptStartTime = jetstream.DeliverByStartSequencePolicy, nil
		config.OptStartSeq = r.scanned + 1
	}
	stored := make(map[uint64]uint64)
	for m, err := range events.ReadStream(ctx, r.js, stream, config, last) {
		if err != nil {
			return fmt.Errorf("read stream %s: %w", r.ns.InStream(), err)
		}
		if seq, found := r.byMessageID[m.Header.Get(jetstream.MsgIDHeader)]; found {
			stored[seq] = m.Meta.Sequence.Stream
		}
	}
	r.scanned = last
	maps.Copy(r.earlier, r.findResults(ctx, stored))
	return nil
}

// earlierWork returns the rest of the work on a dead letter whose event an earlier process stored, or nil. It is to remove
// the dead letter unless keep is true: that process may not have done so.
func (r *replayer) earlierWork(seq uint64, keep bool) func(context.Context) RunResult {
	result, found := r.earlier[seq]
	if !found {
		return nil
	}
	return func(ctx context.Context) RunResult {
		if !keep {
			if err := r.removeReplayed(context.WithoutCancel(ctx), seq); err != nil {
				return result.withError(err)
			}
		}
		return result
	}
}

// removeReplayed removes a dead letter whose event is stored. Another operator may have removed it.
func (r *replayer) removeReplayed(ctx context.Context, seq uint64) error {
	if err := r.Remove(ctx, seq); err != nil && !errors.Is(err, ErrDeadLetterNotFound) {
		return fmt.Errorf("published, but the dead letter was not removed: %w", err)
	}
	return nil
}

// messageID returns the Nats-Msg-Id of the replay of a dead letter. It consists of the name of the
// stream of dead letters, the stream's creation time (the sequences of a new stream begin at 1) and
// the sequence of the dead letter. So a resumed run recognizes what it has stored (resume), and a
// later dead letter of the same event has another id. variant distinguishes several publications of
// one dead letter: the id of a run that edits it or keeps it.
func (r *replayer) messageID(seq uint64, variant string) string {
	info := r.stream.CachedInfo()
	id := info.Config.Name + "-" + strconv.FormatInt(info.Created.UnixMilli(), 36) + "-" + strconv.FormatUint(seq, 10)
	if variant != "" {
		id += "-" + variant
	}
	return id
}

// replay is the replay of one dead letter, between publish and wait.
type replay struct {
	r          *replayer
	deadLetter *events.DeadLetter
	message    *nats.Msg
	inbox      string
	sending    *events.Sending
	reply      chan *nats.Msg
}

// publish publishes m, the event of a dead letter or an edited copy of it, under a message id. The
// caller calls wait.
func (r *replayer) publish(l *events.DeadLetter, m *nats.Msg, messageID string) *replay {
	p := &replay{r: r, deadLetter: l, message: m}
	p.inbox, p.reply = r.replies.expect(m)
	m.Header.Set(jetstream.MsgIDHeader, messageID)
	p.sending = r.js.Send(m)
	return p
}

// stored waits until the event is stored. The headers of a replay can make a large event too large.
// Then stored publishes it without the inbox for its outcome, and if that is still too large,
// without the count of its replays, and then without its message id too.
func (p *replay) stored(ctx context.Context) (ack *jetstream.PubAck, err error) {
	if ack, err = p.sending.Stored(ctx); err != nil && ctx.Err() != nil {
		err = fmt.Errorf("no PubAck within %s, the event may be stored", p.r.timeout)
	}
	for _, header := range []string{events.HeaderReplyTo, events.HeaderDLQTime, events.HeaderDLQReplays, jetstream.MsgIDHeader} {
		if events.IsTooLarge(err) {
			p.message.Header.Del(header)
			ack, err = p.r.js.PublishMsg(ctx, p.message)
		}
	}
	return ack, err
}

// wait waits until the event is stored, removes the dead letter unless keep is true, and waits for
// the outcome. When ctx ends, it still waits for the PubAck and the removal, and shortens the wait
// for the outcome to outcomeGrace.
func (p *replay) wait(ctx context.Context, keep bool) RunResult {
	defer p.r.replies.drop(p.inbox)
	result := RunResult{Seq: p.deadLetter.Seq, EventID: p.deadLetter.EventID}
	finishing, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.r.timeout)
	defer cancel()
	ack, err := p.stored(finishing)
	if err != nil {
		return result.withError(fmt.Errorf("publish: %w", err))
	}
	failpoint.Hit("replay.stored")
	if !keep {
		if err := p.r.removeReplayed(finishing, p.deadLetter.Seq); err != nil {
			return result.withError(err)
		}
	}
	failpoint.Hit("replay.removed")
	waiting, cancel := p.r.outcomeLimit(ctx)
	defer cancel()
	if ack.Duplicate || p.message.Header.Get(events.HeaderReplyTo) == "" { // no reply comes
		found, ok := p.r.findResults(waiting, map[uint64]uint64{result.Seq: ack.Sequence})[result.Seq]
		if !ok {
			return result.withoutOutcome(nil)
		}
		found.EventID = cmp.Or(found.EventID, result.EventID)
		return found
	}
	select {
	case m := <-p.reply:
		return result.withReply(m)
	case <-waiting.Done():
		result.Result = ReplayNoOutcome
		return result
	}
}

// outcomeLimit returns a context that ends when no outcome is awaited any longer: after the timeout, or
// outcomeGrace after the end of ctx.
func (r *replayer) outcomeLimit(ctx context.Context) (context.Context, context.CancelFunc) {
	waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.timeout)
	interrupted := context.AfterFunc(ctx, func() { time.AfterFunc(outcomeGrace, cancel) })
	return waiting, func() { interrupted(); cancel() }
}

// withError returns the result of a dead letter that could not be processed.
func (r RunResult) withError(err error) RunResult {
	if errors.Is(err, ErrDeadLetterNotFound) {
		r.Result = ReplayNotFound
	} else {
		r.Result, r.Detail = ReplayFailed, err.Error()
	}
	return r
}

// finished is the rest of the work on a dead letter whose result is known.
func (r RunResult) finished(context.Context) RunResult { return r }

// withoutOutcome returns the result of a replay whose outcome is not found. err is the reason, or nil when it did not come
// in time.
func (r RunResult) withoutOutcome(err error) RunResult {
	r.Result, r.Detail = ReplayNoOutcome, "stored, and no reply comes here"
	if err != nil {
		r.Detail += "; find its outcome: " + err.Error()
	}
	return r
}

// deadLettered returns the result of a replay whose event has a new dead letter.
func (r RunResult) deadLettered(reason, detail string) RunResult {
	r.Result, r.Reason, r.Detail = ReplayDeadLettered, reason, detail
	return r
}

// withReply returns the result of a replay whose event has an outcome or a new dead letter.
func (r RunResult) withReply(m *nats.Msg) RunResult {
	reply, err := parseReply(m)
	switch {
	case err != nil:
		return r.withError(err)
	case reply.DeadLetter != nil:
		return r.deadLettered(reply.DeadLetter.Error, reply.DeadLetter.Detail)
	default:
		var data struct {
			Reason string `json:"reason"`
		}
		_ = json.Unmarshal(reply.Envelope.Data, &data) // an outcome that grants has no reason
		r.Result, _ = events.EventOf(reply.Envelope.Type)
		r.Reason = data.Reason
	}
	return r
}
