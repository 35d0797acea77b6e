package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	answerWithin  = 30 * time.Second // from a request to its outcome
	headerReplyTo = "Holdfast-Reply-To"
)

// dialogue receives the outcomes of requests on an inbox of its own.
type dialogue struct {
	inbox string
	sub   *nats.Subscription

	mu      sync.Mutex // guards what follows
	asked   int
	waiting map[int]func(outcome []byte)
}

// dialogue subscribes to a new inbox. The caller calls close.
func (s *cluster) dialogue() (*dialogue, error) {
	d := &dialogue{inbox: s.nc.NewInbox() + ".", waiting: make(map[int]func([]byte))}
	var err error
	d.sub, err = s.nc.Subscribe(d.inbox+"*", func(m *nats.Msg) {
		n, err := strconv.Atoi(strings.TrimPrefix(m.Subject, d.inbox))
		if err != nil {
			return
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if answered, first := d.waiting[n]; first { // a redelivered event has two answers
			answered(m.Data)
			delete(d.waiting, n)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	return d, s.nc.Flush()
}

func (d *dialogue) close() error { return d.sub.Unsubscribe() }

// expect has a request answered to the inbox, and returns the channel that receives the outcome.
func (d *dialogue) expect(m *nats.Msg) <-chan []byte {
	answer := make(chan []byte, 1)
	d.onAnswer(m, func(outcome []byte) { answer <- outcome })
	return answer
}

// onAnswer has a request answered to the inbox, and answered called with the outcome. It is called for one
// outcome after another, and must not block.
func (d *dialogue) onAnswer(m *nats.Msg, answered func(outcome []byte)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting[d.asked] = answered
	m.Header.Set(headerReplyTo, d.inbox+strconv.Itoa(d.asked))
	d.asked++
}

// await waits for an outcome.
func (s *cluster) await(ctx context.Context, answer <-chan []byte) ([]byte, error) {
	timer := time.NewTimer(answerWithin)
	defer timer.Stop()
	select {
	case outcome := <-answer:
		return outcome, nil
	case <-timer.C:
		return nil, errors.Join(s.alive(), fmt.Errorf("no outcome within %s of a request", answerWithin))
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
