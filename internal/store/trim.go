package store

import (
	"context"
	"fmt"
	"time"

	"holdfast/internal/postgres"
)

// DropAnswers removes at most a number of answers of events that were decided longer ago than age,
// the oldest first. It returns how many it has removed. Several workers may call it at once.
func (s *Store) DropAnswers(ctx context.Context, age time.Duration, most int) (dropped int, err error) {
	done, err := s.pool.Exec(ctx, query("answers_drop"), age.Milliseconds(), most)
	if err != nil {
		return 0, fmt.Errorf("drop answers of events: %w", err)
	}
	return int(done.RowsAffected()), nil
}

// DropElapsedNights removes at most a number of inventory rows: those of nights more than a number
// of days ago without reservations, which were not set or sold for as long, by the clock of Postgres and by now. It returns
// how many it has removed. It removes none if the role has no privilege to delete.
func (s *Store) DropElapsedNights(ctx context.Context, now time.Time, days, most int) (dropped int, err error) {
	done, err := s.pool.Exec(ctx, query("nights_drop"), days, most, now)
	if postgres.HasCode(err, postgres.CodeInsufficientPrivilege) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("drop elapsed nights: %w", err)
	}
	return int(done.RowsAffected()), nil
}
