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
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true,
		JetStream: true, StoreDir: t.TempDir(), MaxPayload: payloadMax,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server is not ready")
	}
	return s.ClientURL()
}
