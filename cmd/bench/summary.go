package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"holdfast/internal/bench"
	"holdfast/internal/terminal"
)

// noFigure stands in place of a figure that was not measured.
const noFigure = "-"

// table is a table of the report.
type table struct {
	title   string
	headers []string
	rows    [][]string
}

// tables returns the tables of what was measured, the goals last.
func tables(r *bench.Report) (measured []table) {
	for _, t := range []table{
		salesTable(r), batchesTable(r), latencyTable(r), peersTable(r), paymentsTable(r), expiryTable(r),
		overloadTable(r), scaleTable(r), consoleTable(r), idleTable(r), growthTable(r), goalsTable(r),
	} {
		if len(t.rows) > 0 {
			measured = append(measured, t)
		}
	}
	return measured
}

// summary returns the report for people at a terminal.
func summary(r *bench.Report) string {
	var text strings.Builder
	text.WriteString(terminal.Printable(r.Environment()) + "\n" + terminal.Printable(r.Circumstances()) + "\n\n")
	for _, t := range tables(r) {
		text.WriteString(t.title + "\n" + terminal.Table(t.headers, t.rows) + "\n")
	}
	return strings.TrimSuffix(text.String(), "\n")
}

// markdown returns the report as a page.
func markdown(r *bench.Report) string {
	var text strings.Builder
	fmt.Fprintf(&text, "# Measurements\n\nWritten by `%s` at %s UTC, revision %s. Do not edit.\n\n%s.\n%s.\n",
		r.Command, r.At.Format("2006-01-02 15:04"), r.Versions.Holdfast, r.Environment(), r.Circumstances())
	for _, t := range tables(r) {
		text.WriteString("\n## " + t.title + "\n\n| " + strings.Join(t.headers, " | ") + " |\n|" +
			strings.Repeat("---|", len(t.headers)) + "\n")
		for _, row := range t.rows {
			text.WriteString("| " + strings.Join(row, " | ") + " |\n")
		}
	}
	return text.String()
}

// usedHeaders are the headers of the cells of used: CPU time of each event in µs, by process.
var usedHeaders = append(upper(bench.Processes), "SUM")

func upper(names []string) (headers []string) {
	for _, name := range names {
		headers = append(headers, strings.ToUpper(name))
	}
	return headers
}

// used returns the CPU time of each process, and the sum without the load generator.
func used(micros map[string]float64) (cells []string) {
	for _, name := range bench.Processes {
		cells = append(cells, decimal("%.0f", micros[name]))
	}
	return append(cells, decimal("%.0f", bench.SumMicros(micros)))
}

// decimal formats a figure. 0 means that it was not measured.
func decimal(format string, figure float64) string {
	if figure == 0 {
		return noFigure
	}
	return fmt.Sprintf(format, figure)
}

func salesTable(r *bench.Report) table {
	t := table{
		"Sales: holds per second. Ceiling: the least script in Redis alone. CPU time in µs each.",
		slices.Concat([]string{
			"NIGHTS", "RESOURCES", "WORKERS", "HOLDS/S", "CEILING/S", "OF CEILING", "X 1000 RES.",
		}, usedHeaders, []string{"(CEILING: REDIS)"}), nil,
	}
	for _, s := range r.Throughputs {
		row := []string{
			strconv.Itoa(s.Nights), strings.TrimSpace(strconv.Itoa(s.Resources) + " " + s.Spread), strconv.Itoa(s.Workers),
			decimal("%.0f", s.PerSecond), decimal("%.0f", s.CeilingSecond), decimal("%.2f", s.OfCeiling),
			decimal("%.2f", s.TimesMany),
		}
		t.rows = append(t.rows, append(append(row, used(s.ProcessorMicros)...), decimal("%.0f", s.CeilingMicros["redis"])))
	}
	return t
}

func batchesTable(r *bench.Report) table {
	t := table{
		"Batches: requests for different resources that arrive together. CPU time in µs each.",
		append([]string{"TOGETHER", "HOLDS/S"}, usedHeaders...), nil,
	}
	for _, g := range r.Batches {
		row := []string{strconv.Itoa(g.Size), decimal("%.0f", g.Rate.PerSecond)}
		t.rows = append(t.rows, append(row, used(g.Rate.Processor)...))
	}
	return t
}

func latencyTable(r *bench.Report) table {
	t := table{
		"Latency in ms, from when a request was due until its outcome arrived. CPU time in µs each.",
		append([]string{
			"LOCKS", "LOAD", "REQUESTS/S", "P50", "P99", "P99.9", "MAX", "(PUBLISHED LATE: P99)",
		}, usedHeaders...), nil,
	}
	for _, l := range r.Latencies {
		share := noFigure
		if l.Percent > 0 {
			share = fmt.Sprintf("%d %%", l.Percent)
		}
		t.rows = append(t.rows, append([]string{
			l.Strategy, share, decimal("%.0f", l.PerSecond), decimal("%.1f", l.P50), decimal("%.1f", l.P99),
			decimal("%.1f", l.P999), decimal("%.1f", l.Max), decimal("%.1f", l.Sent.P99),
		}, used(l.ProcessorMicros)...))
	}
	return t
}

func peersTable(r *bench.Report) table {
	t := table{"Peers: holds per second in a closed loop; latency in ms; what each does for a hold.", []string{
		"PEER", "NIGHTS", "RESOURCES", "HOLDS/S", "AT ONCE", "P50", "P99", "AT 1/4: P50, P99", "EXPIRY GIVES BACK",
		"EVENT STORED", "OUTCOME KEPT", "SURVIVES KILL",
	}, nil}
	yes := func(does bool) string { return map[bool]string{true: "yes", false: "no"}[does] }
	survives := func(known *bool) string {
		if known == nil {
			return noFigure
		}
		return yes(*known)
	}
	for _, p := range r.Peers {
		quarter := noFigure
		if p.Quarter != nil {
			quarter = fmt.Sprintf("%.1f, %.1f", p.Quarter.P50, p.Quarter.P99)
		}
		t.rows = append(t.rows, []string{
			p.Name, strconv.Itoa(p.Nights), strconv.Itoa(p.Resources), decimal("%.0f", p.Rate.PerSecond),
			strconv.Itoa(p.InFlight), decimal("%.1f", p.P50), decimal("%.1f", p.P99), quarter,
			yes(p.Expires), yes(p.Event), yes(p.Outcome), survives(p.Survives),
		})
	}
	return t
}

func paymentsTable(r *bench.Report) table {
	t := table{
		"Payments per second. Ceiling: the same transactions in Postgres alone. CPU time in µs each.",
		slices.Concat([]string{"PAYMENTS/S", "CEILING/S", "OF CEILING"}, usedHeaders, []string{"(CEILING: POSTGRES)"}), nil,
	}
	if p := r.Payments; p != nil {
		row := []string{decimal("%.0f", p.PerSecond), decimal("%.0f", p.CeilingSecond), decimal("%.2f", p.OfCeiling)}
		t.rows = [][]string{append(append(row, used(p.ProcessorMicros)...), decimal("%.0f", p.CeilingMicros["postgres"]))}
	}
	return t
}

func expiryTable(r *bench.Report) table {
	t := table{"Expiry: how late the slots of expired holds were restored, in ms.", []string{
		"NOTIFICATIONS", "HOLDS", "WITHIN S", "OTHER KEYS", "P50", "P99", "P99.9", "MAX",
	}, nil}
	for _, e := range r.Expiries {
		t.rows = append(t.rows, []string{
			map[bool]string{true: "on", false: "off"}[e.Notified], strconv.Itoa(e.Number), decimal("%.1f", e.Within),
			strconv.Itoa(e.Keys), decimal("%.0f", e.Late.P50), decimal("%.0f", e.Late.P99), decimal("%.0f", e.Late.P999),
			decimal("%.0f", e.Late.Max),
		})
	}
	return t
}

func overloadTable(r *bench.Report) table {
	t := table{"Overload: a server with a tenth of a processor, while requests wait.", []string{
		"THROTTLED", "WORKERS", "HOLDS/S", "ATTEMPTS EACH", "NORMAL AGAIN AFTER S", "NORMAL/S",
	}, nil}
	for _, o := range r.Overloads {
		t.rows = append(t.rows, []string{
			o.Server, strconv.Itoa(o.Workers), decimal("%.0f", o.PerSecond), decimal("%.2f", o.Attempts),
			fmt.Sprintf("%.1f", o.BackSeconds), decimal("%.0f", o.Normal),
		})
	}
	return t
}

func scaleTable(r *bench.Report) table {
	t := table{
		"Scale: workers with as many shards of Redis, each with a tenth of a processor. CPU time in µs each.",
		slices.Concat([]string{"WORKERS", "HOLDS/S", "X ONE", "ATTEMPTS EACH"}, usedHeaders, []string{"X ONE", "OTHERS BUSY"}),
		nil,
	}
	for _, s := range r.ScaleOuts {
		row := append([]string{
			strconv.Itoa(s.Workers), decimal("%.0f", s.PerSecond), decimal("%.2f", s.TimesOne), decimal("%.2f", s.Attempts),
		}, used(s.ProcessorMicros)...)
		t.rows = append(t.rows, append(row, decimal("%.2f", s.MicrosTimesOne), fmt.Sprintf("%.1f", s.Others)))
	}
	return t
}

func consoleTable(r *bench.Report) table {
	t := table{
		"Console: stored requests, by live pages that are open. CPU time in µs each.",
		slices.Concat([]string{"LIVE PAGES", "HOLDS/S", "X NONE"}, usedHeaders, []string{"X NONE"}), nil,
	}
	if c := r.Consoles; c != nil {
		t.rows = [][]string{
			append(append([]string{"0", decimal("%.0f", c.PerSecond), decimal("%.3f", 1)}, used(c.Micros)...), decimal("%.3f", 1)),
			append(append([]string{strconv.Itoa(c.Pages), decimal("%.0f", c.WithSecond), decimal("%.3f", c.TimesWithout)},
				used(c.WithMicros)...), decimal("%.3f", c.MicrosTimes)),
		}
	}
	return t
}

func idleTable(r *bench.Report) table {
	t := table{
		"Idle: CPU time of a worker without work, in percent of a processor.",
		append([]string{"INVENTORY ROWS"}, usedHeaders...), nil,
	}
	if r.Idle != nil {
		row := []string{strconv.Itoa(r.Idle.Rows)}
		for _, name := range bench.Processes {
			row = append(row, decimal("%.1f", r.Idle.Percent[name]))
		}
		t.rows = [][]string{append(row, fmt.Sprintf("%.1f", r.Idle.Sum))}
	}
	return t
}

func growthTable(r *bench.Report) table {
	t := table{
		"Growth: the cost of one more hold by the number of live holds, in bytes. CPU time in µs each.",
		slices.Concat([]string{
			"LIVE HOLDS", "HOLDS/S", "IN REDIS", "TO REDIS", "FROM REDIS", "EVENT", "OUTCOME", "WORKER MIB",
		}, usedHeaders, []string{"IN REDIS, BY KIND OF KEY"}), nil,
	}
	for _, g := range r.Scaling {
		row := append([]string{
			strconv.Itoa(g.Live), decimal("%.0f", g.Rate.PerSecond), decimal("%.0f", g.RedisBytes),
			decimal("%.0f", g.WireIn), decimal("%.0f", g.WireOut), decimal("%.0f", g.EventBytes),
			decimal("%.0f", g.OutcomeBytes), decimal("%.0f", float64(g.WorkerBytes>>20)),
		}, used(g.Rate.Processor)...)
		t.rows = append(t.rows, append(row, g.KindsLine()))
	}
	return t
}

func goalsTable(r *bench.Report) table {
	t := table{"Goals: all met.", []string{"GOAL", "BOUND", "WANT", "FOUND", "STATUS"}, nil}
	for _, g := range r.Goals {
		status := "met"
		if !g.Met {
			status = "missed"
		}
		t.rows = append(t.rows, []string{
			g.Name, g.Bound, strconv.FormatFloat(g.Want, 'f', -1, 64), fmt.Sprintf("%.2f", g.Found), status,
		})
	}
	if missed := r.FailedGoals(); missed > 0 {
		t.title = fmt.Sprintf("Goals: %d of %d missed.", missed, len(r.Goals))
	}
	return t
}
