package store

import "time"

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
