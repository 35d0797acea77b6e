package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"holdfast/internal/client"
)

const (
	progressWidth = 30
	progressEvery = 100 * time.Millisecond
)

// progressOf returns a bar for a run over n dead letters, or nil without a terminal.
func (p *program) progressOf(verb string, n int) *progressbar.ProgressBar {
	if !isTerminal(p.err) {
		return nil
	}
	return progressbar.NewOptions(n, progressbar.OptionSetWriter(p.err), progressbar.OptionSetDescription(verb),
		progressbar.OptionSetWidth(progressWidth), progressbar.OptionShowCount(),
		progressbar.OptionThrottle(progressEvery), progressbar.OptionClearOnFinish())
}

// executeRun processes the dead letters of a started run, ends the run and prints its results. It
// returns an error if the run stopped early, with the advice rest how to process the rest, or if a
// result is not what the operator wanted.
func (p *program) executeRun(ctx context.Context, cl *client.Client, log *client.RunLog, seqs []uint64,
	stopWhen func(processed, failed int) error, rest string, work client.RunWork,
) error {
	run := &client.RunProcessor{Log: log, StopWhen: stopWhen}
	bar := p.progressOf(log.Run.Verb, len(seqs))
	if bar != nil {
		run.Progress = func() { _ = bar.Add(1) } // it only draws
	}
	stopped := run.Execute(ctx, seqs, work)
	if bar != nil {
		_ = bar.Clear() // it only draws
	}
	if stopped != nil {
		stopped = fmt.Errorf("run %s: %w, after %d of %d\n%s", log.Run.ID, stopped, run.Processed(), len(seqs), rest)
	}
	reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.Timeout)
	defer cancel()
	recorded, err := cl.GetRun(reading, log.Run.ID)
	if err == nil {
		err = p.printRun(recorded)
	}
	if stopped != nil || err != nil {
		return errors.Join(stopped, err)
	}
	return runError(recorded)
}

// runError returns the error for the exit code of a finished run.
func runError(run *client.Run) error {
	failed, unanswered := run.Counts[client.ReplayFailed], run.Counts[client.ReplayNoOutcome]
	switch {
	case failed > 0 && run.Verb == client.RunReplay:
		return fmt.Errorf("%s failed, see publisher dlq runs %s -o wide\nto retry: publisher dlq replay --run %s",
			counted(failed, "dead letter"), run.ID, run.ID)
	case failed > 0:
		return fmt.Errorf("%s failed, see publisher dlq runs %s -o wide", counted(failed, "dead letter"), run.ID)
	case run.Counts[client.ReplayDeadLettered] > 0, run.Counts[client.ReplaySkipped] > 0:
		return errDeadLettered
	case unanswered > 0:
		return fmt.Errorf("%w for %s, stored and to be processed later. Is a worker running?",
			client.ErrReplyTimeout, counted(unanswered, "event"))
	}
	for result := range run.Counts {
		if strings.HasSuffix(result, "rejected") {
			return errRejected
		}
	}
	return nil
}
