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

// TestCaught runs the test of each mutant, first without it, then with it. Without it the test must pass; with it
// the test must fail, by its own judgement: a mutant that cannot be compiled shows nothing, and neither does a
// test that comes to no end, unless that is what the mutant does.
func TestCaught(t *testing.T) {
	if !*mutantsFlag {
		t.Skip("it takes long: go test ./internal/mutants -mutants -v -timeout 2h")
	}
	began := time.Now()
	var caught, tried atomic.Int32
	t.Cleanup(func() {
		t.Logf("%d of %d mutants were caught in %v", caught.Load(), tried.Load(), time.Since(began).Round(time.Second))
	})
	for _, m := range all {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			tried.Add(1)
			if r := m.withoutIt(t); r.verdict() != passes {
				t.Fatalf("without the mutant the test %s\n%s", r.verdict(), r.output.String())
			}
			r := m.test(t, m.overlay(t))
			want := fails
			if m.hangs {
				want = hangs
			}
			if r.verdict() != want {
				t.Fatalf("with the mutant the test %s: %s\n%s", r.verdict(), m.command(), r.output.String())
			}
			t.Logf("caught, %d so far, in %v: %s", caught.Add(1), r.took.Round(100*time.Millisecond), r.why())
		})
	}
}

// verdict is what came of a test, as the end of a sentence.
type verdict string

const (
	passes verdict = "passes"
	fails  verdict = "fails"
	hangs  verdict = "comes to no end"
	broken verdict = "cannot be run"
	absent verdict = "is not there"
)

// testLimit is how long a test may take, and hangLimit one that is to come to no end.
const (
	testLimit = 8 * time.Minute
	hangLimit = time.Minute
)

// result is what a run of a test has told.
type result struct {
	output         strings.Builder
	passed, failed []string // tests
	unbuilt        bool
	over           bool // its time was
	took           time.Duration
	err            error // of the process
}

func (r *result) verdict() verdict {
	switch {
	case r.unbuilt:
		return broken
	case r.over:
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

// message is a line of a test that says what it has found.
var message = regexp.MustCompile(`^\s+(\w+_test\.go:\d+: .*)`)

// why is the first thing that the test has said.
func (r *result) why() string {
	const most = 200
	for line := range strings.Lines(r.output.String()) {
		if found := message.FindStringSubmatch(line); found != nil {
			return found[1][:min(most, len(found[1]))]
		}
	}
	if r.over {
		return string(hangs)
	}
	return fmt.Sprint(r.failed)
}

// baselines are what came of tests without any mutant: several are found by the same.
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

// words divides arguments as a shell would, which knows no more than single quotes.
var words = regexp.MustCompile(`'[^']*'|\S+`)

// test runs the mutant's test, with an overlay unless that is "".
func (m mutant) test(t *testing.T, overlay string) *result {
	limit := testLimit
	if m.hangs {
		limit = hangLimit
	}
	args := []string{"test", "-json", "-count=1", "-timeout", limit.String(), "-run", m.run, m.pkg}
	for _, word := range words.FindAllString(m.args, -1) {
		args = append(args, strings.Trim(word, "'"))
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it ends its servers
	cmd.WaitDelay = 30 * time.Second
	if overlay != "" {
		flags := strings.TrimSpace(os.Getenv("GOFLAGS") + " -overlay=" + overlay)
		cmd.Env = append(cmd.Environ(), "GOFLAGS="+flags)
	}
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
			e = event{Output: lines.Text() + "\n"} // of the go command itself
		}
		r.output.WriteString(e.Output)
		r.unbuilt = r.unbuilt || e.FailedBuild != "" || e.Action == "build-fail"
		r.over = r.over || strings.HasPrefix(e.Output, "panic: test timed out after")
		switch {
		case e.Test == "":
		case e.Action == "pass":
			r.passed = append(r.passed, e.Test)
		case e.Action == "fail" && !slices.Contains(r.failed, e.Test):
			r.failed = append(r.failed, e.Test)
		}
	}
}
