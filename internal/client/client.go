package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
)

// ErrReplyTimeout says that no outcome came in time. The event is stored and will have one.
var ErrReplyTimeout = errors.New("no answer in time")

// Client publishes inbound events and follows their outcomes.
type Client struct {
	nc *nats.Conn
	js jetstream.JetStream
	ns events.Namespace
}

// New returns a Client for a namespace.
func New(nc *nats.Conn, ns events.Namespace) (*Client, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	return &Client{nc, js, ns}, nil
}

// Reply is the outcome of one event, or that it was dead-lettered.
type Reply struct {
	Body       []byte                  // as received
	Envelope   events.Envelope         // of an outcome
	DeadLetter *events.DeadLetterReply // nil unless the event was dead-lettered
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
	m.Header.Set(events.HeaderReplyTo, inbox)
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
	return ParseReply(reply.Header.Get(events.HeaderContentType), reply.Data)
}

// ParseReply reads what is sent to Holdfast-Reply-To.
func ParseReply(contentType string, body []byte) (Reply, error) {
	a := Reply{Body: body}
	var err error
	if contentType == events.ContentTypeEvent {
		err = json.Unmarshal(body, &a.Envelope)
	} else {
		a.DeadLetter = new(events.DeadLetterReply)
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
