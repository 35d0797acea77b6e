package stack

import (
	"io"
	"slices"
	"testing"
)

// TestLineWriter_LinesInParts_AreWhole splits two lines, and a third that never ends, at each place.
func TestLineWriter_LinesInParts_AreWhole(t *testing.T) {
	t.Parallel()
	const text = "a b\n\nc"
	for at := range len(text) + 1 {
		var lines []string
		w := &LineWriter{Each: func(line string) { lines = append(lines, line) }}
		for _, part := range []string{text[:at], text[at:]} {
			if n, err := io.WriteString(w, part); n != len(part) || err != nil {
				t.Errorf("wrote %d of %q: %v", n, part, err)
			}
		}
		if want := []string{"a b", ""}; !slices.Equal(lines, want) {
			t.Errorf("split at %d: %q, want %q", at, lines, want)
		}
	}
}
