package holds

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
	"holdfast/internal/lua"
)

// Rebuilt is what was filled in again.
type Rebuilt struct {
	Outcomes  uint64        `json:"outcomes"` // read
	Resources int           `json:"resources"`
	Live      int           `json:"live_holds"`
	Ended     int           `json:"ended_holds"`       // that are still remembered
	Answers   int           `json:"answers"`           // to requests and extensions
	Missing   string        `json:"missing,omitempty"` // of the outcomes, "" = there were all
	Took      time.Duration `json:"-"`
}

func (r *Rebuilt) count(one *plan) {
	r.Resources++
	r.Live += one.live.holds
	r.Ended += len(one.records)/2 - one.live.holds
	r.Answers += one.answers
}

func (r Rebuilt) log(log zerolog.Logger, why string) {
	if r.Missing != "" {
		log.Error().Str("missing", r.Missing).Msg("not all outcomes that can matter are there any more: " + MissingMeans)
	}
	log.Info().Str("why", why).Uint64("outcomes_read", r.Outcomes).Int("resources", r.Resources).
		Int("live_holds", r.Live).Int("ended_holds", r.Ended).Int("answers", r.Answers).
		Dur("took_ms", r.Took).Msg("redis is filled again, events are decided again")
}

// MissingMeans tells what follows from missing outcomes.
const MissingMeans = "a hold that only they told of is gone, and its payment ends in refund_required; an answer is forgotten"

// rebuild is one attempt to fill Redis under a new epoch.
type rebuild struct {
	*Keeper
	client   *redis.Client
	server   server
	epoch    string // "" = nothing is written
	past     *Past
	progress atomic.Pointer[string]
	saying   sync.Mutex
	tell     func(progress string)
}

// Rebuild condemns the current epoch, if there is one, and fills Redis under a new one, or waits
// until somebody else has. force also replaces what another database has written. progress is told
// how far it is, whoever does it.
func (k *Keeper) Rebuild(ctx context.Context, why string, force bool, progress func(string)) (r Rebuilt, err error) {
	defer k.closeLooker()
	e, err := k.Register.Epoch(ctx)
	if err != nil {
		return r, err
	}
	condemned := "" // unless it is filled, or will be, by somebody else already
	if e.Written {
		condemned, e.Why = e.Name, why
		if err := k.condemn(ctx, e); err != nil {
			return r, err
		}
	}
	for {
		if e, err = k.Register.Epoch(ctx); err != nil {
			return r, err
		}
		if e.Written && e.Name != condemned {
			return r, nil // somebody else has done it
		}
		k.close(e)
		r, err = k.rebuild(ctx, force, progress)
		if !errors.Is(err, ErrOtherEpoch) {
			return r, err
		}
		progress(e.Rebuilder + ": " + e.Progress)
		select {
		case <-ctx.Done():
			return r, context.Cause(ctx)
		case <-time.After(checkEvery):
		}
	}
}

// rebuild makes one attempt. It returns ErrOtherEpoch when another is at it, or has taken over.
func (k *Keeper) rebuild(ctx context.Context, force bool, tell func(string)) (r Rebuilt, err error) {
	policies, err := k.policies(ctx)
	if err != nil {
		return r, err
	}
	epoch, err := k.Register.BeginEpoch(ctx, k.Name, rebuildLease)
	if err != nil {
		return r, err
	}
	began := time.Now()
	failpoint.Hit("rebuild.begun")
	work, stop := context.WithCancelCause(ctx)
	a := &rebuild{Keeper: k, epoch: epoch, past: NewPast(policies), tell: tell}
	a.say("beginning")
	kept := make(chan struct{})
	go func() { defer close(kept); a.keep(work, stop) }()
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
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleFor)
		defer cancel()
		_ = k.Register.KeepEpoch(release, epoch, k.Name, 0, "failed: "+err.Error()) // or the lease ends
		return r, fmt.Errorf("fill redis again: %w", err)
	}
	r.Took = time.Since(began)
	return r, nil
}

// policies returns the stored policies or, when there are none, the Keeper's own.
func (k *Keeper) policies(ctx context.Context) (Policies, error) {
	stored, err := k.Register.Policies(ctx)
	if err == nil && len(stored) == 0 {
		stored = Policies{{Policy: k.Policy}}
	}
	return stored, err
}

func (a *rebuild) say(progress string) {
	a.saying.Lock()
	defer a.saying.Unlock()
	a.progress.Store(&progress)
	a.tell(progress)
	if a.epoch != "" {
		a.Tenure.end(a.Name + ": " + progress)
	}
}

// keep keeps the lease, and tells how far it is, until ctx is over. It ends the work when somebody
// else has taken over, or may have.
func (a *rebuild) keep(ctx context.Context, stop context.CancelCauseFunc) {
	kept := time.Now()
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		began := time.Now()
		asking, cancel := context.WithTimeout(ctx, askWithin)
		err := a.Register.KeepEpoch(asking, a.epoch, a.Name, rebuildLease, *a.progress.Load())
		cancel()
		switch {
		case err == nil:
			kept = began
		case errors.Is(err, ErrOtherEpoch), time.Since(kept) > rebuildLease:
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
	if last, err = a.read(ctx, 0); err == nil {
		// Whoever has decided under the epoch before may publish it for as long as it trusts in it.
		a.say("waiting for what is on its way")
		err = sleep(ctx, time.Until(a.lostAt.Add(a.drain)))
	}
	if err == nil {
		last, err = a.read(ctx, last)
	}
	if err != nil {
		fail(err)
	} else {
		a.say("removing what was left")
	}
	<-done
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return last, err
}

// run fills Redis: first everything is read, then written, then looked at again.
func (a *rebuild) run(ctx context.Context, force bool) (r Rebuilt, err error) {
	if err := a.connect(ctx); err != nil {
		return r, err
	}
	if err := a.mark(ctx, force); err != nil {
		return r, err
	}
	missing, err := a.Chronicle.Missing(ctx, a.since())
	if err != nil {
		return r, err
	}
	last, err := a.readWhile(ctx, a.wipe)
	if err != nil {
		return r, err
	}
	for {
		if err := a.untold(ctx); err != nil {
			return r, err
		}
		failpoint.Hit("rebuild.read")
		if r, err = a.fill(ctx); err != nil {
			return r, err
		}
		// What somebody who stood still for long has published in the meantime is filled in as well.
		end, err := a.read(ctx, last)
		if err != nil {
			return r, err
		}
		if end == last {
			r.Outcomes, r.Missing = a.past.told, missing
			return r, a.finish(ctx)
		}
		last = end
		if err := a.wipe(ctx); err != nil {
			return r, err
		}
	}
}

// connect connects to the server that is to be filled, or compared, whose format must be known. All that is
// sent goes to this one.
func (a *rebuild) connect(ctx context.Context) error {
	a.closeLooker()
	seen, err := look(ctx, a.Namespace, a.Keeper.client())
	if err != nil {
		return err
	}
	a.server = seen.server
	guard := NewGuard()
	guard.Open(a.server.name())
	options := a.Redis()
	guard.Watch(options)
	a.client = redis.NewClient(options)
	if a.epoch == "" {
		_, err = ReadFormat(ctx, a.Namespace, a.client)
		return err
	}
	_, err = NoteFormat(ctx, a.Namespace, a.client) // what was decided before is waited for in any case
	return err
}

// marked is what partitions have for an epoch while they are filled.
func (a *rebuild) marked() string { return a.epoch + markSuffix }

// mark has all scripts refuse, those of whoever has filled Redis before too.
func (a *rebuild) mark(ctx context.Context, force bool) error {
	calls := make([]*lua.Call, Partitions)
	forced := 0
	if force {
		forced = 1
	}
	for p := range calls {
		calls[p] = &lua.Call{
			Script: scriptMark, Keys: []string{a.keys.epoch(p)},
			Args: []any{a.marked(), lineage(a.epoch), generation(a.epoch), forced},
		}
	}
	lua.Run(ctx, a.client, calls)
	for _, c := range calls {
		switch {
		case c.Err == nil && c.Status == "newer":
			return ErrOtherEpoch
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
	removers := newSenders(ctx, fillCallsMax, a.send)
	for cursor := uint64(0); ; {
		keys, next, err := a.client.Scan(ctx, cursor, string(a.keys)+":{*", wipeMax).Result()
		if err != nil {
			return errors.Join(fmt.Errorf("look for keys: %w", err), removers.wait())
		}
		for _, c := range a.removing(keys) {
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

// removing returns the calls that remove keys, each those of one partition.
func (a *rebuild) removing(keys []string) (calls []*lua.Call) {
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
			calls = append(calls, &lua.Call{Script: scriptWipe, Keys: append([]string{epoch}, some...), Args: []any{a.marked(), "", ""}})
		}
	}
	return calls
}

// read reads what was told after a sequence, and returns the last one.
func (a *rebuild) read(ctx context.Context, after uint64) (last uint64, err error) {
	return a.Chronicle.Outcomes(ctx, a.since(), after, a.past.Tell, func(done, all uint64) {
		a.say(fmt.Sprintf("reading outcomes, %d of %d", done, all))
	})
}

func (a *rebuild) since() time.Time { return time.Now().Add(-a.past.policies.reach(time.Now())) }

// untold adds what was decided in Postgres and not told yet, and what waits for an answer.
func (a *rebuild) untold(ctx context.Context) error {
	a.say("asking which holds are paid, or about to be")
	if err := a.Register.Reservations(ctx, a.past.Held(), a.past.Reserve); err != nil {
		return err
	}
	a.past.Ask()
	var waiting []Payment
	err := a.Chronicle.Waiting(ctx, func(r ConfirmRequest, storedAt Time) {
		waiting = append(waiting, Payment{ConfirmRequest: r, At: storedAt})
	}, a.past.Cancel)
	if err != nil {
		return err
	}
	for len(waiting) > 0 {
		some := waiting[:min(len(waiting), answeredMax)]
		waiting = waiting[len(some):]
		answers, err := a.Inventory.Answered(ctx, some)
		if err != nil {
			return err
		}
		for i, payment := range some {
			switch answer := answers[i]; {
			case answer.DecidedAt.IsZero():
				a.past.Claim(payment.ConfirmRequest, payment.At)
			case answer.Confirmed: // a late one is not among what Reservations was asked for, when its hold has lapsed
				a.past.Reserve(Reservation{payment.Hold, payment.PaymentID, answer.DecidedAt, answer.Late})
			}
		}
	}
	return nil
}

// answeredMax is how many payments Postgres is asked about at a time.
const answeredMax = 1000

// finish gives all partitions the new epoch and has Postgres say so. Until then nobody uses it.
func (a *rebuild) finish(ctx context.Context) error {
	seen, err := look(ctx, a.Namespace, a.client)
	if err != nil {
		return err
	}
	if !seen.server.is(a.server.name()) {
		return &LostError{anotherServer}
	}
	others, err := swapEpoch(ctx, a.keys, a.client, a.marked(), a.epoch)
	if err == nil && others > 0 {
		err = ErrDataLost // once more
	}
	if err != nil {
		return err
	}
	failpoint.Hit("rebuild.sealed")
	if err := a.Register.EpochWritten(ctx, a.epoch, seen.server.name(), a.Name); err != nil {
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
