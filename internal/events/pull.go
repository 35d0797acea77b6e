package events

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// puller requests messages of a consumer and receives them. The methods of nats.go for that cannot be used where
// publishers choose the headers: they take a message with a header Status and no body for a status of the server,
// which ends the request or hides the message, and they return a header Nats-Pin-Id to the server, which then refuses
// every request. A puller recognizes a message by the subject to which it is acknowledged, which only the server sets.
type puller struct {
	nc       *nats.Conn
	requests string // the subject of requests
	inbox    *nats.Subscription
	received chan *nats.Msg
	status   error // received after the messages that take has returned last
	unsent   int   // the messages that the request of status has not got
	got      int   // messages since the last request
}

// What the server sends for a request, in bytes, in addition to its largest message. The server disconnects a client that is
// slower than it for more than max_pending bytes, 64 MiB by default, and a worker has one connection for all.
const (
	readBytes = 4 << 20 // for a reader
	// For a durable consumer, which requests about readBytes by the number of events: where this limit ends a request, the server
	// delivers an event that it has delivered before after all others of that kind.
	fetchBytes = 24 << 20
)

var (
	// errPullEnded says that the server sends no more messages for a request.
	errPullEnded = errors.New("the request for messages has ended")
	// errNothingPulled says that nothing has arrived in time.
	errNothingPulled = errors.New("no message has arrived")
)

// newPuller returns a puller for which at most max messages are under way at once. The caller closes it.
func newPuller(nc *nats.Conn, stream, consumer string, max int) (*puller, error) {
	p := &puller{
		nc: nc, requests: "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + consumer,
		received: make(chan *nats.Msg, 2*max), // also what an earlier request still delivers, and statuses
	}
	var err error
	p.inbox, err = nc.ChanSubscribe(nc.NewInbox(), p.received)
	return p, err
}

func (p *puller) close() { _ = p.inbox.Unsubscribe() } // fails only when the connection is closed

// request requests at most n messages, of about so many bytes, which the server sends until expires has passed. With 0 it sends
// those that wait at this moment.
func (p *puller) request(n, bytes int, expires time.Duration) error {
	body := fmt.Appendf(nil, `{"batch":%d,"max_bytes":%d,"expires":%d,"no_wait":%t}`,
		n, int64(bytes)+p.nc.MaxPayload(), expires.Nanoseconds(), expires == 0)
	p.got = 0
	return p.nc.PublishRequest(p.requests, p.inbox.Subject, body)
}

// take returns the messages that have arrived, at least one, and waits for it. Its errors are errPullEnded,
// errNothingPulled after wait, the cause when ctx ends, and what the server reports.
func (p *puller) take(ctx context.Context, wait time.Duration) (batch []*nats.Msg, err error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for p.status == nil && (len(batch) == 0 || len(p.received) > 0) {
		select {
		case m := <-p.received:
			if isStored(m) {
				batch = append(batch, m)
				p.got++
			} else {
				p.status, p.unsent = statusOf(m, p.got > 0), unsentOf(m)
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

// unsentOf returns how many messages a request has not got that has ended: more than any when the status does not say it.
func unsentOf(m *nats.Msg) int {
	if unsent, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages")); err == nil {
		return unsent
	}
	return math.MaxInt
}
