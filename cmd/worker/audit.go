package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"holdfast/internal/audit"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/postgres"
	"holdfast/internal/terminal"
)

// auditCommand is `worker audit`.
type auditCommand struct {
	ResourceID       string `name:"resource-id" placeholder:"R" help:"Audit this resource only."`
	CapacityByEvents bool   `name:"capacity-by-events" help:"Check each grant against the capacity that inventory.updated events had published by then. Use it only when capacity is never written by SQL."`
	Repair           bool   `help:"Repair what can be repaired safely, after you confirm it."`
	Yes              bool   `help:"Repair without confirmation."`
	Output           string `short:"o" default:"table" enum:"table,json" help:"Output format: table or json."`
	FoundServers     `embed:""`
	RequestKeyTTL    *time.Duration `name:"request-key-ttl" env:"HOLDFAST_REQUEST_KEY_TTL" group:"Policies, as set for the workers:" help:"How long repaired answers and ended holds are remembered. Default: the stored policy."`
}

func (*auditCommand) Help() string {
	return `It reads the streams, Redis and Postgres and compares them. For each difference it prints what it is,
where it is, which event it followed, and a remedy. Workers can run at the same time.

It changes nothing without --repair. With --repair it shows the differences and repairs them after
you confirm, or at once with --yes. Without a terminal --yes is required.

Exit codes: 0 no differences left, 1 failed, 2 wrong usage, 3 differences left.

Examples:

  worker audit
  worker audit --resource-id loft -o json
  worker audit --repair`
}

// Validate implements kong's check.
func (c *auditCommand) Validate() error {
	switch {
	case c.Yes && !c.Repair:
		return misused("--yes is for --repair only")
	case c.Repair && !c.Yes && c.Output == "json":
		return misused("--repair with -o json cannot ask for confirmation: add --yes")
	case c.ResourceID != "" && !holds.ResourcePattern.MatchString(c.ResourceID):
		return misused("--resource-id must match %s", holds.ResourcePattern)
	case c.RequestKeyTTL != nil && *c.RequestKeyTTL < time.Second:
		return misused("--request-key-ttl %s must be at least 1s", *c.RequestKeyTTL)
	}
	return nil
}

// differencesError is the error of an audit that leaves differences unrepaired.
type differencesError struct{ left int }

func (e *differencesError) Error() string { return terminal.Counted(e.left, "difference") + " left" }

// progressSteps is the number of steps of a whole audit on a terminal.
const progressSteps = 1000

// Run audits the servers. It returns a differencesError when differences are left.
func (c *auditCommand) Run(ctx context.Context, std streams) error {
	if c.Repair && !c.Yes {
		if err := requireTerminal(); err != nil {
			return err
		}
	}
	if err := c.find(c.DataDir); err != nil {
		return err
	}
	client, err := c.redisClient()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // all commands have ended
	pool, err := audit.OpenPostgres(ctx, c.PostgresURL, c.Namespace, postgres.AllowReadOnlyRole)
	if err != nil {
		return misusedPostgres(err)
	}
	defer postgres.Close(pool)
	ctx, js, disconnect, err := c.openNATS(ctx, "holdfast audit "+c.Namespace, std.warnf)
	if err != nil {
		return err
	}
	defer disconnect()
	servers := audit.Backends{Namespace: c.Namespace, JetStream: js, Redis: client, Postgres: pool}
	return c.audit(ctx, std, servers)
}

// audit audits the servers, and repairs with --repair.
func (c *auditCommand) audit(ctx context.Context, std streams, servers audit.Backends) error {
	bar := terminal.NewProgress(std.err, progressSteps, progressbar.OptionSetElapsedTime(true))
	report, err := audit.Run(ctx, servers, audit.Options{
		ResourceID: c.ResourceID, CapacityByEvents: c.CapacityByEvents,
		Progress: func(what string, share float64) {
			bar.Describe(what)
			bar.Set(int64(share * progressSteps))
		},
	})
	bar.End()
	if err != nil {
		return events.Refused(ctx, err)
	}
	if c.Output == "table" {
		printReport(std.out, report, c.ResourceID)
	}
	var unrepaired error
	if c.Repair {
		unrepaired = c.repair(ctx, std, servers, report)
	}
	if c.Output == "json" {
		unrepaired = errors.Join(unrepaired, printJSON(std.out, report)) // also what was repaired before an error
	}
	if unrepaired != nil {
		return unrepaired
	}
	if left := report.Unrepaired(); left > 0 {
		return &differencesError{left}
	}
	return nil
}

// repair repairs the findings for which that is safe, after confirmation unless --yes is given.
func (c *auditCommand) repair(ctx context.Context, std streams, servers audit.Backends, report *audit.Report) error {
	repairable := 0
	for _, f := range report.Findings {
		if f.Automatic {
			repairable++
		}
	}
	if repairable == 0 {
		return nil
	}
	all := terminal.Counted(report.Unrepaired(), "difference")
	question := fmt.Sprintf("Repair %d of %s as described above?", repairable, all)
	if !c.Yes && !terminal.Confirmed(ctx, os.Stdin, std.err, question) {
		fmt.Fprintln(std.err, "Nothing was changed.")
		return nil
	}
	memory := time.Duration(0) // as the stored policy
	if c.RequestKeyTTL != nil {
		memory = *c.RequestKeyTTL
	}
	err := audit.Repair(ctx, servers, report.Findings, memory)
	if c.Output == "table" {
		printRepairs(std.out, report)
	}
	return err
}

// printReport prints a report for people. only is the resource that was audited, empty for all.
func printReport(to io.Writer, r *audit.Report, only string) {
	c := r.Stats
	fmt.Fprintf(to, "Audited namespace %s at %s: %s, %s, %s; %s with %s and %s in Redis;\n"+
		"%s, %s and %s in Postgres; in %.1f s.\n", r.Namespace, r.At.Format(holds.TimeFormat),
		terminal.Counted(c.Events, "event"), terminal.Counted(c.Outcomes, "outcome"), terminal.Counted(c.DeadLetters, "dead letter"),
		terminal.Counted(c.Resources, "resource"), terminal.Counted(c.Records, "record"), terminal.Counted(c.Keys, "key"),
		terminal.Counted(c.Slots, "slot"), terminal.Counted(c.Reservations, "reservation"), terminal.Counted(c.Payments, "payment"),
		float64(r.TookMS)/1000)
	for _, name := range slices.Sorted(maps.Keys(r.StreamStarts)) {
		if since := r.StreamStarts[name]; !since.Whole {
			from := "it is empty"
			if since.Time != nil {
				from = fmt.Sprintf("it starts at sequence %d, stored at %s", since.Seq, since.Time.Format(holds.TimeFormat))
			}
			fmt.Fprintf(to, "Older messages of stream %s were removed: %s.\n", name, from)
		}
	}
	for _, text := range r.Inconclusive {
		fmt.Fprintf(to, "Inconclusive: %s.\n", text)
	}
	if p := r.Pending; p.Events > 0 {
		fmt.Fprintf(to, "In progress: %s without an outcome, the oldest stored at %s.\n",
			terminal.Counted(p.Events, "event"), p.Oldest.Format(holds.TimeFormat))
	}
	if p := r.Pending; p.Expirations > 0 || p.Announcements > 0 {
		fmt.Fprintf(to, "In progress: %s past the deadline and not swept, %d swept and not announced.\n",
			terminal.Counted(p.Expirations, "hold"), p.Announcements)
	}
	switch known := c.Events + c.Outcomes + c.Keys + c.Slots + c.Reservations + c.Payments; {
	case r.Unrepaired() > 0:
	case only != "" && known == 0:
		fmt.Fprintf(to, "\nResource %s has no data.\n", only)
		return
	default:
		fmt.Fprint(to, "\nNo differences found.\n")
		return
	}
	reported := make(map[audit.Kind]int)
	for i, f := range r.Findings {
		reported[f.Kind]++
		title := slices.DeleteFunc([]string{string(f.Kind), f.Resource, f.Item}, func(s string) bool { return s == "" })
		fmt.Fprintf(to, "\n%d. %s\n   %s\n", i+1, strings.Join(title, "  "), f.Text)
		fmt.Fprintf(to, "   where   %s: found %s, expected %s\n", f.Where, f.Found, f.Expected)
		if a := f.After; a != nil {
			fmt.Fprintf(to, "   after   sequence %d of %s: %s %s, %s\n",
				a.Seq, a.Stream, a.Type, a.ID, a.Time.Format(holds.TimeFormat))
		}
		remedy := f.Remedy
		if f.Automatic {
			remedy += " worker audit --repair does this."
		}
		fmt.Fprintf(to, "   remedy  %s\n", remedy)
	}
	for _, kind := range slices.Sorted(maps.Keys(r.Counts)) {
		if more := r.Counts[kind] - reported[kind]; more > 0 {
			fmt.Fprintf(to, "\n%d more of kind %s.\n", more, kind)
		}
	}
}

// printRepairs prints the results of the repairs.
func printRepairs(to io.Writer, r *audit.Report) {
	done := 0
	for i, f := range r.Findings {
		switch f.Result {
		case audit.Done, audit.Gone:
			done++
		case audit.Changed:
			fmt.Fprintf(to, "\n%d. was not repaired: the difference has changed. Audit again.\n", i+1)
		case audit.Impossible, audit.Unsafe:
			fmt.Fprintf(to, "\n%d. was not repaired: more than one repair is possible. An operator must decide.\n", i+1)
		}
	}
	fmt.Fprintf(to, "\n%d repaired.\n", done)
}
