package stack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// startRedis starts redis-server with its data in the directory redis of h, and returns it with its
// URL. A durable Redis writes an append-only file and syncs it every second; another one writes nothing
// to disk.
func startRedis(ctx context.Context, h *home, program string) (*child, string, error) {
	dir := filepath.Join(h.path, "redis")
	lock, err := h.lockFor(ctx, "redis")
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = lock.Close() }() // the child holds its own copy
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, "", fmt.Errorf("data directory: %w", err)
	}
	make := func(port int) command {
		return command{
			name: "redis-server", path: program, args: redisArgs(dir, h.durable, port), lock: lock,
			stop:  syscall.SIGTERM,
			death: syscall.SIGKILL, // Redis has no fast shutdown that would save more
		}
	}
	c, port, err := onFreePort(ctx, make, probeRedis)
	if err != nil {
		return nil, "", err
	}
	return c, fmt.Sprintf("redis://127.0.0.1:%d/0", port), nil
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

// probeRedis returns an error unless the server on the port is c and has loaded its data.
func probeRedis(ctx context.Context, c *child, port int) (err error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(conn, "PING\r\nINFO server\r\n"); err != nil {
		return err
	}
	r := bufio.NewReader(conn)
	pong, err := r.ReadString('\n')
	if err != nil {
		return err
	}
	if pong != "+PONG\r\n" {
		return fmt.Errorf("reply to PING: %s", strings.TrimSpace(pong))
	}
	return checkRedisPID(r, c.pid())
}

// checkRedisPID reads the reply to INFO server and returns an error unless it has this process id. A
// foreign Redis may have taken the port first.
func checkRedisPID(r *bufio.Reader, pid int) error {
	const linesMax = 64
	for range linesMax {
		line, err := r.ReadString('\n')
		if err != nil {
			return err
		}
		if id, ok := strings.CutPrefix(strings.TrimSpace(line), "process_id:"); ok {
			if id != strconv.Itoa(pid) {
				return fmt.Errorf("another redis-server has the port, pid %s", id)
			}
			return nil
		}
	}
	return errors.New("no process_id in the reply to INFO")
}
