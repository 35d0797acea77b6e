package client

import (
	"fmt"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
)

// replies passes the replies to many messages to those who wait for them. Its methods may be called
// concurrently; those of a nil replies do nothing.
type replies struct {
	inbox string // begins the inboxes of all messages
	sub   *nats.Subscription

	mu       sync.Mutex
	expected uint64
	pending  map[string]chan *nats.Msg // messages that wait for a reply, by their inbox
}

// newReplies subscribes to the replies. The caller calls close.
func newReplies(nc *nats.Conn) (*replies, error) {
	r := &replies{inbox: nc.NewInbox() + ".", pending: make(map[string]chan *nats.Msg)}
	var err error
	if r.sub, err = nc.Subscribe(r.inbox+"*", r.deliver); err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	return r, nil
}

func (r *replies) close() {
	if r != nil {
		_ = r.sub.Unsubscribe() // only fails when the connection is closed
	}
}

// expect gives a message an inbox, and returns a channel that receives its reply, nil without replies. The
// caller calls drop.
func (r *replies) expect(m *nats.Msg) (inbox string, reply chan *nats.Msg) {
	if r == nil {
		return "", nil
	}
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
	if r == nil {
		return
	}
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
