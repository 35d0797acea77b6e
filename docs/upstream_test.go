package docs_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/stack/stacktest"
)

// block is a fenced block of a page.
type block struct {
	line    int    // of its first line in the page
	section string // the heading above it
	lang    string
	name    string // of the file, or ""
	text    string
}

// The sections of docs/upstream.md whose blocks are run, and by which test.
const (
	sectionTop  = "For upstream teams: from nothing to an answer"
	sectionNATS = "With the nats command"
	sectionGo   = "With Go"
	sectionNode = "With Node.js"
)

// upstream returns the blocks of docs/upstream.md.
func upstream(t *testing.T) []block { return blocksOf(t, "upstream.md") }

// blocksOf returns the blocks of a page. Other code, which is indented by four spaces, fails the test: it is not run.
func blocksOf(t *testing.T, name string) (blocks []block) {
	t.Helper()
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	section, open, number := "", false, 0
	var b block
	for line := range strings.Lines(string(page)) {
		number++
		info, fence := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "```")
		switch {
		case !open && strings.HasPrefix(line, "    "):
			t.Errorf("docs/%s:%d has code outside of a fenced block", name, number)
		case fence && open:
			blocks, open = append(blocks, b), false
		case fence:
			lang, name, _ := strings.Cut(info, " ")
			b, open = block{number + 1, section, lang, name, ""}, true
		case open:
			b.text += line
		case strings.HasPrefix(line, "#"):
			section = strings.TrimSpace(strings.TrimLeft(line, "#"))
		}
	}
	return blocks
}

// file returns a block that is a file, and the block after it.
func file(t *testing.T, section, name string) (text string, after block) {
	t.Helper()
	blocks := upstream(t)
	i := slices.IndexFunc(blocks, func(b block) bool { return b.section == section && b.name == name })
	if i < 0 {
		t.Fatalf("docs/upstream.md has no %s under %q", name, section)
	}
	if i+1 < len(blocks) {
		after = blocks[i+1]
	}
	return blocks[i].text, after
}

// TestEveryBlockIsRun finds blocks that no test here runs or compares.
func TestEveryBlockIsRun(t *testing.T) {
	t.Parallel()
	run := map[string][]string{
		sectionTop:  {"console ", "sh ", "sh dev"},
		sectionNATS: {"sh ", "json ", "text "},
		sectionGo:   {"sh ", "go booking.go", "text ", "go follow.go", "go outbox.go"},
		sectionNode: {"sh npm", "js booking.mjs", "text ", "js follow.mjs"},
	}
	for _, b := range upstream(t) {
		kind := b.lang + " " + b.name
		if !slices.Contains(run[b.section], kind) {
			t.Errorf("docs/upstream.md:%d: nothing runs the block %q:\n%s", b.line, kind, b.text)
		}
	}
}

// TestNATSCommand types what the page says to beside a worker dev.
func TestNATSCommand(t *testing.T) { // not in parallel: it reads the next dead letter, whichever that is
	checkNATSCommand(t, dev)
}

// checkNATSCommand types what the page says to, block by block in one shell, and compares what is
// printed with what the page shows.
func checkNATSCommand(t *testing.T, s site) {
	stacktest.NeedTool(t, "nats")
	const mark = "=== end of block ==="
	var begun []int // the lines of the blocks
	var script strings.Builder
	var shown []block // after each block of the section, or none
	for _, b := range upstream(t) {
		switch {
		case b.name == "dev" && s.guarded:
		case b.lang == "sh" && (b.section == sectionTop || b.section == sectionNATS):
			fmt.Fprintf(&script, "%s\necho '%s'\n", b.text, mark)
			shown, begun = append(shown, block{}), append(begun, b.line)
		case b.section == sectionNATS:
			shown[len(shown)-1] = b
		}
	}
	sh := s.command(t, s.dir, "sh", "-eu", "-c", script.String())
	// None of the contexts of the user who runs the tests, and time enough on a busy machine.
	sh.Env = append(sh.Env, "HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir(), "NATS_TIMEOUT="+commandLimit.String())
	var stderr bytes.Buffer
	sh.Stderr = &stderr
	out, err := sh.Output()
	if err != nil {
		t.Fatalf("docs/upstream.md:%d: %v\n%s\n%s", begun[bytes.Count(out, []byte(mark))], err, out, stderr.Bytes())
	}
	printed := strings.Split(string(out), mark+"\n")
	if len(printed) != len(shown)+1 {
		t.Fatalf("%d blocks printed %d parts:\n%s", len(shown), len(printed), out)
	}
	for i, b := range shown {
		checkPrinted(t, printed[i], b)
	}
}

// TestGo runs the page's Go programs beside a worker dev.
func TestGo(t *testing.T) {
	t.Parallel()
	s := dev.withConsumer(t, "box-office-go")
	checkGo(t, s)
}

// checkGo runs the page's Go programs, against the version of nats.go that the page names.
func checkGo(t *testing.T, s site) {
	version, err := exec.Command("go", "list", "-m", "-f", "{{.Path}}@{{.Version}}", "github.com/nats-io/nats.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range upstream(t) {
		if want := "go get " + string(version); b.section == sectionGo && b.lang == "sh" && b.text != want {
			t.Errorf("the page says %q, these tests run %q", b.text, want)
		}
	}
	dir := t.TempDir()
	programs, shown := make(map[string]string), make(map[string]block)
	for _, name := range []string{"booking", "follow", "outbox"} {
		text, after := file(t, sectionGo, name+".go")
		source, program := filepath.Join(dir, name+".go"), filepath.Join(dir, name)
		if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		shown[name] = after
		// Built here, so with the modules of this repository: as `go get` above would have it.
		if out, err := exec.Command("go", "build", "-o", program, source).CombinedOutput(); err != nil {
			t.Fatalf("%s.go: %v\n%s", name, err, out)
		}
		programs[name] = program
	}
	checkPrograms(t, s, "stage", shown["booking"],
		func() *exec.Cmd { return s.command(t, dir, programs["booking"]) },
		func() *exec.Cmd { return s.command(t, dir, programs["follow"]) })
	out, err := s.command(t, dir, programs["outbox"]).CombinedOutput()
	if err != nil {
		t.Fatalf("outbox.go: %v\n%s", err, out)
	}
	checkPrinted(t, string(out), shown["outbox"])
}

// TestNewcomersHour has nothing but README.md's worker and this page: it installs the client from
// npm as the page says, and gets an outcome.
func TestNewcomersHour(t *testing.T) {
	t.Parallel()
	s := dev.withConsumer(t, "box-office-node")
	checkNode(t, s)
}

// checkNode installs the client from npm as the page says, and runs the page's Node.js programs.
func checkNode(t *testing.T, s site) {
	stacktest.NeedTool(t, "node")
	stacktest.NeedTool(t, "npm")
	dir := t.TempDir()
	for _, b := range upstream(t) {
		if b.section == sectionNode && b.name == "npm" {
			if out, err := s.command(t, dir, "sh", "-eu", "-c", b.text).CombinedOutput(); err != nil {
				stacktest.SkipUnlessRequired(t, "npm cannot install the client: %v\n%s", err, out)
			}
		}
	}
	var shown block
	for _, name := range []string{"booking.mjs", "follow.mjs"} {
		text, after := file(t, sectionNode, name)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if name == "booking.mjs" {
			shown = after
		}
	}
	checkPrograms(t, s, "arena", shown,
		func() *exec.Cmd { return s.command(t, dir, "node", "booking.mjs") },
		func() *exec.Cmd { return s.command(t, dir, "node", "follow.mjs") })
}

// checkPrograms runs the two programs of a language: one that asks, and prints what the page
// shows, and one that follows, and handles it once, also when it is published twice.
func checkPrograms(t *testing.T, s site, resource string, shown block, booking, follow func() *exec.Cmd) {
	t.Helper()
	heard := startFollowing(t, follow())
	ask := func() {
		t.Helper()
		c := booking()
		var stderr bytes.Buffer
		c.Stderr = &stderr
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%v\n%s\n%s", err, out, stderr.Bytes())
		}
		checkPrinted(t, string(out), shown)
	}
	sold := "sold " + resource + "."
	ask()
	heard.await(t, sold, 1)
	publishAgain(t, s, resource)
	ask()
	heard.await(t, sold, 2)
	// Two lines, of different holds: the repeated one in between was dropped.
	if got := heard.with(sold); len(got) != 2 || got[0] == got[1] {
		t.Errorf("the same was handled twice: %v", got)
	}
	if got := heard.with("refund ben-pays"); !s.guarded && len(got) != 1 { // of the story that worker dev plays
		t.Errorf("refunds: %v", got)
	}
}

// publishAgain stores the last hold.confirmed of a resource once more, as may happen.
func publishAgain(t *testing.T, s site, resource string) {
	t.Helper()
	js := s.asOperator(t)
	stream, err := js.Stream(t.Context(), "HOLDFAST_OUT")
	if err != nil {
		t.Fatal(err)
	}
	subject := "holdfast.out.hold.confirmed." + resource
	last, err := stream.GetLastMsgForSubject(t.Context(), subject)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), subject, last.Data); err != nil {
		t.Fatal(err)
	}
}

// heard is what a following program has printed.
type heard struct {
	mu    sync.Mutex
	lines []string
	more  chan struct{} // gets one, if it is empty, when there are more lines
	ended chan struct{} // closed when there will be no more
}

// startFollowing starts a program that is ended with the test.
func startFollowing(t *testing.T, c *exec.Cmd) *heard {
	t.Helper()
	h := &heard{more: make(chan struct{}, 1), ended: make(chan struct{})}
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = t.Output()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(h.ended)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			h.mu.Lock()
			h.lines = append(h.lines, lines.Text())
			h.mu.Unlock()
			select {
			case h.more <- struct{}{}:
			default:
			}
		}
	}()
	t.Cleanup(func() {
		_ = c.Process.Kill() // it may have ended
		<-h.ended
		_ = c.Wait() // it was killed
	})
	return h
}

// with returns the lines that begin with a text.
func (h *heard) with(prefix string) (some []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, line := range h.lines {
		if strings.HasPrefix(line, prefix) {
			some = append(some, line)
		}
	}
	return some
}

// await waits until n lines begin with a text.
func (h *heard) await(t *testing.T, prefix string, n int) {
	t.Helper()
	bound := time.After(commandLimit)
	for len(h.with(prefix)) < n {
		select {
		case <-h.more:
		case <-h.ended:
			t.Fatalf("it ended, before %d lines began with %q: %q", n, prefix, h.with(""))
		case <-bound:
			t.Fatalf("waited in vain for %d lines that begin with %q: %q", n, prefix, h.with(""))
		}
	}
}

// checkPrinted compares what was printed with what the page shows, but for what is another in
// each run. Nothing shown means that nothing is compared.
func checkPrinted(t *testing.T, printed string, shown block) {
	t.Helper()
	var got, want []string
	switch shown.lang {
	case "json":
		got, want = values(t, printed), values(t, shown.text)
	case "text":
		got, want = lines(printed), lines(shown.text)
	case "":
		return
	default:
		t.Fatalf("what is printed is compared with a block of %q", shown.lang)
	}
	if !slices.Equal(got, want) {
		t.Errorf("under %q it prints\n%s\nthe page shows\n%s", shown.section, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// changing are the parts of a text that are another in each run.
var changing = []*regexp.Regexp{
	regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`),
	regexp.MustCompile(`\.[0-9a-f]{32}`),
	regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`),
	regexp.MustCompile(`\d{10,}`),
	regexp.MustCompile(`Seq: \d+`),
	regexp.MustCompile(`Worker: .+`),
}

func settled(text string) string {
	for _, part := range changing {
		text = part.ReplaceAllString(text, "~")
	}
	return text
}

func lines(text string) (settledLines []string) {
	for line := range strings.Lines(text) {
		settledLines = append(settledLines, settled(strings.TrimSpace(line)))
	}
	return settledLines
}

// values are the JSON values of a text, each on one line.
func values(t *testing.T, text string) (settledValues []string) {
	t.Helper()
	decoder := jsontext.NewDecoder(strings.NewReader(text))
	for {
		value, err := decoder.ReadValue()
		if errors.Is(err, io.EOF) {
			return settledValues
		}
		if err == nil {
			err = value.Compact()
		}
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		settledValues = append(settledValues, settled(string(value)))
	}
}
