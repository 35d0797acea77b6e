package terminal

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Printable returns text in a form that is safe to print. It replaces every character that
// unicode.IsPrint rejects by its Go escape, and every invalid byte by \xNN. An event therefore cannot
// control a terminal (control characters) or change the order of a line (bidirectional marks).
func Printable(text string) string {
	if strings.IndexFunc(text, isUnprintable) < 0 && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		_, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case isUnprintable(r):
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// PrintableLines is Printable for a text of several lines: it keeps the line breaks.
func PrintableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = Printable(line)
	}
	return strings.Join(lines, "\n")
}

func isUnprintable(r rune) bool { return !unicode.IsPrint(r) }

// PrintableJSON replaces the unprintable characters of a JSON text by JSON escapes. The value stays
// the same. White space stays too; other unprintable characters occur only inside strings.
func PrintableJSON(text []byte) []byte {
	if strings.IndexFunc(string(text), isUnprintable) < 0 {
		return text
	}
	escaped := make([]byte, 0, len(text))
	for _, r := range string(text) {
		switch {
		case r == '\n' || r == '\t' || r == '\r' || !isUnprintable(r):
			escaped = utf8.AppendRune(escaped, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			escaped = fmt.Appendf(escaped, `\u%04x\u%04x`, high, low)
		default:
			escaped = fmt.Appendf(escaped, `\u%04x`, r)
		}
	}
	return escaped
}
