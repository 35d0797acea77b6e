package terminal

import (
	"bytes"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

func TestPrintable_ControlCharacters_AreEscaped(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain ünï €5 🛏":     "plain ünï €5 🛏",
		"a\x1b[2J\r\n\tb":    `a\x1b[2J\r\n\tb`,
		"c1 \u009b, del\x7f": `c1 \u009b, del\x7f`,
		"bidi \u202e\u2066":  `bidi \u202e\u2066`,
		"bad \xff\xc3":       `bad \xff\xc3`,
		"tag \U000e0041":     `tag \U000e0041`,
	} {
		if got := Printable(text); got != want {
			t.Errorf("Printable(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestPrintableJSON_ControlCharacters_ValueStays(t *testing.T) {
	t.Parallel()
	const value = "{\n\t\"a\u009b\": \"\u202e \U000e0041 é\x7f\"\n}"
	escaped := PrintableJSON([]byte(value))
	if want := "{\n\t\"a\\u009b\": \"\\u202e \\udb40\\udc41 é\\u007f\"\n}"; string(escaped) != want {
		t.Errorf("got %s, want %s", escaped, want)
	}
	before, after := jsontext.Value(value), jsontext.Value(escaped).Clone()
	if before.Canonicalize() != nil || after.Canonicalize() != nil || !bytes.Equal(before, after) {
		t.Errorf("%s is another value than %s", after, before)
	}
}
