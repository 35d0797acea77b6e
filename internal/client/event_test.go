package client

import (
	"strings"
	"testing"
)

// TestEditableBody_Nesting_BoundsSize indents bodies that are nested as deep as is indented, and one deeper. Each further
// level would make every line inside of it longer: 20 KB became 200 MB.
func TestEditableBody_Nesting_BoundsSize(t *testing.T) {
	t.Parallel()
	nested := func(depth int) string { return strings.Repeat("[", depth) + "1" + strings.Repeat("]", depth) }
	for _, body := range []string{nested(indentDepthMax + 1), nested(9_990), `{"a":` + nested(indentDepthMax) + `}`, `{"a":`, ""} {
		if got := string(EditableBody([]byte(body))); got != body {
			t.Errorf("%.80s: %d bytes become %d", body, len(body), len(got))
		}
	}
	deepest := strings.Repeat("  ", indentDepthMax) + "1\n"
	if got := string(EditableBody([]byte(nested(indentDepthMax)))); !strings.Contains(got, deepest) || !strings.HasSuffix(got, "\n]\n") {
		t.Errorf("nested %d deep: %s", indentDepthMax, got)
	}
	if got := string(EditableBody([]byte(`{"a":1,"a":"` + "\xff" + `"}`))); got != "{\n  \"a\": 1,\n  \"a\": \"\xff\"\n}\n" {
		t.Errorf("a name twice, and no UTF-8: %q", got)
	}
}
