package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

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

// DropElapsedNights removes the inventory rows of nights more than a number of days ago without reservations, which were not
// set or sold for as long, by the clock of Postgres and by now. It reads the whole table, by statements of page rows each,
// and returns how many rows it has removed. It removes none if the role has no privilege to delete.
func (s *Store) DropElapsedNights(ctx context.Context, now time.Time, days, page int) (dropped int, err error) {
	var resource, slot string // the last row of the page before
	for {
		var removed int
		err := s.pool.QueryRow(ctx, query("nights_drop"), days, page, now, resource, slot).Scan(&resource, &slot, &removed)
		switch {
		case errors.Is(err, pgx.ErrNoRows), postgres.HasCode(err, postgres.CodeInsufficientPrivilege):
			return dropped, nil
		case err != nil:
			return dropped, fmt.Errorf("drop elapsed nights: %w", err)
		}
		dropped += removed
	}
}
