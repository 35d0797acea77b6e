package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// puller requests messages of a consumer and receives them. The methods of nats.go for that cannot be used where
// publishers choose the headers: they take a message with a header Status and no body for a status of the server,
// which ends the request or hides the message, and they return a header Nats-Pin-Id to the server, which then refuses
// every request. A puller recognizes a message by the subject to which it is acknowledged, which only the server sets.
//
// A puller is for one goroutine.
type puller struct {
	nc       *nats.Conn
	subject  string         // of requests
	received chan *nats.Msg // for all requests, in the order in which the server sends it
	open     []*pullRequest // the requests that have not ended, the oldest first
	status   error          // received after the messages that take has returned last
}

// pullRequest is a request for messages. It has an inbox of its own, by which its messages and its status are known.
type pullRequest struct {
	inbox    *nats.Subscription
	sent     time.Time
	messages int // that it is for
	left     int // how many of them the server may still send, 0 when it has ended

	streamCreated time.Time // for a Consumer: when the stream was created, as known before the request
}

// pulledMsg is a message that a puller has received.
type pulledMsg struct {
	*nats.Msg
	request *pullRequest // an empty one when the request was given up
}

// What the server sends for a request, in bytes, in addition to its largest message. The server disconnects a client that is
// slower than it for more than max_pending bytes, 64 MiB by default, and a worker has one connection for all.
const (
	readBytes = 4 << 20 // for a reader
	// For a durable consumer, which requests about readBytes by the number of events: where this limit ends a request, the server
	// delivers an event that it has delivered before after all others of that kind.
	fetchBytes = 24 << 20
)

// openRequestsMax is the most requests that a durable consumer has open at once, one of which is that of its present fetch.
// What is still under way for an older one is delivered again anyway, after the ack wait. What the others bring comes on
// top of the limits of the in-flight window.
const openRequestsMax = 4

var (
	// errPullEnded says that the server sends no more messages for one of the requests.
	errPullEnded = errors.New("the request for messages has ended")
	// errNothingPulled says that nothing has arrived in time.
	errNothingPulled = errors.New("no message has arrived")
)

// newPuller returns a puller for which at most max messages are under way at once. The caller closes it.
func newPuller(nc *nats.Conn, stream, consumer string, max int) *puller {
	return &puller{
		nc: nc, subject: "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + consumer,
		received: make(chan *nats.Msg, 2*max), // also statuses
	}
}

// close ends all requests. What arrives for them later is lost until the server delivers it again.
func (p *puller) close() { p.giveUp(0) }

// giveUp ends all requests but the newest ones.
func (p *puller) giveUp(keep int) {
	for len(p.open) > keep {
		p.end(p.open[0])
	}
}

// end ends a request: the server has nothing left to send for it, or it is given up.
func (p *puller) end(r *pullRequest) {
	r.left = 0
	_ = r.inbox.Unsubscribe() // fails only when the connection is closed
	p.open = slices.DeleteFunc(p.open, func(other *pullRequest) bool { return other == r })
}

// outstanding returns how many messages the server may still send.
func (p *puller) outstanding() (messages int) {
	for _, r := range p.open {
		messages += r.left
	}
	return messages
}

// request requests at most n messages, of about so many bytes, which the server sends until expires has passed. With 0 it sends
// those that wait at this moment.
func (p *puller) request(n, bytes int, expires time.Duration) (*pullRequest, error) {
	inbox, err := p.nc.ChanSubscribe(p.nc.NewInbox(), p.received)
	if err != nil {
		return nil, err
	}
	r := &pullRequest{inbox: inbox, sent: time.Now(), messages: n, left: n}
	p.open = append(p.open, r)
	body := fmt.Appendf(nil, `{"batch":%d,"max_bytes":%d,"expires":%d,"no_wait":%t}`,
		n, int64(bytes)+p.nc.MaxPayload(), expires.Nanoseconds(), expires == 0)
	if err := p.nc.PublishRequest(p.subject, inbox.Subject, body); err != nil {
		p.end(r)
		return nil, err
	}
	return r, nil
}

// take returns the messages that have arrived, at least one, and waits for it. Its errors are errPullEnded when a
// request has ended, errNothingPulled after wait, the cause when ctx ends, and what the server reports.
func (p *puller) take(ctx context.Context, wait time.Duration) (batch []pulledMsg, err error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for p.status == nil && (len(batch) == 0 || len(p.received) > 0) {
		select {
		case m := <-p.received:
			if isStored(m) {
				batch = append(batch, p.count(m))
			} else {
				p.status = p.statusOf(m)
			}
		case <-timer.C:
			if len(batch) == 0 && len(p.received) == 0 { // else some have arrived meanwhile, as after a suspension
				return nil, errNothingPulled
			}
			timer.Reset(0) // what has arrived may be a heartbeat
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if len(batch) > 0 {
		return batch, nil
	}
	err, p.status = p.status, nil
	return nil, err
}

// count counts a message for its request, which ends with its last one.
func (p *puller) count(m *nats.Msg) pulledMsg {
	r := p.requestOf(m)
	if r.left--; r.left == 0 {
		p.end(r)
	}
	return pulledMsg{m, r}
}

// statusOf returns the error that a status of the server reports for an open request, which ends, or nil.
func (p *puller) statusOf(m *nats.Msg) error {
	r := p.requestOf(m)
	if r.left == 0 {
		return nil
	}
	err := statusOf(m, r.left < r.messages)
	if err != nil {
		p.end(r)
	}
	return err
}

// requestOf returns the open request that the server has sent a message for, or an empty one.
func (p *puller) requestOf(m *nats.Msg) *pullRequest {
	for _, r := range p.open {
		if r.inbox == m.Sub {
			return r
		}
	}
	return &pullRequest{}
}

// isStored reports whether a message is one of the stream, and not a status of the server.
func isStored(m *nats.Msg) bool { return strings.HasPrefix(m.Reply, "$JS.ACK.") }

// statusOf returns the error that a status of the server reports, nil when it reports none. some says that messages came
// before it: a single one above the limit of bytes would never come.
func statusOf(m *nats.Msg, some bool) error {
	text := m.Header.Get("Description")
	switch code := m.Header.Get("Status"); {
	case code == "100": // a heartbeat
		return nil
	case code == "404", code == "408", code == "409" && strings.Contains(strings.ToLower(text), "batch completed"),
		code == "409" && some && strings.Contains(strings.ToLower(text), "exceeds maxbytes"):
		return errPullEnded
	case code == "503":
		return nats.ErrNoResponders
	default:
		return fmt.Errorf("request for messages: %s %s", code, text)
	}
}
