package events

import (
	"bytes"
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"holdfast/internal/stack/stacktest"
)

// olderServer connects to a server that gives 2.10 as its version.
type olderServer struct{ net.Dialer }

func (o *olderServer) Dial(network, address string) (net.Conn, error) {
	conn, err := o.Dialer.Dial(network, address)
	return olderConn{conn}, err
}

type olderConn struct{ net.Conn }

func (c olderConn) Read(to []byte) (int, error) {
	n, err := c.Conn.Read(to)
	const field = `"version":"`
	older := "2.10" + server.VERSION[len("2.10"):]
	copy(to[:n], bytes.ReplaceAll(to[:n], []byte(field+server.VERSION), []byte(field+older)))
	return n, err
}

// TestSetPause_ServerKnowsNoPause_SaysWhichDoes pauses and resumes a consumer of a server that is too old. Nothing is
// changed.
func TestSetPause_ServerKnowsNoPause_SaysWhichDoes(t *testing.T) {
	t.Parallel()
	ns := Namespace(stacktest.Namespace(t))
	setup(t, newJetStream(t), ns)
	nc, err := Connect(stacktest.Shared().NATSURL, t.Name(), t.Logf, nats.SetCustomDialer(&olderServer{}))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := NewJetStream(nc, ns)
	if err != nil {
		t.Fatal(err)
	}
	for _, pause := range []*Pause{{Reason: "new schema"}, nil} {
		err := SetPause(t.Context(), js, ns, ConsumerRequests, pause)
		if err == nil || !strings.Contains(err.Error(), "cannot pause a consumer, 2.11 and newer can") {
			t.Errorf("%v: %v", pause, err)
		}
	}
	if paused := consumerOf(t, js, ns, ConsumerRequests).CachedInfo(); len(paused.Config.Metadata[metadataPausedFor]) > 0 {
		t.Errorf("the consumer has the metadata %q", paused.Config.Metadata)
	}
}
