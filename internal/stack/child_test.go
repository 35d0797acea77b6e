package stack

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// must is stacktest.Must, which a package that stacktest imports cannot use.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// redisOn returns the command of a redis-server without data.
func redisOn(t *testing.T, port int) command {
	t.Helper()
	program := findRedis(os.Getenv("PATH"))
	if program == "" {
		t.Fatal(installer{}.missing([]string{"redis-server"}, nil))
	}
	return command{
		name: "redis-server", path: program, args: redisArgs("/", false, port),
		stop: syscall.SIGTERM, death: syscall.SIGKILL,
	}
}

// redisChild starts a redis-server that is stopped when the test ends.
func redisChild(t *testing.T) *Server {
	t.Helper()
	c, err := onFreePort(t.Context(), func(port int) command { return redisOn(t, port) }, probeRedis)
	must(t, err)
	t.Cleanup(func() { must(t, c.stop(stopWithin)) })
	return c
}

// TestOnFreePort_PortTaken_TriesAnother has another redis-server take the port between its choice and
// the server's bind.
func TestOnFreePort_PortTaken_TriesAnother(t *testing.T) {
	t.Parallel()
	other := redisChild(t)
	var tried []int
	lose := func(port int) command {
		if len(tried) < 2 {
			port = other.Port
		}
		tried = append(tried, port)
		return redisOn(t, port)
	}
	// The command overrides the chosen port, so the probe must use the port of the command.
	probe := func(ctx context.Context, s *Server) error {
		return probeRedis(ctx, &Server{Port: tried[len(tried)-1], process: s.process})
	}
	c, err := onFreePort(t.Context(), lose, probe)
	must(t, err)
	if len(tried) != 3 || c.Port == other.Port || c.Port != tried[2] || c.PID() == other.PID() {
		t.Errorf("port %d after %v, pid %d; the other server has port %d, pid %d", c.Port, tried, c.PID(), other.Port,
			other.PID())
	}
	must(t, c.stop(stopWithin))
}

func TestOnFreePort_PortTakenTooOften_Fails(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	taken := l.Addr().(*net.TCPAddr).Port
	attempts := 0
	c, err := onFreePort(t.Context(), func(int) command { attempts++; return redisOn(t, taken) }, probeRedis)
	if err == nil {
		t.Fatal("started on a port that is taken", c.stop(stopWithin))
	}
	if attempts != portAttemptsMax || !strings.Contains(err.Error(), "already in use") {
		t.Errorf("%d attempts, %v", attempts, err)
	}
}

func TestStop_ChildFrozen_IsKilled(t *testing.T) {
	t.Parallel()
	c, err := onFreePort(t.Context(), func(port int) command { return redisOn(t, port) }, probeRedis)
	must(t, err)
	must(t, syscall.Kill(c.PID(), syscall.SIGSTOP))
	err = c.stop(100 * time.Millisecond)
	<-c.exited
	if err != nil && !strings.Contains(err.Error(), "after SIGKILL") { // the kernel may take longer than 100 ms
		t.Error(err)
	}
	if c.err == nil || !strings.Contains(c.err.Error(), "killed") {
		t.Errorf("the stopped server ended with %v, want killed", c.err)
	}
}

func TestProbeRedis_OtherServer_Fails(t *testing.T) {
	t.Parallel()
	other := redisChild(t)
	ours := &Server{Port: other.Port, process: &os.Process{Pid: other.PID() + 1}}
	if err := probeRedis(t.Context(), ours); err == nil || !strings.Contains(err.Error(), strconv.Itoa(other.PID())) {
		t.Errorf("probe of another server: %v, want an error with its pid", err)
	}
}

func TestChildEnv_ForeignSettings_AreDropped(t *testing.T) {
	t.Setenv("PGPORT", "1")
	t.Setenv("NOTIFY_SOCKET", "/dev/null")
	for _, v := range childEnv() {
		name, _, _ := strings.Cut(v, "=")
		if !slices.Contains([]string{"LC_ALL", "TZ", "PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"}, name) {
			t.Errorf("the environment of a child has %s", v)
		}
	}
}

func TestTail_TooLong_KeepsTheEnd(t *testing.T) {
	t.Parallel()
	var log tail
	if got := log.String(); got != "its log is empty" {
		t.Errorf("empty tail: %q", got)
	}
	for _, line := range []string{"first\n", strings.Repeat("x", tailBytesMax), "last\n"} {
		if n, err := log.Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("Write = %d, %v", n, err)
		}
	}
	if end := log.String(); strings.Contains(end, "first") || !strings.HasSuffix(end, "last") || len(log.buf) != tailBytesMax {
		t.Errorf("tail of %d bytes: %s", len(log.buf), end)
	}
}

// TestAwaitReady_StartIsSlow_OnlyDurableWaits has servers that are not ready in time. One that recovers its data is waited
// for, and a line says so each time; a temporary one fails.
func TestAwaitReady_StartIsSlow_OnlyDurableWaits(t *testing.T) {
	t.Parallel()
	var lines []string
	start := func(dir string) *Server {
		t.Helper()
		s, err := Start(t.Context(), Options{
			Dir: dir, Redis: true, NoInstall: true, Progress: func(line string) { lines = append(lines, line) },
		})
		must(t, err)
		t.Cleanup(func() { must(t, s.Close()) })
		return s.redis[0]
	}
	loading := func(context.Context) error {
		if len(lines) == 2 {
			return nil
		}
		return errors.New("LOADING\nits data")
	}
	if err := start("").awaitReady(t.Context(), time.Millisecond, loading); err == nil || len(lines) > 0 ||
		!strings.Contains(err.Error(), "not ready within 1ms (last probe: LOADING") {
		t.Errorf("a temporary server: %v after %q", err, lines)
	}
	durable := start(t.TempDir())
	must(t, durable.awaitReady(t.Context(), time.Millisecond, loading))
	for _, line := range lines {
		if !strings.HasPrefix(line, "waiting for redis-server (pid ") || !strings.HasSuffix(line, ": LOADING its data") {
			t.Errorf("a durable server is waited for with the line %q", line)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := durable.awaitReady(ctx, time.Millisecond, func(context.Context) error { cancel(); return errors.New("LOADING") })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a durable server that is waited for until the start is cancelled: %v", err)
	}
}
