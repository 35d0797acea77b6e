package events

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// flushLimit bounds a write to a connection that accepts no data. It delays a publisher, and a
// worker that stops.
const flushLimit = 2 * time.Second

// connectLimit bounds the connection to one server, up to the server's first message.
const connectLimit = 5 * time.Second

// Connect connects to NATS. The connection reconnects for ever, and logs disconnections,
// reconnections and missing permissions by logf. The inboxes of a user begin with _INBOX.<user>, unless
// an option sets another prefix.
// Connect returns ErrURL for a malformed URL. No error or log message contains a password.
func Connect(url, name string, logf func(format string, args ...any), options ...nats.Option) (*nats.Conn, error) {
	inbox, err := inboxOf(url)
	if err != nil {
		return nil, err
	}
	if inbox != "" {
		options = append([]nats.Option{nats.CustomInboxPrefix(inbox)}, options...)
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

// Reconnect connects to NATS again, to another server if the connection knows one, and waits until it has or ctx ends. It
// reports whether it has: else the connection tries further. What is being sent fails with nats.ErrDisconnected.
func Reconnect(ctx context.Context, nc *nats.Conn) bool {
	connected := nc.StatusChanged(nats.CONNECTED)
	defer func() { go nc.RemoveStatusListener(connected) }() // it waits for a server that is being connected to
	if nc.ForceReconnect() != nil {
		return false
	}
	select {
	case <-connected:
		return true
	case <-ctx.Done():
		return false
	}
}

// ConnectUntil is Connect, but ends with the cause of ctx when that is over first. Connect tries one server
// after the other, each for up to connectLimit, and cannot be interrupted.
func ConnectUntil(
	ctx context.Context, url, name string, logf func(format string, args ...any), options ...nats.Option,
) (*nats.Conn, error) {
	type connected struct {
		nc  *nats.Conn
		err error
	}
	done := make(chan connected, 1)
	go func() {
		nc, err := Connect(url, name, logf, options...)
		done <- connected{nc, err}
	}()
	select {
	case c := <-done:
		return c.nc, c.err
	case <-ctx.Done():
		go func() {
			if late := <-done; late.err == nil {
				late.nc.Close()
			}
		}()
		return nil, fmt.Errorf("connect to nats at %s: %w", RedactedURL(withScheme(url)), context.Cause(ctx))
	}
}
