package events

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/time/rate"
)

const (
	resendAfter = 250 * time.Millisecond // when a stream has no leader for a moment
	resendsMax  = 2

	readDomainEvery = time.Second // at the most
)

// JetStream is a JetStream of one namespace. Only the namespace's own stream can store or refuse a message of the
// namespace. A stream of another JetStream domain may take the same subjects, behind a leaf node for example: its
// answer is ignored. One that has the same name is known by its domain, see NewJetStreamIn.
type JetStream interface {
	// PublishMsg and Send are made for the namespace. What else publishes takes any stream's answer.
	jetstream.JetStream

	// Send publishes a message and does not wait for its PubAck; Stored returns its errors too. It needs neither a timer
	// nor reflection nor, as a rule, a channel for each message: that is most of what publishing costs in the client. Its
	// callers bound how many messages wait for their PubAcks, and for how long.
	Send(m *nats.Msg) *Sending

	// isOwn reports whether a PubAck that names a stream and a domain may be that of the wanted stream, "" for any.
	isOwn(wanted, stream, domain string) bool
}

// asyncPublisher implements JetStream.
type asyncPublisher struct {
	jetstream.JetStream
	nc      *nats.Conn
	prefix  string            // of the reply subjects
	first   string            // token of the subjects of the namespace, with its dot
	streams map[string]string // of the namespace, by the second token

	domains    map[string]*atomic.Pointer[Domain] // of each stream, by its name; empty when they are not known
	readDomain rate.Sometimes

	mu      sync.Mutex
	last    uint64              // number of a message
	waiting map[uint64]*Sending // for their PubAcks, by number
	stream  string              // of the last PubAck: nearly all have the same one
}

// Domain is a JetStream domain, "" for servers that have none.
type Domain string

// ReadDomain reads the domain in which a connection uses streams. It needs the permission to read the account's limits,
// which publishers lack.
func ReadDomain(ctx context.Context, js jetstream.JetStream) (*Domain, error) {
	account, err := js.AccountInfo(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the JetStream domain: %w", err)
	}
	return (*Domain)(&account.Domain), nil
}

// NewJetStream returns the JetStream of a namespace whose domain is not known.
func NewJetStream(nc *nats.Conn, ns Namespace) (JetStream, error) { return NewJetStreamIn(nc, ns, nil) }

// NewJetStreamIn returns the JetStream of a namespace in a domain, nil for one that is not known. It notices when the servers
// get another domain, each stream for itself: while servers are restarted one by one, leaders of both kinds exist.
func NewJetStreamIn(nc *nats.Conn, ns Namespace, domain *Domain) (JetStream, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	p := &asyncPublisher{
		JetStream: js, nc: nc, prefix: nc.NewInbox() + ".", first: string(ns) + ".", streams: ns.streams(),
		domains: make(map[string]*atomic.Pointer[Domain]), readDomain: rate.Sometimes{Interval: readDomainEvery},
		waiting: make(map[uint64]*Sending),
	}
	if domain != nil {
		for _, stream := range p.streams {
			p.domains[stream] = new(atomic.Pointer[Domain])
			p.domains[stream].Store(domain)
		}
	}
	statuses := nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	if _, err := nc.Subscribe(p.prefix+"*", p.receive); err != nil {
		return nil, err
	}
	go func() {
		for status := range statuses {
			p.fail(nats.ErrDisconnected)
			if status == nats.CLOSED {
				return
			}
		}
	}()
	return p, nil
}

// Sending is a message that waits for its PubAck.
type Sending struct {
	p       *asyncPublisher
	message *nats.Msg
	stream  string // that stores it; "" when any may
	number  uint64
	resends int

	// guarded by p.mu
	ack  *jetstream.PubAck // nil until it is stored
	err  error             // why it is not stored, or not known to be
	done chan struct{}     // closed with the result; nil until a caller waits
}

// Send implements JetStream.
func (p *asyncPublisher) Send(m *nats.Msg) *Sending {
	s := &Sending{p: p, message: m, stream: p.streamOf(m.Subject)}
	p.mu.Lock()
	p.last++
	s.number = p.last
	p.waiting[s.number] = s
	p.mu.Unlock()
	s.send()
	return s
}

// Stored waits for the PubAck. When ctx ends first, it returns the cause, and nothing waits for the message any more.
func (s *Sending) Stored(ctx context.Context) (*jetstream.PubAck, error) {
	s.p.mu.Lock()
	over := s.ack != nil || s.err != nil
	if !over && s.done == nil {
		s.done = make(chan struct{})
	}
	done := s.done
	s.p.mu.Unlock()
	if !over {
		select {
		case <-done:
		case <-ctx.Done():
			s.p.resolve(s.number, nil, context.Cause(ctx)) // unless it has a result by now
		}
	}
	return s.ack, s.err
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

// storeLimit bounds the wait of a worker for a PubAck.
const storeLimit = 5 * time.Second

// withStoreLimit returns a context that ends after a limit, as a timeout.
func withStoreLimit(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, jetstream.ErrAsyncPublishTimeout)
}

// PublishMsg implements jetstream.JetStream. It waits storeLimit at most, unless ctx has a deadline. With options it is
// that of the embedded JetStream.
func (p *asyncPublisher) PublishMsg(
	ctx context.Context, m *nats.Msg, options ...jetstream.PublishOpt,
) (*jetstream.PubAck, error) {
	if len(options) > 0 {
		return p.JetStream.PublishMsg(ctx, m, options...)
	}
	if _, bounded := ctx.Deadline(); !bounded {
		limited, cancel := withStoreLimit(ctx, storeLimit)
		defer cancel()
		ctx = limited
	}
	return p.Send(m).Stored(ctx)
}

// send sends the message. If that fails, its wait ends.
func (s *Sending) send() {
	m := *s.message
	m.Reply = s.p.prefix + strconv.FormatUint(s.number, 36)
	if err := s.p.nc.PublishMsg(&m); err != nil {
		s.p.resolve(s.number, nil, err)
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
		s.send()
	}
}

// get returns a message that waits, or nil.
func (p *asyncPublisher) get(number uint64) *Sending {
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

// isOwn implements JetStream.
func (p *asyncPublisher) isOwn(wanted, stream, domain string) bool {
	if !isAnswerOf(wanted, stream) {
		return false
	}
	known := p.domains[wanted]
	if known == nil || Domain(domain) == *known.Load() {
		return true
	}
	p.readDomain.Do(func() { go p.readDomainOf(wanted) }) // the servers may have been restarted with another one
	return false
}

// readDomainOf reads the domain of a stream, from the server that answers messages to it. ReadDomain, which needs no stream, asks
// another server: while the servers of a cluster are restarted one by one, the two may have different domains.
func (p *asyncPublisher) readDomainOf(stream string) {
	reply, err := p.nc.Request("$JS.API.STREAM.INFO."+stream, nil, storeLimit)
	if err != nil {
		return // the next PubAck tries again
	}
	var info struct {
		Config struct {
			Name string `json:"name"`
		} `json:"config"`
		Domain Domain `json:"domain"`
	}
	if json.Unmarshal(reply.Data, &info) == nil && info.Config.Name == stream { // else it is an error
		p.domains[stream].Store(&info.Domain)
	}
}

// resolve ends the wait of a message.
func (p *asyncPublisher) resolve(number uint64, ack *jetstream.PubAck, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.waiting[number]
	switch {
	case s == nil: // too late
		return
	case err == nil && !p.isOwn(s.stream, ack.Stream, ack.Domain), ack != nil && !isAnswerOf(s.stream, ack.Stream):
		return // of another stream; a refusal names no domain
	}
	if err == nil {
		s.ack = ack
	}
	s.end(err)
}

// isAnswerOf reports whether an answer that names a stream, or none, may be that of the wanted stream, "" for any.
func isAnswerOf(wanted, named string) bool { return wanted == "" || named == "" || named == wanted }

// end ends the wait of a message. It is called with p.mu held.
func (s *Sending) end(err error) {
	delete(s.p.waiting, s.number)
	if s.err = err; s.done != nil {
		close(s.done)
	}
}

// fail ends the wait of all messages.
func (p *asyncPublisher) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.waiting {
		s.end(err)
	}
}
