package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// DropAnswers removes at most so many answers of events that were decided longer ago than age, the oldest first. It
// returns how many it has removed. Any number of workers may do so at once.
func (s *Store) DropAnswers(ctx context.Context, age time.Duration, most int) (dropped int, err error) {
	done, err := s.pool.Exec(ctx, queryAnswersDrop, age.Milliseconds(), most)
	if err != nil {
		return 0, fmt.Errorf("drop answers of events: %w", err)
	}
	return int(done.RowsAffected()), nil
}

// DropElapsedNights removes at most so many rows of inventory: those of nights of more than so many days ago, of which
// nothing is reserved. It returns how many it has removed. A role without the privilege to delete them keeps them.
func (s *Store) DropElapsedNights(ctx context.Context, days, most int) (dropped int, err error) {
	done, err := s.pool.Exec(ctx, queryNightsDrop, days, most)
	if refused, is := errors.AsType[*pgconn.PgError](err); is && refused.Code == codeInsufficientPrivilege {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("drop nights of the past: %w", err)
	}
	return int(done.RowsAffected()), nil
}
