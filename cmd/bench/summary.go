package main

import (
	"fmt"
	"strconv"
	"strings"

	"holdfast/internal/bench"
	"holdfast/internal/terminal"
)

// noFigure stands in place of a figure that was not measured.
const noFigure = "-"

// summary returns the report for people: a table for each part, and one of the goals.
func summary(r *bench.Report) string {
	var text strings.Builder
	section := func(title string, headers []string, rows [][]string) {
		if len(rows) > 0 {
			text.WriteString(title + "\n" + terminal.Table(headers, rows) + "\n")
		}
	}
	text.WriteString(terminal.Printable(r.Environment()) + "\n\n")
	used := usedProcesses(r)
	if len(used) > 0 {
		text.WriteString("The columns named after processes are CPU time per event, in µs.\n\n")
	}
	section(salesTable(r, used))
	section(paymentsTable(r, used))
	section(latencyTable(r, used))
	section(expiryTable(r))
	section(growthTable(r, used))
	section(goalsTable(r))
	return strings.TrimSuffix(text.String(), "\n")
}

// usedProcesses returns the processes whose CPU time was measured, in the order of bench.Processes.
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

// withUse appends the CPU time of each process to a row.
func withUse(row []string, micros map[string]float64, processes []string) []string {
	for _, name := range processes {
		row = append(row, decimal("%.0f", micros[name]))
	}
	return row
}

// withNames appends a header for each process.
func withNames(headers []string, processes []string) []string {
	for _, name := range processes {
		headers = append(headers, strings.ToUpper(name))
	}
	return headers
}

// decimal formats a figure. 0 means that it was not measured.
func decimal(format string, figure float64) string {
	if figure == 0 {
		return noFigure
	}
	return fmt.Sprintf(format, figure)
}

func salesTable(r *bench.Report, used []string) (title string, headers []string, rows [][]string) {
	headers = []string{
		"NIGHTS", "RESOURCES", "WORKERS", "HOLDS/S", "CEILING/S", "OF CEILING", "X 1000 RES.", "BASELINE/S", "X BASELINE",
	}
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
	title = "Holds per second. Ceiling: the smallest script in Redis alone. Baseline: night by night."
	return title, headers, rows
}

func paymentsTable(r *bench.Report, used []string) (title string, headers []string, rows [][]string) {
	title = "Payments per second. Ceiling: the same transactions in Postgres alone."
	if p := r.Payments; p != nil {
		row := withUse([]string{
			decimal("%.0f", p.PerSecond), decimal("%.0f", p.CeilingSecond), decimal("%.2f", p.OfCeiling),
		}, p.ProcessorMicros, used)
		headers = withNames([]string{"PAYMENTS/S", "CEILING/S", "OF CEILING"}, used)
		if len(used) > 0 {
			row = append(row, decimal("%.0f", p.CeilingMicros["postgres"]))
			headers = append(headers, "(CEILING: POSTGRES)")
		}
		rows = [][]string{row}
	}
	return title, headers, rows
}

func latencyTable(r *bench.Report, used []string) (title string, headers []string, rows [][]string) {
	for _, l := range r.Latencies {
		rows = append(rows, withUse([]string{
			fmt.Sprintf("%d %%", l.Percent), decimal("%.0f", l.PerSecond), strconv.Itoa(l.Number),
			decimal("%.1f", l.P50), decimal("%.1f", l.P99), decimal("%.1f", l.P999), decimal("%.1f", l.Max),
			decimal("%.1f", l.Sent.P99),
		}, l.ProcessorMicros, used))
	}
	headers = withNames([]string{
		"LOAD", "REQUESTS/S", "REQUESTS", "P50", "P99", "P99.9", "MAX", "(PUBLISHED LATE: P99)",
	}, used)
	return "Latency in ms, from when a request was due until its outcome arrived.", headers, rows
}

func expiryTable(r *bench.Report) (title string, headers []string, rows [][]string) {
	for _, e := range r.Expiries {
		rows = append(rows, []string{
			map[bool]string{true: "on", false: "off"}[e.Notified], strconv.Itoa(e.Number), decimal("%.1f", e.Within),
			strconv.Itoa(e.Keys), decimal("%.0f", e.Late.P50), decimal("%.0f", e.Late.P99), decimal("%.0f", e.Late.P999),
			decimal("%.0f", e.Late.Max),
		})
	}
	headers = []string{"NOTIFICATIONS", "HOLDS", "WITHIN S", "OTHER KEYS", "P50", "P99", "P99.9", "MAX"}
	return "How late the slots of expired holds were restored, in ms.", headers, rows
}

func growthTable(r *bench.Report, used []string) (title string, headers []string, rows [][]string) {
	for _, g := range r.Scaling {
		rows = append(rows, withUse([]string{
			strconv.Itoa(g.Live), decimal("%.0f", g.Rate.PerSecond), decimal("%.0f", g.RedisBytes),
			decimal("%.0f", g.WireIn), decimal("%.0f", g.WireOut), decimal("%.0f", g.EventBytes),
			decimal("%.0f", g.OutcomeBytes), decimal("%.0f", float64(g.WorkerBytes>>20)),
		}, g.Rate.Processor, used))
	}
	headers = withNames([]string{
		"LIVE HOLDS", "HOLDS/S", "IN REDIS", "TO REDIS", "FROM REDIS", "EVENT", "OUTCOME", "WORKER MIB",
	}, used)
	return "The cost of one more hold by the number of live holds, in bytes.", headers, rows
}

func goalsTable(r *bench.Report) (title string, headers []string, rows [][]string) {
	for _, g := range r.Goals {
		status := "met"
		if !g.Met {
			status = "missed"
		}
		rows = append(rows, []string{
			g.Name, g.Bound, strconv.FormatFloat(g.Want, 'f', -1, 64), fmt.Sprintf("%.2f", g.Found), status,
		})
	}
	title = "Goals: all met."
	if missed := r.FailedGoals(); missed > 0 {
		title = fmt.Sprintf("Goals: %d of %d missed.", missed, len(r.Goals))
	}
	return title, []string{"GOAL", "BOUND", "WANT", "FOUND", "STATUS"}, rows
}
