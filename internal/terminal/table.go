package terminal

import (
	"regexp"
	"strings"

	"github.com/rivo/uniseg"
)

// ColumnGap is the number of spaces between two columns of a table.
const ColumnGap = 2

var number = regexp.MustCompile(`^(-|-?[0-9]+(\.[0-9]+)?)$`)

// Width returns the number of terminal cells that a text takes.
func Width(text string) int { return uniseg.StringWidth(text) }

// Table returns rows in columns, ColumnGap spaces apart. With headers there is a line below them,
// and columns of numbers are aligned right. Without rows the table is empty. It has no colours, so
// it can be piped. The cells must be printable, and every row must have the same number of cells.
func Table(headers []string, rows [][]string) string {
	if len(rows) == 0 {
		return ""
	}
	widths, numeric := make([]int, len(rows[0])), make([]bool, len(rows[0]))
	for column, header := range headers {
		widths[column], numeric[column] = Width(header), true
	}
	for _, row := range rows {
		for column, cell := range row {
			widths[column] = max(widths[column], Width(cell))
			numeric[column] = numeric[column] && number.MatchString(cell)
		}
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
		width := ColumnGap * (len(widths) - 1)
		for _, columnWidth := range widths {
			width += columnWidth
		}
		text.WriteString(strings.Repeat("─", width) + "\n")
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
