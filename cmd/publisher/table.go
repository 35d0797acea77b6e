package main

import (
	"regexp"
	"strings"

	"charm.land/lipgloss/v2"
	lipglosstable "charm.land/lipgloss/v2/table"
)

var number = regexp.MustCompile(`^(-|-?[0-9]+(\.[0-9]+)?)$`)

// table lays rows out in columns, two spaces apart, numbers to the right; with headers there is
// a line below them. Without rows it is empty. It has no colours, so that it can be piped.
func table(headers []string, rows [][]string) string {
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
	t := lipglosstable.New().Headers(headers...).Rows(rows...).Wrap(false).
		BorderTop(false).BorderBottom(false).BorderLeft(false).BorderRight(false).BorderColumn(false).
		StyleFunc(func(_, column int) lipgloss.Style {
			style := lipgloss.NewStyle()
			if column < columns-1 {
				style = style.PaddingRight(2)
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
