package mutants

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
)

// TestMutants_EachApplied_IsCaught runs the test of each mutant, first without the mutant, then with
// it. Without it the test must pass (-mutants.passed omits that run); with it the test must fail, at the
// latest at the last of its attempts. A build error does not count as a failure, and neither does a
// timeout, unless the mutant is marked as hanging.
func TestMutants_EachApplied_IsCaught(t *testing.T) {
	if !*mutantsFlag {
		t.Skip("it takes long: go test ./internal/mutants -mutants -v -timeout 3h")
	}
	began := time.Now()
	var caught, tried atomic.Int32
	t.Cleanup(func() {
		t.Logf("%d of %d mutants were caught in %v", caught.Load(), tried.Load(), time.Since(began).Round(time.Second))
	})
	for _, m := range chosen(t) {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			tried.Add(1)
			if !*passedFlag {
				if r := m.withoutIt(t); r.status() != passes {
					t.Fatalf("without the mutant the test %s\n%s", r.status(), r.output.String())
				}
			}
			overlay, want := m.overlay(t), fails
			if m.hangs {
				want = hangs
			}
			r := m.test(t, overlay)
			for again := 1; r.status() == passes && again < attempts; again++ {
				t.Logf("NOT ALWAYS CAUGHT: run %d passes with the mutant", again)
				r = m.test(t, overlay)
			}
			if r.status() != want {
				t.Fatalf("with the mutant the test %s: %s\n%s", r.status(), m.command(), r.output.String())
			}
			t.Logf("caught, %d so far, in %v: %s", caught.Add(1), r.took.Round(100*time.Millisecond), r.why())
		})
	}
}

// status is the result of a test, as the end of a sentence.
type status string

const (
	passes status = "passes"
	fails  status = "fails"
	hangs  status = "does not end"
	broken status = "cannot be run"
	absent status = "does not exist or was skipped"
)

// testLimit bounds a test, hangLimit one that is expected not to end, and waitLimit one wait within a
// test, with the mutant and without it.
const (
	testLimit = 8 * time.Minute
	hangLimit = time.Minute
	waitLimit = time.Minute
)

// attempts bounds the runs with a mutant: a test may depend on chance, as where two workers race.
const attempts = 3

// result is the outcome of one go test.
type result struct {
	output         strings.Builder
	passed, failed []string // tests
	unbuilt        bool
	timedOut       bool
	took           time.Duration
	err            error // of the process
}

func (r *result) status() status {
	switch {
	case r.unbuilt:
		return broken
	case r.timedOut:
		return hangs
	case len(r.failed) > 0:
		return fails
	case r.err != nil:
		return broken
	case len(r.passed) == 0:
		return absent
	}
	return passes
}

// message matches a failure message of a test.
var message = regexp.MustCompile(`^\s+(\w+_test\.go:\d+: .*)`)

// why returns the first message of the test.
func (r *result) why() string {
	const most = 200
	for line := range strings.Lines(r.output.String()) {
		if found := message.FindStringSubmatch(line); found != nil {
			return found[1][:min(most, len(found[1]))]
		}
	}
	if r.timedOut {
		return string(hangs)
	}
	return fmt.Sprint(r.failed)
}

// baselines are the results of tests without a mutant: several mutants share a test.
var baselines sync.Map // command -> func() *result

func (m mutant) withoutIt(t *testing.T) *result {
	run, _ := baselines.LoadOrStore(m.command(), sync.OnceValue(func() *result { return m.test(t, "") }))
	return run.(func() *result)()
}

// overlay writes the overlay of the mutant and returns its path.
func (m mutant) overlay(t *testing.T) string {
	t.Helper()
	path, text, err := m.apply()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	mutated, overlay := filepath.Join(dir, filepath.Base(path)), filepath.Join(dir, "overlay.json")
	list, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{mutated: []byte(text), overlay: list} {
		if err := os.WriteFile(name, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return overlay
}

// test runs the mutant's test, with an overlay unless that is "".
func (m mutant) test(t *testing.T, overlay string) *result {
	limit := testLimit
	if m.hangs {
		limit = hangLimit
	}
	// Vet would examine each package that imports a mutated one, for a sixth of the time.
	args := append([]string{"test", "-json", "-count=1", "-vet=off", "-timeout", limit.String(), "-run", m.run, m.pkg}, m.args...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // go test then stops its servers
	cmd.WaitDelay = 30 * time.Second
	cmd.Env = append(cmd.Environ(), "HOLDFAST_TEST_LONG=1", "HOLDFAST_TEST_WAIT="+waitLimit.String())
	// Without optimisation our own packages compile in half the time. In GOFLAGS it also counts for programs that a test builds.
	flags := []string{os.Getenv("GOFLAGS"), `"-gcflags=holdfast/...=-N -l"`}
	if overlay != "" {
		flags = append(flags, "-overlay="+overlay)
	}
	cmd.Env = append(cmd.Env, "GOFLAGS="+strings.Join(flags, " "))
	began := time.Now()
	r := &result{}
	out, err := cmd.CombinedOutput()
	r.took, r.err = time.Since(began), err
	r.read(out)
	return r
}

// event is a line of go test -json.
type event struct {
	Action, Test, Output, FailedBuild string
}

func (r *result) read(out []byte) {
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			e = event{Output: lines.Text() + "\n"} // a message of the go command itself
		}
		r.output.WriteString(e.Output)
		r.unbuilt = r.unbuilt || e.FailedBuild != "" || e.Action == "build-fail"
		r.timedOut = r.timedOut || strings.HasPrefix(e.Output, "panic: test timed out after")
		switch {
		case e.Test == "":
		case e.Action == "pass":
			r.passed = append(r.passed, e.Test)
		case e.Action == "fail" && !slices.Contains(r.failed, e.Test):
			r.failed = append(r.failed, e.Test)
		}
	}
}
