package main

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/store"
)

// What a trimmer removes, and how often. docs/storage.md names everything that is stored and its bound.
const (
	trimEach    = 10 * time.Minute
	trimRows    = 1000                // that one statement removes
	answersKept = 30 * 24 * time.Hour // longer than the events that they answer
	nightsEach  = 24 * time.Hour
	nightsKept  = 400 // days
)

// trimmer removes what nobody needs any more: inbound events, answers of events, and nights that are long past. It
// does so in bounded steps that may be repeated, so any number of workers may do it.
type trimmer struct {
	inbound  *events.Trimmer
	db       *store.Store
	log      zerolog.Logger
	keep     time.Duration // of inbound events
	lifetime time.Duration // of a hold, at most
	nightsAt time.Time     // when to look for past nights again
}

func newTrimmer(c Config, js jetstream.JetStream, ns events.Namespace, db *store.Store, log zerolog.Logger) *trimmer {
	return &trimmer{
		inbound: events.NewTrimmer(js, ns, c.InboundKeep, log), db: db, log: log,
		keep: c.InboundKeep, lifetime: c.HoldLifetimeMax,
	}
}

// run trims until ctx is over. What fails is tried again.
func (x *trimmer) run(ctx context.Context) error {
	ticker := time.NewTicker(trimEach)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := x.runOnce(ctx); err != nil && ctx.Err() == nil {
				x.log.Warn().Err(err).Msg("removal of old data failed, will be repeated")
			}
		}
	}
}

// runOnce removes all that may be removed now.
func (x *trimmer) runOnce(ctx context.Context) error {
	answered, err := x.trimInbound(ctx)
	if err == nil && answered {
		// An event that is delivered again must find its answer, and one that is not acknowledged may be.
		err = x.drop(ctx, "answers of events removed", func() (int, error) {
			return x.db.DropAnswers(ctx, x.keep+answersKept, trimRows)
		})
	}
	if now := time.Now(); now.After(x.nightsAt) {
		days := nightsKept + int(x.lifetime/(24*time.Hour))
		nights := x.drop(ctx, "past nights removed", func() (int, error) { return x.db.DropElapsedNights(ctx, days, trimRows) })
		if nights == nil {
			x.nightsAt = now.Add(nightsEach)
		}
		err = errors.Join(err, nights)
	}
	return err
}

// trimInbound reports whether every event that is older than what is kept is answered.
func (x *trimmer) trimInbound(ctx context.Context) (answered bool, err error) {
	removed := uint64(0)
	for done := (events.TrimResult{More: true}); done.More; {
		if done, err = x.inbound.RunOnce(ctx); err != nil {
			return false, err
		}
		removed += done.Removed
		answered = done.Answered
	}
	if removed > 0 {
		x.log.Info().Uint64("events", removed).Msg("inbound events removed")
	}
	return answered, nil
}

// drop removes rows until there are no more.
func (x *trimmer) drop(ctx context.Context, message string, some func() (int, error)) error {
	all := 0
	for dropped := trimRows; dropped == trimRows && ctx.Err() == nil; all += dropped {
		var err error
		if dropped, err = some(); err != nil {
			return err
		}
	}
	if all > 0 {
		x.log.Info().Int("rows", all).Msg(message)
	}
	return nil
}
