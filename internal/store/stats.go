package store

import (
	"context"
	"fmt"
	"time"
)

// PoolStats describes the pool of connections at a moment.
type PoolStats struct {
	Used, Idle, Max int32
	Waits           int64         // acquisitions that found no idle connection, so far
	Waited          time.Duration // in them, in total
	Failed          int64         // acquisitions that their callers gave up, so far
}

// PoolStats returns the state of the pool.
func (s *Store) PoolStats() PoolStats {
	stat := s.pool.Stat()
	return PoolStats{
		Used: stat.AcquiredConns(), Idle: stat.IdleConns(), Max: stat.MaxConns(),
		Waits: stat.EmptyAcquireCount(), Waited: stat.EmptyAcquireWaitTime(), Failed: stat.CanceledAcquireCount(),
	}
}

// Now reads Postgres' clock.
func (s *Store) Now(ctx context.Context) (now time.Time, err error) {
	if err := s.pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now); err != nil {
		return now, fmt.Errorf("read postgres clock: %w", err)
	}
	return now, nil
}
