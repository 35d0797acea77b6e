package client

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"holdfast/internal/events"
)

// RunInFlightMax is the number of dead letters of a run that are processed at the same time.
const RunInFlightMax = 128

const recordEvery = time.Second // longest time until a result is recorded

// RunWork starts the work on a dead letter. The calls are in order; the returned functions finish
// the work concurrently. After an error nothing was started and the run ends.
type RunWork func(ctx context.Context, seq uint64) (finish func(context.Context) RunResult, err error)

// ErrRunInterrupted reports that a run was cancelled before its end.
var ErrRunInterrupted = errors.New("interrupted")

// RunProcessor processes the dead letters of one run. It records the results during the run, so
// that they survive a crash.
type RunProcessor struct {
	Log      *RunLog
	Progress func() // called after each result; nil for none

	pending           []RunResult // results that are not recorded yet
	unrecorded        error       // why results could not be recorded
	processed, failed int
}

// Processed returns the number of results. Call it after Process, or in Progress.
func (r *RunProcessor) Processed() int { return r.processed }

// Process starts the work on dead letters in order and finishes at most RunInFlightMax
// concurrently. It returns when all started work is finished and recorded. It returns an error if
// that is not all of them: ErrRunInterrupted when ctx was cancelled, else why too many failed, or
// the error of work, or why a record could not be written.
func (r *RunProcessor) Process(ctx context.Context, seqs []uint64, work RunWork) error {
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	results, recorded := make(chan RunResult), make(chan struct{})
	go func() {
		defer close(recorded)
		r.collect(ctx, results, stop)
	}()
	var group errgroup.Group
	group.SetLimit(RunInFlightMax)
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
		return ErrRunInterrupted
	default:
		return context.Cause(working)
	}
}

// Execute is Process, and then records the end of the run: as stopped if there was an error. It returns
// that error, and why the end could not be recorded.
func (r *RunProcessor) Execute(ctx context.Context, seqs []uint64, work RunWork) error {
	state := RunDone
	err := r.Process(ctx, seqs, work)
	if err != nil {
		state = RunStopped
	}
	return errors.Join(err, r.Log.End(ctx, state))
}

// collect records results in batches, each result within recordEvery.
func (r *RunProcessor) collect(ctx context.Context, results <-chan RunResult, stop context.CancelCauseFunc) {
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
func (r *RunProcessor) count(result RunResult) error {
	r.pending = append(r.pending, result)
	r.processed++
	if result.Result == ReplayDeadLettered || result.Result == ReplayFailed {
		r.failed++
	}
	if r.Progress != nil {
		r.Progress()
	}
	return r.Log.Run.Limits.exceeded(r.processed, r.failed)
}

func (r *RunProcessor) record(ctx context.Context, stop context.CancelCauseFunc) {
	if len(r.pending) == 0 {
		return
	}
	if err := r.Log.Record(ctx, r.pending); err != nil {
		r.unrecorded = cmp.Or(r.unrecorded, err) // a later error may only follow from the first
		stop(err)
	}
	r.pending = nil
}

// ReplayWork is the work of a run that replays: it publishes each event within the limits of the run,
// removes its dead letter unless the run keeps it, and waits for the outcome.
func (r *Replayer) ReplayWork(ns events.Namespace, run Run) RunWork {
	limiter := rate.NewLimiter(rate.Limit(run.Limits.Rate), 1)
	if run.Limits.Rate == 0 {
		limiter.SetLimit(rate.Inf)
	}
	variant := ""
	if run.Keep {
		variant = run.ID // a later run that keeps the dead letter publishes its event again
	}
	return func(ctx context.Context, seq uint64) (func(context.Context) RunResult, error) {
		if err := limiter.Wait(ctx); err != nil {
			return nil, err
		}
		l, err := r.d.Get(ctx, seq)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err == nil && run.Limits.Exhausted(l) {
			return func(context.Context) RunResult {
				return RunResult{Seq: seq, EventID: l.EventID, Result: ReplaySkipped, Detail: ExhaustedDetail(l)}
			}, nil
		}
		// A killed process of this run may have stored the event, and then removed the dead letter.
		if at := r.stored[r.MessageID(seq, variant)]; at > 0 && errors.Is(err, ErrDeadLetterNotFound) {
			return func(ctx context.Context) RunResult {
				waiting, cancel := r.outcomeLimit(ctx)
				defer cancel()
				return r.findResult(waiting, RunResult{Seq: seq}, at)
			}, nil
		}
		var m *nats.Msg
		if err == nil {
			m, err = l.Again(ns)
		}
		var sent *Replay
		if err == nil {
			sent, err = r.Publish(l, m, r.MessageID(seq, variant))
		}
		return func(ctx context.Context) RunResult {
			if err != nil {
				return failedResult(seq, err)
			}
			return sent.Wait(ctx, run.Keep)
		}, nil
	}
}

// ResumeWork is ReplayWork for a run that was resumed. It begins with resume.
func (r *Replayer) ResumeWork(ns events.Namespace, log *RunLog) RunWork {
	replay, prepared := r.ReplayWork(ns, log.Run), false
	return func(ctx context.Context, seq uint64) (func(context.Context) RunResult, error) {
		if !prepared {
			if err := r.resume(ctx, log); err != nil {
				return nil, err
			}
			prepared = true
		}
		return replay(ctx, seq)
	}
}

// DiscardWork is the work of a run that discards: it removes each dead letter.
func (d *DeadLetters) DiscardWork() RunWork {
	return func(ctx context.Context, seq uint64) (func(context.Context) RunResult, error) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return func(ctx context.Context) RunResult {
			if err := d.Remove(context.WithoutCancel(ctx), seq); err != nil {
				return failedResult(seq, err)
			}
			return RunResult{Seq: seq, Result: Discarded}
		}, nil
	}
}

// EditWork is the work of a run that publishes an edited copy of the event of one dead letter, which
// stays.
func (r *Replayer) EditWork(l *events.DeadLetter, edited *nats.Msg) RunWork {
	return func(context.Context, uint64) (func(context.Context) RunResult, error) {
		sent, err := r.Publish(l, edited, r.MessageID(l.Seq, digest(edited)))
		return func(ctx context.Context) RunResult {
			if err != nil {
				return failedResult(l.Seq, err)
			}
			return sent.Wait(ctx, true)
		}, nil
	}
}

// failedResult returns the result of a dead letter that could not be processed.
func failedResult(seq uint64, err error) RunResult {
	if errors.Is(err, ErrDeadLetterNotFound) {
		return RunResult{Seq: seq, Result: ReplayNotFound}
	}
	return RunResult{Seq: seq, Result: ReplayFailed, Detail: err.Error()}
}

// digest identifies a copy of an event, so that JetStream stores the same copy once.
func digest(m *nats.Msg) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q", m.Subject, m.Header, m.Data) // fmt prints maps in sorted order
	return hex.EncodeToString(h.Sum(nil)[:8])
}
