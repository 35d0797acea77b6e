package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/store"
)

// How often a trimmer runs, and how long it keeps what it removes. docs/storage.md lists everything
// that is stored and its bound.
const (
	trimEach    = 10 * time.Minute    // or a tenth of the time that inbound events are kept, if that is less
	answersEach = 1000                // removed by one statement
	answersKept = 30 * 24 * time.Hour // added to the time that their events and outcomes are kept
	nightsEach  = 24 * time.Hour
	nightsKept  = 400    // days
	nightsRead  = 10_000 // rows of inventory that one statement reads
)

// trimmer removes old data: inbound events, answers of events, and past nights. Each step is
// bounded and can be repeated, so any number of workers may run one.
type trimmer struct {
	js       jetstream.JetStream
	ns       events.Namespace
	inbound  *events.Trimmer
	db       *store.Store
	log      zerolog.Logger
	keep     time.Duration // of inbound events
	lifetime time.Duration // of a hold, at most
	nightsAt time.Time     // when to remove past nights again
}

func newTrimmer(c Config, js jetstream.JetStream, ns events.Namespace, db *store.Store, log zerolog.Logger) *trimmer {
	return &trimmer{
		js: js, ns: ns, inbound: events.NewTrimmer(js, ns, c.InboundKeep, log), db: db, log: log,
		keep: c.InboundKeep, lifetime: c.HoldLifetimeMax,
	}
}

// each returns the time between two runs.
func (x *trimmer) each() time.Duration { return min(trimEach, x.keep/10) }

// runOnce removes all data that is old enough now.
func (x *trimmer) runOnce(ctx context.Context) error {
	answered, err := x.trimInbound(ctx)
	if err == nil && answered {
		err = x.dropAnswers(ctx)
	}
	if now := time.Now(); now.After(x.nightsAt) {
		days := nightsKept + int(x.lifetime/(24*time.Hour))
		dropped, nights := x.db.DropElapsedNights(ctx, now, days, nightsRead)
		x.logRemoved(dropped, "past nights removed")
		if nights == nil {
			x.nightsAt = now.Add(nightsEach)
		}
		err = errors.Join(err, nights)
	}
	return err
}

// dropAnswers removes answers when no event is redelivered that must find them, and no outcome is left that a
// comparison of Postgres would put back without them. It removes none while outcomes are kept for ever.
func (x *trimmer) dropAnswers(ctx context.Context) error {
	out, err := x.js.Stream(ctx, x.ns.OutStream())
	if err != nil {
		return fmt.Errorf("stream %s: %w", x.ns.OutStream(), err)
	}
	outcomesKept := out.CachedInfo().Config.MaxAge
	if outcomesKept == 0 {
		return nil
	}
	all := 0
	for dropped := answersEach; dropped == answersEach && ctx.Err() == nil; all += dropped {
		if dropped, err = x.db.DropAnswers(ctx, max(x.keep, outcomesKept)+answersKept, answersEach); err != nil {
			return err
		}
	}
	x.logRemoved(all, "answers of events removed")
	return nil
}

// trimInbound removes inbound events older than x.keep, until the next run is due: the other steps wait for it. It reports
// whether all of those are answered.
func (x *trimmer) trimInbound(ctx context.Context) (answered bool, err error) {
	removed, began := uint64(0), time.Now()
	for more := true; more; {
		done, err := x.inbound.RunOnce(ctx)
		if err != nil {
			return false, err
		}
		removed += done.Removed
		answered, more = done.Answered, done.More && time.Since(began) < x.each()
	}
	if removed > 0 {
		x.log.Info().Uint64("events", removed).Msg("inbound events removed")
	}
	return answered, nil
}

func (x *trimmer) logRemoved(rows int, message string) {
	if rows > 0 {
		x.log.Info().Int("rows", rows).Msg(message)
	}
}
