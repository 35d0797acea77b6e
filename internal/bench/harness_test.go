package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// asNATS is the argument with which this test program runs the NATS server of a bench.
const asNATS = "serve-nats-for-bench"

// workerProgram is the worker program, with its failpoints.
var workerProgram string

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == asNATS {
		if err := ServeNATS(os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	workerProgram = filepath.Join(dir, "worker")
	if err := stacktest.BuildPrograms(dir, "failpoint", "worker"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	stacktest.Main(m, func() { _ = os.RemoveAll(dir) }) // on an error files stay in the temporary directory
}

// given returns the options of a tiny run on the shared servers of the tests.
func given(parts ...string) Options {
	s := stacktest.Shared()
	return Options{
		Worker: workerProgram, Parts: parts, Size: Tiny,
		NATSURL: s.NATSURL, RedisURL: s.RedisURL, PostgresURL: s.PostgresURL,
		Progress: func(string) {}, Step: func(int, int, string) {},
	}
}

// newRunner returns a tiny runner that is connected to the shared servers of the tests.
func newRunner(t *testing.T) *runner {
	t.Helper()
	o := given()
	o.Progress = func(line string) { t.Log(line) }
	name := stacktest.Namespace(t)
	name = name[:min(len(name), 28)] // open appends a number
	b := &runner{Options: o, sizes: allSizes[Tiny], name: name, report: &Report{}}
	t.Cleanup(func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	})
	if err := b.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

// newCluster returns a new namespace on the shared servers of the tests.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	s, err := newRunner(t).open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return s
}
