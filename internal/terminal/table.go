package terminal

import (
	"regexp"
	"slices"
	"strings"

	"github.com/rivo/uniseg"
)

// ColumnGap is the number of spaces between two columns of a table.
const ColumnGap = 2

var number = regexp.MustCompile(`^(-|-?[0-9]+(\.[0-9]+)?)$`)

// Width returns the number of terminal cells that a text takes.
func Width(text string) int { return uniseg.StringWidth(text) }

// Widths returns the widths of the columns of a table that has rows, and that of the table.
func Widths(headers []string, rows [][]string) (widths []int, total int) {
	widths = make([]int, len(rows[0]))
	for _, row := range slices.Concat([][]string{headers}, rows) {
		for column, cell := range row {
			widths[column] = max(widths[column], Width(cell))
		}
	}
	total = ColumnGap * (len(widths) - 1)
	for _, width := range widths {
		total += width
	}
	return widths, total
}

// Table returns rows in columns, ColumnGap spaces apart. With headers there is a line below them,
// and columns of numbers are aligned right. Without rows the table is empty. It has no colours, so
// it can be piped. The cells must be printable, and every row must have the same number of cells.
func Table(headers []string, rows [][]string) string {
	if len(rows) == 0 {
		return ""
	}
	widths, total := Widths(headers, rows)
	numeric := make([]bool, len(widths))
	for column := range headers {
		numeric[column] = !slices.ContainsFunc(rows, func(row []string) bool { return !number.MatchString(row[column]) })
	}
	var text strings.Builder
	write := func(row []string) {
		var line strings.Builder
		for column, cell := range row {
			padding := strings.Repeat(" ", widths[column]-Width(cell))
			if numeric[column] {
				line.WriteString(padding + cell)
			} else {
				line.WriteString(cell + padding)
			}
			line.WriteString(strings.Repeat(" ", ColumnGap))
		}
		text.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	if headers != nil {
		write(headers)
		text.WriteString(strings.Repeat("─", total) + "\n")
	}
	for _, row := range rows {
		write(row)
	}
	return text.String()
}

// Shortened returns a text that is at most width cells wide on a terminal. A longer one ends in an ellipsis.
func Shortened(text string, width int) string {
	if Width(text) <= width {
		return text
	}
	var kept strings.Builder
	taken := Width("…")
	for _, r := range text {
		if taken += Width(string(r)); taken > width {
			break
		}
		kept.WriteRune(r)
	}
	return kept.String() + "…"
}
