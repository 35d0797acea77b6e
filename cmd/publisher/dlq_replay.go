package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"holdfast/internal/client"
)

// dlqReplay publishes events of dead letters again.
type dlqReplay struct {
	Choice         choice        `embed:""`
	DryRun         bool          `help:"Say for each what would happen now. Publishes nothing, removes nothing."`
	Keep           bool          `help:"Leave the dead letters where they are."`
	Rate           *float64      `placeholder:"N" help:"Events a second, at most; 0 for as many as it can. Default: 50, or with --run the rate of that run."`
	StopOnFailures *percent      `placeholder:"SHARE" help:"Stop when more than this share is dead-lettered again or failed, of those that have ended, once that are 20; 100% never stops. Default: 20%, or with --run the share of that run."`
	Resume         string        `name:"run" placeholder:"ID" help:"Go on with a run that did not come to its end, with its rate and its share of failures unless others are given."`
	Operator       operatorFlags `embed:""`
}

// defaultLimits are the limits of a replay for which none are given.
var defaultLimits = client.RunLimits{Rate: 50, StopOnFailures: 20}

// limits are the given limits, and those of base where none are given.
func (v *dlqReplay) limits(base *client.RunLimits) *client.RunLimits {
	limits := defaultLimits
	if base != nil {
		limits = *base
	}
	if v.Rate != nil {
		limits.Rate = *v.Rate
	}
	if v.StopOnFailures != nil {
		limits.StopOnFailures = int(*v.StopOnFailures)
	}
	return &limits
}

// failuresMin is how many letters must have ended before a share of failures says anything.
const failuresMin = 20

// Help implements kong's detailed help.
func (*dlqReplay) Help() string {
	return `Publishes the events of dead letters again, oldest first, on the subjects where they were published, with body and headers as they were (but for Nats-..., Holdfast-Reply-To and Holdfast-Dlq-... headers), and removes each letter when its event is stored. The events keep their ids: what has been answered is answered the same again and changes nothing. An event that dies again is a dead letter again, a new one.

It asks before it begins. Each run is recorded: publisher dlq runs. After Ctrl-C, or when the process was killed, --run ID does what is left of it.

Exit codes: 0 done; 1 it did not come to its end, or a letter failed; 2 wrong usage; 4 done, and some were dead-lettered again; 5 done, and for some no outcome came within --timeout.

Examples:

  publisher dlq replay --all --reason poison --dry-run
  publisher dlq replay 12 13
  publisher dlq replay --all --reason poison --since 1d --rate 200 --note "fixed in 2.4.1" --yes
  publisher dlq replay --run 0198f0c2-a1b4-7c3d-8e4f-5a6b7c8d9e0f`
}

func (*dlqReplay) outputs() []string { return everyOutput }

// Validate implements kong's check.
func (v *dlqReplay) Validate() error {
	switch {
	case v.Resume != "" && (!v.Choice.isEmpty() || v.Keep || v.DryRun):
		return misused("--run goes on with what it began with: give no sequences, --all, filters, --keep or --dry-run")
	case v.Resume == "" && v.Choice.isEmpty():
		return misused("which? Give sequences, --all, or --run")
	case v.Rate != nil && *v.Rate < 0:
		return misused("--rate: must not be negative")
	}
	return nil
}

// Run replays them, or says what would happen.
func (v *dlqReplay) Run(ctx context.Context, p *program) error {
	cl, deadLetters, disconnect, err := p.deadLetters(ctx)
	if err != nil {
		return err
	}
	defer disconnect()
	if v.DryRun {
		return v.dryRun(ctx, p, cl, deadLetters)
	}
	log, seqs, err := v.begin(ctx, p, cl, deadLetters)
	if log == nil {
		return err
	}
	replayer, err := deadLetters.Replayer(p.Timeout)
	if err != nil {
		return err
	}
	defer replayer.Close()
	if v.Resume != "" {
		if err := replayer.Resume(ctx, log); err != nil {
			return p.withHint(err)
		}
	}
	limiter := rate.NewLimiter(rate.Limit(log.Run.Limits.Rate), 1)
	if log.Run.Limits.Rate == 0 {
		limiter.SetLimit(rate.Inf)
	}
	variant := ""
	if log.Run.Keep {
		variant = log.Run.ID // the next run that keeps the letter publishes its event again
	}
	keep := log.Run.Keep
	return p.executeRun(ctx, cl, log, seqs, percent(log.Run.Limits.StopOnFailures).exceeded, "to go on: publisher dlq replay --run "+log.Run.ID,
		func(ctx context.Context, seq uint64) (func(context.Context) client.RunResult, error) {
			if err := limiter.Wait(ctx); err != nil {
				return nil, err
			}
			l, err := deadLetters.Get(ctx, seq)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			var m *nats.Msg
			if err == nil {
				m, err = l.Original(p.namespace())
			}
			var sent *client.Replay
			if err == nil {
				sent, err = replayer.Publish(l, m, replayer.MessageID(seq, variant))
			}
			return func(ctx context.Context) client.RunResult {
				if err != nil {
					return failedResult(seq, err)
				}
				return sent.Wait(ctx, keep)
			}, nil
		})
}

// failedResult is the result of a letter that nothing could be done to.
func failedResult(seq uint64, err error) client.RunResult {
	if errors.Is(err, client.ErrDeadLetterNotFound) {
		return client.RunResult{Seq: seq, Result: client.ReplayNotFound}
	}
	return client.RunResult{Seq: seq, Result: client.ReplayFailed, Detail: err.Error()}
}

// begin begins a run, or goes on with one, and returns the letters that it has to work on. It
// returns no log when there is nothing to do or it was not confirmed.
func (v *dlqReplay) begin(ctx context.Context, p *program, cl *client.Client, deadLetters *client.DeadLetters) (*client.RunLog, []uint64, error) {
	if v.Resume == "" {
		return p.startRun(ctx, cl, deadLetters, &v.Choice, &v.Operator, "Replay", client.Run{
			Verb: client.RunReplay, Keep: v.Keep, Limits: v.limits(nil),
		})
	}
	if uuid.Validate(v.Resume) != nil {
		return nil, nil, misused("--run: %q is no id of a run: publisher dlq runs lists them", v.Resume)
	}
	run, err := cl.GetRun(ctx, v.Resume)
	switch {
	case err != nil:
		return nil, nil, p.withHint(err)
	case run.Verb != client.RunReplay:
		return nil, nil, misused("--run: that is a run of %s, not of replay", run.Verb)
	}
	question := fmt.Sprintf("Go on with the replay of %s, of which %d have ended?", counted(run.Total, "dead letter"), run.Processed())
	if err := p.confirm(ctx, v.Operator, question); err != nil {
		return nil, nil, err
	}
	log, left, err := cl.ResumeRun(ctx, v.Resume, v.limits(run.Limits))
	if err != nil {
		return nil, nil, err
	}
	return log, left, nil
}

// percent is a share, 0% to 100%.
type percent int

// UnmarshalText implements encoding.TextUnmarshaler for a flag.
func (s *percent) UnmarshalText(text []byte) error {
	number, _ := strings.CutSuffix(string(text), "%")
	n, err := strconv.ParseUint(number, 10, 8)
	if err != nil || n > 100 {
		return fmt.Errorf("want 0%% to 100%%, got %q", text)
	}
	*s = percent(n)
	return nil
}

// exceeded returns an error when more than this share of the letters that have ended failed.
func (s percent) exceeded(ended, failed int) error {
	if ended >= failuresMin && failed*100 > int(s)*ended {
		return fmt.Errorf("stopped, because %d of %d were dead-lettered again or failed, more than %d%%", failed, ended, s)
	}
	return nil
}
