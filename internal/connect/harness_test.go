package connect_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
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

// write writes a file.
func write[T string | []byte](t *testing.T, content T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// expectError fails the test unless err contains want and no password, or is nil if want is "".
func expectError(t *testing.T, name string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret")) {
		t.Errorf("%s: %v, want %q", name, err, want)
	}
}

// do sends a command.
func do(t *testing.T, conn *redis.Conn, command ...any) {
	t.Helper()
	if err := conn.Do(t.Context(), command...).Err(); err != nil {
		t.Fatalf("%v: %v", command, err)
	}
}
