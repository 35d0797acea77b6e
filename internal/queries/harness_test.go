package queries

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

// newStreams connects to NATS and creates the streams of a namespace.
func newStreams(t *testing.T, url string) (jetstream.JetStream, events.Namespace) {
	t.Helper()
	nc, err := events.Connect(url, t.Name(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	ns := events.Namespace(stacktest.Namespace(t))
	js, err := events.NewJetStream(nc, ns)
	if err != nil {
		t.Fatal(err)
	}
	err = events.Setup(t.Context(), js, ns, events.Retention{HoldLifetime: time.Hour}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	return js, ns
}
