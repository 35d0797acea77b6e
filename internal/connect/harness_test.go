package connect_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/connect"
	"holdfast/internal/stack/stacktest"
)

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{}) // the commands return the same problems as errors
	stacktest.MainAlone(func() (int, error) { return m.Run(), nil })
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// ping connects with the options of an address and sends one command.
func ping(t *testing.T, address string, files connect.TLSFiles) error {
	t.Helper()
	options, err := connect.RedisOptions(address, files)
	if err != nil {
		return err
	}
	options.MaxRetries, options.DialerRetries = -1, 1
	client := redis.NewClient(options)
	defer func() { _ = client.Close() }() // the command has ended
	return client.Ping(t.Context()).Err()
}

// redisWith starts a Redis and returns a connection for its settings, which stays open when the Redis
// requires a login or TLS.
func redisWith(t *testing.T) (client *redis.Client, conn *redis.Conn) {
	t.Helper()
	client = stacktest.ConnectRedis(t, stacktest.StartRedis(t).RedisURL)
	conn = client.Conn()
	t.Cleanup(func() { _ = conn.Close() })
	return client, conn
}

// do sends a command.
func do(t *testing.T, conn *redis.Conn, command ...any) {
	t.Helper()
	if err := conn.Do(t.Context(), command...).Err(); err != nil {
		t.Fatalf("%v: %v", command, err)
	}
}
