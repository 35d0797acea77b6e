// Package stacktest gives the tests of a package real servers: one stack with
// NATS, Redis and Postgres for all of them, and a namespace for each.
package stacktest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"holdfast/internal/stack"
)

const (
	startWithin = 15 * time.Minute // with everything that may have to be installed
	leakBound   = 20 * time.Second

	// parallelTests is how many tests of a package run at a time unless -parallel says otherwise. Tests mostly wait
	// for servers, leases and deadlines, so the default, one a processor, leaves the processors idle.
	parallelTests = "12"
)

// longVariable is the environment variable that selects the long form of tests; .ci/run sets it.
const longVariable = "HOLDFAST_TEST_LONG"

// Long reports whether tests run in their long form.
func Long() bool { return os.Getenv(longVariable) != "" }

// LongOnly skips a test in the short form. It is for tests that wait for leases and deadlines for many seconds,
// or start many servers.
func LongOnly(t *testing.T) {
	t.Helper()
	if !Long() {
		t.Skip("takes long; " + longVariable + "=1 runs it")
	}
}

// Sample returns all cases in the long form, and every third one in the short form.
func Sample[T any](cases []T) []T {
	if Long() {
		return cases
	}
	var some []T
	for i := 0; i < len(cases); i += 3 {
		some = append(some, cases[i])
	}
	return some
}

var (
	shared     *stack.Stack
	namespaces atomic.Int64
)

// Main runs the tests of a package over one stack with all three servers:
//
//	func TestMain(m *testing.M) { stacktest.Main(m) }
//
// It does not return. The exit code is that of the tests, and 1 when the
// servers cannot be started (with the line that installs what is missing; tests
// are never skipped), when one of them ends while the tests run, when they
// cannot be stopped, or when the tests leave goroutines behind. HOLDFAST_INSTALL=never
// forbids that missing servers are installed. cleanups are run after the tests.
func Main(m *testing.M, cleanups ...func()) {
	MainAlone(func() (int, error) {
		for _, cleanup := range cleanups {
			defer cleanup()
		}
		return run(m)
	})
}

func run(m *testing.M) (code int, err error) {
	s, err := start()
	if err != nil {
		return 1, err
	}
	shared = s
	code = m.Run()
	select {
	case failed := <-s.Failed():
		err = fmt.Errorf("while the tests ran: %w", failed)
	default:
	}
	return code, errors.Join(err, removeStreams(s), s.Close(), closeLockServers())
}

// MainAlone runs the tests of a package that starts whatever servers it needs by itself: tests runs them and returns
// their exit code. It does not return: it exits with that code, and with 1 when tests fails, or leaves goroutines behind.
func MainAlone(tests func() (code int, err error)) {
	if err := flag.Set("test.parallel", parallelTests); err != nil { // before the command line is parsed, which wins
		panic(err)
	}
	code, err := tests()
	if err == nil && code == 0 {
		err = leaks()
	}
	if err != nil {
		printError(err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// leaks tells of goroutines that are left behind. What is about to end may take longer than goleak waits for it.
func leaks() (err error) {
	for bound := time.Now().Add(leakBound); time.Now().Before(bound); {
		if err = goleak.Find(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("goroutines left behind by the tests: %w", err)
}

// removeStreams removes what the tests have left in NATS: with hundreds of streams it takes seconds to stop.
func removeStreams(s *stack.Stack) error {
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	nc, err := nats.Connect(s.NATSURL)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	names := js.StreamNames(ctx)
	for name := range names.Name() {
		if err := js.DeleteStream(ctx, name); err != nil {
			return fmt.Errorf("remove the stream %s: %w", name, err)
		}
	}
	return names.Err()
}

func start() (*stack.Stack, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	o := stack.Options{
		NATS: true, Redis: true, Postgres: true, StopWithin: waitBound,
		Progress: func(line string) { fmt.Fprintln(os.Stderr, "stacktest:", line) },
	}
	if os.Getenv("HOLDFAST_INSTALL") == "never" {
		o.Install = stack.InstallNever
	}
	return stack.Start(ctx, o)
}

// printError prints an error, and by itself the line that mends it, if any.
func printError(err error) {
	fmt.Fprintln(os.Stderr, "stacktest:", err)
	if missing, ok := errors.AsType[*stack.MissingError](err); ok {
		fmt.Fprintf(os.Stderr, "\n\t%s\n\n", missing.Line)
	}
}

// Shared returns the stack of Main. It panics in a package whose TestMain does
// not call Main.
func Shared() *stack.Stack {
	if shared == nil {
		panic("stacktest: Shared without func TestMain(m *testing.M) { stacktest.Main(m) }")
	}
	return shared
}

// lockServers are servers of their own, started when the first test asks for them.
var lockServers struct {
	sync.Mutex
	started []*stack.Stack
}

// RestrictedLockServers starts n independent Redis servers with the users of the file under
// deployments, and returns their URLs as a worker knows them.
func RestrictedLockServers(t testing.TB, n int) []string {
	t.Helper()
	urls := make([]string, n)
	for i := range urls {
		s := StartRedis(t)
		if err := restrictRedis(t.Context(), s.RedisURL); err != nil {
			t.Fatalf("lock server: %v", err)
		}
		urls[i] = withUser(s.RedisURL, "holdfast_worker", passwords()["worker"])
	}
	return urls
}

// LockServers returns the URLs of n independent Redis servers besides the shared one, the same
// for all tests that ask for as many.
func LockServers(t testing.TB, n int) []string {
	t.Helper()
	lockServers.Lock()
	defer lockServers.Unlock()
	for len(lockServers.started) < n {
		s, err := stack.Start(t.Context(), stack.Options{Redis: true})
		if err != nil {
			t.Fatalf("lock server: %v", err)
		}
		lockServers.started = append(lockServers.started, s)
	}
	urls := make([]string, n)
	for i := range urls {
		urls[i] = lockServers.started[i].RedisURL
	}
	return urls
}

func closeLockServers() error {
	var errs []error
	for _, s := range lockServers.started {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// Namespace returns a fresh namespace for a test, so that tests share servers
// without seeing each other. It matches ^[a-z][a-z0-9_]{0,31}$ and shows the
// end of the test's name.
func Namespace(t testing.TB) string {
	t.Helper()
	return namespace(namespaces.Add(1), t.Name())
}

func namespace(n int64, test string) string {
	const lenMax = 32
	prefix := fmt.Sprintf("t%d_", n)
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		default:
			return '_'
		}
	}, test)
	return prefix + name[max(0, len(name)-(lenMax-len(prefix))):]
}

// DataDir returns a new directory for stack.Options.Dir, removed when the test
// is over. Unlike t.TempDir it can be entered by the user that runs postgres
// when the tests run as root.
func DataDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "holdfast-data-")
	if err != nil {
		t.Fatalf("data directory: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove data directory: %v", err)
		}
	})
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatalf("data directory: %v", err)
	}
	return filepath.Join(dir, "data")
}
