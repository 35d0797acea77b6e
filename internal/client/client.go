package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/events"
)

// ErrReplyTimeout reports that no reply came in time. The event is stored and will have an outcome.
var ErrReplyTimeout = errors.New("no answer in time")

// Client publishes inbound events, follows their outcomes and manages dead letters. Its methods may
// be called concurrently.
type Client struct {
	// MayLeave lets the client connect nc to another server when no stream answers on this one. It is set before the first
	// message, and only where nothing else uses nc: what that sends meanwhile would fail.
	MayLeave bool

	nc *nats.Conn
	js events.JetStream
	ns events.Namespace

	replies *replies

	leaving sync.Mutex // guards the fields below
	triedAt time.Time  // the last attempt of leaveServer to connect to another server
	leftAt  time.Time  // the last such attempt that has succeeded
}

// New returns a Client of a namespace. The caller closes nc.
func New(nc *nats.Conn, ns events.Namespace) (*Client, error) {
	js, err := events.NewJetStream(nc, ns)
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	replies, err := newReplies(nc)
	return &Client{nc: nc, js: js, ns: ns, replies: replies}, err
}

// HintMigrate is [HintMigrate] for an error of the client.
func (c *Client) HintMigrate(err error) error { return HintMigrate(err, c.nc, c.ns) }

// HintMigrate adds advice to the error of a stream that is missing or does not answer on a connection. It returns every
// other error unchanged, nil too.
func HintMigrate(err error, nc *nats.Conn, ns events.Namespace) error {
	const creates = "`worker migrate` or `worker run` creates them"
	const unavailable = 10008 // neither the stream nor JetStream has a leader, as far as the server knows
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("%w: namespace %s has no streams; %s", err, ns, creates)
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders),
		events.HasErrorCode(err, unavailable):
		server := cmp.Or(nc.ConnectedAddr(), "in use")
		return fmt.Errorf("%w: the streams of namespace %s do not answer: they have no leader (`worker preflight`), the server %s is "+
			"cut off from its cluster, this account may not reach them, or they do not exist (%s)", err, ns, server, creates)
	}
	return err
}

// Reply is what a worker sends to the publisher of an event: its outcome, or the notice of its dead
// letter.
type Reply struct {
	Body       []byte                  // as received
	Envelope   events.Envelope         // the outcome; zero when the event was dead-lettered
	DeadLetter *events.DeadLetterReply // nil unless the event was dead-lettered
}

// Publish publishes a message and returns when JetStream has stored it. If no stream answers, it may try another server
// once, see leaveServer. After jetstream.ErrNoStreamResponse the message is not stored, and will not be, also when ctx is over.
func (c *Client) Publish(ctx context.Context, m *nats.Msg) error {
	began := time.Now()
	_, err := c.js.PublishMsg(ctx, m)
	if errors.Is(err, jetstream.ErrNoStreamResponse) && c.leaveServer(ctx, began) {
		_, err = c.js.PublishMsg(ctx, m)
	}
	if err != nil {
		return fmt.Errorf("publish on %s: %w", m.Subject, err)
	}
	return nil
}

const (
	leaveEvery = time.Minute     // the least time between two attempts to connect to another server, see leaveServer
	leaveLimit = 5 * time.Second // of such an attempt
)

// leaveServer connects to another server, with MayLeave and if one is known, and not again within leaveEvery: a server that is
// cut off from its cluster keeps its clients. It reports whether the server that was connected at a time is left, and another
// one connected. Else the caller must not publish again: what is sent while no server is connected may be stored later.
func (c *Client) leaveServer(ctx context.Context, at time.Time) bool {
	c.leaving.Lock()
	defer c.leaving.Unlock()
	now := time.Now()
	if c.MayLeave && now.Sub(c.triedAt) >= leaveEvery && len(c.nc.Servers()) > 1 && c.nc.IsConnected() {
		c.triedAt = now
		ctx, cancel := context.WithTimeout(ctx, leaveLimit)
		defer cancel()
		if events.Reconnect(ctx, c.nc) {
			c.leftAt = now
		}
	}
	return at.Before(c.leftAt)
}

// Request publishes a message and returns its reply. It returns ErrReplyTimeout when ctx ends while
// the event is stored and has no reply.
func (c *Client) Request(ctx context.Context, m *nats.Msg) (Reply, error) {
	inbox, reply := c.replies.expect(m)
	defer c.replies.drop(inbox)
	if err := c.Publish(ctx, m); err != nil {
		return Reply{}, err
	}
	select {
	case m := <-reply:
		return parseReply(m)
	case <-ctx.Done():
		return Reply{}, fmt.Errorf("wait for the outcome: %w", ErrReplyTimeout)
	}
}

// RequestEvent publishes a new event about a resource and returns its reply, as NewEvent and Request do.
func (c *Client) RequestEvent(ctx context.Context, event, resource, source string, data any) (Reply, error) {
	m, _, err := NewEvent(c.ns, event, resource, source, data)
	if err != nil {
		return Reply{}, err
	}
	return c.Request(ctx, m)
}

// parseReply parses a reply: an outcome or a DeadLetterReply, by its content type.
func parseReply(m *nats.Msg) (Reply, error) {
	r := Reply{Body: m.Data}
	var err error
	if m.Header.Get(events.HeaderContentType) == events.ContentTypeEvent {
		err = json.Unmarshal(m.Data, &r.Envelope)
	} else {
		r.DeadLetter = new(events.DeadLetterReply)
		err = json.Unmarshal(m.Data, r.DeadLetter)
	}
	if err != nil {
		return Reply{}, fmt.Errorf("parse the reply: %w", err)
	}
	return r, nil
}

// Follow calls handle with every message that the outbound and the dead-letter stream stored since
// then, or with a zero since store from now on, in the order of each stream. The two streams call it
// concurrently. Follow returns nil when ctx ends, and an error when the connection is closed. It calls ready once
// it follows both streams. While a stream cannot be read it tries again, and calls failed once; both streams may call it
// concurrently.
func (c *Client) Follow(
	ctx context.Context, since time.Time, ready func(), handle func(m events.StoredMsg), failed func(err error),
) error {
	var streams []jetstream.Stream
	for _, name := range []string{c.ns.OutStream(), c.ns.DLQStream()} {
		stream, err := c.openStream(ctx, name)
		if err != nil {
			return err
		}
		streams = append(streams, stream)
	}
	followers, ctx := errgroup.WithContext(ctx)
	for _, stream := range streams {
		config := jetstream.OrderedConsumerConfig{
			DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: stream.CachedInfo().State.LastSeq + 1,
		}
		if !since.IsZero() {
			config = jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since}
		}
		followers.Go(func() error { return c.follow(ctx, stream, config, handle, failed) })
	}
	ready()
	return followers.Wait()
}

// follow calls handle with the messages of a stream that config selects, until ctx ends or the connection is closed.
func (c *Client) follow(
	ctx context.Context, stream jetstream.Stream, config jetstream.OrderedConsumerConfig, handle func(m events.StoredMsg),
	failed func(err error),
) error {
	named := func(err error) error { return fmt.Errorf("follow stream %s: %w", stream.CachedInfo().Config.Name, err) }
	for m, err := range events.FollowStream(ctx, c.js, stream, config, func(err error) { failed(named(err)) }) {
		if err != nil {
			return named(err)
		}
		handle(m)
	}
	return nil
}

func (c *Client) openStream(ctx context.Context, name string) (jetstream.Stream, error) {
	stream, err := c.js.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	return stream, nil
}

// replies passes the replies to all messages of a client to those who wait for them. Its methods may be called
// concurrently.
type replies struct {
	inbox string // begins the inboxes of all messages

	mu       sync.Mutex
	expected uint64
	pending  map[string]chan *nats.Msg // messages that wait for a reply, by their inbox
}

// newReplies subscribes to the replies, until the connection is closed.
func newReplies(nc *nats.Conn) (*replies, error) {
	r := &replies{inbox: nc.NewInbox() + ".", pending: make(map[string]chan *nats.Msg)}
	if _, err := nc.Subscribe(r.inbox+"*", r.deliver); err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	return r, nil
}

// expect gives a message an inbox, and returns a channel that receives its reply. The caller calls drop.
func (r *replies) expect(m *nats.Msg) (inbox string, reply chan *nats.Msg) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expected++
	inbox, reply = r.inbox+strconv.FormatUint(r.expected, 36), make(chan *nats.Msg, 1)
	r.pending[inbox] = reply
	m.Header.Set(events.HeaderReplyTo, inbox)
	return inbox, reply
}

// drop ends the wait for the reply in an inbox.
func (r *replies) drop(inbox string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pending, inbox)
}

func (r *replies) deliver(reply *nats.Msg) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case r.pending[reply.Subject] <- reply:
	default: // the message no longer waits, or has a reply already
	}
}
