package client

import (
	"fmt"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
)

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
