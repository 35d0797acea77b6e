package main

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// printable makes a text from outside safe to print: what is no letter, mark, number,
// punctuation, symbol or ASCII space is written as a Go escape. So no event can steer a
// terminal (control characters) or reorder what it shows (bidirectional marks).
func printable(text string) string {
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

// printableLines is printable for a text of several lines.
func printableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = printable(line)
	}
	return strings.Join(lines, "\n")
}

func isUnprintable(r rune) bool { return !unicode.IsPrint(r) }

// escapeJSON writes the unprintable characters within a JSON text as JSON escapes. Outside of
// strings there are none but white space, which stays.
func escapeJSON(text []byte) []byte {
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
