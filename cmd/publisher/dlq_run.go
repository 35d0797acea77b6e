package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/schollz/progressbar/v3"

	"holdfast/internal/client"
)

const (
	deadLettersInFlightMax = 128         // letters of a run that are worked on at a time
	recordEvery            = time.Second // results are recorded at least so often, while there are any
	progressWidth          = 30
	progressEvery          = 100 * time.Millisecond
)

// deadLetterWork begins what is done to a letter, in order, and returns what is left of it, which may
// take its time. An error says that nothing was begun, and that the run ends.
type deadLetterWork func(ctx context.Context, seq uint64) (finish func(context.Context) client.RunResult, err error)

// runProcessor is one run over dead letters. What becomes of each is recorded as it goes, so that
// it is known also when the process is killed.
type runProcessor struct {
	log      *client.RunLog
	progress *progressbar.ProgressBar // nil when nobody looks
	stopWhen func(ended, failed int) error

	pending           []client.RunResult // not recorded yet
	unrecorded        error              // why some could not be recorded
	processed, failed int
}

// errInterrupted says that the operator ended a run.
var errInterrupted = errors.New("interrupted")

// process works on letters in order, and finishes at most deadLettersInFlightMax side by side. It returns when
// all that was begun is finished and recorded, with an error when that is not all of them: ctx
// was over, or stopWhen was told a number that it did not like, or a record could not be written.
func (r *runProcessor) process(ctx context.Context, seqs []uint64, work deadLetterWork) error {
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	results, recorded := make(chan client.RunResult), make(chan struct{})
	go func() {
		defer close(recorded)
		r.collect(ctx, results, stop)
	}()
	turns := make(chan struct{}, deadLettersInFlightMax)
	for _, seq := range seqs {
		if working.Err() != nil {
			break
		}
		finish, err := work(working, seq)
		if err != nil {
			stop(err)
			break
		}
		turns <- struct{}{} // what was begun comes to its end, so there will be one
		go func() {
			defer func() { <-turns }()
			results <- finish(working)
		}()
	}
	for range deadLettersInFlightMax {
		turns <- struct{}{}
	}
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

// collect records results as they come, many together but none late.
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

// count counts a result.
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

// progressOf draws how far a run over n letters is, on a terminal.
func (p *program) progressOf(verb string, n int) *progressbar.ProgressBar {
	if !isTerminal(p.err) {
		return nil
	}
	return progressbar.NewOptions(n, progressbar.OptionSetWriter(p.err), progressbar.OptionSetDescription(verb),
		progressbar.OptionSetWidth(progressWidth), progressbar.OptionShowCount(),
		progressbar.OptionThrottle(progressEvery), progressbar.OptionClearOnFinish())
}

// executeRun works on letters in a run that has begun, ends the run, and prints what came of it:
// its error says whether that is what was wanted. again says how the rest is done when the
// run stops before its end.
func (p *program) executeRun(ctx context.Context, cl *client.Client, log *client.RunLog, seqs []uint64,
	stopWhen func(ended, failed int) error, again string, work deadLetterWork,
) error {
	run := &runProcessor{log: log, stopWhen: stopWhen, progress: p.progressOf(log.Run.Verb, len(seqs))}
	why := run.process(ctx, seqs, work)
	if run.progress != nil {
		_ = run.progress.Clear() // it only draws
	}
	state := client.RunDone
	if why != nil {
		state = client.RunStopped
		why = fmt.Errorf("run %s: %w, after %d of %d\n%s", log.Run.ID, why, run.processed, len(seqs), again)
	}
	if err := log.End(ctx, state); err != nil {
		return errors.Join(why, err)
	}
	reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.Timeout)
	defer cancel()
	recorded, err := cl.GetRun(reading, log.Run.ID)
	if err == nil {
		err = p.printRun(recorded)
	}
	if why != nil || err != nil {
		return errors.Join(why, err)
	}
	return runError(recorded)
}

// runError is what the exit code says of a run that has come to its end.
func runError(run *client.Run) error {
	failed, silent := run.Counts[client.ReplayFailed], run.Counts[client.ReplayNoOutcome]
	switch {
	case failed > 0 && run.Verb == client.RunReplay:
		return fmt.Errorf("%s failed: publisher dlq runs %s -o wide\nto try again: publisher dlq replay --run %s", counted(failed, "dead letter"), run.ID, run.ID)
	case failed > 0:
		return fmt.Errorf("%s failed: publisher dlq runs %s -o wide", counted(failed, "dead letter"), run.ID)
	case run.Counts[client.ReplayDeadLettered] > 0:
		return errDeadLettered
	case silent > 0:
		return fmt.Errorf("%w for %s, which are stored and will have their outcomes. Does a worker run?", client.ErrReplyTimeout, counted(silent, "event"))
	}
	return nil
}

// neverStop is for runs that nothing but the operator stops.
func neverStop(int, int) error { return nil }
