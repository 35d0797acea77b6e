package terminal_test

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/schollz/progressbar/v3"

	"holdfast/internal/stack/stacktest"
	"holdfast/internal/terminal"
)

// step shows the progress of a command that prints a line between its steps.
func step(to io.Writer) {
	bar := terminal.NewProgress(to, 100, progressbar.OptionThrottle(0))
	bar.Describe("first")
	bar.Set(25)
	fmt.Fprintln(bar, "a figure")
	bar.Describe("second")
	bar.Set(50)
	bar.End()
	fmt.Fprintln(to, "after")
}

func TestProgress_Terminal_ShowsBarBelowLines(t *testing.T) {
	t.Parallel()
	near, far := stacktest.Terminal(t)
	defer func() { _ = near.Close() }()
	step(far)
	stacktest.Must(t, far.Close())
	screen, _ := io.ReadAll(near) // it ends with an error when the other end is closed
	rest := string(screen)
	for _, text := range []string{"first", "25%", "\x1b[2K\ra figure\r\n", "second", "50%", "\x1b[2K\rafter\r\n"} {
		_, after, found := strings.Cut(rest, text)
		if !found {
			t.Fatalf("the screen lacks %q in its order: %q", text, screen)
		}
		rest = after
	}
}

func TestProgress_NoTerminal_ShowsLinesOnly(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	step(&log)
	if log.String() != "a figure\nafter\n" {
		t.Errorf("printed %q", log.String())
	}
}
