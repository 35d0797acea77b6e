package events

import (
	"fmt"
	"time"

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
