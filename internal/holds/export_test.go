package holds

import (
	"context"
	"errors"
	"time"

	"holdfast/internal/lua"
	"holdfast/internal/record"
)

// slowTimeout lets Redis answer however slow the machine is.
const slowTimeout = 5 * time.Second

// ValidUUID reports whether a text is a UUID as hold ids have it.
var ValidUUID = validUUID

// SweepAndAnnounce sweeps every partition once and announces the expired holds.
func (e *Expirer) SweepAndAnnounce(ctx context.Context) error {
	if err := e.SweepOnly(ctx); err != nil {
		return err
	}
	for len(e.toAnnounce) > 0 {
		d := <-e.toAnnounce
		if _, err := e.announce(ctx, d.work, d.outcomes); err != nil {
			return err
		}
	}
	return nil
}

// AnnounceLate sweeps every partition once, and announces the expired holds as if they had waited for so long.
func (e *Expirer) AnnounceLate(ctx context.Context, waited time.Duration) error {
	if err := e.SweepOnly(ctx); err != nil {
		return err
	}
	for range len(e.toAnnounce) {
		d := <-e.toAnnounce
		d.takenAt = d.takenAt.Add(-waited)
		e.announceBatch(ctx, d)
	}
	return nil
}

// LimitQueue changes how many batches may wait for their announcement. The caller calls it before the first sweep.
func (e *Expirer) LimitQueue(batches int) { e.toAnnounce = make(chan expiredBatch, batches) }

// Queued returns how many holds wait in each batch, and when the last one was taken.
func (e *Expirer) Queued() (sizes []int, takenAt time.Time) {
	for range len(e.toAnnounce) {
		d := <-e.toAnnounce
		sizes, takenAt = append(sizes, len(d.outcomes)), d.takenAt
		e.toAnnounce <- d
	}
	return sizes, takenAt
}

// RecoverAfter changes how long after a failed announcement an outage may end.
func (e *Expirer) RecoverAfter(d time.Duration) { e.recoveredAfter = d }

// SweepOnly sweeps every partition once, as a worker does that dies before it announces.
func (e *Expirer) SweepOnly(ctx context.Context) error {
	sw, failed := newSweeper(e), []error(nil)
	sw.agendaTimeout = slowTimeout
	for partitions := record.AllPartitions; partitions != 0; {
		var err error
		partitions, _, err = sw.round(ctx, partitions)
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// NextRound sweeps every partition once, and returns after what time the next round begins.
func (e *Expirer) NextRound(ctx context.Context) (time.Duration, error) {
	sw := newSweeper(e)
	sw.agendaTimeout = slowTimeout
	_, next, err := sw.round(ctx, record.AllPartitions)
	return next, err
}

// Rounds returns what takes one round of a sweep through all partitions after another. A resource
// that fails rests for so long. The function returned reports how many rest then.
func (e *Expirer) Rounds(rest time.Duration) func(ctx context.Context) (resting int, err error) {
	sw := newSweeper(e)
	sw.restFor, sw.agendaTimeout = rest, slowTimeout
	return func(ctx context.Context) (int, error) {
		_, _, err := sw.round(ctx, record.AllPartitions)
		return len(sw.resting), err
	}
}

// What bounds a round of a sweep.
const (
	DueMax     = dueMax
	RestingMax = restingMax
)

// ExpireOnce runs expire.lua on resources, all in one round trip.
func (s *Service) ExpireOnce(ctx context.Context, resources ...string) (more []bool, err error) {
	w := s.beginWork()
	calls := make([]*lua.Call, len(resources))
	for i, resource := range resources {
		calls[i] = w.newCall(scriptExpire, resource, w.requestKeyTTLMS(), sweepMax, announceLease.Milliseconds(), sweepMax)
	}
	w.run(ctx, calls...)
	for _, c := range calls {
		if err := c.Expect(1); err != nil {
			return nil, err
		}
		more = append(more, c.Reply[0] != "0")
	}
	return more, nil
}

// Key names a key that tests read.
func Key(namespace, resource, name string) string {
	return record.Keyspace(namespace).Prefix(resource) + name
}

// EpochKey is the epoch's key of a resource's partition.
func EpochKey(namespace, resource string) string {
	return record.Keyspace(namespace).Epoch(record.Partition(resource))
}

// AnnounceLease is how long a hold that was handed out is not handed out again.
const AnnounceLease = announceLease

// AnnounceMax bounds the holds of one batch.
const AnnounceMax = announceMax

// SweepMax bounds the holds that one call expires.
const SweepMax = sweepMax

// SweepPause is the least time between two rounds.
const SweepPause = sweepPause

// ReadAge is how old what was read from Postgres may be when it is decided on.
const ReadAge = readAge

// MoveRedisClock lets Redis' clock have moved on since rows of inventory were cached.
func (s *Service) MoveRedisClock(by time.Duration) {
	s.rows.mu.Lock()
	defer s.rows.mu.Unlock()
	for _, cached := range s.rows.resources {
		cached.rev.at = cached.rev.at.Add(-by)
	}
}

// Expired returns how many expired holds were counted.
func (m *Metrics) Expired() int64 { return m.ended.With(endExpired).Value() }
