package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/client"
)

const (
	deadLettersInFlightMax = 128         // dead letters of a run in processing at the same time
	recordEvery            = time.Second // longest time until a result is recorded
	progressWidth          = 30
	progressEvery          = 100 * time.Millisecond
)

// deadLetterWork starts the work on a dead letter. The calls are in order; the returned functions
// finish the work concurrently. After an error nothing was started and the run ends.
type deadLetterWork func(ctx context.Context, seq uint64) (finish func(context.Context) client.RunResult, err error)

// runProcessor processes the dead letters of one run. It records the results during the run, so
// that they survive a crash.
type runProcessor struct {
	log      *client.RunLog
	progress *progressbar.ProgressBar // nil without a terminal
	stopWhen func(processed, failed int) error

	pending           []client.RunResult // results that are not recorded yet
	unrecorded        error              // why results could not be recorded
	processed, failed int
}

// process starts the work on dead letters in order and finishes at most deadLettersInFlightMax
// concurrently. It returns when all started work is finished and recorded. It returns an error if
// that is not all of them: ctx was cancelled, stopWhen or work returned an error, or a record could
// not be written.
func (r *runProcessor) process(ctx context.Context, seqs []uint64, work deadLetterWork) error {
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	results, recorded := make(chan client.RunResult), make(chan struct{})
	go func() {
		defer close(recorded)
		r.collect(ctx, results, stop)
	}()
	var group errgroup.Group
	group.SetLimit(deadLettersInFlightMax)
	for _, seq := range seqs {
		if working.Err() != nil {
			break
		}
		finish, err := work(working, seq)
		if err != nil {
			stop(err)
			break
		}
		group.Go(func() error {
			results <- finish(working)
			return nil
		})
	}
	_ = group.Wait() // always nil: a failure is a result
	close(results)
	<-recorded
	switch {
	case r.unrecorded != nil:
		return r.unrecorded
	case r.processed == len(seqs):
		return nil
	case ctx.Err() != nil:
		return errInterrupted
	default:
		return context.Cause(working)
	}
}

// collect records results in batches, each result within recordEvery.
func (r *runProcessor) collect(ctx context.Context, results <-chan client.RunResult, stop context.CancelCauseFunc) {
	tick := time.NewTicker(recordEvery)
	defer tick.Stop()
	for {
		select {
		case result, open := <-results:
			if !open {
				r.record(ctx, stop)
				return
			}
			if err := r.count(result); err != nil {
				stop(err)
			}
			if len(r.pending) == client.RunResultsMax {
				r.record(ctx, stop)
			}
		case <-tick.C:
			r.record(ctx, stop)
		}
	}
}

// count adds a result. It returns the error of stopWhen.
func (r *runProcessor) count(result client.RunResult) error {
	r.pending = append(r.pending, result)
	r.processed++
	if result.Result == client.ReplayDeadLettered || result.Result == client.ReplayFailed {
		r.failed++
	}
	if r.progress != nil {
		_ = r.progress.Add(1) // it only draws
	}
	return r.stopWhen(r.processed, r.failed)
}

func (r *runProcessor) record(ctx context.Context, stop context.CancelCauseFunc) {
	if len(r.pending) == 0 {
		return
	}
	if err := r.log.Record(ctx, r.pending); err != nil {
		r.unrecorded = err
		stop(err)
	}
	r.pending = nil
}

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
	stopWhen func(processed, failed int) error, rest string, work deadLetterWork,
) error {
	run := &runProcessor{log: log, stopWhen: stopWhen, progress: p.progressOf(log.Run.Verb, len(seqs))}
	stopped := run.process(ctx, seqs, work)
	if run.progress != nil {
		_ = run.progress.Clear() // it only draws
	}
	state := client.RunDone
	if stopped != nil {
		state = client.RunStopped
		stopped = fmt.Errorf("run %s: %w, after %d of %d\n%s", log.Run.ID, stopped, run.processed, len(seqs), rest)
	}
	if err := log.End(ctx, state); err != nil {
		return errors.Join(stopped, err)
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
	return nil
}

// neverStop is the stopWhen of runs that only the operator stops.
func neverStop(int, int) error { return nil }
