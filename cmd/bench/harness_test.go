package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// workerProgram is the worker, and benchProgram this program beside it.
var workerProgram, benchProgram string

// TestMain builds both programs. The tests run in a directory without a worker, and PATH has none.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	workerProgram, benchProgram = filepath.Join(dir, "worker"), filepath.Join(dir, "bench")
	if err := stacktest.BuildPrograms(dir, "", "worker", "bench"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := os.Unsetenv("HOLDFAST_NATS_URL"); err != nil { // the URL of other servers
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	stacktest.Main(m, func() { _ = os.RemoveAll(dir) })
}

// serverFlags name the servers that the tests share.
func serverFlags() []string {
	s := stacktest.Shared()
	return []string{"--nats-url", s.NATSURL, "--redis-url", s.RedisURL, "--postgres-url", s.PostgresURL}
}

// result is the exit code and the output of one run.
type result struct {
	code        int
	out, errOut string
}

func runBench(t *testing.T, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	code := run(t.Context(), args, &out, &errOut)
	return result{code, out.String(), errOut.String()}
}

// want checks the exit code, and that the output contains texts.
func (r result) want(t *testing.T, code int, texts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d\nout: %s\nerr: %s", r.code, code, r.out, r.errOut)
	}
	for _, text := range texts {
		if !strings.Contains(r.out+r.errOut, text) {
			t.Errorf("the output lacks %q\nout: %s\nerr: %s", text, r.out, r.errOut)
		}
	}
}
