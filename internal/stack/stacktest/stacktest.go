// Package stacktest provides real servers for tests: one stack with NATS, Redis and Postgres for all
// tests of a package, and a namespace for each test. It also has tools for faults: Proxy, DropReply and
// StallingDialer.
package stacktest

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
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
	startWithin = 15 * time.Minute // including an installation
	leakBound   = 20 * time.Second
)

// longVariable is the environment variable that selects the long form of tests: with 1 of all, with 2/4 of those of
// the third quarter (the first is 0/4). CI runs one eighth after the other.
const longVariable = "HOLDFAST_TEST_LONG"

// Long reports whether what has this name runs in the long form. Tests of a name have the same turn, also in their
// subtests.
func Long(name string) bool {
	var turn, turns uint32
	selected := os.Getenv(longVariable)
	if _, err := fmt.Sscanf(selected, "%d/%d", &turn, &turns); err != nil || turns == 0 {
		return selected != ""
	}
	name, _, _ = strings.Cut(name, "/")
	return crc32.ChecksumIEEE([]byte(name))%turns == turn
}

// LongOnly skips a test in the short form. Use it for tests that wait many seconds for leases and
// deadlines, or that start many servers.
func LongOnly(t *testing.T) {
	t.Helper()
	if !Long(t.Name()) {
		t.Skip("takes long; " + longVariable + "=1 runs it")
	}
}

// Sample returns all cases of a test in the long form, and every third one in the short form.
func Sample[T any](t testing.TB, cases []T) []T {
	if Long(t.Name()) {
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
// It does not return. It exits with the code of the tests, or with 1 when a server cannot be started or
// stopped, when a server ends while the tests run, or when the tests leak goroutines. It never skips
// tests: when a program is missing it prints the command that installs it. HOLDFAST_INSTALL=never
// forbids to install missing programs. Main calls cleanups after the tests, the last one first.
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
		err = fmt.Errorf("server failed while the tests ran: %w", failed)
	default:
	}
	return code, errors.Join(err, removeStreams(s), s.Close(), closeLockServers())
}

// MainAlone runs the tests of a package that starts its own servers. tests runs them and returns their
// exit code. MainAlone does not return: it exits with that code, or with 1 when tests returns an error
// or leaks goroutines. Temporary files are in memory if possible; see memoryDir. The servers of Postgres start with copies
// of the first one's data; see initdbScript.
func MainAlone(tests func() (code int, err error)) {
	MainOnDisk(func() (int, error) {
		remove, err := useMemory()
		if err != nil {
			return 1, err
		}
		code := 1
		if err = copyInitdb(os.TempDir()); err == nil {
			code, err = tests()
		}
		return code, errors.Join(err, remove())
	})
}

// parallelTests returns the default of -parallel. Tests mostly wait for servers, leases and deadlines, so the usual
// default, one test per processor, would leave the processors idle. In the long form tests have more to do.
func parallelTests() string {
	if os.Getenv(longVariable) != "" {
		return "8"
	}
	return "20"
}

// MainOnDisk is MainAlone for tests whose data may need more space than there is in memory.
func MainOnDisk(tests func() (code int, err error)) {
	if err := flag.Set("test.parallel", parallelTests()); err != nil { // the command line is parsed later and overrides it
		panic(err)
	}
	code, err := tests()
	err = errors.Join(err, removeProcessCA())
	if err == nil && code == 0 {
		err = leaks()
	}
	if err != nil {
		printError(err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// useMemory makes a new directory, in memory if possible, the temporary directory of this process and of its children.
// remove removes it and restores the previous one.
func useMemory() (remove func() error, err error) {
	dir, removeDir, err := stack.TempDir(cmp.Or(memoryDir(), os.TempDir()))
	if err != nil {
		return nil, err
	}
	previous := os.Getenv("TMPDIR")
	remove = func() error { return errors.Join(os.Setenv("TMPDIR", previous), removeDir()) }
	return remove, os.Setenv("TMPDIR", dir)
}

// leaks returns an error when goroutines run that the tests have started. It waits longer than goleak
// for goroutines that are about to end.
func leaks() (err error) {
	for bound := time.Now().Add(leakBound); time.Now().Before(bound); {
		if err = goleak.Find(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("the tests leaked goroutines: %w", err)
}

// removeStreams deletes all streams. With hundreds of streams NATS would take seconds to stop.
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
			return fmt.Errorf("delete stream %s: %w", name, err)
		}
	}
	return names.Err()
}

func start() (*stack.Stack, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	o := stack.Options{
		NATS: true, Redis: true, Postgres: true, StopWithin: WaitBound,
		NoInstall: os.Getenv("HOLDFAST_INSTALL") == "never",
		Progress:  func(line string) { fmt.Fprintln(os.Stderr, "stacktest:", line) },
	}
	return stack.Start(ctx, o)
}

// printError prints an error. When a program is missing it also prints the command that installs it.
func printError(err error) {
	fmt.Fprintln(os.Stderr, "stacktest:", err)
	if missing, ok := errors.AsType[*stack.MissingError](err); ok {
		fmt.Fprintf(os.Stderr, "\n\t%s\n\n", missing.Line)
	}
}

// Shared returns the stack of Main. It panics in a package whose TestMain does not call Main.
func Shared() *stack.Stack {
	if shared == nil {
		panic("stacktest: Shared without func TestMain(m *testing.M) { stacktest.Main(m) }")
	}
	return shared
}

// lockServers are the servers of LockServers, nil before its first call.
var lockServers struct {
	sync.Mutex
	*stack.Stack
}

// lockServersMax is the largest number of lock servers that a test needs.
const lockServersMax = 5

// RestrictedLockServers starts n independent Redis servers with the users of the file under
// deployments, and returns their URLs for the user worker.
func RestrictedLockServers(t testing.TB, n int) []string {
	t.Helper()
	urls := make([]string, n)
	for i := range urls {
		ca, err := caOfRun()
		Must(t, err)
		url, err := restrictRedis(t.Context(), StartRedis(t).RedisURL, ca)
		if err != nil {
			t.Fatalf("lock server: %v", err)
		}
		urls[i] = withUser(url, "holdfast_worker", passwords()["worker"])
	}
	return urls
}

// LockServers returns the URLs of n independent Redis servers in addition to the shared one. All tests
// of a package share them.
func LockServers(t testing.TB, n int) []string {
	t.Helper()
	lockServers.Lock()
	defer lockServers.Unlock()
	if lockServers.Stack == nil {
		s, err := stack.Start(t.Context(), stack.Options{LockServers: lockServersMax})
		if err != nil {
			t.Fatalf("lock servers: %v", err)
		}
		lockServers.Stack = s
	}
	return lockServers.LockURLs[:n]
}

func closeLockServers() error {
	if lockServers.Stack == nil {
		return nil
	}
	return lockServers.Close()
}

// Namespace returns a new namespace for a test, so that tests can share servers. It matches
// ^[a-z][a-z0-9_]{0,31}$ and ends with the end of the test's name.
func Namespace(t testing.TB) string {
	t.Helper()
	return namespace(namespaces.Add(1), t.Name())
}

func namespace(n int64, test string) string {
	const lenMax = 28 // at most 32; tests add a suffix
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

// DataDir returns a path for stack.Options.Dir in a new directory, which a cleanup removes. When the
// tests run as root, the user that runs postgres can enter it, unlike t.TempDir.
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
