package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	duplicateReadLimit  = 2 * time.Second // to read one stored message
	duplicateCheckPause = time.Minute     // after a failed check, before the next one
	duplicateIDsMax     = 4               // message ids that one outcome is published under
)

// checkDuplicate returns nil when the outcome or dead letter of an event is stored; ack and err are the result of
// publishing it. If JetStream reports a duplicate, checkDuplicate compares the stored message, see likeness. If that
// answers the event, it stands, and the reply has it too: an event has one outcome. A hold that was granted now, where it
// answers in another way, is withdrawn. If it is unrelated, the message is published under another id, an outcome only if its epoch has not
// ended. Both are logged. If the stored message cannot be read, checkDuplicate assumes that it is the same outcome.
func (c *Consumer) checkDuplicate(ctx context.Context, s *pendingMsg, ack *jetstream.PubAck, err error) error {
	id := s.message.Header.Get(headerMsgID)
	for range duplicateIDsMax {
		if err != nil {
			return ofNATS(fmt.Errorf("store on %s: %w", s.message.Subject, err))
		}
		if !ack.Duplicate {
			return nil
		}
		found, known := c.readStored(ctx, ack)
		if !known {
			return nil
		}
		log := c.log.With().Uint64("stream_seq", s.meta.Sequence.Stream).Str("outcome_id", id).
			Str("stream", ack.Stream).Uint64("stored_seq", ack.Sequence).Logger()
		switch compare(s, found) {
		case sameOutcome:
			if !s.dead {
				s.message.Data = found.Data // it may have other times, when Redis had forgotten the first decision
			}
			return nil
		case otherOutcome:
			log.Error().Str("stored_subject", found.Subject).Str("subject", s.message.Subject).
				Msg("event decided twice with different outcomes, the stored outcome stands")
			s.message.Data = found.Data
			return c.withdraw(ctx, s.delivery)
		case unrelated:
		}
		log.Error().Str("stored_subject", found.Subject).
			Msg("message id in use by another message, publishing under a new one")
		if !s.dead { // the epoch may have ended since the outcome was sent
			verified := termCheck{service: c.service}
			if err := verified.check(ctx, s.termID); err != nil {
				return err
			}
		}
		s.message.Header.Set(headerMsgID, id+"#"+strconv.FormatUint(ack.Sequence, 10))
		ack, err = c.js.PublishMsg(ctx, s.message)
	}
	return ofNATS(fmt.Errorf("publish the outcome of event %d: all its message ids are in use", s.meta.Sequence.Stream))
}

// likeness is the relation of a stored message to a message with the same message id.
type likeness int

const (
	unrelated    likeness = iota
	otherOutcome          // answers the same event in another way: Redis had forgotten the first decision
	sameOutcome           // answers the same event in the same way
)

func compare(s *pendingMsg, found *jetstream.RawStreamMsg) likeness {
	if s.dead {
		for _, name := range []string{HeaderDLQStreamSeq, HeaderDLQSubject} {
			if found.Header.Get(name) != s.message.Header.Get(name) {
				return unrelated
			}
		}
		if bodyOf(found.Header, found.Data) != bodyOf(s.message.Header, s.message.Data) {
			return unrelated // the inbound stream has lost its end, and has other events under the same sequences
		}
		return sameOutcome
	}
	var ours, theirs Envelope
	_ = json.Unmarshal(s.message.Data, &ours) // encoded by this process
	err := json.Unmarshal(found.Data, &theirs)
	if err != nil || theirs.ID != ours.ID || theirs.CausationID != ours.CausationID {
		return unrelated
	}
	if found.Subject != s.message.Subject || theirs.Type != ours.Type || theirs.Subject != ours.Subject {
		return otherOutcome
	}
	return sameOutcome
}

// bodyOf identifies the body of the event of a dead letter, which may have only a claim check.
func bodyOf(header nats.Header, data []byte) string {
	return cmp.Or(header.Get(HeaderClaimCheckSHA256), bodySum(data))
}

// readStored returns the message that a PubAck names. known is false if the message was removed,
// like a dead letter that was replayed, or cannot be read. After an error it reads nothing for
// duplicateCheckPause.
func (c *Consumer) readStored(ctx context.Context, ack *jetstream.PubAck) (found *jetstream.RawStreamMsg, known bool) {
	if until := c.uncheckedUntil.Load(); until != nil && time.Now().Before(*until) {
		return nil, false
	}
	limited, cancel := context.WithTimeout(ctx, duplicateReadLimit)
	defer cancel()
	stream, err := c.streamOf(limited, ack.Stream)
	if err == nil {
		found, err = stream.GetMsg(limited, ack.Sequence)
	}
	switch {
	case err == nil:
		return found, true
	case ctx.Err() == nil && !errors.Is(err, jetstream.ErrMsgNotFound): // else the caller had no time left
		until := time.Now().Add(duplicateCheckPause)
		c.uncheckedUntil.Store(&until)
		c.log.Warn().Err(err).Str("stream", ack.Stream).Uint64("stored_seq", ack.Sequence).
			Msg("duplicate not checked, stored message unreadable")
	}
	return nil, false
}

func (c *Consumer) streamOf(ctx context.Context, name string) (jetstream.Stream, error) {
	if stream, known := c.streams.Load(name); known {
		return stream.(jetstream.Stream), nil
	}
	stream, err := c.js.Stream(ctx, name)
	if err == nil {
		c.streams.Store(name, stream)
	}
	return stream, err
}
