package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"holdfast/internal/terminal"
)

// nagiosCommand is `worker nagios`.
type nagiosCommand struct {
	statsAddress `embed:""`
	Warning      time.Duration `default:"10s" help:"WARNING when an event has waited longer than this."`
	Critical     time.Duration `default:"60s" help:"CRITICAL when an event has waited longer than this."`
	Directory    `embed:""`
}

func (*nagiosCommand) Help() string {
	return `It reads the state of a running worker and prints one line with performance data, as Nagios, Icinga and
other monitors expect of a plugin.

Exit codes: 0 OK; 1 WARNING, dead letters exist or an event has waited longer than --warning;
2 CRITICAL, the worker does not answer or is not ready, an operator has paused one of its consumers, an
event has waited longer than --critical, Redis evicts keys, Postgres has lost commits that workers could not
put back, or the worker has found differences in stored data that it cannot heal; 3 UNKNOWN, wrong usage.

One worker at a time reads the data for differences: check all workers.

Examples:

  worker nagios
  worker nagios --http-addr 10.0.0.1:8080 --api-token-file /run/secrets/api-token --critical 5m`
}

// The states of a plugin, which are its exit codes.
const (
	nagiosOK = iota
	nagiosWarning
	nagiosCritical
	nagiosUnknown
)

var nagiosNames = []string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}

// nagiosError is the state of a plugin that is not OK. Its line is already on stdout.
type nagiosError struct{ state int }

func (e *nagiosError) Error() string { return nagiosNames[e.state] }

// Run prints the line and returns a *nagiosError unless all is well.
func (c *nagiosCommand) Run(ctx context.Context, std streams) error {
	state, text := c.check(ctx)
	if state = printNagios(std.out, state, text); state != nagiosOK {
		return &nagiosError{state}
	}
	return nil
}

// printNagios prints the line of a state, and returns the state: UNKNOWN if the line cannot be printed.
func printNagios(to io.Writer, state int, text string) int {
	line, _, _ := strings.Cut(text, "\n")
	if _, err := fmt.Fprintf(to, "HOLDFAST %s - %s\n", nagiosNames[state], line); err != nil {
		return nagiosUnknown
	}
	return state
}

// withoutBar replaces the character that begins the performance data.
func withoutBar(text string) string { return strings.ReplaceAll(text, "|", "/") }

// check returns the state and its reasons, with performance data.
func (c *nagiosCommand) check(ctx context.Context) (state int, text string) {
	switch {
	case c.Warning < 0 || c.Critical < 0:
		return nagiosUnknown, "--warning and --critical must not be negative"
	case c.Warning > c.Critical:
		return nagiosUnknown, "--warning must not exceed --critical"
	}
	t, err := c.find(c.DataDir)
	if err != nil {
		return nagiosUnknown, withoutBar(err.Error())
	}
	stats, err := t.stats(ctx)
	if err != nil {
		return nagiosCritical, withoutBar(err.Error())
	}
	return c.stateOf(&stats)
}

// stateOf returns the state for the answer of a worker.
func (c *nagiosCommand) stateOf(stats *workerStats) (state int, text string) {
	reasons, waiting, oldest := []string(nil), uint64(0), time.Duration(0)
	add := func(of int, format string, args ...any) {
		state, reasons = max(state, of), append(reasons, fmt.Sprintf(format, args...))
	}
	if !stats.Ready {
		add(nagiosCritical, "not ready: %s", strings.Join(stats.Reasons, ", "))
	}
	for _, loss := range []string{"lost_commits", "redis_eviction"} { // slots may be sold twice
		if detail := stats.Details[loss]; detail != "" {
			add(nagiosCritical, "%s", withoutBar(terminal.Printable(detail)))
		}
	}
	for _, consumer := range stats.Consumers {
		waiting += consumer.Pending
		oldest = max(oldest, time.Duration(consumer.OldestAgeSeconds*float64(time.Second)))
		if consumer.Pause != nil { // and not by an outage
			add(nagiosCritical, "%s is %s", consumer.Name, withoutBar(terminal.Printable(consumer.Pause.String())))
		}
	}
	switch {
	case oldest > c.Critical:
		add(nagiosCritical, "an event has waited for %s", oldest.Round(time.Second))
	case oldest > c.Warning:
		add(nagiosWarning, "an event has waited for %s", oldest.Round(time.Second))
	}
	if n := stats.AuditLeft; n > 0 {
		add(nagiosCritical, "%s left in stored data, see worker audit", terminal.Counted(int(n), "difference"))
	}
	if n := stats.DeadLetters.Total; n > 0 {
		add(nagiosWarning, "%s", terminal.Counted(int(n), "dead letter"))
	}
	if state == nagiosOK {
		reasons = []string{"ready, " + terminal.Counted(int(waiting), "event") + " waiting"}
	}
	return state, fmt.Sprintf("%s | oldest=%.3fs;%g;%g;0 waiting=%d;;;0 dead_letters=%d;0;;0", strings.Join(reasons, "; "),
		oldest.Seconds(), c.Warning.Seconds(), c.Critical.Seconds(), waiting, stats.DeadLetters.Total)
}
