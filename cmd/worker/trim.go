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

// How often a trimmer runs, and how long it keeps what it removes. docs/storage.md lists everything
// that is stored and its bound.
const (
	trimEach    = 10 * time.Minute    // or a tenth of the time that inbound events are kept, if that is less
	trimRows    = 1000                // removed by one statement
	answersKept = 30 * 24 * time.Hour // added to the time that their events are kept
	nightsEach  = 24 * time.Hour
	nightsKept  = 400 // days
)

// trimmer removes old data: inbound events, answers of events, and past nights. Each step is
// bounded and can be repeated, so any number of workers may run one.
type trimmer struct {
	inbound  *events.Trimmer
	db       *store.Store
	log      zerolog.Logger
	keep     time.Duration // of inbound events
	lifetime time.Duration // of a hold, at most
	nightsAt time.Time     // when to remove past nights again
}

func newTrimmer(c Config, js jetstream.JetStream, ns events.Namespace, db *store.Store, log zerolog.Logger) *trimmer {
	return &trimmer{
		inbound: events.NewTrimmer(js, ns, c.InboundKeep, log), db: db, log: log,
		keep: c.InboundKeep, lifetime: c.HoldLifetimeMax,
	}
}

// each returns the time between two runs.
func (x *trimmer) each() time.Duration { return min(trimEach, x.keep/10) }

// runOnce removes all data that is old enough now.
func (x *trimmer) runOnce(ctx context.Context) error {
	answered, err := x.trimInbound(ctx)
	if err == nil && answered {
		// A redelivered event must find its answer, and an event without acknowledgement can be
		// redelivered.
		err = x.drop(ctx, "answers of events removed", func() (int, error) {
			return x.db.DropAnswers(ctx, x.keep+answersKept, trimRows)
		})
	}
	if now := time.Now(); now.After(x.nightsAt) {
		days := nightsKept + int(x.lifetime/(24*time.Hour))
		nights := x.drop(ctx, "past nights removed", func() (int, error) {
			return x.db.DropElapsedNights(ctx, now, days, trimRows)
		})
		if nights == nil {
			x.nightsAt = now.Add(nightsEach)
		}
		err = errors.Join(err, nights)
	}
	return err
}

// trimInbound removes inbound events older than x.keep. It reports whether all of those are
// answered.
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

// drop calls some, which removes at most trimRows rows, until it finds fewer, and logs their
// number.
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
