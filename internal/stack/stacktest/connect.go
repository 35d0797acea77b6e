package stacktest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/stack"
)

// Start starts servers for this test only.
func Start(t testing.TB, o stack.Options) *stack.Stack {
	t.Helper()
	s, err := stack.Start(t.Context(), o)
	return closeAfter(t, s, err)
}

// ConnectRedis returns a client with RedisOptions, which is closed when the test ends.
func ConnectRedis(t testing.TB, url string) *redis.Client {
	t.Helper()
	client := redis.NewClient(RedisOptions(url))
	t.Cleanup(func() { _ = client.Close() }) // its commands have ended
	return client
}

// ConnectPostgres returns a connection, which is closed when the test ends.
func ConnectPostgres(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	Must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // its statements have ended
	return conn
}

// Exec runs SQL on a connection or in a transaction.
func Exec(t testing.TB, on interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, sql string, args ...any) {
	t.Helper()
	_, err := on.Exec(t.Context(), sql, args...)
	Must(t, err)
}

// ConnectNATS returns a connection, which is closed when the test ends.
func ConnectNATS(t testing.TB, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url)
	Must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	Must(t, err)
	return js
}

// RecreateStream deletes a stream and creates it again with the same configuration. It has no message then, and gives the
// next ones the sequences of those that it had.
func RecreateStream(t testing.TB, js jetstream.JetStream, name string) {
	t.Helper()
	stream, err := js.Stream(t.Context(), name)
	Must(t, err)
	Must(t, js.DeleteStream(t.Context(), name))
	_, err = js.CreateStream(t.Context(), stream.CachedInfo().Config)
	Must(t, err)
}
