package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/failpoint"
	"holdfast/internal/holds"
	"holdfast/internal/lua"
	"holdfast/internal/record"
)

// RebuildResult is what was filled in again.
type RebuildResult struct {
	Outcomes  uint64        `json:"outcomes"` // read
	Resources int           `json:"resources"`
	Live      int           `json:"live_holds"`
	Ended     int           `json:"ended_holds"`       // that are still remembered
	Answers   int           `json:"answers"`           // to requests and extensions
	Gaps      string        `json:"missing,omitempty"` // of the outcomes, "" = there were all
	Took      time.Duration `json:"-"`
}

func (r *RebuildResult) count(one *plan) {
	r.Resources++
	r.Live += one.live.holds
	r.Ended += len(one.records)/2 - one.live.holds
	r.Answers += one.answers
}

func (r RebuildResult) log(log zerolog.Logger, why string) {
	if r.Gaps != "" {
		log.Error().Str("missing", r.Gaps).Msg("not all outcomes that can matter are there any more: " + GapsImpact)
	}
	log.Info().Str("why", why).Uint64("outcomes_read", r.Outcomes).Int("resources", r.Resources).
		Int("live_holds", r.Live).Int("ended_holds", r.Ended).Int("answers", r.Answers).
		Dur("took_ms", r.Took).Msg("redis is filled again, events are decided again")
}

// GapsImpact tells what follows from missing outcomes.
const GapsImpact = "a hold that only they told of is gone, and its payment ends in refund_required; an answer is forgotten"

// rebuild is one attempt to fill Redis under a new epoch.
type rebuild struct {
	*Supervisor
	client     *redis.Client
	server     server
	epoch      string
	projection *Projection
	progress   atomic.Pointer[string]
	progressMu sync.Mutex
	report     func(progress string)
}

// Rebuild condemns the current epoch, if there is one, and fills Redis under a new one, or waits
// until somebody else has. force also replaces what another database has written. progress is told
// how far it is, whoever does it.
func (k *Supervisor) Rebuild(ctx context.Context, why string, force bool, progress func(string)) (r RebuildResult, err error) {
	defer k.closeInspectClient()
	e, err := k.EpochStore.Epoch(ctx)
	if err != nil {
		return r, err
	}
	invalidated := "" // unless it is filled, or will be, by somebody else already
	if e.Complete {
		invalidated, e.Why = e.Name, why
		if err := k.invalidate(ctx, e); err != nil {
			return r, err
		}
	}
	for {
		if e, err = k.EpochStore.Epoch(ctx); err != nil {
			return r, err
		}
		if e.Complete && e.Name != invalidated {
			return r, nil // somebody else has done it
		}
		k.blockDecisions(e)
		r, err = k.rebuild(ctx, force, progress)
		if !errors.Is(err, ErrEpochChanged) {
			return r, err
		}
		progress(e.Rebuilder + ": " + e.Progress)
		select {
		case <-ctx.Done():
			return r, context.Cause(ctx)
		case <-time.After(checkInterval):
		}
	}
}

// rebuild makes one attempt. It returns ErrEpochChanged when another is at it, or has taken over.
func (k *Supervisor) rebuild(ctx context.Context, force bool, report func(string)) (r RebuildResult, err error) {
	policies, err := k.policies(ctx)
	if err != nil {
		return r, err
	}
	epoch, err := k.EpochStore.BeginEpoch(ctx, k.Name, rebuildLease)
	if err != nil {
		return r, err
	}
	began := time.Now()
	failpoint.Hit("rebuild.begun")
	work, stop := context.WithCancelCause(ctx)
	a := &rebuild{Supervisor: k, epoch: epoch, projection: NewProjection(policies), report: report}
	a.reportProgress("beginning")
	kept := make(chan struct{})
	go func() { defer close(kept); a.renewLease(work, stop) }()
	r, err = a.run(work, force)
	stop(nil)
	<-kept
	if cause := context.Cause(work); err != nil && cause != nil && ctx.Err() == nil {
		err = errors.Join(err, cause)
	}
	if a.client != nil {
		_ = a.client.Close() // nothing is on its way
	}
	if err != nil {
		// The next need not wait for the end of the lease.
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishDelayMax)
		defer cancel()
		_ = k.EpochStore.RenewEpochLease(release, epoch, k.Name, 0, "failed: "+err.Error()) // or the lease ends
		return r, fmt.Errorf("fill redis again: %w", err)
	}
	r.Took = time.Since(began)
	return r, nil
}

// policies returns the stored policies or, when there are none, the Keeper's own.
func (k *Supervisor) policies(ctx context.Context) (holds.Policies, error) {
	stored, err := k.EpochStore.Policies(ctx)
	if err == nil && len(stored) == 0 {
		stored = holds.Policies{{Policy: k.Policy}}
	}
	return stored, err
}

func (a *rebuild) reportProgress(progress string) {
	a.progressMu.Lock()
	defer a.progressMu.Unlock()
	a.progress.Store(&progress)
	a.report(progress)
	a.Term.end(a.Name + ": " + progress)
}

// renewLease keeps the lease, and tells how far it is, until ctx is over. It ends the work when somebody
// else has taken over, or may have.
func (a *rebuild) renewLease(ctx context.Context, stop context.CancelCauseFunc) {
	kept := time.Now()
	ticker := time.NewTicker(leaseRenewInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		began := time.Now()
		renewing, cancel := context.WithTimeout(ctx, postgresCheckTimeout)
		err := a.EpochStore.RenewEpochLease(renewing, a.epoch, a.Name, rebuildLease, *a.progress.Load())
		cancel()
		switch {
		case err == nil:
			kept = began
		case errors.Is(err, ErrEpochChanged), time.Since(kept) > rebuildLease:
			stop(err)
			return
		}
	}
}

// readWhile reads what was told until nobody tells anything any more, and meanwhile does something
// else. Where one of them fails the other ends.
func (a *rebuild) readWhile(ctx context.Context, do func(context.Context) error) (last uint64, err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := do(ctx); err != nil {
			fail(err)
		}
	}()
	if last, err = a.readOutcomes(ctx, 0); err == nil {
		// Whoever has decided under the epoch before may publish it for as long as it trusts in it.
		a.reportProgress("waiting for what is on its way")
		err = sleep(ctx, time.Until(a.lostAt.Add(a.Drain)))
	}
	if err == nil {
		last, err = a.readOutcomes(ctx, last)
	}
	if err != nil {
		fail(err)
	} else {
		a.reportProgress("removing what was left")
	}
	<-done
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return last, err
}

// run fills Redis: first everything is read, then written, then looked at again.
func (a *rebuild) run(ctx context.Context, force bool) (r RebuildResult, err error) {
	if err := a.connect(ctx); err != nil {
		return r, err
	}
	if err := a.markPartitions(ctx, force); err != nil {
		return r, err
	}
	gaps, err := a.OutcomeLog.Gaps(ctx, a.since())
	if err != nil {
		return r, err
	}
	last, err := a.readWhile(ctx, a.wipe)
	if err != nil {
		return r, err
	}
	for {
		if err := a.addPending(ctx); err != nil {
			return r, err
		}
		failpoint.Hit("rebuild.read")
		if r, err = a.writeAll(ctx); err != nil {
			return r, err
		}
		// What somebody who stood still for long has published in the meantime is filled in as well.
		end, err := a.readOutcomes(ctx, last)
		if err != nil {
			return r, err
		}
		if end == last {
			r.Outcomes, r.Gaps = a.projection.applied, gaps
			return r, a.seal(ctx)
		}
		last = end
		if err := a.wipe(ctx); err != nil {
			return r, err
		}
	}
}

// connect connects to the server that is to be filled, whose format must be known. All that is
// sent goes to this one.
func (a *rebuild) connect(ctx context.Context) error {
	a.closeInspectClient()
	state, err := readState(ctx, a.Namespace, a.Supervisor.client())
	if err != nil {
		return err
	}
	a.server = state.server
	guard := NewConnGuard()
	guard.Allow(a.server.name())
	options := a.Redis()
	guard.Attach(options)
	a.client = redis.NewClient(options)
	_, err = WriteFormat(ctx, a.Namespace, a.client) // what was decided before is waited for in any case
	return err
}

// epochMark is what partitions have for an epoch while they are filled.
func (a *rebuild) epochMark() string { return a.epoch + markSuffix }

// markPartitions has all scripts refuse, those of whoever has filled Redis before too.
func (a *rebuild) markPartitions(ctx context.Context, force bool) error {
	calls := make([]*lua.Call, record.Partitions)
	forced := 0
	if force {
		forced = 1
	}
	for p := range calls {
		calls[p] = &lua.Call{
			Script: scriptMark, Keys: []string{a.keys.Epoch(p)},
			Args: []any{a.epochMark(), lineage(a.epoch), generation(a.epoch), forced},
		}
	}
	lua.Run(ctx, a.client, calls)
	for _, c := range calls {
		switch {
		case c.Err == nil && c.Status == "newer":
			return ErrEpochChanged
		case c.Err == nil && c.Status == "foreign":
			return fmt.Errorf("%w: it is not touched; if that other one is gone: worker rebuild", errForeign)
		case c.Expect(0) != nil:
			return c.Err
		}
	}
	failpoint.Hit("rebuild.marked")
	return nil
}

// How many keys are looked at, removed by one script, or read, at a time.
const (
	wipeMax   = 10_000
	removeMax = 1000 // unpack breaks near 8,000 values
	scanMax   = 1000
)

// wipe removes everything of the namespace but the marks and the format.
func (a *rebuild) wipe(ctx context.Context) error {
	removers := newSenders(ctx, rebuildCallsMax, a.send)
	for cursor := uint64(0); ; {
		keys, next, err := a.client.Scan(ctx, cursor, string(a.keys)+":{*", wipeMax).Result()
		if err != nil {
			return errors.Join(fmt.Errorf("look for keys: %w", err), removers.wait())
		}
		for _, c := range a.wipeCalls(keys) {
			if err := removers.add(c, 1); err != nil {
				return errors.Join(err, removers.wait())
			}
		}
		if cursor = next; cursor == 0 {
			err := removers.wait()
			failpoint.Hit("rebuild.wiped")
			return err
		}
	}
}

// wipeCalls returns the calls that remove keys, each those of one partition.
func (a *rebuild) wipeCalls(keys []string) (calls []*lua.Call) {
	byPartition := make(map[string][]string) // by the epoch's key
	for _, key := range keys {
		prefix, rest, found := strings.Cut(key, "}:")
		if found && rest != "epoch" && rest != "format" {
			epoch := prefix + "}:epoch"
			byPartition[epoch] = append(byPartition[epoch], key)
		}
	}
	for epoch, its := range byPartition {
		for some := range slices.Chunk(its, removeMax) {
			calls = append(calls, &lua.Call{Script: scriptWipe, Keys: append([]string{epoch}, some...), Args: []any{a.epochMark(), "", ""}})
		}
	}
	return calls
}

// readOutcomes reads what was told after a sequence, and returns the last one.
func (a *rebuild) readOutcomes(ctx context.Context, after uint64) (last uint64, err error) {
	return a.OutcomeLog.Outcomes(ctx, a.since(), after, a.projection.Apply, func(done, all uint64) {
		a.reportProgress(fmt.Sprintf("reading outcomes, %d of %d", done, all))
	})
}

func (a *rebuild) since() time.Time {
	return time.Now().Add(-a.projection.policies.ReplayWindow(time.Now()))
}

// addPending adds what was decided in Postgres and not told yet, and what waits for an answer.
func (a *rebuild) addPending(ctx context.Context) error {
	a.reportProgress("asking which holds are paid, or about to be")
	if err := a.EpochStore.Reservations(ctx, a.projection.OpenHolds(), a.projection.ApplyReservation); err != nil {
		return err
	}
	a.projection.ResetPending()
	var waiting []holds.Payment
	err := a.OutcomeLog.Unacknowledged(ctx, func(r holds.ConfirmRequest, storedAt holds.Time) {
		waiting = append(waiting, holds.Payment{ConfirmRequest: r, At: storedAt})
	}, a.projection.AddPendingCancellation)
	if err != nil {
		return err
	}
	for len(waiting) > 0 {
		some := waiting[:min(len(waiting), decisionsMax)]
		waiting = waiting[len(some):]
		answers, err := a.Inventory.FindDecisions(ctx, some)
		if err != nil {
			return err
		}
		for i, payment := range some {
			switch answer := answers[i]; {
			case answer.DecidedAt.IsZero():
				a.projection.AddPendingPayment(payment.ConfirmRequest, payment.At)
			case answer.Confirmed: // a late one is not among what Reservations was asked for, when its hold has lapsed
				a.projection.ApplyReservation(Reservation{payment.Hold, payment.PaymentID, answer.DecidedAt, answer.Late})
			}
		}
	}
	return nil
}

// decisionsMax is how many payments Postgres is asked about at a time.
const decisionsMax = 1000

// seal gives all partitions the new epoch and has Postgres say so. Until then nobody uses it.
func (a *rebuild) seal(ctx context.Context) error {
	state, err := readState(ctx, a.Namespace, a.client)
	if err != nil {
		return err
	}
	if !state.server.is(a.server.name()) {
		return &holds.RebuildingError{Progress: anotherServer}
	}
	others, err := replaceEpoch(ctx, a.keys, a.client, a.epochMark(), a.epoch)
	if err == nil && others > 0 {
		err = holds.ErrDataLost // once more
	}
	if err != nil {
		return err
	}
	failpoint.Hit("rebuild.sealed")
	if err := a.EpochStore.CompleteEpoch(ctx, a.epoch, state.server.name(), a.Name); err != nil {
		return err
	}
	failpoint.Hit("rebuild.finished")
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
