package queries

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// slowStreams is a JetStream whose streams answer only some requests for messages. The others take until their contexts end.
type slowStreams struct {
	jetstream.JetStream
	answered int
}

type slowStream struct {
	jetstream.Stream
	streams *slowStreams
}

func (s *slowStreams) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	stream, err := s.JetStream.Stream(ctx, name)
	return slowStream{stream, s}, err
}

func (s slowStream) GetMsg(
	ctx context.Context, seq uint64, options ...jetstream.GetMsgOpt,
) (*jetstream.RawStreamMsg, error) {
	if s.streams.answered == 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	s.streams.answered--
	return s.Stream.GetMsg(ctx, seq, options...)
}

// TestRecent_TooSlow_ReturnsLatest reads more outcomes than one block has, while NATS answers, and while it stops to
// answer before the first block and after it.
func TestRecent_TooSlow_ReturnsLatest(t *testing.T) {
	t.Parallel()
	const number = 2*recentBlock + 10
	js, ns := newStreams(t, stacktest.Shared().NATSURL)
	for n := range number {
		m := events.NewStructuredMsg(fmt.Appendf(nil, `{"type":"holdfast.hold.created.v1","data":{"hold_id":"%d"}}`, n))
		m.Subject = ns.Out(holds.EventHoldCreated, "room")
		if _, err := js.PublishMsgAsync(m, stacktest.WithoutHurry()); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	stream, err := js.Stream(t.Context(), ns.OutStream())
	if err != nil {
		t.Fatal(err)
	}
	latest, err := stream.GetMsg(t.Context(), number-recentBlock+1)
	if err != nil {
		t.Fatal(err)
	}
	for answered, want := range map[int]int{3: number, 1: recentBlock, 0: 0} {
		i := NewInquiry(&slowStreams{js, answered}, ns, nil, nil)
		// Enough to read on a slow machine; what does not answer takes all of it.
		i.recentWithin = map[int]time.Duration{3: time.Minute, 1: 8 * time.Second, 0: time.Second}[answered]
		began := time.Now()
		r, err := i.Recent(t.Context(), "room", time.Hour)
		if len(r.Outcomes) != want || errors.Is(err, errTooSlow) != (want == 0) || (err == nil) != (want > 0) {
			t.Errorf("%d requests answered: %d outcomes, error %v, want %d", answered, len(r.Outcomes), err, want)
			continue
		}
		for n, o := range r.Outcomes {
			if o.HoldID != fmt.Sprint(number-want+n) {
				t.Fatalf("%d requests answered: outcome %d is of hold %s", answered, n, o.HoldID)
			}
		}
		if want == recentBlock && !r.Since.Equal(latest.Time) || want == number && r.Since.After(began.Add(-time.Minute)) {
			t.Errorf("%d requests answered: read since %s", answered, r.Since)
		}
		if err != nil && ProblemOf(err) != tooSlow {
			t.Errorf("answered with %+v", ProblemOf(err))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := NewInquiry(js, ns, nil, nil).Recent(ctx, "room", time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller has gone: error %v", err)
	}
}

// TestRecent_OldOutcomes_AreLeftOut asks for less time than the stream has, and for outcomes of an empty stream.
func TestRecent_OldOutcomes_AreLeftOut(t *testing.T) {
	t.Parallel()
	js, ns := newStreams(t, stacktest.Shared().NATSURL)
	i := NewInquiry(js, ns, nil, nil)
	for range 2 {
		if r, err := i.Recent(t.Context(), "room", 0); err != nil || len(r.Outcomes) > 0 || r.Since.IsZero() {
			t.Errorf("%+v %v", r, err)
		}
		m := events.NewStructuredMsg([]byte(`{"type":"holdfast.hold.created.v1","data":{}}`))
		m.Subject = ns.Out(holds.EventHoldCreated, "room")
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
}
