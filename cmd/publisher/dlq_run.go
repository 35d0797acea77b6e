package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/schollz/progressbar/v3"

	"holdfast/internal/client"
	"holdfast/internal/terminal"
)

// executeRun processes the dead letters of a started run, ends the run and prints its results. It
// returns an error if the run stopped early, with advice how to process the rest, or if a result is not
// what the operator wanted.
func (p *program) executeRun(
	ctx context.Context, deadLetters *client.DeadLetters, log *client.RunLog, seqs []uint64, work client.RunWork,
) error {
	bar := terminal.NewProgress(p.err, int64(len(seqs)), progressbar.OptionSetDescription(log.Run.Verb),
		progressbar.OptionShowCount())
	stopped := log.Execute(ctx, seqs, work, func(processed int) { bar.Set(int64(processed)) })
	bar.End()
	if stopped != nil {
		rest := map[string]string{
			client.RunReplay:  "to resume: publisher dlq replay --run " + log.Run.ID,
			client.RunDiscard: "the same command removes the rest",
			client.RunEdit:    "repeat the command",
		}[log.Run.Verb]
		stopped = fmt.Errorf("run %s: %w, after %d of %d\n%s", log.Run.ID, stopped, log.Run.Processed(), log.Run.Total, rest)
	}
	reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.Timeout)
	defer cancel()
	recorded, err := deadLetters.GetRun(reading, log.Run.ID)
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
			terminal.Counted(failed, "dead letter"), run.ID, run.ID)
	case failed > 0:
		return fmt.Errorf("%s failed, see publisher dlq runs %s -o wide", terminal.Counted(failed, "dead letter"), run.ID)
	case run.Counts[client.ReplayDeadLettered] > 0, run.Counts[client.ReplaySkipped] > 0:
		return errDeadLettered
	case unanswered > 0:
		err := fmt.Errorf("%w for %s, stored and to be processed later. Is a worker running?",
			client.ErrReplyTimeout, terminal.Counted(unanswered, "event"))
		if run.Verb == client.RunReplay {
			err = fmt.Errorf("%w\nto search for them again: publisher dlq replay --run %s", err, run.ID)
		}
		return err
	}
	for result := range run.Counts {
		if strings.HasSuffix(result, "rejected") {
			return errRejected
		}
	}
	return nil
}
