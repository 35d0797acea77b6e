package stacktest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/stack"
)

// StartSentinel starts a Sentinel that monitors the Redis at primary, host:port, under a name, and fails
// over when it is down for half a second. It returns its address. With an authority it accepts and
// makes only encrypted connections. more are lines of its configuration.
func StartSentinel(t testing.TB, name, primary string, ca *CA, more ...string) (addr string) {
	t.Helper()
	program, err := stack.RedisProgram(t.Context())
	Must(t, err)
	ports := QuietPorts(t, 1)
	host, primaryPort, err := net.SplitHostPort(primary)
	Must(t, err)
	lines := []string{"bind 127.0.0.1"}
	if ca == nil {
		lines = append(lines, fmt.Sprint("port ", ports[0]))
	} else {
		certFile, keyFile, err := ca.Issue("sentinel")
		Must(t, err)
		lines = append(lines, "port 0", fmt.Sprint("tls-port ", ports[0]), "tls-ca-cert-file "+ca.File, "tls-cert-file "+certFile,
			"tls-key-file "+keyFile, "tls-auth-clients no", "tls-replication yes")
	}
	lines = append(lines, fmt.Sprintf("sentinel monitor %s %s %s 1", name, host, primaryPort),
		fmt.Sprintf("sentinel down-after-milliseconds %s 500", name), fmt.Sprintf("sentinel failover-timeout %s 2000", name))
	path := filepath.Join(t.TempDir(), "sentinel.conf") // it rewrites the file
	Must(t, os.WriteFile(path, []byte(strings.Join(append(lines, more...), "\n")+"\n"), 0o600))
	addr = stack.Loopback(ports[0])
	server, err := stack.StartProgram(t.Context(), stack.Program{
		Path: program, Args: []string{path, "--sentinel"},
		Ready: func(ctx context.Context) error {
			var d net.Dialer
			conn, err := d.DialContext(ctx, "tcp", addr)
			if err != nil {
				return err
			}
			return conn.Close()
		},
	})
	killAfter(t, server, err)
	return addr
}

// AwaitReplica waits until a Sentinel without a login knows a replica, to which it can fail over.
func AwaitReplica(t testing.TB, sentinel string) {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: sentinel})
	defer func() { _ = client.Close() }() // all commands have ended
	Eventually(t, "the Sentinel to know the replica", func() bool {
		return strings.Contains(client.Info(t.Context(), "sentinel").Val(), "slaves=1")
	})
}

// KillRedis ends the server of a client without time to write anything.
func KillRedis(t testing.TB, client *redis.Client) {
	t.Helper()
	var pid int
	info := client.InfoMap(t.Context(), "server")
	if _, err := fmt.Sscan(info.Item("Server", "process_id"), &pid); err != nil {
		t.Fatalf("%v: %v", err, info.Err())
	}
	process, err := os.FindProcess(pid)
	if err == nil {
		err = process.Kill()
	}
	Must(t, err)
}
