package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"holdfast/internal/client"
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
	case c.Resume != "" && (c.Operator.Note != "" || c.Operator.Who != os.Getenv(whoVariable)): // the variable is no request
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
	log, seqs, err := c.start(ctx, p, deadLetters)
	if log == nil {
		return err
	}
	return p.executeRun(ctx, deadLetters, log, seqs, deadLetters.ReplayWork(log, p.Timeout))
}

// start starts or resumes a run and returns the dead letters to process. It returns a nil log if there
// is nothing to do: without an error if no dead letters match, with that of its results if the run is
// over.
func (c *dlqReplay) start(
	ctx context.Context, p *program, deadLetters *client.DeadLetters,
) (*client.RunLog, []uint64, error) {
	if c.Resume == "" {
		return p.startRun(ctx, deadLetters, &c.Choice, &c.Operator, "Replay", client.Run{
			Verb: client.RunReplay, Keep: c.Keep, Limits: c.limits(nil),
		})
	}
	if uuid.Validate(c.Resume) != nil {
		return nil, nil, misused("--run: %q is not a run id, see publisher dlq runs", c.Resume)
	}
	run, err := deadLetters.GetRun(ctx, c.Resume)
	switch {
	case err != nil:
		return nil, nil, p.withHint(err)
	case run.Verb != client.RunReplay:
		return nil, nil, misused("--run: %s is a run of dlq %s, only a dlq replay can be resumed, see publisher dlq runs", c.Resume, run.Verb)
	case run.IsOver():
		p.reportf("run %s is %v", run.ID, client.ErrRunOver)
		if err := p.printRun(run); err != nil {
			return nil, nil, err
		}
		return nil, nil, runError(run)
	}
	question := fmt.Sprintf("Resume the replay of %s (%d processed)?", terminal.Counted(run.Total, "dead letter"), run.Processed())
	if err := p.confirm(ctx, c.Operator, question); err != nil {
		return nil, nil, err
	}
	return deadLetters.ResumeRun(ctx, c.Resume, c.limits(run.Limits))
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
