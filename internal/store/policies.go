package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"

	"holdfast/internal/holds"
)

// policiesKept is how long a policy is kept after the next one came into force.
const policiesKept = 365 * 24 * time.Hour

func scanPolicies(rows pgx.Rows) (all holds.Policies, err error) {
	var since time.Time
	var text string
	_, err = pgx.ForEachRow(rows, []any{&since, &text}, func() error {
		var settings map[string]string
		if err := json.Unmarshal([]byte(text), &settings); err != nil {
			return err
		}
		policy, err := holds.ParsePolicy(settings)
		all = append(all, holds.StoredPolicy{Since: since.UTC(), Policy: policy})
		return err
	})
	return all, err
}

// StorePolicy stores a policy unless it is the latest one already. It returns in how long the
// policy comes into force: at once if it is the first, else in holds.PolicyDelay.
func (s *Store) StorePolicy(ctx context.Context, policy holds.Policy) (inForceIn time.Duration, err error) {
	settings, err := json.Marshal(policy.Settings())
	if err != nil {
		return 0, fmt.Errorf("store policy: %w", err)
	}
	err = s.transact(ctx, func(tx pgx.Tx) error {
		// Another process may store a policy at the same time. Readers do not wait for this lock.
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = 0; LOCK TABLE policies IN EXCLUSIVE MODE`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, query("policies_delete"), policiesKept.Milliseconds()); err != nil {
			return err
		}
		var ms int64
		err := tx.QueryRow(ctx, query("policies_insert"), string(settings), holds.PolicyDelay.Milliseconds()).Scan(&ms)
		if errors.Is(err, pgx.ErrNoRows) { // it is the latest already
			return nil
		}
		inForceIn = time.Duration(ms) * time.Millisecond
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("store policy: %w", err)
	}
	return inForceIn, nil
}
