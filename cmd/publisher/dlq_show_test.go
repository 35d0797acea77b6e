package main

import (
	"strings"
	"testing"
)

// TestIndented_Bodies_ArePrintable indents bodies as dlq show prints them. One that is nested too deep stays one line.
func TestIndented_Bodies_ArePrintable(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 9_990) + strings.Repeat("]", 9_990)
	for body, want := range map[string]string{
		"": "", `{"a":1}`: "  {\n    \"a\": 1\n  }\n", deep: "  " + deep + "\n", "no\x1b\njson": "  no\\x1b\n  json\n",
		"\"\u202e\"": "  \"\\u202e\"\n", "\"\xff\"": "  \"\\xff\"\n",
	} {
		if got := indented([]byte(body)); got != want {
			t.Errorf("%.40q: %.80q (%d bytes), want %.80q", body, got, len(got), want)
		}
	}
}
