package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/terminal"
)

// onTerminal runs this program on a terminal and returns its output. In commandLine, which a shell
// runs, %s stands for the program with its arguments.
func onTerminal(t *testing.T, commandLine string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("script"); err != nil {
		t.Fatal("missing: script; apt-get install bsdutils")
	}
	quoted := []string{terminal.Quote(publisherBinary)}
	for _, arg := range args {
		quoted = append(quoted, terminal.Quote(arg))
	}
	terminal := exec.CommandContext(t.Context(), "script", "--quiet", "--return", "--command",
		fmt.Sprintf(commandLine, strings.Join(quoted, " ")), "/dev/null")
	terminal.Env = append(os.Environ(), "TERM=xterm")
	out, err := terminal.CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatal(err)
	}
	return string(out)
}

// TestLoad_Terminal_ShowsProgress checks the bar for a file, the spinner for standard input, and that there is neither
// if stderr is not a terminal. A message erases the bar first.
func TestLoad_Terminal_ShowsProgress(t *testing.T) {
	t.Parallel()
	var file strings.Builder
	nowhere := fresh("nowhere")
	for i := range 300 {
		file.WriteString(shortRequest(nowhere, fmt.Sprintf("bar%d", i)) + "\n")
		if i == 200 {
			file.WriteString("nonsense\n")
		}
	}
	path, elsewhere := fileOf(t, file.String()), filepath.Join(t.TempDir(), "err")
	const bar, erased = "loading", "\x1b[2K\r"
	shown := onTerminal(t, "%s", "load", "-f", path, "--rate", "1000")
	for _, want := range []string{bar, "%", erased + path + ":202: malformed", erased + "loaded " + path,
		"published   300"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the terminal does not show %q: %q", want, shown)
		}
	}
	shown = onTerminal(t, "cat "+path+" | %s", "load", "-f", "-", "--rate", "1000")
	if !strings.Contains(shown, bar) || strings.Contains(shown, "%") {
		t.Errorf("the terminal shows %q", shown)
	}
	shown = onTerminal(t, "%s 2> "+elsewhere, "load", "-f", path, "--rate", "1000")
	stderr, err := os.ReadFile(elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(shown+string(stderr), bar) || !strings.Contains(string(stderr), ":202: malformed") {
		t.Errorf("the terminal shows %q, the file %q", shown, stderr)
	}
}
