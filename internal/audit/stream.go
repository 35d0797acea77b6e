package audit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

const (
	requestLimit = 5 * time.Second  // for one answer of JetStream
	clockSkewMax = 10 * time.Minute // largest difference between the clocks of NATS and Redis
)

// stream is one of the three streams and the position up to which it was read.
type stream struct {
	name    string
	js      jetstream.JetStream
	source  jetstream.Stream
	read    uint64    // the last sequence that was read or skipped because it was removed
	since   time.Time // when the oldest message was stored, zero for an empty stream
	created time.Time // by the server, a restore included
	begun   time.Time // a deleted stream of the same name may have existed before
	state   jetstream.StreamState
}

// openStream opens a stream and reads its state.
func openStream(ctx context.Context, js jetstream.JetStream, name string) (*stream, error) {
	source, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("stream %s: %w (was `worker migrate` run?)", name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	s := &stream{name: name, js: js, source: source}
	return s, s.refresh(ctx)
}

// refresh reads the state of a stream.
func (s *stream) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	info, err := s.source.Info(ctx)
	if err != nil {
		return fmt.Errorf("stream %s: %w", s.name, err)
	}
	s.state, s.created, s.begun = info.State, info.Created, info.Created
	s.since = time.Time{}
	if info.State.Msgs > 0 {
		s.since = info.State.FirstTime
		if s.since.Before(s.begun) { // it was restored from a backup, which gives it a new time of creation
			s.begun = s.since
		}
	}
	return nil
}

// goneBack reports whether the stream lacks what it had up to a position: it was created again, or an older state of it was
// restored.
func (s *stream) goneBack(ctx context.Context, p holds.LogPosition) (bool, error) {
	if !p.SameStream(holds.LogPosition{Created: s.created}) {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	what, err := events.GoneBack(ctx, s.source, s.state, p)
	if err != nil {
		return false, fmt.Errorf("stream %s: %w", s.name, err)
	}
	return what != "", nil
}

// isWhole reports whether no older message was dropped.
func (s *stream) isWhole() bool { return s.state.FirstSeq <= 1 }

// removed returns the number of messages that were removed from the stream.
func (s *stream) removed() uint64 { return s.state.LastSeq - s.state.Msgs }

// message is a message of a stream.
type message struct {
	events.StoredMsg
	seq    uint64
	stored int64 // when it was stored, ms
}

// catchUp reads the messages from read to the last one when the stream was refreshed. filter is a
// subject, "" for all messages.
func (s *stream) catchUp(ctx context.Context, filter string, note func(m message)) error {
	config := jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(s.read+1, s.state.FirstSeq),
	}
	if filter != "" {
		config.FilterSubjects = []string{filter}
	}
	if config.OptStartSeq <= s.state.LastSeq && s.state.Msgs > 0 {
		for m, err := range events.ReadStream(ctx, s.js, s.source, config, s.state.LastSeq) {
			if err != nil {
				return fmt.Errorf("read stream %s: %w", s.name, err)
			}
			note(message{m, m.Meta.Sequence.Stream, m.Meta.Timestamp.UnixMilli()})
		}
	}
	s.read = s.state.LastSeq
	return nil
}

// eventAt reads one message of the stream. It returns nil when the stream no longer has it.
func (s *stream) eventAt(ctx context.Context, seq uint64) (*Event, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	m, err := s.source.GetMsg(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil //nolint:nilnil // a missing message is no error
	}
	if err != nil {
		return nil, fmt.Errorf("read sequence %d of %s: %w", seq, s.name, err)
	}
	about := events.Summarize(m.Subject, m.Header, m.Data)
	return &Event{Stream: s.name, Seq: seq, ID: quoted(about.ID), Type: quoted(about.Type),
		Time: holds.Time{Time: m.Time.UTC()}}, nil
}

// resourceOf returns the last token of a subject, which is the resource of the event.
func resourceOf(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }

// floors has, by consumer, the inbound sequence up to which every event is acknowledged. A missing
// consumer has acknowledged nothing: its events are pending.
type floors map[string]uint64

func readFloors(ctx context.Context, inbound *stream) (floors, error) {
	found := make(floors)
	for _, name := range events.ConsumerNames() {
		requestCtx, cancel := context.WithTimeout(ctx, requestLimit)
		consumer, err := inbound.source.Consumer(requestCtx, name)
		cancel()
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("consumer %s of stream %s: %w", name, inbound.name, err)
		}
		info := consumer.CachedInfo()
		found[name] = info.AckFloor.Stream
		// The floor does not advance over events of other consumers.
		if info.NumPending == 0 && info.NumAckPending == 0 && info.Delivered.Stream > info.AckFloor.Stream {
			found[name] = info.Delivered.Stream
		}
	}
	return found, nil
}
