package stacktest

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// NATSWithMaxPayload starts a NATS server with JetStream that refuses messages of more than
// payloadMax bytes. The server stops when the test ends.
func NATSWithMaxPayload(t testing.TB, payloadMax int32) (url string) {
	t.Helper()
	return StartNATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir(), MaxPayload: payloadMax}).ClientURL()
}

// StartNATS starts a NATS server with options, on loopback and a free port. It stops when the test
// ends.
func StartNATS(t testing.TB, o *server.Options) *server.Server {
	t.Helper()
	o.Host, o.Port, o.NoSigs = "127.0.0.1", server.RANDOM_PORT, true
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the NATS server is not ready within a minute")
	}
	return s
}
