package main

import (
	"fmt"
	"strconv"
	"strings"

	"holdfast/internal/bench"
)

// noFigure stands where there is none.
const noFigure = "-"

// benchSummary is what is printed at the end: a table of each part, and each goal.
func benchSummary(r *bench.Report) string {
	var text strings.Builder
	section := func(title string, headers []string, rows [][]string) {
		if len(rows) > 0 {
			text.WriteString(title + "\n" + table(headers, rows) + "\n")
		}
	}
	text.WriteString(printable(r.Environment()) + "\n\n")
	used := usedProcesses(r)
	if len(used) > 0 {
		text.WriteString("What a process used of the processor for each event is told in µs.\n\n")
	}
	section(benchSales(r, used))
	section(benchPayments(r, used))
	section(benchLatencies(r, used))
	section(benchExpiries(r))
	section(benchGrowth(r, used))
	section(benchGoals(r))
	return strings.TrimSuffix(text.String(), "\n")
}

// usedProcesses are the processes of which it is known what they used.
func usedProcesses(r *bench.Report) (names []string) {
	known := make(map[string]bool)
	note := func(micros map[string]float64) {
		for name := range micros {
			known[name] = true
		}
	}
	for _, s := range r.Throughputs {
		note(s.ProcessorMicros)
	}
	if r.Payments != nil {
		note(r.Payments.ProcessorMicros)
	}
	for _, l := range r.Latencies {
		note(l.ProcessorMicros)
	}
	for _, g := range r.Scaling {
		note(g.Rate.Processor)
	}
	for _, name := range bench.Processes {
		if known[name] {
			names = append(names, name)
		}
	}
	return names
}

// withUse adds what processes used to the end of a row, and their names to that of headers.
func withUse(row []string, micros map[string]float64, processes []string) []string {
	for _, name := range processes {
		row = append(row, decimal("%.0f", micros[name]))
	}
	return row
}

func withNames(headers []string, processes []string) []string {
	for _, name := range processes {
		headers = append(headers, strings.ToUpper(name))
	}
	return headers
}

// decimal formats a figure, of which 0 means that there is none.
func decimal(format string, figure float64) string {
	if figure == 0 {
		return noFigure
	}
	return fmt.Sprintf(format, figure)
}

func benchSales(r *bench.Report, used []string) (title string, headers []string, rows [][]string) {
	headers = []string{"NIGHTS", "RESOURCES", "WORKERS", "HOLDS/S", "CEILING/S", "OF CEILING", "X 1000 RES.", "BASELINE/S", "X BASELINE"}
	rows = make([][]string, len(r.Throughputs))
	for i, s := range r.Throughputs {
		rows[i] = withUse([]string{
			strconv.Itoa(s.Nights), strconv.Itoa(s.Resources), strconv.Itoa(s.Workers), decimal("%.0f", s.PerSecond),
			decimal("%.0f", s.CeilingSecond), decimal("%.2f", s.OfCeiling), decimal("%.2f", s.TimesMany),
			decimal("%.0f", s.BaselineSecond), decimal("%.1f", s.TimesBaseline),
		}, s.ProcessorMicros, used)
		if len(used) > 0 {
			rows[i] = append(rows[i], decimal("%.0f", s.CeilingMicros["redis"]))
		}
	}
	headers = withNames(headers, used)
	if len(used) > 0 {
		headers = append(headers, "(CEILING: REDIS)")
	}
	return "Holds a second. The ceiling is the least script in Redis alone, the baseline goes night by night.", headers, rows
}

func benchPayments(r *bench.Report, used []string) (title string, headers []string, rows [][]string) {
	title = "Payments a second. The ceiling is the same transactions in Postgres alone."
	if p := r.Payments; p != nil {
		row := withUse([]string{decimal("%.0f", p.PerSecond), decimal("%.0f", p.CeilingSecond), decimal("%.2f", p.OfCeiling)}, p.ProcessorMicros, used)
		headers = withNames([]string{"PAYMENTS/S", "CEILING/S", "OF CEILING"}, used)
		if len(used) > 0 {
			row, headers = append(row, decimal("%.0f", p.CeilingMicros["postgres"])), append(headers, "(CEILING: POSTGRES)")
		}
		rows = [][]string{row}
	}
	return title, headers, rows
}

func benchLatencies(r *bench.Report, used []string) (title string, headers []string, rows [][]string) {
	for _, l := range r.Latencies {
		rows = append(rows, withUse([]string{
			fmt.Sprintf("%d %%", l.Percent), decimal("%.0f", l.PerSecond), strconv.Itoa(l.Number), decimal("%.1f", l.P50), decimal("%.1f", l.P99),
			decimal("%.1f", l.P999), decimal("%.1f", l.Max), decimal("%.1f", l.Sent.P99),
		}, l.ProcessorMicros, used))
	}
	headers = withNames([]string{"LOAD", "REQUESTS/S", "REQUESTS", "P50", "P99", "P99.9", "MAX", "(PUBLISHER LATE: P99)"}, used)
	return "Latency in ms, from when a request was due until its outcome was there.", headers, rows
}

func benchExpiries(r *bench.Report) (title string, headers []string, rows [][]string) {
	for _, e := range r.Expiries {
		rows = append(rows, []string{
			map[bool]string{true: "on", false: "off"}[e.Notified], strconv.Itoa(e.Number), decimal("%.1f", e.Within), strconv.Itoa(e.Keys),
			decimal("%.0f", e.Late.P50), decimal("%.0f", e.Late.P99), decimal("%.0f", e.Late.P999), decimal("%.0f", e.Late.Max),
		})
	}
	headers = []string{"NOTIFICATIONS", "HOLDS", "WITHIN S", "OTHER KEYS", "P50", "P99", "P99.9", "MAX"}
	return "How late lapsed holds were given back, in ms.", headers, rows
}

func benchGrowth(r *bench.Report, used []string) (title string, headers []string, rows [][]string) {
	for _, g := range r.Scaling {
		rows = append(rows, withUse([]string{
			strconv.Itoa(g.Live), decimal("%.0f", g.Rate.PerSecond), decimal("%.0f", g.RedisBytes), decimal("%.0f", g.WireIn),
			decimal("%.0f", g.WireOut), decimal("%.0f", g.EventBytes), decimal("%.0f", g.OutcomeBytes), decimal("%.0f", float64(g.WorkerBytes>>20)),
		}, g.Rate.Processor, used))
	}
	headers = withNames([]string{"LIVE HOLDS", "HOLDS/S", "IN REDIS", "TO REDIS", "FROM REDIS", "EVENT", "OUTCOME", "WORKER MIB"}, used)
	return "What one more hold costs when there are so many, in bytes.", headers, rows
}

func benchGoals(r *bench.Report) (title string, headers []string, rows [][]string) {
	for _, g := range r.Goals {
		status := "met"
		if !g.Met {
			status = "missed"
		}
		rows = append(rows, []string{g.Name, g.Bound, strconv.FormatFloat(g.Want, 'f', -1, 64), fmt.Sprintf("%.2f", g.Found), status})
	}
	title = "Goals: all are met."
	if missed := r.FailedGoals(); missed > 0 {
		title = fmt.Sprintf("Goals: %d of %d are missed.", missed, len(r.Goals))
	}
	return title, []string{"GOAL", "BOUND", "WANT", "FOUND", ""}, rows
}
