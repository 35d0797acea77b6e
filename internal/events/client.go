package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// flushLimit is how long a connection that takes nothing is waited for: whoever publishes is held up meanwhile,
// and so is a worker that is to stop.
const flushLimit = 2 * time.Second

// connectLimit bounds the way to one server, up to its first word.
const connectLimit = 5 * time.Second

// Connect connects to NATS as every program of ours does: it reconnects for ever, and tells
// logf when it is cut off, when it is back, and which permission it lacks. The inboxes of a user
// begin with _INBOX.<user>. It returns ErrURL for what is no URL; no error tells a password.
func Connect(url, name string, logf func(format string, args ...any), options ...nats.Option) (*nats.Conn, error) {
	inbox, err := inboxOf(url)
	if err != nil {
		return nil, err
	}
	if inbox != "" {
		options = append(options, nats.CustomInboxPrefix(inbox))
	}
	options = append([]nats.Option{
		nats.Name(name),
		nats.Timeout(connectLimit),
		nats.MaxReconnects(-1),
		nats.PingInterval(10 * time.Second),
		nats.FlusherTimeout(flushLimit),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				logf("nats: cut off: %v", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) { logf("nats: connected again to %s", RedactedURL(nc.ConnectedUrl())) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { logf("nats: %v", err) }),
	}, options...)
	nc, err := nats.Connect(url, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to nats at %s: %w", RedactedURL(withScheme(url)), err)
	}
	return nc, nil
}

// What a worker has on its way to be stored.
const (
	storingMax = 16384 // outcomes and dead letters of all consumers
	storeLimit = 5 * time.Second
)

// NewJetStream returns a JetStream context as a Consumer and an Announcer need it: what they wait for to be stored ends
// as stored or not, also when the server's word is lost.
func NewJetStream(nc *nats.Conn) (jetstream.JetStream, error) {
	return jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(storingMax), jetstream.WithPublishAsyncTimeout(storeLimit))
}

// ErrReplyTimeout says that no outcome came in time. The event is stored and will have one.
var ErrReplyTimeout = errors.New("no answer in time")

// Client publishes inbound events and follows their outcomes.
type Client struct {
	nc *nats.Conn
	js jetstream.JetStream
	ns Namespace
}

// NewClient returns a Client for a namespace.
func NewClient(nc *nats.Conn, ns Namespace) (*Client, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	return &Client{nc, js, ns}, nil
}

// Reply is the outcome of one event, or that it was dead-lettered.
type Reply struct {
	Body       []byte           // as received
	Envelope   Envelope         // of an outcome
	DeadLetter *DeadLetterReply // nil unless the event was dead-lettered
}

// Publish publishes a message and returns when JetStream has stored it.
func (c *Client) Publish(ctx context.Context, m *nats.Msg) error {
	if _, err := c.js.PublishMsg(ctx, m); err != nil {
		return fmt.Errorf("publish on %s: %w", m.Subject, err)
	}
	return nil
}

// Request publishes a message and waits for its outcome until ctx is over: then it returns ErrReplyTimeout.
func (c *Client) Request(ctx context.Context, m *nats.Msg) (Reply, error) {
	inbox := c.nc.NewInbox()
	sub, err := c.nc.SubscribeSync(inbox)
	if err != nil {
		return Reply{}, fmt.Errorf("subscribe: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // only fails when the connection is closed
	m.Header.Set(headerReplyTo, inbox)
	if err := c.Publish(ctx, m); err != nil {
		return Reply{}, err
	}
	reply, err := sub.NextMsgWithContext(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = ErrReplyTimeout
		}
		return Reply{}, fmt.Errorf("wait for the outcome: %w", err)
	}
	return ParseReply(reply.Header.Get(headerContentType), reply.Data)
}

// ParseReply reads what is sent to Holdfast-Reply-To.
func ParseReply(contentType string, body []byte) (Reply, error) {
	a := Reply{Body: body}
	var err error
	if contentType == contentTypeEvent {
		err = json.Unmarshal(body, &a.Envelope)
	} else {
		a.DeadLetter = new(DeadLetterReply)
		err = json.Unmarshal(body, a.DeadLetter)
	}
	if err != nil {
		return Reply{}, fmt.Errorf("read the answer: %w", err)
	}
	return a, nil
}

// Follow hands every message that is stored in the outbound and dead-letter streams from now on
// to handle, each stream's in its order, until ctx is over or the connection is closed. ready,
// unless it is nil, is called once both are followed.
func (c *Client) Follow(ctx context.Context, ready func(), handle func(m jetstream.Msg)) error {
	for _, stream := range []string{c.ns.OutStream(), c.ns.DLQStream()} {
		consumer, err := c.js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverNewPolicy})
		if err != nil {
			return fmt.Errorf("follow stream %s: %w", stream, err)
		}
		consuming, err := consumer.Consume(handle)
		if err != nil {
			return fmt.Errorf("follow stream %s: %w", stream, err)
		}
		defer consuming.Stop()
	}
	if ready != nil {
		ready()
	}
	closed := c.nc.StatusChanged(nats.CLOSED)
	defer c.nc.RemoveStatusListener(closed)
	select {
	case <-ctx.Done():
	case <-closed:
	}
	return nil
}
