package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/terminal"
)

// dlqReplay publishes the events of dead letters again.
type dlqReplay struct {
	Choice         choice        `embed:""`
	DryRun         bool          `help:"Show what each event would do now. Publishes nothing, removes nothing."`
	Keep           bool          `help:"Do not remove the dead letters."`
	Rate           *float64      `placeholder:"N" help:"Events per second, at most; 0 for no limit. Default: 50, or with --run the rate of that run."`
	StopOnFailures *percent      `placeholder:"SHARE" help:"Stop when more than this share of the processed events was dead-lettered again or failed, from 20 processed events on; 100% never stops. Default: 20%, or with --run the share of that run."`
	MaxReplays     *uint64       `placeholder:"N" help:"Skip events that were dead-lettered again after N replays; 0 for no limit. Default: 3 with --all, no limit for given sequences, or with --run the limit of that run."`
	Resume         string        `name:"run" placeholder:"ID" help:"Resume a run that did not finish, with its --rate, --stop-on-failures and --max-replays unless given."`
	Wait           bool          `hidden:"" help:"For scripts that give it with every command: a replay always waits for its outcomes."`
	Operator       operatorFlags `embed:""`
}

// limits returns the given limits, with those of base or the defaults for the others.
func (c *dlqReplay) limits(base *client.RunLimits) *client.RunLimits {
	limits := client.DefaultRunLimits
	switch {
	case base != nil:
		limits = *base
	case !c.Choice.All:
		limits.MaxReplays = 0 // who gives a sequence wants its replay
	}
	if c.Rate != nil {
		limits.Rate = *c.Rate
	}
	if c.StopOnFailures != nil {
		limits.StopOnFailures = int(*c.StopOnFailures)
	}
	if c.MaxReplays != nil {
		limits.MaxReplays = *c.MaxReplays
	}
	return &limits
}

func (*dlqReplay) Help() string {
	return `Publishes the events of dead letters again, oldest first, on their original subjects and with their
original bodies and headers (without the headers Nats-..., Holdfast-Reply-To and Holdfast-Dlq-...).
It removes a dead letter when its event is stored. The events keep their ids: an event that already
has an outcome gets the same outcome and changes nothing. An event that fails again becomes a new
dead letter, which counts its replays (dlq show). --all skips an event that was dead-lettered again
after 3 replays (--max-replays): give its sequence to replay it nevertheless.

It asks for confirmation and records each run, see publisher dlq runs. After Ctrl-C or a crash,
--run ID processes the rest of the run, and searches again for outcomes that had not come. The run keeps
the name and the note of who started it.

Exit codes, the first that applies: 2 wrong usage; 1 not finished, or a dead letter failed; 4 done,
and some events were dead-lettered again or skipped; 5 done, and some events had no outcome within
--timeout; 3 done, and some events were rejected; 0 done.

Examples:

  publisher dlq replay --all --reason poison --dry-run
  publisher dlq replay 12 13
  publisher dlq replay --all --reason poison --since 1d --rate 200 --note "fixed in 2.4.1" --yes
  publisher dlq replay --run 0198f0c2-a1b4-7c3d-8e4f-5a6b7c8d9e0f`
}

func (c *dlqReplay) Validate() error {
	switch {
	case c.Resume != "" && (!c.Choice.isEmpty() || c.Keep || c.DryRun):
		return misused("--run resumes a run with its own dead letters: give no sequences, --all, filters, --keep or --dry-run")
	case c.Resume != "" && (c.Operator.Note != "" || c.Operator.Who != os.Getenv("HOLDFAST_WHO")): // the variable is no request
		return misused("--run resumes a run: who started it and why stay recorded, give no --who and no --note")
	case c.Resume == "" && c.Choice.isEmpty():
		return misused("no dead letters selected: give sequences, --all, or --run")
	case c.Rate != nil:
		return checkRate(*c.Rate)
	}
	return nil
}

func (c *dlqReplay) Run(ctx context.Context, p *program) error {
	if !c.DryRun {
		if err := cmp.Or(p.canConfirm(c.Operator), p.checkReplies()); err != nil {
			return err
		}
	}
	deadLetters, err := p.deadLetters(ctx)
	if err != nil {
		return err
	}
	if c.DryRun {
		return c.dryRun(ctx, p, deadLetters)
	}
	log, err := c.start(ctx, p, deadLetters)
	if log == nil {
		return err
	}
	return p.executeRun(ctx, deadLetters, log, deadLetters.ReplayWork(log, p.Timeout))
}

// start starts or resumes a run. It returns a nil log if there is nothing to do: without an error if no
// dead letters match, with that of its results if the run is over.
func (c *dlqReplay) start(ctx context.Context, p *program, deadLetters *client.DeadLetters) (*client.RunLog, error) {
	if c.Resume == "" {
		return p.startRun(ctx, deadLetters, &c.Choice, &c.Operator, "Replay", client.Run{
			Verb: client.RunReplay, Keep: c.Keep, Limits: c.limits(nil),
		})
	}
	if uuid.Validate(c.Resume) != nil {
		return nil, misused("--run: %q is not a run id, see publisher dlq runs", c.Resume)
	}
	run, err := deadLetters.GetRun(ctx, c.Resume)
	switch {
	case err != nil:
		return nil, p.withHint(err)
	case run.Verb != client.RunReplay:
		return nil, misused("--run: %s is a run of dlq %s, only a dlq replay can be resumed, see publisher dlq runs", c.Resume, run.Verb)
	case run.IsOver():
		p.reportf("run %s is %v", run.ID, client.ErrRunOver)
		if err := p.printRun(run); err != nil {
			return nil, err
		}
		return nil, runError(run)
	}
	question := fmt.Sprintf("Resume the replay of %s (%d processed)?", terminal.Counted(run.Total, "dead letter"), run.Processed())
	if err := p.confirm(ctx, c.Operator, question); err != nil {
		return nil, err
	}
	return deadLetters.ResumeRun(ctx, c.Resume, c.limits(run.Limits))
}

// dryRunsMax is the number of concurrent queries of a dry run. When so many in a row have no answer, the others are not
// sent: each would wait for the timeout, too.
const dryRunsMax = 32

// dryRunRow is the dry-run result of one dead letter.
type dryRunRow struct {
	Seq     uint64 `json:"seq"`
	EventID string `json:"event_id"`
	events.DryRunResult

	summary events.EventSummary
	err     error // why there is no result
}

// dryRun prints for each selected dead letter what a replay would do now. A worker decides with the
// code that decides events, and writes nothing.
func (c *dlqReplay) dryRun(ctx context.Context, p *program, deadLetters *client.DeadLetters) error {
	limits := c.limits(nil)
	var all []*dryRunRow
	var unread error
	var unanswered atomic.Int64 // in a row
	queries, querying := errgroup.WithContext(ctx)
	queries.SetLimit(dryRunsMax)
	for l, err := range c.Choice.choose(querying, deadLetters, true) {
		if err != nil {
			unread = err
			break
		}
		e := &dryRunRow{Seq: l.Seq, EventID: l.EventID, summary: l.Event}
		all = append(all, e)
		queries.Go(func() error {
			m, why := limits.ReplayOf(p.namespace(), l)
			if m == nil {
				e.DryRunResult = why
				return nil
			}
			e.dryRun(querying, p, deadLetters, m)
			switch {
			case errors.Is(e.err, client.ErrNoWorker):
				return fmt.Errorf("%w: a dry run needs a worker; is one running in namespace %s?", e.err, p.Namespace)
			case !errors.Is(e.err, errNoDryRun):
				unanswered.Store(0)
			case unanswered.Add(1) >= dryRunsMax:
				return fmt.Errorf("no answer to %d dry runs in a row, the others were not tried: %w", dryRunsMax, e.err)
			}
			return nil
		})
	}
	stopped := queries.Wait()
	if ctx.Err() != nil {
		stopped = errInterrupted
	}
	if stopped != nil {
		known := slices.DeleteFunc(all, func(e *dryRunRow) bool { return e.err != nil || e.Text == "" })
		if len(known) == 0 {
			return stopped
		}
		return errors.Join(p.printDryRuns(known), stopped)
	}
	return errors.Join(unread, p.printDryRuns(all))
}

// printDryRuns prints dry-run results, and returns the first error for which one is not known.
func (p *program) printDryRuns(all []*dryRunRow) (failed error) {
	out := p.newList([]string{"seq", "event", "resource", "result", "detail"},
		[]string{"seq", "event", "event_id", "resource", "result", "outcome", "reason", "detail"})
	for _, e := range all {
		if e.err != nil && failed == nil {
			failed = fmt.Errorf("dead letter %d: %w", e.Seq, e.err)
		}
		s := e.summary
		if err := out.add(e, []any{e.Seq, s.Type, s.Resource, e.Text, e.Detail},
			[]any{e.Seq, s.Type, e.EventID, s.Resource, e.Text, e.Event, e.Reason, e.Detail}); err != nil {
			return err
		}
	}
	if err := out.end("no matching dead letters"); err != nil {
		return err
	}
	if !out.isJSON() && len(all) > 1 {
		if err := p.printCounts(all); err != nil {
			return err
		}
	}
	return failed
}

// errNoDryRun reports that nothing has answered a dry run in time.
var errNoDryRun = errors.New("no answer to the dry run")

// dryRun requests the dry run of one dead letter, whose replay would publish m.
func (e *dryRunRow) dryRun(ctx context.Context, p *program, cl *client.DeadLetters, m *nats.Msg) {
	waiting, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	if e.DryRunResult, e.err = cl.DryRun(waiting, m); e.err == nil {
		return
	}
	e.DryRunResult = events.DryRunResult{Text: "not known", Detail: e.err.Error()}
	if errors.Is(e.err, context.DeadlineExceeded) && ctx.Err() == nil {
		e.err = fmt.Errorf("%w within %s; NATS or the workers of namespace %s hang or are overloaded: check their logs "+
			"and /readyz, then try again, or with a longer --timeout", errNoDryRun, p.Timeout, p.Namespace)
	}
}

// printCounts prints a table of the results, the most frequent first.
func (p *program) printCounts(all []*dryRunRow) error {
	counts, outcomes := make(map[string]int), make(map[string]string)
	for _, e := range all {
		kind := e.Label()
		counts[kind]++
		outcomes[kind] = e.Event
	}
	out := p.newList([]string{"count", "result", "outcome"}, nil)
	for _, kind := range terminal.ByCount(counts) {
		out.addRow(counts[kind], kind, outcomes[kind])
	}
	return errors.Join(p.print("\n"), out.end(""))
}

// percent is a share, 0% to 100%.
type percent int

func (s *percent) UnmarshalText(text []byte) error {
	number, _ := strings.CutSuffix(string(text), "%")
	n, err := strconv.ParseUint(number, 10, 8)
	if err != nil || n > 100 {
		return fmt.Errorf("want 0%% to 100%%, got %q", text)
	}
	*s = percent(n)
	return nil
}
