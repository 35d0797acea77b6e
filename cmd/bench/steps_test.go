package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestSteps_Terminal_ShowsBarAndLines(t *testing.T) {
	t.Parallel()
	var screen bytes.Buffer
	s := &steps{to: &screen}
	s.print("before\x1b[2J")
	s.begin(0, 4, "sale of 1 night")
	s.begin(1, 4, "payments")
	s.print("a figure")
	s.end()
	s.print("after")
	for _, text := range []string{"before\\x1b[2J\n", "sale of 1 night", "payments", "(1/4)", "a figure\n", "after\n"} {
		if !strings.Contains(screen.String(), text) {
			t.Errorf("the screen lacks %q: %q", text, screen.String())
		}
	}
}

func TestSteps_NoTerminal_ShowsLinesOnly(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	off := &steps{to: &log, off: true}
	off.begin(0, 4, "sale of 1 night")
	off.print("a figure")
	off.end()
	if log.String() != "a figure\n" {
		t.Errorf("printed %q", log.String())
	}
}
