package events

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestOutcomeLogGaps_OutcomesRemoved_AreReported removes outcomes from the outbound stream in each
// possible way.
func TestOutcomeLogGaps_OutcomesRemoved_AreReported(t *testing.T) {
	js := newJetStream(t)
	stored := func(t *testing.T, ns Namespace, seq uint64) string {
		t.Helper()
		m, err := streamOf(t, js, ns.OutStream()).GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		return m.Time.UTC().Format(holds.TimeFormat)
	}
	created := func(t *testing.T, ns Namespace) string {
		t.Helper()
		return streamOf(t, js, ns.OutStream()).CachedInfo().Created.UTC().Format(holds.TimeFormat)
	}
	for name, c := range map[string]struct {
		take   func(t *testing.T, ns Namespace, stream jetstream.Stream) (want string)
		before bool // since is after all outcomes so far
		makes  bool // the stream is recreated or restored
	}{
		"none": {
			take: func(*testing.T, Namespace, jetstream.Stream) string { return "" },
		},
		"the first, by a limit": {
			take: func(t *testing.T, ns Namespace, _ jetstream.Stream) string {
				updateStream(t, js, ns.OutStream(), func(c *jetstream.StreamConfig) { c.MaxMsgs = 3 })
				return "no messages from before " + stored(t, ns, 3)
			},
		},
		"all": {
			take: func(t *testing.T, ns Namespace, stream jetstream.Stream) string {
				last := stored(t, ns, 5)
				if err := stream.Purge(t.Context()); err != nil {
					t.Fatal(err)
				}
				return "no messages from before " + last
			},
		},
		"all, none of which matters": {
			before: true,
			take: func(t *testing.T, _ Namespace, stream jetstream.Stream) string {
				if err := stream.Purge(t.Context()); err != nil {
					t.Fatal(err)
				}
				return ""
			},
		},
		"one between others": {
			take: func(t *testing.T, _ Namespace, stream jetstream.Stream) string {
				if err := stream.DeleteMsg(t.Context(), 3); err != nil {
					t.Fatal(err)
				}
				return "1 messages were removed between others"
			},
		},
		"the stream, then recreated": {
			makes: true,
			take: func(t *testing.T, ns Namespace, stream jetstream.Stream) string {
				if err := js.DeleteStream(t.Context(), ns.OutStream()); err != nil {
					t.Fatal(err)
				}
				if _, err := js.CreateStream(t.Context(), stream.CachedInfo().Config); err != nil {
					t.Fatal(err)
				}
				return "no messages from before " + created(t, ns)
			},
		},
		"the last, by a restore": {
			before: true,
			makes:  true,
			take: func(t *testing.T, ns Namespace, stream jetstream.Stream) string {
				if err := stream.Purge(t.Context(), jetstream.WithPurgeSequence(3)); err != nil {
					t.Fatal(err)
				}
				restore := stacktest.BackupStreams(t, stacktest.Shared().NATSURL, ns.OutStream())
				if _, err := js.Publish(t.Context(), ns.Out("hold.created", "last"), nil); err != nil {
					t.Fatal(err)
				}
				restore()
				return "was restored from a backup at " + created(t, ns) + ", and lacks what was published between the two"
			},
		},
		"all, and then by a restore": {
			take: func(t *testing.T, ns Namespace, stream jetstream.Stream) string {
				if err := stream.Purge(t.Context()); err != nil {
					t.Fatal(err)
				}
				stacktest.BackupStreams(t, stacktest.Shared().NATSURL, ns.OutStream())()
				return "no messages from before " + created(t, ns)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := Namespace(stacktest.Namespace(t))
			setup(t, js, ns)
			for i := range 5 {
				if _, err := js.Publish(t.Context(), ns.Out("hold.created", fmt.Sprintf("r%d", i)), nil); err != nil {
					t.Fatal(err)
				}
			}
			stream := streamOf(t, js, ns.OutStream())
			since := stream.CachedInfo().State.FirstTime.Add(-time.Hour)
			if c.before {
				since = stream.CachedInfo().State.LastTime.Add(time.Nanosecond)
			}
			want := c.take(t, ns, stream)
			outcomeLog := NewOutcomeLog(js, ns, zerolog.Nop())
			if c.makes {
				outcomeLog.setupWithin = 0
			}
			what, err := outcomeLog.Gaps(t.Context(), since)
			if err != nil || (what == "") != (want == "") || !strings.Contains(what, want) {
				t.Errorf("%q %v, want %q", what, err, want)
			}
		})
	}
}

// TestMissingAfter_OutcomesRemoved_Reports removes outcomes before and after a position.
func TestMissingAfter_OutcomesRemoved_Reports(t *testing.T) {
	t.Parallel()
	js := newJetStream(t)
	for name, c := range map[string]struct {
		take func(ctx context.Context, ns Namespace, stream jetstream.Stream) error
		want string
	}{
		"nothing": {take: func(context.Context, Namespace, jetstream.Stream) error { return nil }},
		"all up to the position": {take: func(ctx context.Context, _ Namespace, stream jetstream.Stream) error {
			return stream.Purge(ctx, jetstream.WithPurgeSequence(4))
		}},
		"one before the position": {take: func(ctx context.Context, _ Namespace, stream jetstream.Stream) error {
			return stream.DeleteMsg(ctx, 2)
		}},
		"the first after the position": {take: func(ctx context.Context, _ Namespace, stream jetstream.Stream) error {
			return stream.Purge(ctx, jetstream.WithPurgeSequence(5))
		}, want: "begins after the marker"},
		"all": {take: func(ctx context.Context, _ Namespace, stream jetstream.Stream) error {
			return stream.Purge(ctx)
		}, want: "begins after the marker"},
		"one after the position": {take: func(ctx context.Context, _ Namespace, stream jetstream.Stream) error {
			return stream.DeleteMsg(ctx, 4)
		}, want: "lacks messages after the marker"},
		"the stream, then recreated": {take: func(ctx context.Context, ns Namespace, stream jetstream.Stream) error {
			if err := js.DeleteStream(ctx, ns.OutStream()); err != nil {
				return err
			}
			_, err := js.CreateStream(ctx, stream.CachedInfo().Config)
			return err
		}, want: "was created again"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := Namespace(stacktest.Namespace(t))
			setup(t, js, ns)
			outcomeLog := NewOutcomeLog(js, ns, zerolog.Nop())
			var position holds.LogPosition
			for i := range 5 {
				if _, err := js.Publish(t.Context(), ns.Out("hold.created", fmt.Sprintf("r%d", i)), nil); err != nil {
					t.Fatal(err)
				}
				if i == 2 {
					var err error
					if position, err = outcomeLog.Position(t.Context()); err != nil || position.Seq != 3 {
						t.Fatalf("%+v %v", position, err)
					}
				}
			}
			stream, err := js.Stream(t.Context(), ns.OutStream())
			if err == nil {
				err = c.take(t.Context(), ns, stream)
			}
			if err != nil {
				t.Fatal(err)
			}
			what, err := outcomeLog.MissingAfter(t.Context(), position)
			if err != nil || (what == "") != (c.want == "") || !strings.HasSuffix(what, c.want) {
				t.Errorf("%q %v, want %q", what, err, c.want)
			}
		})
	}
	if what, err := NewOutcomeLog(js, "missing", zerolog.Nop()).MissingAfter(t.Context(), holds.LogPosition{}); err == nil {
		t.Errorf("of a stream that does not exist: %q", what)
	}
}

// TestOutcomeLog_OlderStateRestored_PositionIsNotTrusted puts the data of NATS back to an older state, whose outbound stream
// has the same creation time, and publishes other outcomes under the sequences that were lost: fewer, as many, and more.
func TestOutcomeLog_OlderStateRestored_PositionIsNotTrusted(t *testing.T) {
	t.Parallel()
	dir, older, ns := t.TempDir(), t.TempDir(), Namespace(stacktest.Namespace(t))
	var s *server.Server
	var outcomeLog *OutcomeLog
	var publish func(number int) (end holds.LogPosition)
	start := func(dir string) {
		s = syncedNATS(t, dir)
		js := stacktest.ConnectNATS(t, s.ClientURL())
		outcomeLog = NewOutcomeLog(js, ns, zerolog.Nop())
		setup(t, js, ns)
		publish = func(number int) holds.LogPosition {
			t.Helper()
			for range number {
				o := holds.Outcome{Event: holds.EventInventoryUpdated, Data: holds.InventoryUpdated{ResourceID: "room"}}
				o.Resource = "room"
				m, err := ns.outcomeMessage(o, "id", "cause")
				if err != nil {
					t.Fatal(err)
				}
				m.Header.Del(jetstream.MsgIDHeader)
				if _, err = js.PublishMsg(t.Context(), m); err != nil {
					t.Fatal(err)
				}
			}
			end, err := outcomeLog.Position(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return end
		}
	}
	stop := func() {
		s.Shutdown()
		s.WaitForShutdown()
	}
	check := func(p holds.LogPosition, commits int, want string) {
		t.Helper()
		if what, err := outcomeLog.MissingAfter(t.Context(), p); err != nil || !strings.HasSuffix(what, want) ||
			(what == "") != (want == "") {
			t.Errorf("after %d: %q %v, want %q", p.Seq, what, err, want)
		}
		p.Created, p.StoredAt = p.Created.Truncate(time.Microsecond), p.StoredAt.Truncate(time.Microsecond) // as in Postgres
		found := 0
		_, err := outcomeLog.Commits(t.Context(), p, func(some []holds.StoredOutcome) error {
			found += len(some)
			return nil
		})
		if err != nil || found != commits {
			t.Errorf("after %d: %d commits %v, want %d", p.Seq, found, err, commits)
		}
	}
	start(dir)
	kept := publish(3)
	stop()
	if err := os.CopyFS(older, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	start(dir)
	lost := publish(2)
	check(kept, 2, "")
	check(lost, 0, "")
	stop()
	start(older)
	if end := publish(1); !end.Created.Equal(lost.Created) || end.Seq != 4 {
		t.Fatalf("the older state ends at %+v, want it before %+v", end, lost)
	}
	check(kept, 1, "")
	check(lost, 4, "ends before the marker")
	check(publish(1), 0, "")
	check(lost, 5, "has another message than that of the marker")
	publish(1)
	check(kept, 3, "")
	check(lost, 6, "has another message than that of the marker")
	lost.StoredAt = time.Time{} // unknown: only the sequence is compared
	check(lost, 1, "")
}

// unacknowledged returns the unacknowledged cancellations and payments, by their request keys and
// payment ids.
func (b *harness) unacknowledged() (found []string) {
	b.t.Helper()
	_, err := NewOutcomeLog(b.js, b.ns, zerolog.Nop()).Unacknowledged(b.t.Context(), 0,
		func(r holds.ConfirmRequest, _ holds.Time) error { found = append(found, r.PaymentID); return nil },
		func(r holds.ReleaseRequest, _ holds.Time) error { found = append(found, r.RequestKey); return nil })
	if err != nil {
		b.t.Fatal(err)
	}
	slices.Sort(found)
	return found
}

// TestUnacknowledged_AfterSequence_OnlyLater reads a payment, and then those that were stored since.
func TestUnacknowledged_AfterSequence_OnlyLater(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop()
	var last uint64
	for _, want := range [][]string{{"p1"}, {"p2"}, nil} {
		var found []string
		for _, payment := range want {
			b.pay(payment)
		}
		var err error
		last, err = NewOutcomeLog(b.js, b.ns, zerolog.Nop()).Unacknowledged(t.Context(), last,
			func(r holds.ConfirmRequest, _ holds.Time) error { found = append(found, r.PaymentID); return nil },
			func(holds.ReleaseRequest, holds.Time) error { return nil })
		if err != nil || !slices.Equal(found, want) {
			t.Errorf("found %v up to %d %v, want %v", found, last, err, want)
		}
	}
}

// TestUnacknowledged_DeadLetteredEvents_AreExcluded keeps the ack floors of the consumers low with
// events that are busy. Behind them a cancellation becomes poison, and a payment has a dead letter. Both are
// excluded, because a rebuild must not act on them.
func TestUnacknowledged_DeadLetteredEvents_AreExcluded(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.setFault(func(key string, _ int) error {
		if strings.HasPrefix(key, "busy") {
			return holds.ErrBusy
		}
		return &encodeError{errors.New("its own fault")}
	})
	cancel := func(key string) {
		data := `{"resource_id":"room","request_key":"` + key + `"}`
		b.publish(b.ns.In(BookingCancelled, "room"), nil, envelopeOf(BookingCancelled, key, data))
	}
	cancel("busy1")
	b.pay("busy2")
	b.pay("busy3") // the third event
	cancel("poison")
	b.await("the dead letter", func() bool { return len(b.dlq) == 1 })
	if got, want := b.unacknowledged(), []string{"busy1", "busy2", "busy3"}; !slices.Equal(got, want) {
		t.Errorf("unacknowledged %v, want %v", got, want)
	}
	header := nats.Header{HeaderDLQSubject: {b.ns.In(PaymentConfirmed, "room")}, HeaderDLQStreamSeq: {strconv.Itoa(3)}}
	b.publish(b.ns.DLQ(ReasonMalformed), header, "{}")
	if got, want := b.unacknowledged(), []string{"busy1", "busy2"}; !slices.Equal(got, want) {
		t.Errorf("after the dead letter of the payment %v, want %v", got, want)
	}

	// The dead letters do not belong to the events of the next stream.
	if err := b.js.DeleteStream(t.Context(), b.ns.InStream()); err != nil {
		t.Fatal(err)
	}
	setup(t, b.js, b.ns)
	b.pay("busy5")
	b.pay("busy6")
	b.pay("busy7")
	cancel("busy8")
	if got, want := b.unacknowledged(), []string{"busy5", "busy6", "busy7", "busy8"}; !slices.Equal(got, want) {
		t.Errorf("in the next stream %v, want %v", got, want)
	}
}
