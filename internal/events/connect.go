package events

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// flushLimit bounds a flush on a connection that accepts no data. Publishers wait for it, and so
// does a worker that stops.
const flushLimit = 2 * time.Second

// connectLimit bounds a connection attempt to one server, up to its first message.
const connectLimit = 5 * time.Second

// Connect connects a program of Holdfast to NATS. The connection reconnects for ever. It reports to
// logf when it is lost, when it is restored, and which permission its user lacks. The inboxes of a
// user begin with _INBOX.<user>. Connect returns ErrURL if url cannot be read. No error contains a
// password.
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
				logf("nats: disconnected: %v", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) { logf("nats: reconnected to %s", RedactedURL(nc.ConnectedUrl())) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { logf("nats: %v", err) }),
	}, options...)
	nc, err := nats.Connect(url, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to nats at %s: %w", RedactedURL(withScheme(url)), err)
	}
	return nc, nil
}

// The limits of messages that are being stored.
const (
	storingMax = 16384 // outcomes and dead letters of all consumers of a worker
	storeLimit = 5 * time.Second
)

// NewJetStream returns a JetStream context for a Consumer or an Announcer. Each message that they
// publish ends as stored or as failed within storeLimit, even if the PubAck is lost.
func NewJetStream(nc *nats.Conn) (jetstream.JetStream, error) {
	return jetstream.New(nc,
		jetstream.WithPublishAsyncMaxPending(storingMax), jetstream.WithPublishAsyncTimeout(storeLimit))
}
