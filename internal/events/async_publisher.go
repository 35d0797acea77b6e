package events

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	resendAfter = 250 * time.Millisecond // when a stream has no leader for a moment
	resendsMax  = 2
)

// asyncPublisher is a JetStream whose PublishMsgAsync needs neither a timer nor reflection nor, as a
// rule, a channel for each message: that is most of what publishing costs in the client. It ignores
// options, and PublishAsyncComplete does not wait for what PublishAsync sends. Its callers bound how
// many messages wait for their PubAcks.
//
// Only the namespace's own stream can store or refuse a message of the namespace. A stream of another JetStream
// domain may take the same subjects, behind a leaf node for example: its answer is ignored.
type asyncPublisher struct {
	jetstream.JetStream
	nc      *nats.Conn
	within  time.Duration     // for each PubAck; 0: no limit
	prefix  string            // of the reply subjects
	first   string            // token of the subjects of the namespace, with its dot
	streams map[string]string // of the namespace, by the second token

	mu       sync.Mutex
	last     uint64              // number of a message
	waiting  map[uint64]*storing // for their PubAcks, by number
	idle     chan struct{}       // closed when none waits; nil: not requested
	expiring bool                // expire will be called
	stream   string              // of the last PubAck: nearly all have the same one
}

func newAsyncPublisher(
	nc *nats.Conn, ns Namespace, within time.Duration, js jetstream.JetStream,
) (*asyncPublisher, error) {
	p := &asyncPublisher{
		JetStream: js, nc: nc, within: within, prefix: nc.NewInbox() + ".", first: string(ns) + ".", streams: ns.streams(),
		waiting: make(map[uint64]*storing),
	}
	statuses := nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	if _, err := nc.Subscribe(p.prefix+"*", p.receive); err != nil {
		return nil, err
	}
	go func() {
		for status := range statuses {
			p.fail(nats.ErrDisconnected, time.Time{})
			if status == nats.CLOSED {
				return
			}
		}
	}()
	return p, nil
}

// storing is a message that waits for its PubAck.
type storing struct {
	p       *asyncPublisher
	message *nats.Msg
	stream  string // that stores it; "" when any may
	number  uint64
	sent    time.Time
	resends int

	// guarded by p.mu
	ack    *jetstream.PubAck // nil until it is stored
	err    error
	stored chan *jetstream.PubAck // nil until a caller waits
	failed chan error             // likewise
}

// PublishMsgAsync implements jetstream.JetStream.
func (p *asyncPublisher) PublishMsgAsync(m *nats.Msg, _ ...jetstream.PublishOpt) (jetstream.PubAckFuture, error) {
	s := &storing{p: p, message: m, stream: p.streamOf(m.Subject), sent: time.Now()}
	p.mu.Lock()
	p.last++
	s.number = p.last
	p.waiting[s.number] = s
	if !p.expiring && p.within > 0 {
		p.expiring = true
		time.AfterFunc(p.within/4, p.expire)
	}
	p.mu.Unlock()
	if err := s.send(); err != nil {
		p.resolve(s.number, nil, err)
		return nil, err
	}
	return s, nil
}

// streamOf returns the stream that stores messages of a subject, "" if the namespace has none for it.
func (p *asyncPublisher) streamOf(subject string) string {
	rest, isOurs := strings.CutPrefix(subject, p.first)
	if !isOurs {
		return ""
	}
	second, _, _ := strings.Cut(rest, ".")
	return p.streams[second]
}

// PublishMsg implements jetstream.JetStream. With options it is that of the embedded JetStream.
func (p *asyncPublisher) PublishMsg(
	ctx context.Context, m *nats.Msg, options ...jetstream.PublishOpt,
) (*jetstream.PubAck, error) {
	if len(options) > 0 {
		return p.JetStream.PublishMsg(ctx, m, options...)
	}
	future, err := p.PublishMsgAsync(m)
	if err != nil {
		return nil, err
	}
	ack, err := awaitStored(ctx, future)
	if err != nil {
		p.resolve(future.(*storing).number, nil, err) // nothing waits for it any more
	}
	return ack, err
}

func (s *storing) send() error {
	m := *s.message
	m.Reply = s.p.prefix + strconv.FormatUint(s.number, 36)
	return s.p.nc.PublishMsg(&m)
}

// PublishAsyncComplete implements jetstream.JetStream.
func (p *asyncPublisher) PublishAsyncComplete() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle == nil {
		p.idle = make(chan struct{})
	}
	idle := p.idle
	p.checkIdle()
	return idle
}

// checkIdle is called with p.mu held.
func (p *asyncPublisher) checkIdle() {
	if len(p.waiting) == 0 && p.idle != nil {
		close(p.idle)
		p.idle = nil
	}
}

// receive takes the reply to a message.
func (p *asyncPublisher) receive(reply *nats.Msg) {
	number, err := strconv.ParseUint(reply.Subject[len(p.prefix):], 36, 64)
	if err != nil {
		return
	}
	if len(reply.Data) == 0 { // no responders
		if s := p.get(number); s != nil && s.resends < resendsMax {
			s.resends++
			time.AfterFunc(resendAfter, func() { p.resend(number) })
			return
		}
		p.resolve(number, nil, jetstream.ErrNoStreamResponse)
		return
	}
	ack, err := p.parsePubAck(reply.Data)
	p.resolve(number, ack, err)
}

// resend sends a message again if it still waits.
func (p *asyncPublisher) resend(number uint64) {
	if s := p.get(number); s != nil {
		if err := s.send(); err != nil {
			p.resolve(number, nil, err)
		}
	}
}

// get returns a message that waits, or nil.
func (p *asyncPublisher) get(number uint64) *storing {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting[number]
}

// parsePubAck parses the answer to a message. That to nearly all messages is
// {"stream":"NAME", "seq":1}. A refusal has a PubAck too: it names the stream.
func (p *asyncPublisher) parsePubAck(text []byte) (*jetstream.PubAck, error) {
	start, isUsual := bytes.CutPrefix(text, []byte(`{"stream":"`))
	name, rest, _ := bytes.Cut(start, []byte(`", "seq":`))
	digits, ends := bytes.CutSuffix(rest, []byte("}"))
	if isUsual && ends && len(name) > 0 && !bytes.ContainsAny(name, `"\`) {
		if seq, err := strconv.ParseUint(string(digits), 10, 64); err == nil {
			if p.stream != string(name) {
				p.stream = string(name)
			}
			return &jetstream.PubAck{Stream: p.stream, Sequence: seq}, nil
		}
	}
	var answer struct {
		jetstream.PubAck
		Error *jetstream.APIError `json:"error"`
	}
	switch err := json.Unmarshal(text, &answer); {
	case err != nil:
		return nil, jetstream.ErrInvalidJSAck
	case answer.Error != nil:
		return &answer.PubAck, answer.Error
	case answer.Stream == "":
		return nil, jetstream.ErrInvalidJSAck
	}
	return &answer.PubAck, nil
}

// resolve ends the wait of a message.
func (p *asyncPublisher) resolve(number uint64, ack *jetstream.PubAck, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.waiting[number]
	if s == nil || ack != nil && !isAnswerOf(s.stream, ack.Stream) {
		return // too late, or of another stream
	}
	delete(p.waiting, number)
	if s.err = err; err == nil {
		s.ack = ack
	}
	if s.stored != nil {
		s.pass()
	}
	p.checkIdle()
}

// isAnswerOf reports whether an answer that names a stream, or none, may be that of the wanted stream, "" for any.
func isAnswerOf(wanted, named string) bool { return wanted == "" || named == "" || named == wanted }

// pass sends the result to the caller that waits for it. It is called with p.mu held, once.
func (s *storing) pass() {
	if s.err != nil {
		s.failed <- s.err
	} else if s.ack != nil {
		s.stored <- s.ack
	}
}

// fail ends the wait of the messages that were sent before a time, or of all if it is zero.
func (p *asyncPublisher) fail(err error, before time.Time) (left int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for number, s := range p.waiting {
		if before.IsZero() || s.sent.Before(before) {
			delete(p.waiting, number)
			if s.err = err; s.stored != nil {
				s.pass()
			}
		}
	}
	p.checkIdle()
	return len(p.waiting)
}

// expire fails what has waited for too long, again and again while messages wait.
func (p *asyncPublisher) expire() {
	left := p.fail(jetstream.ErrAsyncPublishTimeout, time.Now().Add(-p.within))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.expiring = left > 0 || len(p.waiting) > 0; p.expiring {
		time.AfterFunc(p.within/4, p.expire)
	}
}

// Ok, Err and Msg implement jetstream.PubAckFuture.
func (s *storing) Ok() <-chan *jetstream.PubAck {
	stored, _ := s.channels()
	return stored
}

func (s *storing) Err() <-chan error {
	_, failed := s.channels()
	return failed
}

func (s *storing) Msg() *nats.Msg { return s.message }

func (s *storing) channels() (<-chan *jetstream.PubAck, <-chan error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.stored == nil {
		s.stored, s.failed = make(chan *jetstream.PubAck, 1), make(chan error, 1)
		s.pass() // nothing, if it still waits
	}
	return s.stored, s.failed
}

// result returns the PubAck or the error, or neither while the message waits.
func (s *storing) result() (*jetstream.PubAck, error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return s.ack, s.err
}
