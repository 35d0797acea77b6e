package queries

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// countingQuerier is a Querier that counts no live holds.
type countingQuerier struct{ Querier }

func (countingQuerier) CountLive(context.Context, int) (holds.LiveCounts, error) {
	return holds.LiveCounts{}, nil
}

// TestStats_ClocksDiffer_OldestAgeIsByNATSTime changes the century of the time that NATS states with each consumer: the
// age of an event is the difference of two times of NATS, whatever the clock of the worker is.
func TestStats_ClocksDiffer_OldestAgeIsByNATSTime(t *testing.T) {
	t.Parallel()
	s := stacktest.StartNATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	proxy, err := stacktest.NewProxy(s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	proxy.Rewrite(stacktest.Downstream, `"ts":"20`, `"ts":"21`)
	js, ns := newStreams(t, "nats://"+proxy.Addr())
	event := &nats.Msg{Subject: ns.In(events.BookingRequested, "room"), Data: []byte("{}")}
	if _, err := js.PublishMsg(t.Context(), event); err != nil {
		t.Fatal(err)
	}
	stats, err := NewInquiry(js, ns, countingQuerier{}, nil).Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const years = 99 * 365 * 24 * 60 * 60 // seconds, about a century
	for _, consumer := range stats.Consumers {
		if consumer.Pending > 0 && consumer.OldestAgeSeconds < years {
			t.Errorf("%s: the oldest event is %v s old, want more than %v", consumer.Name, consumer.OldestAgeSeconds, years)
		}
	}
	if len(stats.Consumers) == 0 || stats.Consumers[0].Pending != 1 {
		t.Errorf("consumers: %+v", stats.Consumers)
	}
}

// TestRates_ClockSetBack_AreKnownAgain sets the clock of the worker back by an hour.
func TestRates_ClockSetBack_AreKnownAgain(t *testing.T) {
	t.Parallel()
	var i Inquiry
	noon := time.Date(2027, 5, 1, 12, 0, 0, 0, time.UTC)
	for _, read := range []struct {
		at    time.Duration
		known bool
	}{{0, false}, {2 * time.Second, true}, {-time.Hour, false}, {-time.Hour + 2*time.Second, true}} {
		if known := i.rates(rateSample{noon.Add(read.at), 10, 10}) != nil; known != read.known {
			t.Errorf("at %v: known %v, want %v", read.at, known, read.known)
		}
	}
}
