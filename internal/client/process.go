package client

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"holdfast/internal/events"
)

// RunInFlightMax is the number of dead letters of a run that are processed at the same time.
const RunInFlightMax = 128

const recordEvery = time.Second // longest time until a result is recorded

// earlierProcessLimit is how long a process may go on with a run after another one has resumed it: until its next record,
// which fails.
const earlierProcessLimit = recordEvery + recordAttempts*deadLetterRequestLimit

// RunWork starts the work on a dead letter. The calls are in order; the returned functions finish
// the work concurrently. After an error nothing was started and the run ends. Then, and when ctx has ended, a call returns
// an error unless the result is known.
type RunWork func(ctx context.Context, seq uint64) (finish func(context.Context) RunResult, err error)

// runProcessor processes the dead letters of one run. It records the results during the run, so
// that they survive a crash.
type runProcessor struct {
	log      *RunLog
	progress func(processed int)

	pending           []RunResult // results that are not recorded yet
	unrecorded        error       // why results could not be recorded
	processed, failed int
}

// Execute starts the work on the dead letters in Left in order and finishes at most RunInFlightMax concurrently. It
// calls progress after each result. It returns when all started work is finished and recorded, and the end of
// the run too. It returns an error if that is not all of them: "interrupted" when ctx was cancelled, else why
// too many failed, or the error of work, or why a record could not be written.
func (l *RunLog) Execute(ctx context.Context, work RunWork, progress func(processed int)) error {
	r, state := &runProcessor{log: l, progress: progress}, RunDone
	err := r.process(ctx, work)
	if err != nil {
		state = RunStopped
	}
	return errors.Join(err, l.End(ctx, state))
}

func (r *runProcessor) process(ctx context.Context, work RunWork) error {
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	results, recorded := make(chan RunResult), make(chan struct{})
	go func() {
		defer close(recorded)
		r.collect(ctx, results, stop)
	}()
	var group errgroup.Group
	group.SetLimit(RunInFlightMax)
	for _, seq := range r.log.Left {
		finish, err := work(working, seq)
		if err != nil {
			stop(err)
			continue // the results of others may be known
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
	case r.processed == len(r.log.Left):
		return nil
	case ctx.Err() != nil:
		return errors.New("interrupted")
	default:
		return context.Cause(working)
	}
}

// collect records results in batches, each result within recordEvery.
func (r *runProcessor) collect(ctx context.Context, results <-chan RunResult, stop context.CancelCauseFunc) {
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
			if len(r.pending) == RunResultsMax {
				r.record(ctx, stop)
			}
		case <-tick.C:
			r.record(ctx, stop)
		}
	}
}

// count adds a result. It returns an error when more failed than the limits of the run allow.
func (r *runProcessor) count(result RunResult) error {
	r.pending = append(r.pending, result)
	r.processed++
	if result.Result == ReplayDeadLettered || result.Result == ReplayFailed {
		r.failed++
	}
	r.progress(r.processed)
	return r.log.Run.Limits.exceeded(r.processed, r.failed)
}

func (r *runProcessor) record(ctx context.Context, stop context.CancelCauseFunc) {
	if len(r.pending) == 0 {
		return
	}
	if err := r.log.Record(ctx, r.pending); err != nil {
		r.unrecorded = cmp.Or(r.unrecorded, err) // a later error may only follow from the first
		stop(err)
	}
	r.pending = nil
}

// ReplayWork is the work of a run that replays: it publishes each event within the limits of the run,
// removes its dead letter unless the run keeps it, and waits for the outcome. timeout bounds each wait: for a
// PubAck, for the removal of a dead letter, for an outcome. A resumed run begins with a search for what it stored.
func (d *DeadLetters) ReplayWork(log *RunLog, timeout time.Duration) RunWork {
	r, run := &replayer{DeadLetters: d, timeout: timeout}, log.Run
	limiter := rate.NewLimiter(rate.Limit(run.Limits.Rate), 1)
	if run.Limits.Rate == 0 {
		limiter.SetLimit(rate.Inf)
	}
	variant := ""
	if run.Keep {
		variant = run.ID // a later run that keeps the dead letter publishes its event again
	}
	return func(ctx context.Context, seq uint64) (func(context.Context) RunResult, error) {
		if r.earlier == nil && !log.startedAt.IsZero() {
			if err := r.resume(ctx, log, variant); err != nil {
				return nil, err
			}
		}
		if finish := r.earlierWork(seq, run.Keep); finish != nil {
			return finish, nil
		}
		if earlier, found := log.unanswered[seq]; found {
			return earlier.finished, nil // its event is not found, and never published twice
		}
		if err := limiter.Wait(ctx); err != nil {
			return nil, err
		}
		l, err := d.Get(ctx, seq)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if r.scannedAt.Before(log.earlierEnds) {
			if err := r.resume(ctx, log, variant); err != nil {
				return nil, err
			}
			if finish := r.earlierWork(seq, run.Keep); finish != nil {
				return finish, nil
			}
		}
		if err == nil && run.Limits.exhausted(l) {
			return RunResult{Seq: seq, EventID: l.EventID, Result: ReplaySkipped, Detail: exhaustedDetail(l)}.finished, nil
		}
		var m *nats.Msg
		if err == nil {
			m, err = l.Again(d.ns)
		}
		if err != nil {
			return RunResult{Seq: seq}.withError(err).finished, nil
		}
		sent := r.publish(l, m, r.messageID(seq, variant))
		return func(ctx context.Context) RunResult { return sent.wait(ctx, run.Keep) }, nil
	}
}

// DiscardWork is the work of a run that discards: it removes each dead letter. Its result has the event id and the reason
// of the dead letter, which nothing else says any more. A dead letter that cannot be read stays.
func (d *DeadLetters) DiscardWork() RunWork {
	return func(ctx context.Context, seq uint64) (func(context.Context) RunResult, error) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return func(ctx context.Context) RunResult {
			ctx = context.WithoutCancel(ctx)
			reading, cancel := context.WithTimeout(ctx, deadLetterRequestLimit/2) // a stop waits for both requests
			defer cancel()
			l, err := d.Get(reading, seq)
			if err != nil {
				return RunResult{Seq: seq}.withError(err)
			}
			result := RunResult{Seq: seq, EventID: l.EventID, Result: Discarded, Reason: l.Reason}
			if err := d.Remove(ctx, seq); err != nil {
				return result.withError(err)
			}
			return result
		}, nil
	}
}

// EditWork is the work of a run that publishes an edited copy of the event of one dead letter, which
// stays. timeout is that of ReplayWork.
func (d *DeadLetters) EditWork(runID string, l *events.DeadLetter, edited *nats.Msg, timeout time.Duration) RunWork {
	r := &replayer{DeadLetters: d, timeout: timeout}
	return func(ctx context.Context, _ uint64) (func(context.Context) RunResult, error) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		sent := r.publish(l, edited, r.messageID(l.Seq, runID))
		return func(ctx context.Context) RunResult { return sent.wait(ctx, true) }, nil
	}
}
