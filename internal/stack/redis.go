package stack

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// startRedis starts redis-server with its data in the directory name of h, and returns it. A
// durable Redis writes an append-only file and syncs it every second; another one writes nothing to disk.
// more returns further arguments for an attempt; nil for none.
func startRedis(ctx context.Context, h *home, name, program string, more func() []string) (*Server, error) {
	dir := filepath.Join(h.path, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	lock, err := h.lockFor(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = lock.Close() }() // the child holds its own copy
	return onFreePort(ctx, func(port int) command {
		args := redisArgs(dir, h.durable, port)
		if more != nil {
			args = append(args, more()...)
		}
		return command{
			name: "redis-server", path: program, args: args, lock: lock, waiting: h.waiting,
			stop:  syscall.SIGTERM,
			death: syscall.SIGKILL, // Redis has no fast shutdown that would save more
		}
	}, probeRedis)
}

func redisArgs(dir string, durable bool, port int) []string {
	args := []string{
		"--port", strconv.Itoa(port),
		"--bind", "127.0.0.1",
		"--dir", dir,
		"--daemonize", "no",
		"--supervised", "no",
		"--logfile", "", // standard output
		"--tcp-backlog", "128", // the kernel's usual limit, else a warning
		"--repl-diskless-sync-delay", "0", // a replica need not wait 5 s for others
		"--save", "", // the append-only file has all data
	}
	if durable {
		return append(args, "--appendonly", "yes", "--appendfsync", "everysec")
	}
	return append(args, "--appendonly", "no")
}

// redisClient returns a client of the Redis at a port of 127.0.0.1. It never repeats a command.
func redisClient(port int) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: Loopback(port), MaxRetries: -1, DialerRetries: 1,
		ContextTimeoutEnabled: true, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// probeRedis returns an error unless the server on the port is s and has loaded its data. A foreign Redis
// may have taken the port first.
func probeRedis(ctx context.Context, s *Server) error {
	client := redisClient(s.Port)
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp4", client.Options().Addr)
	if err != nil {
		return err // which the client would log
	}
	_ = conn.Close()                      // nothing was written
	defer func() { _ = client.Close() }() // all commands have ended
	if err := client.Ping(ctx).Err(); err != nil {
		return err
	}
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		return err
	}
	_, id, _ := strings.Cut(info, "process_id:")
	if id, _, _ = strings.Cut(id, "\r\n"); id != strconv.Itoa(s.PID()) {
		return fmt.Errorf("another redis-server has the port, pid %s", id)
	}
	return nil
}
