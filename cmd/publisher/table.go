package main

import (
	"fmt"
	"strings"
	"time"

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
	rows    [][]any
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

// addRow adds a row of the table.
func (l *list) addRow(cells ...any) { l.rows = append(l.rows, cells) }

// texts returns the printable texts of the cells, those of a time.Time as timeText returns them.
func (l *list) texts(timeText func(time.Time) string) [][]string {
	rows := make([][]string, len(l.rows))
	for i, cells := range l.rows {
		rows[i] = make([]string, len(cells))
		for j, cell := range cells {
			if at, is := cell.(time.Time); is {
				cell = timeText(at)
			}
			rows[i][j] = terminal.Printable(fmt.Sprint(cell))
		}
	}
	return rows
}

// table returns the table. On a terminal that is too narrow for it, a time.Time is a distance from now, and long cells end
// in an ellipsis. It shortens nothing with -o wide, or if the output is not a terminal of known width.
func (l *list) table() string {
	rows := l.texts(l.p.timeText)
	if _, width := terminal.Widths(l.headers, rows); l.p.width > 0 && l.p.width < width && l.p.Output != outputWide {
		rows = l.texts(distance)
		fit(l.headers, rows, l.p.width)
	}
	return terminal.Table(l.headers, rows)
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
		return l.p.print(l.table())
	}
}

// endPage is end for a page of a worker's answer. It also reports why the page is incomplete and where the next one begins,
// unless these are empty.
func (l *list) endPage(empty, partial, next string) error {
	if err := l.end(empty); err != nil {
		return err
	}
	if partial != "" {
		l.p.reportf("incomplete: %s", partial)
	}
	if next != "" {
		l.p.reportf("there may be more, see --after %s", next)
	}
	return nil
}

// columnMin is the width below which no column is shortened to fit a terminal.
const columnMin = 10

// facts returns names with their values as indented lines.
func facts(rows [][]string) string {
	lines := make([][]string, len(rows))
	for i, row := range rows {
		lines[i] = []string{"  " + terminal.Printable(row[0]), terminal.Printable(row[1])}
	}
	return terminal.Table(nil, lines)
}

// fit shortens the cells of the widest columns until the rows fit the width. The first column stays
// whole, because other commands take its value: a sequence or an id. So do times, in columns like EXPIRES_AT.
func fit(headers []string, rows [][]string, width int) {
	widths, total := terminal.Widths(headers, rows)
	for ; total > width; total-- {
		widest := 0
		for column := 1; column < len(widths); column++ {
			if !strings.HasSuffix(headers[column], "_AT") && (widest == 0 || widths[column] > widths[widest]) {
				widest = column
			}
		}
		if widest == 0 || widths[widest] <= columnMin {
			break
		}
		widths[widest]--
	}
	for column, most := range widths {
		headers[column] = terminal.Shortened(headers[column], most)
		for _, row := range rows {
			row[column] = terminal.Shortened(row[column], most)
		}
	}
}
