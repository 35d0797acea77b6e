package holds

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/failpoint"
)

// The pace of a Keeper.
const (
	checkEvery = 500 * time.Millisecond // between two looks at Postgres and Redis
	askWithin  = 5 * time.Second        // of a look at Postgres
	lookWithin = time.Second            // of one at Redis, less than trustFor: what it has said is published meanwhile
	// settleFor is what it may take from the moment at which an outcome may be published until it
	// is stored, or never is: whoever publishes may be held up for 2 s by a connection that takes nothing.
	settleFor    = 3 * time.Second
	rebuildLease = 10 * time.Second // after which the next begins, when one who fills Redis was killed
	keepEvery    = time.Second      // between two words of one who does
	mendEvery    = time.Minute      // damage that comes back at once is not mended by filling Redis again and again
	// renewWithin is how long after a look the server may have begun a new history of its own. Later
	// it may as well have followed another, and have forgotten that since: it does after repl-backlog-ttl,
	// an hour unless that is set.
	renewWithin = 30 * time.Second
)

// Chronicle tells what was published.
type Chronicle interface {
	// Outcomes hands to each the outcomes that were stored since a time, and after a sequence,
	// up to the last that there is when it begins. It returns the sequence of that one. each may
	// be called by several goroutines.
	Outcomes(ctx context.Context, since time.Time, after uint64, each func(Told) error, progress func(done, all uint64)) (last uint64, err error)
	// Missing tells what there is not any more of the outcomes that were stored since a time, for
	// people, "" = there are all.
	Missing(ctx context.Context, since time.Time) (what string, err error)
	// Waiting hands on the payments and the cancellations of bookings that are not acknowledged
	// yet, and some that are, each kind in the order in which they were stored.
	Waiting(ctx context.Context, payment func(r ConfirmRequest, storedAt Time), cancel func(r ReleaseRequest, storedAt Time)) error
}

// KeeperOptions are what a Keeper works with.
type KeeperOptions struct {
	Namespace string
	Name      string // of this process, where others see it
	Policy    Policy
	Tenure    *Tenure
	Guard     *Guard // of the worker's client of Redis, nil = there is none
	// Redis returns the options of a client of Redis. The Keeper makes clients of its own of it.
	Redis     func() *redis.Options
	Register  Register
	Inventory Inventory
	Chronicle Chronicle
	Fence     func(context.Context) (int64, error) // returns a higher one than all fencing tokens that there were
	Log       zerolog.Logger
}

// Keeper notices that Redis has not what was written to it, keeps everybody from deciding on what
// is left, and has it filled again from what was told: by one of the workers, while the others
// wait.
//
//	            Postgres: epoch written             not written: nobody decides
//	check ──► Redis has it, the server is the same ──── else ──► condemn ──► begin ──► fill ──► written
//	  ▲                 │ Tenure, Guard: open            Tenure, Guard: closed  │         │        │
//	  └──── 500 ms ─────┘                                   the next begins anew └─ lease ─┘        │
//	  ▲                                                                                            │
//	  └────────────────────────────────────────────────────────────────────────────────────────────┘
type Keeper struct {
	KeeperOptions
	keys     keyspace
	drain    time.Duration // how long after a loss something may be published that was decided before
	within   time.Duration // of one look at Redis
	looker   *redis.Client // nil until the first look
	lost     string        // the epoch that is not written any more, as Postgres said
	lostAt   time.Time     // first then
	mended   time.Time     // when Redis was last filled again for damage
	seen     string        // the server that had all that was written to it when it was last looked at
	seenAt   time.Time
	doubted  string // the last epoch for which connections were made anew
	mismatch string // of the stored policy and Policy, as it was logged last
	trouble  string // the last that was told of a check that failed
}

// NewKeeper returns a Keeper. It is used by one goroutine.
func NewKeeper(o KeeperOptions) *Keeper {
	if o.Guard == nil {
		o.Guard = NewGuard()
	}
	return &Keeper{KeeperOptions: o, keys: keyspace(o.Namespace), drain: trustFor + settleFor, within: lookWithin}
}

// Run keeps watch until ctx is over. It returns an error when Redis or Postgres has what only newer programs
// understand: then nothing is decided any more, and the process must end.
func (k *Keeper) Run(ctx context.Context) error {
	defer k.closeLooker()
	for ctx.Err() == nil {
		err := k.runOnce(ctx)
		if errors.Is(err, ErrUnknownFormat) || errors.Is(err, ErrUnknownSchema) {
			k.Tenure.end(err.Error())
			k.Guard.Close(err.Error())
			k.Log.Error().Err(err).Msg("a newer version has changed what is stored: start this worker again in that version, or a newer one")
			return err
		}
		if ctx.Err() == nil {
			k.tell(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(checkEvery):
		}
	}
	return nil
}

// tell logs a failure once, and again when it is another.
func (k *Keeper) tell(err error) {
	switch {
	case err == nil:
		k.trouble = ""
	case err.Error() != k.trouble:
		k.trouble = err.Error()
		k.Log.Error().Err(err).Msg("it is not known now whether redis has all that was written to it, will be repeated")
	}
}

func (k *Keeper) runOnce(ctx context.Context) error {
	e, err := k.Check(ctx)
	if err != nil || e.Written {
		return err
	}
	r, err := k.rebuild(ctx, false, func(string) {})
	if errors.Is(err, ErrOtherEpoch) {
		return nil // another worker is at it
	}
	if err == nil {
		r.log(k.Log, e.Why)
		_, err = k.Check(ctx)
	}
	return err
}

// Check looks once at Postgres and Redis, and opens or closes the way to Redis by what it finds.
// It returns the entry as it is then.
func (k *Keeper) Check(ctx context.Context) (Epoch, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	asked := time.Now()
	e, err := k.Register.Epoch(ctx)
	if err != nil {
		return e, err
	}
	if !e.Written {
		k.close(e)
		return e, nil
	}
	policies, err := k.Register.Policies(ctx)
	if err != nil {
		return e, err
	}
	// What Redis has said may be published while it does not answer any more.
	current := k.Tenure.trustsIn(e.Name)
	if current {
		k.open(e, policies, asked)
	}
	if k.Tenure.takeDoubt(e.Name) {
		k.renew(e)
	}
	e.Why, err = k.inspect(ctx, e)
	if damage := k.Tenure.takeDamage(e.Name); damage != nil && err == nil && e.Why == "" && time.Since(k.mended) > mendEvery {
		k.mended = time.Now()
		e.Why = damage.Error()
	}
	switch {
	case errors.Is(err, errForeign):
		k.Tenure.end(err.Error())
	case err == nil && e.Why != "":
		if err = k.condemn(ctx, e); err == nil {
			e.Written, e.Lost = false, e.Name
			k.close(e)
		}
	case err == nil && !current:
		k.open(e, policies, asked)
	}
	return e, err
}

// open lets the worker decide under an epoch that Redis has.
func (k *Keeper) open(e Epoch, policies Policies, asked time.Time) {
	k.Guard.Open(e.Server)
	k.Tenure.begin(e.Name, e.Server, policies, asked)
	if mismatch := policies.Mismatch(k.Policy); mismatch != k.mismatch {
		k.mismatch = mismatch
		if mismatch != "" {
			k.Log.Warn().Str("policy_mismatch", mismatch).
				Msg("the stored policy differs from the settings of this worker, the stored one is used")
		}
	}
}

// renew has all connections made anew, each of which asks who is there: the one on which a script has not found
// the epoch may lead elsewhere.
func (k *Keeper) renew(e Epoch) {
	if k.doubted != e.Name {
		k.doubted = e.Name
		k.Log.Warn().Str("epoch", e.Name).
			Msg("a script did not find the epoch, or the history of its server, where it should be: connections to redis are made anew")
	}
	k.closeLooker()
	k.Guard.Renew()
}

// close keeps the worker from deciding.
func (k *Keeper) close(e Epoch) {
	if k.lostAt.IsZero() || k.lost != e.Lost {
		k.lost, k.lostAt = e.Lost, time.Now()
	}
	progress := "waiting for one who fills it again"
	if e.Progress != "" {
		progress = e.Rebuilder + ": " + e.Progress
	}
	if e.Why != "" {
		progress += "; why: " + e.Why
	}
	k.Tenure.end(progress)
	k.Guard.Close(progress)
}

// inspect looks whether Redis still has what was written under an epoch. It returns why not, "" when
// it has. What speaks against it is looked at again on a new connection: the one that there was may
// lead to a server that has been replaced.
func (k *Keeper) inspect(ctx context.Context, e Epoch) (why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, k.within)
	defer cancel()
	for range 2 {
		var s seen
		if s, err = look(ctx, k.Namespace, k.client()); err != nil {
			k.closeLooker()
			return "", err
		}
		if why, err = k.judge(ctx, e, s); why == "" && err == nil {
			return "", k.checkFormat(ctx, s.format)
		}
		k.closeLooker()
	}
	return why, err
}

// checkFormat returns ErrUnknownFormat when a format is noted that this program does not know. Where none, or a lower
// one, is noted it notes its own, so that older programs stop: Redis may have lost what was noted.
func (k *Keeper) checkFormat(ctx context.Context, noted string) error {
	if noted != "" {
		if format, err := knownFormat(noted); err != nil || format == Format {
			return err
		}
	}
	_, err := NoteFormat(ctx, k.Namespace, k.client())
	return err
}

// judge says why what was seen is not what was written under an epoch, "" when it is.
func (k *Keeper) judge(ctx context.Context, e Epoch, s seen) (why string, err error) {
	for _, found := range s.epochs {
		switch {
		case found != "" && lineage(found) != lineage(e.Name):
			return "", fmt.Errorf("%w: it is not touched; if that other one is gone: worker rebuild", errForeign)
		case found == "":
			why = "the epoch is gone: the data was removed, or not kept over a restart"
		case found != e.Name && why == "":
			why = "the epoch is an older one: this is the data of before an earlier loss"
		}
	}
	switch {
	case why != "":
		return why, nil
	case !k.isServer(e, s.server):
		return anotherServer, nil
	case e.Server != s.server.name():
		err = k.Register.EpochServed(ctx, e.Name, s.server.name(), e.Server)
		if errors.Is(err, ErrOtherEpoch) {
			err = nil // somebody else has noted it
		}
	}
	if err == nil {
		k.seen, k.seenAt = s.server.name(), time.Now()
	}
	return "", err
}

// isServer reports whether a server is the one that has an epoch, and has had it all the time.
func (k *Keeper) isServer(e Epoch, s server) bool {
	return e.Server == "" || e.Server == s.name() ||
		s.is(e.Server) && k.seen == e.Server && time.Since(k.seenAt) < renewWithin
}

// condemn ends an epoch. First Redis is told, so that scripts refuse at once whoever has sent them,
// also if Postgres cannot be reached.
func (k *Keeper) condemn(ctx context.Context, e Epoch) error {
	k.Log.Warn().Str("why", e.Why).Str("epoch", e.Name).
		Msg("redis has not all that was written to it, nothing is decided until it is filled again")
	k.Tenure.end("just noticed; why: " + e.Why)
	k.Guard.Close("just noticed; why: " + e.Why)
	failpoint.Hit("rebuild.noticed")
	if _, err := swapEpoch(ctx, k.keys, k.client(), e.Name, ""); err != nil {
		k.Log.Warn().Err(err).Msg("redis could not be told, postgres is")
	}
	failpoint.Hit("rebuild.told")
	if err := k.Register.CondemnEpoch(ctx, e.Name, e.Why); err != nil && !errors.Is(err, ErrOtherEpoch) {
		return err
	}
	failpoint.Hit("rebuild.condemned")
	return nil
}

// client returns the client for looks, which has one connection.
func (k *Keeper) client() *redis.Client {
	if k.looker == nil {
		options := k.Redis()
		options.PoolSize = 1
		k.looker = redis.NewClient(options)
	}
	return k.looker
}

func (k *Keeper) closeLooker() {
	if k.looker != nil {
		_ = k.looker.Close() // nothing is on its way
		k.looker = nil
	}
}
