package store

import (
	"context"
	"fmt"
	"time"
)

// KeepLease takes or renews a lease for holder, for a time by the clock of Postgres. It reports
// whether holder has the lease now. Another holder keeps it until its time is over or it releases
// it.
func (s *Store) KeepLease(ctx context.Context, name, holder string, lease time.Duration) (held bool, err error) {
	tag, err := s.pool.Exec(ctx, query("lease_keep"), name, holder, lease.Milliseconds())
	if err != nil {
		return false, fmt.Errorf("keep lease %s: %w", name, err)
	}
	return tag.RowsAffected() > 0, nil
}

// ReleaseLease ends a lease if holder has it.
func (s *Store) ReleaseLease(ctx context.Context, name, holder string) error {
	if _, err := s.pool.Exec(ctx, query("lease_release"), name, holder); err != nil {
		return fmt.Errorf("release lease %s: %w", name, err)
	}
	return nil
}
