package events

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestOutcomeLogGaps_OutcomesRemoved_AreReported takes outcomes away from the outbound stream in each way in which they can go.
func TestOutcomeLogGaps_OutcomesRemoved_AreReported(t *testing.T) {
	t.Parallel()
	js := newJetStream(t)
	stored := func(t *testing.T, ns Namespace, seq uint64) string {
		t.Helper()
		stream, err := js.Stream(t.Context(), ns.OutStream())
		if err != nil {
			t.Fatal(err)
		}
		m, err := stream.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		return m.Time.UTC().Format(holds.TimeFormat)
	}
	for name, c := range map[string]struct {
		take   func(t *testing.T, ns Namespace, stream jetstream.Stream) (want string)
		before bool // only what was stored before all that there was is asked for
		makes  bool // the stream is made again
	}{
		"none": {
			take: func(*testing.T, Namespace, jetstream.Stream) string { return "" },
		},
		"the first, by a limit": {
			take: func(t *testing.T, ns Namespace, stream jetstream.Stream) string {
				config := stream.CachedInfo().Config
				config.MaxMsgs = 3
				if _, err := js.UpdateStream(t.Context(), config); err != nil {
					t.Fatal(err)
				}
				return "nothing of before " + stored(t, ns, 3)
			},
		},
		"all": {
			take: func(t *testing.T, ns Namespace, stream jetstream.Stream) string {
				last := stored(t, ns, 5)
				if err := stream.Purge(t.Context()); err != nil {
					t.Fatal(err)
				}
				return "nothing of before " + last
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
		"one from their midst": {
			take: func(t *testing.T, _ Namespace, stream jetstream.Stream) string {
				if err := stream.DeleteMsg(t.Context(), 3); err != nil {
					t.Fatal(err)
				}
				return "1 messages were removed from the midst"
			},
		},
		"the stream, and it was made again": {
			makes: true,
			take: func(t *testing.T, ns Namespace, stream jetstream.Stream) string {
				if err := js.DeleteStream(t.Context(), ns.OutStream()); err != nil {
					t.Fatal(err)
				}
				again, err := js.CreateStream(t.Context(), stream.CachedInfo().Config)
				if err != nil {
					t.Fatal(err)
				}
				return "nothing of before " + again.CachedInfo().Created.UTC().Format(holds.TimeFormat)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := Namespace(stacktest.Namespace(t))
			if err := Setup(t.Context(), js, ns, Retention{HoldLifetime: 2 * time.Hour}, zerolog.Nop()); err != nil {
				t.Fatal(err)
			}
			for i := range 5 {
				if _, err := js.Publish(t.Context(), ns.Out("hold.created", fmt.Sprintf("r%d", i)), nil); err != nil {
					t.Fatal(err)
				}
			}
			stream, err := js.Stream(t.Context(), ns.OutStream())
			if err != nil {
				t.Fatal(err)
			}
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
