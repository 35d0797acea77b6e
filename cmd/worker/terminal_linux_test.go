package main

import (
	"io"
	"strings"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// TestPrintJSON_Terminal_IsNotControlled prints a control character that JSON allows in a text: one that clears a screen.
func TestPrintJSON_Terminal_IsNotControlled(t *testing.T) {
	t.Parallel()
	near, far := stacktest.Terminal(t)
	defer func() { _ = near.Close() }()
	stacktest.Must(t, printJSON(&output{Writer: far}, "eve\u009b2J"))
	stacktest.Must(t, far.Close())
	text, _ := io.ReadAll(near) // it ends with an error, as the terminal does
	if want := `"eve\u009b2J"`; strings.TrimSpace(string(text)) != want {
		t.Errorf("a terminal got %q, want %s", text, want)
	}
	var file strings.Builder
	stacktest.Must(t, printJSON(&file, "eve\u009b2J"))
	if want := "\"eve\u009b2J\"\n"; file.String() != want {
		t.Errorf("a file got %q, want %q", file.String(), want)
	}
}
