package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"

	"holdfast/internal/terminal"
)

// explainedMessage is the JSON form of a message for --explain -o json.
type explainedMessage struct {
	Subject string            `json:"subject"`
	Headers map[string]string `json:"headers"`
	Body    jsontext.Value    `json:"body"`
}

// explain prints a message instead of publishing it. Without -o json it also prints the nats command
// that publishes it.
func (p *program) explain(m *nats.Msg) error {
	if p.json() {
		message := explainedMessage{m.Subject, make(map[string]string), m.Data}
		for name := range m.Header {
			message.Headers[name] = m.Header.Get(name)
		}
		return p.printValue(message)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "Subject: %s\nHeaders:\n", m.Subject)
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		fmt.Fprintf(&text, "  %s: %s\n", name, m.Header.Get(name))
	}
	fmt.Fprintf(&text, "Body:\n%sThe same with the nats command:\n  %s\n", indented(m.Data), strings.Join(p.natsCommand(m), " "))
	return p.print(text.String())
}

// natsCommand returns the words of the command that publishes a message, quoted for a POSIX shell.
// It names the server if the URL is known without a connection and has no password.
func (p *program) natsCommand(m *nats.Msg) []string {
	words := []string{"nats", "pub", "--jetstream", terminal.Quote(m.Subject)}    // which waits until the message is stored
	if server, err := p.natsURL(); err == nil && !strings.Contains(server, "@") { // no URL of the list has a password
		words = append(words, "--server", terminal.Quote(server))
	}
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		words = append(words, "--header", terminal.Quote(name+":"+m.Header.Get(name)))
	}
	// In JSON two adjacent opening braces occur only inside a string. The nats command would read
	// them as the beginning of a template.
	body := strings.ReplaceAll(string(terminal.PrintableJSON(m.Data)), "{{", `{\u007b`)
	return append(words, terminal.Quote(body))
}
