package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// endpointsPath is where the worker beside these tests writes where its servers are.
var endpointsPath = new(common).endpointsPath()

// These tests are run as a newcomer runs the program: in a directory in which `worker dev` is
// running, without a word about where anything is.
func TestMain(m *testing.M) {
	// What a shell has set for other servers is not meant for these tests.
	for _, name := range []string{nameNATSURL, "HOLDFAST_HTTP_ADDR", nameNamespace, "HOLDFAST_DATA_DIR", "HOLDFAST_REDIS_URL", "HOLDFAST_POSTGRES_URL"} {
		if err := os.Unsetenv(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	// The servers of worker dev keep nothing, which the preflight of other workers refuses.
	if err := os.Setenv("HOLDFAST_PREFLIGHT", "warn"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	stacktest.MainAlone(func() (int, error) { return runBesideWorker(m) })
}

// workerBinary is the worker that runs, for tests that need another of its verbs, and
// publisherBinary this program with its failpoints, for those that kill it.
var workerBinary, publisherBinary string

func runBesideWorker(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "holdfast-test-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	workerBinary, publisherBinary = filepath.Join(dir, "worker"), filepath.Join(dir, "publisher")
	if out, err := exec.Command("go", "build", "-tags", "failpoint", "-o", dir, "../worker", ".").CombinedOutput(); err != nil {
		return 1, fmt.Errorf("go build: %w\n%s", err, out)
	}
	if err := os.Chdir(dir); err != nil {
		return 1, err
	}
	if stacktest.LeastPrivilege() {
		return runBesideRestricted(m)
	}
	worker := exec.Command(workerBinary, "dev", "--http-addr", "127.0.0.1:0")
	stdout, err := worker.StdoutPipe()
	if err != nil {
		return 1, err
	}
	worker.Stderr = os.Stderr
	if err := worker.Start(); err != nil {
		return 1, err
	}
	var output bytes.Buffer
	lines := bufio.NewScanner(io.TeeReader(stdout, &output))
	for up := false; !up && lines.Scan(); {
		up = strings.Contains(lines.Text(), "Ctrl-C stops")
	}
	if !strings.Contains(output.String(), "Ctrl-C stops") {
		return 1, fmt.Errorf("worker dev: %w\n%s", worker.Wait(), output.String())
	}
	code = m.Run()
	if err := worker.Process.Signal(syscall.SIGTERM); err != nil {
		return code, err
	}
	if _, err := io.Copy(io.Discard, stdout); err != nil {
		return code, err
	}
	return code, worker.Wait()
}

// result is what one run of the program did.
type result struct {
	code        int
	out, errOut string
}

// patience is for how long the tests wait for an answer: a busy machine may take long.
var patience = []string{"--timeout", "2m"}

// publisher runs the program, with patience unless a test says otherwise.
func publisher(t testing.TB, args ...string) result {
	t.Helper()
	if _, err := os.Stat(besideRestricted); err == nil && !slices.Contains(args, "--namespace") { // a test may have gone elsewhere
		args = asItsUser(restricted, args)
	}
	if !slices.Contains(args, patience[0]) {
		args = append(slices.Clone(args), patience...)
	}
	var out, errOut bytes.Buffer
	code := run(t.Context(), args, &out, &errOut)
	return result{code, out.String(), errOut.String()}
}

// words splits a command line that has no quotes.
func words(line string) []string { return strings.Fields(line) }

// want checks the exit code and what is printed.
func (r result) want(t testing.TB, code int, texts ...string) result {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d\nout: %s\nerr: %s", r.code, code, r.out, r.errOut)
	}
	for _, text := range texts {
		if !strings.Contains(r.out+r.errOut, text) {
			t.Errorf("it does not say %q\nout: %s\nerr: %s", text, r.out, r.errOut)
		}
	}
	return r
}
