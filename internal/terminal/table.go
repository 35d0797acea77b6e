package terminal

import (
	"regexp"
	"strings"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"
)

// ColumnGap is the number of spaces between two columns of a table.
const ColumnGap = 2

var number = regexp.MustCompile(`^(-|-?[0-9]+(\.[0-9]+)?)$`)

// Table returns rows in columns, ColumnGap spaces apart. With headers there is a line below them,
// and columns of numbers are aligned right. Without rows the table is empty. It has no colours, so
// it can be piped. The cells must be printable.
func Table(headers []string, rows [][]string) string {
	if len(rows) == 0 {
		return ""
	}
	columns := len(rows[0])
	numeric := make([]bool, columns)
	for column := range numeric {
		numeric[column] = true
		for _, row := range rows {
			numeric[column] = numeric[column] && number.MatchString(row[column])
		}
	}
	t := table.New().Headers(headers...).Rows(rows...).Wrap(false).
		BorderTop(false).BorderBottom(false).BorderLeft(false).BorderRight(false).BorderColumn(false).
		StyleFunc(func(_, column int) lipgloss.Style {
			style := lipgloss.NewStyle()
			if column < columns-1 {
				style = style.PaddingRight(ColumnGap)
			}
			if headers != nil && numeric[column] {
				style = style.Align(lipgloss.Right)
			}
			return style
		})
	var text strings.Builder
	for line := range strings.Lines(t.Render() + "\n") {
		text.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return text.String()
}
