package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

// testTerminal is a real terminal. Text that is written to it is keyboard input.
type testTerminal struct {
	*os.File
	screen *watched
	far    *os.File // the end of the program
}

func newTerminal(t testing.TB) *testTerminal {
	t.Helper()
	near, far := stacktest.Terminal(t)
	term := &testTerminal{near, &watched{done: func() {}}, far}
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = term.screen.ReadFrom(near) }) // ends with an error when the far end is closed
	t.Cleanup(func() { _ = far.Close(); reading.Wait(); _ = near.Close() })
	return term
}

// ReadFrom reads the output of the program.
func (w *watched) ReadFrom(f *os.File) (int64, error) {
	buffer := make([]byte, 4096)
	for {
		n, err := f.Read(buffer)
		if _, err := w.Write(buffer[:n]); err != nil {
			return 0, err
		}
		if err != nil {
			return 0, err
		}
	}
}

func (w *watched) shows(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return bytes.Contains(w.text.Bytes(), []byte(text))
}

// runAtTerminal runs the program at a terminal of unknown size. Each answer is a text on the screen and the keys that
// are typed after it appears.
func (h *harness) runAtTerminal(env []string, answers [][2]string, args ...string) (code int, screen string) {
	h.t.Helper()
	return h.runAtTerminalWidth(0, env, answers, args...)
}

// runAtTerminalWidth is runAtTerminal for a terminal with a number of columns.
func (h *harness) runAtTerminalWidth(
	columns uint16, env []string, answers [][2]string, args ...string,
) (code int, screen string) {
	h.t.Helper()
	term := newTerminal(h.t)
	if err := unix.IoctlSetWinsize(int(term.far.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
		h.t.Fatal(err)
	}
	bounded, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(bounded, publisherBinary, h.command(args)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = term.far, term.far, term.far
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // Ctrl-C reaches it
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	for _, answer := range answers {
		stacktest.Eventually(h.t, "the screen to show "+answer[0], func() bool { return term.screen.shows(answer[0]) })
		if _, err := term.WriteString(answer[1]); err != nil {
			h.t.Fatal(err)
		}
	}
	_ = cmd.Wait() // the exit code is checked
	code = cmd.ProcessState.ExitCode()
	if _, err := fmt.Fprintln(term.far, "END"); err != nil {
		h.t.Fatal(err)
	}
	stacktest.Eventually(h.t, "the end of the screen", func() bool { return term.screen.shows("END") })
	term.screen.mu.Lock()
	defer term.screen.mu.Unlock()
	return code, term.screen.text.String()
}

func TestConfirm_Terminal_ProceedsOnYesOnly(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.startWorker()
	for range 2 {
		h.storeDeadLetter(events.ReasonMalformed, "", h.ns.In(events.BookingRequested, "loft"), "no JSON")
	}
	const question = "Discard 2 dead letters (2 malformed), "
	for _, no := range []string{"n\n", "\n", "\x04", "yep\n"} {
		if code, screen := h.runAtTerminal(nil, [][2]string{{question, no}}, "dlq", "discard", "--all", "--note",
			"n"); code != exitFailed || !strings.Contains(screen, "aborted") {
			t.Errorf("%q: %d %s", no, code, screen)
		}
	}
	if code, screen := h.runAtTerminal(nil, [][2]string{{question, "\x03"}}, "dlq", "discard", "--all", "--note",
		"n"); code == exitOK {
		t.Errorf("Ctrl-C: %d %s", code, screen)
	}
	if h.deadLetterCount() != 2 {
		t.Fatalf("%d dead letters remain", h.deadLetterCount())
	}
	if code, screen := h.runAtTerminal(nil, [][2]string{{"Replay 1 dead letter (1 malformed), ", "y\n"}}, "dlq", "replay",
		"2"); code != exitDeadLettered || !strings.Contains(screen, "dead_lettered: malformed") {
		t.Errorf("%d %s", code, screen)
	}
	if code, screen := h.runAtTerminal(nil, [][2]string{{question, "yes\n"}}, "dlq", "discard", "--all", "--note",
		"n"); code != exitOK || h.deadLetterCount() != 0 {
		t.Errorf("%d %s", code, screen)
	}
}

// TestTable_NarrowTerminal_Fits lists dead letters with long details, at a terminal and piped.
func TestTable_NarrowTerminal_Fits(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	detail := "data.metadata: " + strings.Repeat("long ", 40) + "end"
	for range 3 {
		h.storeDeadLetter(events.ReasonMalformed, detail, h.ns.In(events.BookingRequested,
			"a-resource-with-a-long-name-of-its-own"), "no JSON")
	}
	h.run("dlq", "discard", "2", "3", "--yes", "--note", "n").want(t, exitOK)
	for _, command := range []string{"list", "stats", "stats --by detail", "runs"} {
		verb := strings.Fields(command)[0]
		for columns, fits := range map[uint16]bool{72: verb != "runs", 110: true, 0: false} {
			code, screen := h.runAtTerminalWidth(columns, nil, nil, words("dlq "+command)...)
			whole := strings.Contains(screen, "end\r\n")
			if code != exitOK || verb != "runs" && whole == fits {
				t.Errorf("dlq %s on %d columns ends with %d:\n%s", command, columns, code, screen)
			}
			for line := range strings.Lines(screen) {
				if n := utf8.RuneCountInString(strings.TrimRight(line, "\r\n")); fits && n > int(columns) {
					t.Errorf("dlq %s on %d columns has a line of %d: %s", command, columns, n, line)
				}
			}
		}
		if r := h.run(words("dlq "+command)...).want(t, exitOK); verb != "runs" && !strings.Contains(r.out, detail) ||
			strings.Contains(r.out, "…") {
			t.Errorf("dlq %s shortens piped output:\n%s", command, r.out)
		}
		if _, screen := h.runAtTerminalWidth(72, nil, nil, words("dlq "+command+" -o wide")...); strings.Contains(screen, "…") {
			t.Errorf("dlq %s -o wide is shortened:\n%s", command, screen)
		}
	}
}

// TestHold_NarrowTerminal_TablesFit lists holds and shows the history of one on 80 columns: times become distances, and the
// id of the hold stays whole. With -o wide all is there.
func TestHold_NarrowTerminal_TablesFit(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.startWorker()
	h.run(words("inventory set --resource-id loft --slot A-12 --capacity 1 --wait")...).want(t, exitOK)
	r := h.run(words("request --resource-id loft --slot A-12 --user-id ann --ttl 59m --wait -o json")...).want(t, exitOK)
	id := outcome(t, r).Subject
	for command, want := range map[string]string{
		"hold list --resource-id loft": id + "  held   in ", "hold history --hold-id " + id: " ago",
	} {
		code, screen := h.runAtTerminalWidth(80, nil, nil, words(command)...)
		if code != exitOK || !strings.Contains(screen, want) {
			t.Errorf("%s ends with %d, and has not %q:\n%s", command, code, want, screen)
		}
		for line := range strings.Lines(screen) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\r\n")); n > 80 {
				t.Errorf("%s has a line of %d: %s", command, n, line)
			}
		}
		for _, columns := range []uint16{80, 200} {
			wide := map[uint16]string{80: " -o wide"}[columns]
			if _, screen := h.runAtTerminalWidth(columns, nil, nil, words(command+wide)...); strings.Contains(screen, "…") ||
				!strings.Contains(screen, "expires_at=2") && !strings.Contains(screen, "held   2") {
				t.Errorf("%s%s on %d columns:\n%s", command, wide, columns, screen)
			}
		}
	}
}

// TestReplay_Terminal_ShowsProgress checks the bar at a terminal, and that piped output has none.
func TestReplay_Terminal_ShowsProgress(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.storeMixedDeadLetters(50)
	if code, screen := h.runAtTerminal(nil, nil, "dlq", "discard", "--all", "--note", "n", "--yes"); code != exitOK ||
		!strings.Contains(screen, "/50") {
		t.Errorf("%d %q", code, screen)
	}
	h.storeMixedDeadLetters(50)
	if r := h.run("dlq", "discard", "--all", "--note", "n", "--yes").want(t, exitOK); strings.Contains(r.out+r.errOut,
		"/50") {
		t.Errorf("a bar in piped output: %q", r.out+r.errOut)
	}
}

// editor returns the environment with an editor that runs one of the steps on its file each time it opens.
func editor(t *testing.T, steps ...string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "an editor")
	script := "#!/bin/sh\nn=$(cat \"$0.n\" 2>/dev/null || echo 0)\necho $((n+1)) > \"$0.n\"\ncp \"$2\" \"$0.$n\"\ncase $n in\n"
	for i, step := range steps {
		script += fmt.Sprintf("%d) %s;;\n", i, step)
	}
	if err := os.WriteFile(path, []byte(script+"esac\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return []string{"VISUAL=", "EDITOR='" + path + "' --wait", "TMPDIR=" + filepath.Dir(path)}
}

// TestDLQEdit_CtrlCInEditor_IsAKeyOfTheEditor types Ctrl-C in an editor that goes on, as ed does, and at the question
// after it.
func TestDLQEdit_CtrlCInEditor_IsAKeyOfTheEditor(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.storeDeadLetter(events.ReasonMalformed, "", h.ns.In(events.BookingRequested, "loft"),
		strings.Replace(booking("loft", "ann"), `"quantity":1`, `"quantity":"1"`, 1))
	env := editor(t, `sleep 60 & trap "kill $!" INT; echo editing; wait; sed -i 's/"1"/1/' "$2"`)
	code, screen := h.runAtTerminal(env, [][2]string{{"editing", "\x03"}, {"Publish the copy of dead letter 1", "\x03"}}, "dlq", "edit", "1")
	if code != exitFailed || !strings.Contains(screen, "aborted (your text is in") {
		t.Errorf("%d %s", code, screen)
	}
}

// TestDLQEdit_DeadLetterRemovedMeanwhile_PublishesNothing discards a dead letter while it is open in an editor. The copy is
// not published, and its text is kept.
func TestDLQEdit_DeadLetterRemovedMeanwhile_PublishesNothing(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.storeDeadLetter(events.ReasonMalformed, "", h.ns.In(events.BookingRequested, "loft"),
		strings.Replace(booking("loft", "ann"), `"quantity":1`, `"quantity":"1"`, 1))
	discard := append([]string{publisherBinary}, h.command(words("dlq discard 1 --note seen --yes"))...)
	env := editor(t, `sed -i 's/"1"/1/' "$2"; '`+strings.Join(discard, "' '")+`'`)
	code, screen := h.runAtTerminal(env, [][2]string{{"Publish the copy of dead letter 1", "y\n"}}, "dlq", "edit", "1")
	if code != exitFailed || !strings.Contains(screen, "dead letter 1: no such dead letter (your text is in ") {
		t.Errorf("%d %s", code, screen)
	}
	stream, err := h.js.Stream(t.Context(), h.ns.InStream())
	if err != nil {
		t.Fatal(err)
	}
	if got := stream.CachedInfo().State.LastSeq; got != 0 {
		t.Errorf("%d events were published", got)
	}
}

// TestDLQEdit_MistakeInEditor_ReopensWithError saves a malformed event: the editor opens again and shows the error.
func TestDLQEdit_MistakeInEditor_ReopensWithError(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.startWorker()
	h.run(words("inventory set --resource-id loft --capacity 5 --wait")...).want(t, exitOK)
	bad := strings.Replace(booking("loft", "ann"), `"quantity":1`, `"quantity":"1"`, 1)
	h.storeDeadLetter(events.ReasonMalformed, "data.quantity: must be an integer such as 2, found a string",
		h.ns.In(events.BookingRequested, "loft"), bad)

	opened := func(env []string, n int) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(strings.TrimPrefix(env[2], "TMPDIR="), fmt.Sprintf("an editor.%d", n)))
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}

	untouched := editor(t, "true")
	if code, screen := h.runAtTerminal(untouched, nil, "dlq", "edit", "1"); code != exitFailed ||
		!strings.Contains(screen, "unchanged") {
		t.Errorf("unchanged event: %d %s", code, screen)
	}
	if text := opened(untouched, 0); !strings.Contains(text, "# dead-lettered: malformed: data.quantity") ||
		!strings.Contains(text, "\nSubject: "+h.ns.In(events.BookingRequested, "loft")+"\n\n{\n  \"specversion\"") {
		t.Errorf("the editor shows\n%s", text)
	}
	broken := editor(t, `sed -i 's/"1"/1.0/' "$2"`, "true")
	if code, screen := h.runAtTerminal(broken, nil, "dlq", "edit", "1"); code != exitFailed ||
		!strings.Contains(screen, "your text is in") {
		t.Errorf("event left malformed: %d %s", code, screen)
	}
	if text := opened(broken, 1); !strings.Contains(text,
		"# the event would be dead-lettered again: malformed: data.quantity: must be an integer such as 2, found a number") ||
		!strings.Contains(text, `"quantity": 1.0`) {
		t.Errorf("the editor shows\n%s", text)
	}
	failing := editor(t, "exit 3")
	if code, screen := h.runAtTerminal(failing, nil, "dlq", "edit", "1"); code != exitFailed ||
		!strings.Contains(screen, "exit status 3") {
		t.Errorf("failing editor: %d %s", code, screen)
	}
	declined := editor(t, `sed -i 's/"1"/1/' "$2"`)
	if code, screen := h.runAtTerminal(declined, [][2]string{{"Publish the copy of dead letter 1", "n\n"}}, "dlq", "edit",
		"1"); code != exitFailed || !strings.Contains(screen, "your text is in "+strings.TrimPrefix(declined[2], "TMPDIR=")) {
		t.Errorf("declined: %d %s", code, screen)
	}
	kept, err := filepath.Glob(filepath.Join(strings.TrimPrefix(declined[2], "TMPDIR="), "holdfast-dead-letter-*"))
	if err != nil || len(kept) != 1 {
		t.Errorf("%v: kept files: %v", err, kept)
	}
	right := editor(t, `sed -i 's/"1"/1.0/' "$2"`, `sed -i 's/: 1.0/: 1/' "$2"`)
	if code, screen := h.runAtTerminal(right, [][2]string{{"Publish the copy of dead letter 1", "y\n"}}, "dlq", "edit",
		"1"); code != exitOK || !strings.Contains(screen, "hold.created") {
		t.Errorf("corrected event: %d %s", code, screen)
	}
	left, err := filepath.Glob(filepath.Join(strings.TrimPrefix(right[2], "TMPDIR="), "holdfast-dead-letter-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("%v: remaining files: %v", err, left)
	}
	if h.deadLetterCount() != 1 || h.heldQuantity("loft") != 1 {
		t.Errorf("%d dead letters, %d held", h.deadLetterCount(), h.heldQuantity("loft"))
	}
}
