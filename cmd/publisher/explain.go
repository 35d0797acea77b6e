package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
)

// explain prints a message in place of publishing it: the event with -o json, else all of it and
// the command that publishes it.
func (p *program) explain(m *nats.Msg) error {
	if p.json() {
		return p.printJSON(m.Data)
	}
	body := jsontext.Value(escapeJSON(m.Data)).Clone()
	if err := body.Indent(jsontext.WithIndentPrefix("  "), jsontext.WithIndent("  ")); err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "Subject: %s\nHeaders:\n", m.Subject)
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		fmt.Fprintf(&text, "  %s: %s\n", name, m.Header.Get(name))
	}
	fmt.Fprintf(&text, "Body:\n  %s\nThe same with the nats command:\n  %s\n", body, strings.Join(p.natsCommand(m), " "))
	return p.print(text.String())
}

// natsCommand returns the words of the command that publishes a message, quoted for a POSIX
// shell. The server is named when it is known without a connection and its URL has no password.
func (p *program) natsCommand(m *nats.Msg) []string {
	words := []string{"nats", "pub", shellQuote(m.Subject)}
	if server, err := p.natsURL(); err == nil {
		if !strings.Contains(server, "@") { // in none of several
			words = append(words, "--server", shellQuote(server))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		words = append(words, "--header", shellQuote(name+":"+m.Header.Get(name)))
	}
	// In JSON two opening braces only meet inside of a string. The nats command would take
	// them for the beginning of a template.
	body := strings.ReplaceAll(string(escapeJSON(m.Data)), "{{", `{\u007b`)
	return append(words, shellQuote(body))
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellQuote returns a word as a POSIX shell reads it back.
func shellQuote(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
