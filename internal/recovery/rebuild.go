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

// RebuildResult counts what a rebuild read and wrote.
type RebuildResult struct {
	Outcomes  uint64        `json:"outcomes"` // read
	Resources int           `json:"resources"`
	Live      int           `json:"live_holds"`
	Ended     int           `json:"ended_holds"`       // those that are still remembered
	Answers   int           `json:"answers"`           // to requests and extensions
	Gaps      string        `json:"missing,omitempty"` // outcomes that are missing, "" when none is
	Resumed   bool          `json:"resumed,omitempty"` // what Redis had was brought up to date: the counts are of what has changed
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
		log.Error().Str("missing", r.Gaps).Str("impact", GapsImpact).Msg("outbound stream is incomplete")
	}
	message := "redis rebuilt, processing resumed"
	if r.Resumed {
		message = "redis brought up to date, processing resumed"
	}
	log.Info().Str("why", why).Uint64("outcomes_read", r.Outcomes).Int("resources", r.Resources).
		Int("live_holds", r.Live).Int("ended_holds", r.Ended).Int("answers", r.Answers).
		Dur("took_ms", r.Took).Msg(message)
}

// GapsImpact says what follows from missing outcomes.
const GapsImpact = "a hold that only they describe is lost, and its payment ends in refund_required; " +
	"their answers are forgotten"

// rebuild is one attempt to rebuild Redis under a new epoch.
type rebuild struct {
	*Supervisor
	client     *redis.Client
	server     server
	epoch      string
	projection *Projection
	resuming   bool // the data of an earlier moment is brought up to date, see resume.go
	progress   atomic.Pointer[string]
	progressMu sync.Mutex
	report     func(progress string)
}

// Rebuild invalidates the current epoch, if there is one, and rebuilds Redis under a new epoch, or
// waits until another worker has done so. Then the result is zero. With force it also replaces data
// of another database. It calls progress with the progress of the rebuild, whichever worker does it.
func (s *Supervisor) Rebuild(
	ctx context.Context, why string, force bool, progress func(string),
) (r RebuildResult, err error) {
	defer s.closeInspectClient()
	e, err := s.EpochStore.Epoch(ctx)
	if err != nil {
		return r, err
	}
	invalidated := "" // stays "" when another worker rebuilds already, or is about to
	if e.Complete {
		invalidated, e.Why = e.Name, why
		if err := s.invalidate(ctx, e); err != nil {
			return r, err
		}
	}
	for {
		if e, err = s.EpochStore.Epoch(ctx); err != nil {
			return r, err
		}
		if e.Complete && e.Name != invalidated {
			return r, nil // another worker has rebuilt it
		}
		s.blockDecisions(e)
		r, err = s.rebuild(ctx, force, progress)
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

// rebuild makes one attempt. It returns ErrEpochChanged when another worker rebuilds, or has taken
// over.
func (s *Supervisor) rebuild(ctx context.Context, force bool, report func(string)) (r RebuildResult, err error) {
	policies, err := s.policies(ctx)
	if err != nil {
		return r, err
	}
	epoch, err := s.EpochStore.BeginEpoch(ctx, s.Name, rebuildLease)
	if err != nil {
		return r, err
	}
	began := time.Now()
	s.Metrics.begun()
	failpoint.Hit("rebuild.begun")
	work, stop := context.WithCancelCause(ctx)
	a := &rebuild{Supervisor: s, epoch: epoch, projection: NewProjection(policies), report: report}
	a.reportProgress("starting")
	renewed := make(chan struct{})
	go func() { defer close(renewed); a.renewLease(work, stop) }()
	r, err = a.run(work, force)
	stop(nil)
	<-renewed
	if cause := context.Cause(work); err != nil && cause != nil && ctx.Err() == nil {
		err = errors.Join(err, cause)
	}
	if a.client != nil {
		_ = a.client.Close() // no command is in progress
	}
	if err != nil {
		// End the lease, so that the next worker need not wait for its end.
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishDelayMax)
		defer cancel()
		_ = s.EpochStore.RenewEpochLease(release, epoch, s.Name, 0, "failed: "+err.Error()) // or the lease expires
		return r, fmt.Errorf("rebuild redis: %w", err)
	}
	r.Took = time.Since(began)
	return r, nil
}

// policies returns the stored policies or, when there are none, the Supervisor's own.
func (s *Supervisor) policies(ctx context.Context) (holds.Policies, error) {
	stored, err := s.EpochStore.Policies(ctx)
	if err == nil && len(stored) == 0 {
		stored = holds.Policies{{Policy: s.Policy}}
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

// renewLease renews the lease and stores the progress until ctx ends. It calls stop when another
// worker has taken over, or may have.
func (a *rebuild) renewLease(ctx context.Context, stop context.CancelCauseFunc) {
	renewedAt := time.Now()
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
			renewedAt = began
		case errors.Is(err, ErrEpochChanged), time.Since(renewedAt) > rebuildLease:
			stop(err)
			return
		}
	}
}

// readWhile reads the outcomes until no worker publishes under the epoch before, and meanwhile runs
// do. When one of the two fails the other one is cancelled.
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
		// A worker that has decided under the epoch before may publish while its term is valid.
		a.reportProgress("waiting for outcomes in flight")
		err = sleep(ctx, time.Until(a.lostAt.Add(a.Drain)))
	}
	if err == nil {
		last, err = a.readOutcomes(ctx, last)
	}
	if err != nil {
		fail(err)
	} else {
		a.reportProgress("removing old keys")
	}
	<-done
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return last, err
}

// run rebuilds Redis: it reads everything, writes and verifies it, and reads once more.
func (a *rebuild) run(ctx context.Context, force bool) (r RebuildResult, err error) {
	if err := a.connect(ctx); err != nil {
		return r, err
	}
	if !force {
		if r, resumed, err := a.tryResume(ctx); resumed || err != nil {
			return r, err
		}
	}
	if _, err := a.markPartitions(ctx, force, false); err != nil {
		return r, err
	}
	failpoint.Hit("rebuild.marked")
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
		// A worker that was stopped for long may have published meanwhile: start again with its outcomes.
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

// connect connects to the server that is rebuilt and writes the format. All later commands go to this
// server.
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
	_, err = WriteFormat(ctx, a.Namespace, a.client) // the rebuild waits for FormatDrain anyway
	return err
}

// epochMark is the epoch of a partition that is being rebuilt.
func (a *rebuild) epochMark() string {
	if a.resuming {
		return a.epoch + resumeSuffix
	}
	return a.epoch + markSuffix
}

// markPartitions makes all other scripts refuse, also those of an earlier rebuilder. Unless keep is true
// it removes the markers, because the data is about to change. It returns what the partitions had before.
func (a *rebuild) markPartitions(ctx context.Context, force, keep bool) (found []markedPartition, err error) {
	calls := make([]*lua.Call, record.Partitions)
	flag := map[bool]int{true: 1}
	for p := range calls {
		calls[p] = &lua.Call{
			Script: scriptMark, Keys: []string{a.keys.Epoch(p), a.keys.Applied(p)},
			Args: []any{a.epochMark(), lineage(a.epoch), generation(a.epoch), flag[force], flag[keep]},
		}
	}
	lua.Run(ctx, a.client, calls)
	for _, c := range calls {
		switch {
		case c.Err == nil && c.Status == "newer":
			return nil, ErrEpochChanged
		case c.Err == nil && c.Status == "foreign":
			return nil, errUntouched
		case c.Expect(2) != nil:
			return nil, c.Err
		}
		found = append(found, markedPartition{c.Reply[0], c.Reply[1]})
	}
	return found, nil
}

// How many keys one SCAN examines, one script removes, and one command reads.
const (
	wipeMax   = 10_000
	removeMax = 1000 // unpack fails near 8,000 values
	scanMax   = 1000
)

// wipe removes all keys of the namespace except the marks and the format.
func (a *rebuild) wipe(ctx context.Context) error {
	removers := newSenders(ctx, rebuildCallsMax, a.send)
	for cursor := uint64(0); ; {
		keys, next, err := a.client.Scan(ctx, cursor, string(a.keys)+":{*", wipeMax).Result()
		if err != nil {
			return errors.Join(fmt.Errorf("scan keys: %w", err), removers.wait())
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

// wipeCalls returns the calls that remove keys. The keys of one call belong to one partition.
func (a *rebuild) wipeCalls(keys []string) (calls []*lua.Call) {
	byPartition := make(map[string][]string) // by the key of the epoch
	for _, key := range keys {
		prefix, rest, found := strings.Cut(key, "}:")
		if found && rest != "epoch" && rest != "format" {
			epoch := prefix + "}:epoch"
			byPartition[epoch] = append(byPartition[epoch], key)
		}
	}
	for epoch, its := range byPartition {
		for some := range slices.Chunk(its, removeMax) {
			calls = append(calls, &lua.Call{
				Script: scriptWipe, Keys: append([]string{epoch}, some...), Args: []any{a.epochMark(), "", ""},
			})
		}
	}
	return calls
}

// readOutcomes applies the outcomes after a sequence to the projection and returns the last sequence.
func (a *rebuild) readOutcomes(ctx context.Context, after uint64) (last uint64, err error) {
	return a.OutcomeLog.Outcomes(ctx, a.since(), after, a.projection.Apply, func(done, all uint64) {
		a.reportProgress(fmt.Sprintf("reading outcomes, %d of %d", done, all))
		a.Metrics.read(done, all)
	})
}

// since is the time of the oldest outcome that can still matter.
func (a *rebuild) since() time.Time {
	return time.Now().Add(-a.projection.policies.ReplayWindow(time.Now()))
}

// pendingEvents are the payments and the cancellations of bookings that wait for an answer.
type pendingEvents struct {
	payments      []holds.Payment // At is when each was stored
	cancellations []pendingCancellation
}

type pendingCancellation struct {
	request  holds.ReleaseRequest
	storedAt holds.Time
}

// addPending adds what was decided in Postgres and perhaps not published, and what waits for an
// answer.
func (a *rebuild) addPending(ctx context.Context) error {
	a.reportProgress("reading reservations and pending payments")
	pending, err := a.readPending(ctx)
	if err != nil {
		return err
	}
	return a.applyPending(ctx, pending)
}

func (a *rebuild) readPending(ctx context.Context) (pending pendingEvents, err error) {
	err = a.OutcomeLog.Unacknowledged(ctx, func(r holds.ConfirmRequest, storedAt holds.Time) {
		pending.payments = append(pending.payments, holds.Payment{ConfirmRequest: r, At: storedAt})
	}, func(r holds.ReleaseRequest, storedAt holds.Time) {
		pending.cancellations = append(pending.cancellations, pendingCancellation{r, storedAt})
	})
	return pending, err
}

// applyPending adds pending events to the projection, and the reservations of its holds.
func (a *rebuild) applyPending(ctx context.Context, pending pendingEvents) error {
	if err := a.EpochStore.Reservations(ctx, a.projection.OpenHolds(), a.projection.ApplyReservation); err != nil {
		return err
	}
	a.projection.ResetPending()
	for _, c := range pending.cancellations {
		a.projection.AddPendingCancellation(c.request, c.storedAt)
	}
	for some := range slices.Chunk(pending.payments, decisionsMax) {
		decisions, err := a.Inventory.FindDecisions(ctx, some)
		if err != nil {
			return err
		}
		for i, payment := range some {
			switch decision := decisions[i]; {
			case decision.DecidedAt.IsZero():
				a.projection.AddPendingPayment(payment.ConfirmRequest, payment.At)
			case decision.Confirmed: // OpenHolds lacks the expired hold of a late payment, so Reservations may lack it too
				a.projection.ApplyReservation(Reservation{payment.Hold, payment.PaymentID, decision.DecidedAt, decision.Late})
			default:
				a.projection.RejectPayment(payment.Hold, payment.PaymentID)
			}
		}
	}
	return nil
}

// decisionsMax is how many payments one query reads.
const decisionsMax = 1000

// seal replaces the marks by the new epoch and completes it in Postgres. Until then no worker uses it.
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
		err = holds.ErrDataLost // during the rebuild
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
