package main

import (
	"fmt"
	"strings"

	"holdfast/internal/terminal"
)

// The values of -o.
const (
	outputTable  = "table"
	outputWide   = "wide"
	outputJSON   = "json"
	outputNDJSON = "ndjson"
)

// list prints a list in the format of -o: as a table when it is complete, as one JSON array, or as
// one JSON value a line, each at once.
type list struct {
	p       *program
	headers []string
	rows    [][]string
	n       int // number of JSON values
}

// newList returns a list whose table has these columns, or with -o wide the others, if there are others.
func (p *program) newList(columns, wide []string) *list {
	l := &list{p: p}
	if p.Output == outputWide && wide != nil {
		columns = wide
	}
	for _, column := range columns {
		l.headers = append(l.headers, strings.ToUpper(column))
	}
	return l
}

// add adds an element: as the JSON of value, or as the row of the table or of the wide one.
func (l *list) add(value any, row, wide []any) error {
	switch {
	case l.isJSON():
		return l.addValue(value)
	case l.p.Output == outputWide:
		l.addRow(wide...)
	default:
		l.addRow(row...)
	}
	return nil
}

// isJSON reports whether the list takes JSON values instead of rows.
func (l *list) isJSON() bool { return l.p.Output == outputJSON || l.p.Output == outputNDJSON }

// addRow adds a row of the table: the printable texts of the cells.
func (l *list) addRow(cells ...any) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = terminal.Printable(fmt.Sprint(cell))
	}
	l.rows = append(l.rows, row)
}

// addValue adds the JSON of a value.
func (l *list) addValue(value any) error {
	text, err := encode(value)
	if err != nil {
		return err
	}
	if l.p.isTerminal {
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

// end ends the list. It prints the table, or the message empty on stderr if the list has no rows.
func (l *list) end(empty string) error {
	switch {
	case l.p.Output == outputJSON && l.n == 0:
		return l.p.print("[]\n")
	case l.p.Output == outputJSON:
		return l.p.print("]\n")
	case l.p.Output == outputNDJSON:
		return nil
	case len(l.rows) == 0:
		l.p.reportf("%s", empty)
		return nil
	default:
		return l.p.print(l.p.table(l.headers, l.rows))
	}
}
