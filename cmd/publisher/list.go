package main

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/terminal"
)

// What -o may be. Every verb knows table and json; those that list things know the others too.
const (
	outputTable  = "table"
	outputWide   = "wide"
	outputJSON   = "json"
	outputNDJSON = "ndjson"
)

var everyOutput = []string{outputTable, outputWide, outputJSON, outputNDJSON}

// list prints things: as a table when all are there, as one JSON array, or one JSON value a line
// as they come.
type list struct {
	p       *program
	headers []string
	rows    [][]string
	n       int // JSON values
}

// newList returns a list whose tables have these columns, or those when they may be wide.
func (p *program) newList(columns, wide []string) *list {
	headers := columns
	if p.Output == outputWide {
		headers = wide
	}
	l := &list{p: p}
	for _, header := range headers {
		l.headers = append(l.headers, strings.ToUpper(header))
	}
	return l
}

// isJSON reports whether values are wanted, not rows.
func (l *list) isJSON() bool { return l.p.Output == outputJSON || l.p.Output == outputNDJSON }

// addRow adds a row of the table. The cells may be anything.
func (l *list) addRow(cells ...string) {
	for i := range cells {
		cells[i] = terminal.Printable(cells[i])
	}
	l.rows = append(l.rows, cells)
}

// addValue adds what is written as JSON.
func (l *list) addValue(value any) error {
	text, err := json.Marshal(value, jsontext.AllowInvalidUTF8(true), json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return l.addJSON(text)
}

// addJSON adds a JSON value.
func (l *list) addJSON(text jsontext.Value) error {
	if l.p.terminal {
		text = terminal.PrintableJSON(text)
	}
	l.n++
	switch {
	case l.p.Output == outputNDJSON:
		return l.p.print(string(text) + "\n")
	case l.n == 1:
		return l.p.print("[" + string(text))
	default:
		return l.p.print(",\n" + string(text))
	}
}

// end prints what is left to be printed; none says that there is nothing.
func (l *list) end(none string) error {
	switch {
	case l.p.Output == outputJSON && l.n == 0:
		return l.p.print("[]\n")
	case l.p.Output == outputJSON:
		return l.p.print("]\n")
	case l.p.Output == outputNDJSON:
		return nil
	case len(l.rows) == 0:
		fmt.Fprintf(l.p.err, "publisher: %s\n", none)
		return nil
	default:
		return l.p.print(l.p.table(l.headers, l.rows))
	}
}
