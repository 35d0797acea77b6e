package recovery

import (
	"cmp"
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

func (r *RebuildResult) count(one writtenResource) {
	r.Resources++
	r.Live += one.live
	r.Ended += one.records - one.live
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

// add adds the counts of another rebuild.
func (r *RebuildResult) add(other RebuildResult) {
	r.Outcomes += other.Outcomes
	r.Resources += other.Resources
	r.Live += other.Live
	r.Ended += other.Ended
	r.Answers += other.Answers
	r.Took += other.Took
	r.Resumed = r.Resumed || other.Resumed
	r.Gaps = cmp.Or(r.Gaps, other.Gaps)
}

// rebuild is one attempt to rebuild partitions of one server under a new epoch.
type rebuild struct {
	*Supervisor // what does not change: a rebuild has a goroutine of its own
	to          Server
	force       bool
	lost        time.Time // when the last of the partitions was found to be lost
	evicted     bool      // the server has evicted keys since they were written
	partitions  record.PartitionSet
	client      *redis.Client
	server      server
	stored      [record.Partitions]string // the epochs that the partitions have, see connect
	epoch       string
	since       time.Time // the oldest outcome that can still matter was stored then
	projection  *Projection
	folders     *senders[map[string]*projectedResource] // of what is cut from the projection; nil when it is kept, see resume.go
	resuming    bool                                    // the data of an earlier moment is brought up to date, see resume.go
	resumedAt   int64                                   // when, by Redis' clock in ms
	sealMu      sync.Mutex                              // while partitions are removed, or their lease is renewed
	answers     [record.Partitions]atomic.Int64         // to requests: those that were missing when writeBatch has written them
	fenceBase   int64                                   // of the fencing tokens, 0 before it is drawn
	progress    atomic.Pointer[string]
	progressMu  sync.Mutex
	report      func(progress string)
}

// newRebuild returns an attempt to rebuild partitions of a server.
func (s *Supervisor) newRebuild(to Server, force bool, report func(string)) *rebuild {
	return &rebuild{
		Supervisor: s, to: to, force: force, lost: s.lostAt(to.Partitions), evicted: s.evictions[to.Addr].keys > 0, report: report,
	}
}

// Rebuild invalidates the current epochs, as far as there are any, and rebuilds all partitions under
// new ones, or waits until other workers have done so. Then the result is zero. With force it also
// replaces data of another database. It calls progress with the progress of the rebuild, whichever
// worker does it. When a server does not answer, or has an unknown format, or when the outbound stream is another one than
// that of the workers, it changes nothing. An error after that says that Redis is marked as lost: a worker rebuilds it then.
func (s *Supervisor) Rebuild(
	ctx context.Context, why string, force bool, progress func(string),
) (r RebuildResult, err error) {
	defer s.inspectors.closeAll()
	state, err := s.EpochStore.State(ctx, "")
	if err != nil {
		return r, err
	}
	if err := s.checkStream(ctx, state.History.Marker); err != nil {
		return r, err
	}
	invalidated := state.Epochs.Complete() // other workers rebuild the others already, or are about to
	if invalidated != 0 {
		if err := s.invalidateAnswering(ctx, &state.Epochs, invalidated, why); err != nil {
			return r, err
		}
	}
	defer func() { err = afterMark(err) }()
	for losses := 0; ; {
		epochs, err := s.EpochStore.Epochs(ctx)
		if err != nil {
			return r, err
		}
		left := record.AllPartitions &^ epochs.Complete()
		if left == 0 {
			return r, nil
		}
		s.block(&epochs, left)
		err = s.rebuildLeft(ctx, &epochs, left, force, progress, &r)
		switch {
		case errors.Is(err, holds.ErrDataLost) && losses < lossesMax:
			losses++
			s.Log.Error().Err(err).Msg("redis has changed during its rebuild, beginning again")
		case err != nil:
			return r, err
		}
	}
}

// checkStream returns an error when the outbound stream is another one than that of the commit marker: every live hold would
// be lost that only the workers' stream describes, and what it keeps would be granted again.
func (s *Supervisor) checkStream(ctx context.Context, marker holds.LogPosition) error {
	end, err := s.OutcomeLog.Position(ctx)
	if err != nil || marker == (holds.LogPosition{}) || end.SameStream(marker) {
		return err
	}
	return fmt.Errorf("nothing was changed: the outbound stream was created at %s, and that of the workers of this postgres "+
		"at %s: give the URLs of the nats and the postgres that the workers use; if their stream was created again, start a "+
		"worker first", end.Created.UTC().Format(holds.TimeFormat), marker.Created.UTC().Format(holds.TimeFormat))
}

// invalidateAnswering invalidates the epochs of partitions, if all their servers answer and have a known format.
func (s *Supervisor) invalidateAnswering(ctx context.Context, before *Epochs, of record.PartitionSet, why string) error {
	inspected := *before
	found, err := s.inspect(ctx, &inspected, of)
	if found.silent != 0 || errors.Is(err, ErrUnknownFormat) {
		return fmt.Errorf("nothing was changed: %w", cmp.Or(err, errors.New("a redis server does not answer")))
	}
	for p := range of.Each() {
		before[p].Why = why
	}
	return afterMark(s.invalidate(ctx, before, of, found.servers))
}

// afterMark adds to the error of a rebuild what has happened before it.
func afterMark(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w (redis is marked as lost, a worker rebuilds it)", err)
}

// lossesMax is how often Rebuild begins again when partitions have another epoch than it has read or written: a slow worker
// has invalidated them, resharding has moved them, or Redis was lost again.
const lossesMax = 2

// rebuildLeft rebuilds those of some partitions that no other worker rebuilds, and adds the result to r.
// When there is none, it reports the progress of another worker, and waits.
func (s *Supervisor) rebuildLeft(
	ctx context.Context, epochs *Epochs, left record.PartitionSet, force bool, progress func(string), r *RebuildResult,
) error {
	servers, err := s.serversOf(ctx, left)
	if err != nil {
		return err
	}
	for _, server := range servers {
		one, err := s.newRebuild(server, force, progress).attempt(ctx)
		if err == nil {
			r.add(one)
			left &^= server.Partitions
		} else if !errors.Is(err, ErrEpochChanged) {
			return err
		}
	}
	for p := range left.Each() {
		progress(epochs[p].progress())
		return sleep(ctx, checkInterval)
	}
	return nil
}

// attempt makes the attempt. It returns ErrEpochChanged when other workers rebuild all the partitions,
// or have taken over.
func (a *rebuild) attempt(ctx context.Context) (r RebuildResult, err error) {
	policies, err := a.policies(ctx)
	if err != nil {
		return r, err
	}
	a.partitions, a.epoch, err = a.EpochStore.BeginEpoch(ctx, a.to.Partitions, a.Name, rebuildLease)
	if err != nil {
		return r, err
	}
	began := time.Now()
	a.Metrics.running.Set(1)
	failpoint.Hit("rebuild.begun")
	work, stop := context.WithCancelCause(ctx)
	a.projection = NewProjection(policies)
	a.reportProgress("starting")
	renewed := make(chan struct{})
	go func() { defer close(renewed); a.renewLease(work, stop) }()
	r, err = a.run(work)
	cause := context.Cause(work)
	stop(nil)
	<-renewed
	if err != nil && cause != nil && ctx.Err() == nil {
		err = errors.Join(err, cause)
	}
	if a.client != nil {
		_ = a.client.Close() // no command is in progress
	}
	if err != nil {
		// End the lease, so that the next worker need not wait for its end.
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishDelayMax)
		defer cancel()
		released := a.EpochStore.RenewEpochLease(release, a.partitions, a.epoch, a.Name, 0, "failed: "+err.Error()) // or it expires
		if errors.Is(released, ErrEpochChanged) && !errors.Is(err, ErrEpochChanged) {
			err = fmt.Errorf("%w; its lease had ended: %w", err, released)
		}
		return r, fmt.Errorf("rebuild %v of redis: %w", a.partitions, err)
	}
	r.Took = time.Since(began)
	return r, nil
}

// policies returns the stored policies or, when there are none, the Supervisor's own.
func (s *Supervisor) policies(ctx context.Context) (holds.Policies, error) {
	state, err := s.EpochStore.State(ctx, "")
	if err == nil && len(state.Policies) == 0 {
		state.Policies = holds.Policies{{Policy: s.Policy}}
	}
	return state.Policies, err
}

func (a *rebuild) reportProgress(progress string) {
	a.progressMu.Lock()
	defer a.progressMu.Unlock()
	a.progress.Store(&progress)
	a.report(progress)
	a.Term.report(a.partitions, a.Name+": "+progress)
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
		err := a.renewOnce(ctx)
		switch {
		case err == nil:
			renewedAt = began
		case errors.Is(err, ErrEpochChanged), time.Since(renewedAt) > rebuildLease:
			stop(err)
			return
		}
	}
}

func (a *rebuild) renewOnce(ctx context.Context) error {
	a.sealMu.Lock()
	defer a.sealMu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, postgresCheckTimeout)
	defer cancel()
	return a.EpochStore.RenewEpochLease(ctx, a.partitions, a.epoch, a.Name, rebuildLease, *a.progress.Load())
}

// run brings the partitions up to date, or rebuilds them. All that it does is done in a.partitions only,
// on one server.
func (a *rebuild) run(ctx context.Context) (r RebuildResult, err error) {
	if err := a.connect(ctx); err != nil {
		return r, err
	}
	if a.since, err = a.firstNeeded(ctx); err != nil {
		return r, err
	}
	defer limitGarbage()()
	if !a.force {
		if r, resumed, err := a.tryResume(ctx); resumed || err != nil {
			return r, err
		}
	}
	return a.rebuildAll(ctx)
}

// rebuildAll rebuilds the partitions from nothing: it reads everything, and then writes, verifies and seals some
// partitions after the others. When an outcome of one that is left is stored meanwhile, it starts again with these.
func (a *rebuild) rebuildAll(ctx context.Context) (r RebuildResult, err error) {
	if _, err := a.markPartitions(ctx, false); err != nil {
		return r, err
	}
	failpoint.Hit("rebuild.marked")
	gaps, err := a.OutcomeLog.Gaps(ctx, a.since)
	if err != nil {
		return r, err
	}
	r.Gaps = gaps
	for a.partitions != 0 {
		a.projection, a.fenceBase = NewProjection(a.projection.policies), 0 // the fences are removed, too
		for p := range a.partitions.Each() {
			a.answers[p].Store(0)
		}
		last, err := a.foldOutcomes(ctx)
		if err != nil {
			return r, err
		}
		r.Outcomes = a.projection.applied
		failpoint.Hit("rebuild.read")
		if err := a.writeAndSeal(ctx, last, &r); err != nil {
			return r, err
		}
	}
	return r, nil
}

// sealedTogether is how many partitions are written, sealed and used together.
const sealedTogether = 8

// writeAndSeal writes, verifies and seals some partitions after the others, and adds the counts to r. It returns
// before it has sealed all when more outcomes were stored than the folds have.
func (a *rebuild) writeAndSeal(ctx context.Context, last uint64, r *RebuildResult) error {
	now, err := a.redisTime(ctx)
	if err != nil {
		return err
	}
	pending, read := make(map[string]pendingEvents), uint64(0)
	for some := range slices.Chunk(a.partitions.Sorted(), sealedTogether) {
		partitions := record.PartitionSetOf(some...)
		// Also what was stored while the partitions before these were written.
		if read, err = a.foldDecisions(ctx, read, pending); err != nil {
			return err
		}
		written, err := a.writePartitions(ctx, partitions, now, pending)
		if err != nil {
			return err
		}
		// A worker that was stopped for long may have published meanwhile.
		var more bool
		if last, more, err = a.readMore(ctx, last); err != nil {
			return err
		}
		if more {
			return nil
		}
		if err := a.seal(ctx, partitions); err != nil {
			return err
		}
		r.add(written)
		a.Log.Info().Stringer("partitions", partitions).Int("live_holds", r.Live).Int("partitions_left", a.partitions.Len()).
			Msg("partitions rebuilt")
	}
	return nil
}

// connect connects to the server that is rebuilt and writes the format. All later commands go to this
// server.
func (a *rebuild) connect(ctx context.Context) error {
	first := redis.NewClient(a.to.Options())
	state, err := readState(ctx, a.Namespace, first, a.partitions)
	_ = first.Close() // no command is in progress
	if err != nil {
		return err
	}
	a.server, a.stored = state.server, state.epochs
	if !a.force && state.isForeign(a.partitions, a.epoch) {
		return errUntouched
	}
	// What was read is not of a rebuild that has begun since this one: it could begin only without this lease.
	if err := a.renewOnce(ctx); err != nil {
		return err
	}
	guard := NewConnGuard()
	guard.Allow(a.server.name())
	options := a.to.Options()
	guard.Attach(options)
	a.client = redis.NewClient(options)
	if a.partitions.Has(FormatPartition) {
		err = WriteFormat(ctx, a.Namespace, a.client)
	}
	if isElsewhere(err) { // that partition is left out
		err = nil
	}
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
// it removes the markers, because the data is about to change. It returns what the partitions had before,
// in ascending order, and holds.ErrDataLost when one has another epoch than a.stored.
func (a *rebuild) markPartitions(ctx context.Context, keep bool) (found []markedPartition, err error) {
	partitions := a.partitions.Sorted()
	calls := make([]*lua.Call, len(partitions))
	flag := map[bool]int{true: 1}
	for i, p := range partitions {
		calls[i] = &lua.Call{
			Script: scriptSwap, Keys: []string{a.keys.Epoch(p), a.keys.Applied(p)},
			Args: []any{a.epochMark(), a.stored[p], flag[keep]},
		}
	}
	lua.Run(ctx, a.to.runner(a.client), calls)
	var moving record.PartitionSet
	for i, c := range calls {
		p := partitions[i]
		if isElsewhere(c.Err) {
			moving.Add(p)
			continue
		}
		holds.SetReplyError(c)
		if c.Expect(1) != nil {
			return nil, fmt.Errorf("mark partition %d: %w", p, c.Err)
		}
		found = append(found, markedPartition{a.stored[p], c.Reply[0]})
		a.stored[p] = a.epochMark()
	}
	return found, a.leaveOut(ctx, moving)
}

// leaveOut leaves partitions that resharding moves, or has moved, to a later attempt, so that the others of the server
// need not wait for the end of that.
func (a *rebuild) leaveOut(ctx context.Context, moving record.PartitionSet) error {
	if moving == 0 {
		return nil
	}
	if moving == a.partitions {
		return errMoving
	}
	a.sealMu.Lock()
	defer a.sealMu.Unlock()
	why := "waiting until the hash slot is moved"
	if err := a.EpochStore.RenewEpochLease(ctx, moving, a.epoch, a.Name, 0, why); err != nil {
		return err
	}
	a.partitions &^= moving
	a.Log.Warn().Stringer("partitions", moving).Msg("partitions not recovered while their hash slots are moved, will retry")
	return nil
}

// errMoving says that resharding moves all partitions of an attempt.
var errMoving = errors.New("the hash slots of the partitions are being moved")

// How many keys one SCAN examines, one script removes, and one command reads.
const (
	wipeMax   = 10_000
	removeMax = 1000 // unpack fails near 8,000 values
	scanMax   = 1000
)

// wipe removes all keys of the partitions except the marks and the format.
func (a *rebuild) wipe(ctx context.Context) error {
	removers := newSenders(ctx, rebuildCallsMax, a.send)
	err := eachPage(func(cursor uint64) *redis.ScanCmd {
		return a.client.Scan(ctx, cursor, string(a.keys)+":{*", wipeMax)
	}, func(keys []string) error {
		for _, c := range a.wipeCalls(keys) {
			if err := removers.add(c, 1); err != nil {
				return err
			}
		}
		return nil
	})
	err = errors.Join(err, removers.wait())
	failpoint.Hit("rebuild.wiped")
	return err
}

// wipeCalls returns the calls that remove keys. The keys of one call belong to one partition.
func (a *rebuild) wipeCalls(keys []string) (calls []*lua.Call) {
	byPartition := make(map[string][]string) // by the key of the epoch
	mine := make(map[string]bool, record.Partitions)
	for p := range a.partitions.Each() {
		mine[a.keys.Epoch(p)] = true
	}
	for _, key := range keys {
		prefix, rest, found := strings.Cut(key, "}:")
		epoch := prefix + "}:epoch"
		if found && rest != "epoch" && rest != "format" && mine[epoch] {
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

// readOutcomes applies the outcomes of the partitions after a sequence to the projection and returns the
// last sequence. A resume reads no more after an outcome for which it is not possible.
func (a *rebuild) readOutcomes(ctx context.Context, after uint64) (last uint64, err error) {
	reading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	apply := func(o holds.StoredOutcome) error {
		switch {
		case o.Resource == "":
			return fmt.Errorf("outcome %s has no resource", o.ID)
		case !a.partitions.Has(record.Partition(o.Resource)):
			return nil
		}
		err := a.projection.Apply(o)
		switch {
		case err != nil:
		case a.folders != nil:
			a.fold(a.CutBytes)
		case a.resuming:
			if err := a.checkResumable(o.StoredAt); err != nil {
				stop(err)
			}
		}
		return err
	}
	since := a.since
	if a.resuming { // from a marker, also one of an empty stream
		since = time.Time{}
	}
	last, err = a.OutcomeLog.Outcomes(reading, since, after, apply, func(done, all uint64) {
		a.reportProgress(fmt.Sprintf("reading outcomes, %d of %d", done, all))
		a.Metrics.read(done, all)
	})
	if cause := context.Cause(reading); cause != nil {
		err = cause
	}
	return last, err
}

// readUntilDrained is like readOutcomes, and reads on until no worker publishes under the epoch before.
func (a *rebuild) readUntilDrained(ctx context.Context, after uint64) (last uint64, err error) {
	if last, err = a.readOutcomes(ctx, after); err == nil {
		err = a.awaitDrained(ctx)
	}
	if err != nil {
		return 0, err
	}
	return a.readOutcomes(ctx, last)
}

// readMore is like readOutcomes. more reports whether an outcome of the partitions was among them: others
// are stored all the time.
func (a *rebuild) readMore(ctx context.Context, after uint64) (last uint64, more bool, err error) {
	before := a.projection.applied
	last, err = a.readOutcomes(ctx, after)
	return last, a.projection.applied != before, err
}

// firstNeeded returns the time of the oldest outcome that can still matter, by the earlier one of two clocks: too many
// outcomes only take time, and with too few of them live holds would be forgotten. A hold that a payment has claimed is
// live until the payment is answered, however long that takes.
func (a *rebuild) firstNeeded(ctx context.Context) (time.Time, error) {
	now, err := a.client.Time(ctx).Result()
	if err != nil {
		return now, fmt.Errorf("read the clock of redis: %w", err)
	}
	if here := a.Now(); here.Before(now) {
		now = here
	}
	first := now.Add(-a.projection.policies.ReplayWindow(now))
	oldest, err := a.OutcomeLog.OldestPayment(ctx)
	if err != nil || oldest.IsZero() {
		return first, err
	}
	if granted := oldest.Add(-a.projection.policies.ReplayWindow(oldest)); granted.Before(first) {
		first = granted
	}
	return first, nil
}

// applyPending adds pending events to the projection of a resume, and the reservations of its holds.
func (a *rebuild) applyPending(ctx context.Context, pending pendingEvents) error {
	if err := a.EpochStore.Reservations(ctx, a.projection.OpenHolds(), a.projection.ApplyReservation); err != nil {
		return err
	}
	waiting := pendingEvents{cancellations: pending.cancellations}
	for some := range slices.Chunk(pending.payments, unacknowledgedBatch) {
		decisions, err := a.Inventory.FindDecisions(ctx, some)
		if err != nil {
			return err
		}
		for i, payment := range some {
			switch decision := decisions[i]; {
			case decision.DecidedAt.IsZero() && a.projection.hasSettled(payment.Hold, payment.PaymentID):
				return fmt.Errorf("payment %s of hold %s: %s: %w", payment.PaymentID, payment.Hold, lostCommitsWhy, errNotResumable)
			case decision.DecidedAt.IsZero():
				waiting.payments = append(waiting.payments, payment)
			case decision.Confirmed: // OpenHolds lacks the expired hold of a late payment, so Reservations may lack it too
				a.projection.ApplyReservation(Reservation{payment.Hold, payment.PaymentID, decision.DecidedAt, decision.Late})
			default:
				a.projection.RejectPayment(payment.Hold, payment.PaymentID)
			}
		}
	}
	a.projection.addPending(waiting)
	return nil
}

// seal raises the fencing tokens of partitions, replaces their marks by the new epoch, completes it in Postgres, and
// removes them from those that are left to rebuild. Until then no worker uses it.
func (a *rebuild) seal(ctx context.Context, partitions record.PartitionSet) error {
	state, err := readState(ctx, a.Namespace, a.client, partitions)
	if err != nil {
		return err
	}
	if !state.server.is(a.server.name()) {
		return &holds.RebuildingError{Progress: anotherServer}
	}
	if err := a.writeFences(ctx, partitions); err != nil {
		return err
	}
	others, err := replaceEpochs(ctx, a.keys, a.to.runner(a.client), partitions,
		func(int) (from, to string) { return a.epochMark(), a.epoch })
	if err == nil && others != 0 {
		err = holds.ErrDataLost // during the rebuild
	}
	if err != nil {
		return err
	}
	failpoint.Hit("rebuild.sealed")
	a.sealMu.Lock()
	defer a.sealMu.Unlock()
	if err := a.EpochStore.CompleteEpoch(ctx, partitions, a.epoch, state.server.name(), a.Name); err != nil {
		return err
	}
	a.partitions &^= partitions
	failpoint.Hit("rebuild.finished")
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
