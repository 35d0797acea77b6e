package main

import (
	"strings"

	"holdfast/internal/terminal"
)

// columnMin is the width below which no column is shortened to fit a terminal.
const columnMin = 10

// table returns rows as a table that fits the terminal: long cells end in an ellipsis. It shortens
// nothing with -o wide, or if the output is not a terminal of known width.
func (p *program) table(headers []string, rows [][]string) string {
	if _, width := widthsOf(headers, rows); p.isNarrowerThan(width) {
		fit(headers, rows, p.width)
	}
	return terminal.Table(headers, rows)
}

// isNarrowerThan reports whether a table of this width must be shortened.
func (p *program) isNarrowerThan(width int) bool {
	return p.width > 0 && p.width < width && p.Output != outputWide
}

// widthsOf returns the widths of the columns of a table, and that of the table.
func widthsOf(headers []string, rows [][]string) (widths []int, total int) {
	widths, total = make([]int, len(headers)), terminal.ColumnGap*(len(headers)-1)
	for column := range headers {
		widths[column] = terminal.Width(headers[column])
		for _, row := range rows {
			widths[column] = max(widths[column], terminal.Width(row[column]))
		}
		total += widths[column]
	}
	return widths, total
}

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
	widths, total := widthsOf(headers, rows)
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
		headers[column] = shortened(headers[column], most)
		for _, row := range rows {
			row[column] = shortened(row[column], most)
		}
	}
}

// shortened returns a text that is at most width columns wide on a terminal.
func shortened(text string, width int) string {
	if terminal.Width(text) <= width {
		return text
	}
	var kept strings.Builder
	taken := terminal.Width("…")
	for _, r := range text {
		if taken += terminal.Width(string(r)); taken > width {
			break
		}
		kept.WriteRune(r)
	}
	return kept.String() + "…"
}
