package main

import (
	"regexp"
	"slices"
	"strings"

	"charm.land/lipgloss/v2"
	lipglosstable "charm.land/lipgloss/v2/table"
)

var number = regexp.MustCompile(`^(-|-?[0-9]+(\.[0-9]+)?)$`)

// The columns of a table are this far apart, and not made narrower than that to fit a terminal.
const (
	columnGap = 2
	columnMin = 10
)

// table lays rows out so that they fit the terminal, if there is one and -o wide is not given: long cells end
// in an ellipsis there. Elsewhere nothing is cut.
func (p *program) table(headers []string, rows [][]string) string {
	if p.width > 0 && p.Output != outputWide {
		fit(headers, rows, p.width)
	}
	return table(headers, rows)
}

// fit shortens the cells of the widest columns until the rows are as wide as a terminal at most. The first column
// stays whole: it is what the other verbs take, a sequence or the id of a run.
func fit(headers []string, rows [][]string, width int) {
	widths := make([]int, len(headers))
	total := columnGap * (len(headers) - 1)
	for column := range headers {
		widths[column] = lipgloss.Width(headers[column])
		for _, row := range rows {
			widths[column] = max(widths[column], lipgloss.Width(row[column]))
		}
		total += widths[column]
	}
	for ; total > width; total-- {
		others := widths[1:]
		widest := slices.Max(append(others[:len(others):len(others)], 0))
		if widest <= columnMin {
			break
		}
		others[slices.Index(others, widest)]--
	}
	for column, most := range widths {
		headers[column] = shortened(headers[column], most)
		for _, row := range rows {
			row[column] = shortened(row[column], most)
		}
	}
}

// shortened is a text that takes so many places of a terminal at most.
func shortened(text string, width int) string {
	if lipgloss.Width(text) <= width {
		return text
	}
	var kept strings.Builder
	taken := lipgloss.Width("…")
	for _, r := range text {
		if taken += lipgloss.Width(string(r)); taken > width {
			break
		}
		kept.WriteRune(r)
	}
	return kept.String() + "…"
}

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
				style = style.PaddingRight(columnGap)
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
