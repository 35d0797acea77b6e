package recovery

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"holdfast/internal/failpoint"
	"holdfast/internal/holds"
	"holdfast/internal/record"
)

// A recovery must read every outcome that was decided before the loss. So it waits until all workers have
// said that they publish nothing of that any more, or until none may: Supervisor.Drain after the loss was
// noticed. All workers are known, because each registers in Postgres before it reads the epochs under
// which it decides (readPostgres). One that has died, or does not reach Postgres, says nothing; after the
// wait it is forgotten, and registers again if it still runs. Another recovery still waits for it, until
// Supervisor.Drain after it was forgotten: what it has read before, it publishes until then.

const (
	drainPoll  = 20 * time.Millisecond  // between two questions whether all workers have drained
	drainLimit = 200 * time.Millisecond // how long one check waits for what is being published
	leaveLimit = time.Second
)

// publications counts what a worker publishes. The lock of its EpochTerm guards them.
type publications struct {
	last      uint64              // the number of the last one that began
	open      map[uint64]struct{} // numbers of those that have not ended
	uncertain time.Time           // until then what was sent without an answer may still be stored
}

// Publishing implements holds.Term.
func (t *EpochTerm) Publishing() (done func(certain bool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.publications
	p.last++
	number := p.last
	p.open[number] = struct{}{}
	return func(certain bool) {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(p.open, number)
		if !certain {
			p.uncertain = time.Now().Add(publishDelayMax)
		}
	}
}

// published reports whether everything is stored, or never will be, that was sent by publications up to a
// number.
func (t *EpochTerm) published(number uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for one := range t.publications.open {
		if one <= number {
			return false
		}
	}
	return time.Now().After(t.publications.uncertain)
}

// revoke makes Verify refuse the epochs of partitions. It returns the number of the last publication that
// may have verified one of them.
func (t *EpochTerm) revoke(of record.PartitionSet) (last uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for p := range of.Each() {
		t.partitions[p].verifiedEpoch = ""
	}
	t.notify(false)
	return t.publications.last
}

// awaitPublished waits until the publications up to a number have ended, for a limited time. It reports whether
// they have.
func (t *EpochTerm) awaitPublished(ctx context.Context, last uint64, limit time.Duration) bool {
	for until := time.Now().Add(limit); !t.published(last); {
		if !time.Now().Before(until) || sleep(ctx, drainPoll/4) != nil {
			return false
		}
	}
	return true
}

// readPostgres returns what was read after Postgres was compared and this worker registered, and a time before that. It
// reads again after it has done either.
func (s *Supervisor) readPostgres(ctx context.Context) (state PostgresState, readAt time.Time, err error) {
	defer func() {
		if err != nil && s.history != nil {
			s.history.Guard.fail(err)
		}
	}()
	for {
		readAt = time.Now()
		if state, err = s.readState(ctx); err != nil {
			return PostgresState{}, readAt, err
		}
		if s.history != nil { // first: the other rows are among those that may be too old
			compared, err := s.history.Check(ctx, state.History, readAt)
			switch {
			case err != nil:
				return PostgresState{}, readAt, err
			case compared:
				continue
			}
		}
		if state.Registered {
			return state, readAt, nil
		}
		if err := s.register(ctx); err != nil {
			return PostgresState{}, readAt, err
		}
	}
}

func (s *Supervisor) readState(ctx context.Context) (PostgresState, error) {
	ctx, cancel := context.WithTimeout(ctx, postgresCheckTimeout)
	defer cancel()
	return s.EpochStore.State(ctx, s.id)
}

// register registers this worker, which has said nothing of any recovery yet.
func (s *Supervisor) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, postgresCheckTimeout)
	defer cancel()
	s.drained = nil
	err := s.EpochStore.RegisterWorker(ctx, s.id)
	if err != nil { // when it arrives, it must not register what another worker has forgotten since then
		s.id = workerID(s.Name)
	}
	return err
}

// drain says of each epoch that a worker has begun after a loss that this worker publishes nothing more of what
// was decided before it. It does so at a later check when something is still being published.
func (s *Supervisor) drain(ctx context.Context, epochs *Epochs) error {
	var begun record.PartitionSet
	for p := range epochs {
		if e := &epochs[p]; !e.Complete && e.Why != "" && e.Name != e.Lost {
			begun.Add(p)
		}
	}
	names := epochIDs(begun, func(p int) string { return epochs[p].Name })
	if begun == 0 || slices.Equal(names, s.drained) {
		return nil
	}
	if !s.Term.awaitPublished(ctx, s.Term.revoke(begun), drainLimit) {
		return nil
	}
	failpoint.Hit("rebuild.drained")
	err := s.EpochStore.StoreDrained(ctx, s.id, names)
	if err == nil {
		s.drained = names
	}
	return err
}

// epochIDs returns the holds.EpochID of each of some partitions.
func epochIDs(of record.PartitionSet, epoch func(partition int) string) (ids []string) {
	for p := range of.Each() {
		ids = append(ids, holds.EpochID(p, epoch(p)))
	}
	return ids
}

// workerID returns a new id of a worker in the register.
func workerID(name string) string { return name + " " + uuid.NewString() }

// Leave removes this worker from the register, so that no recovery waits for it, or forgets it, so that
// one waits only while something may still be stored. It decides nothing any more.
func (s *Supervisor) Leave(ctx context.Context) error {
	last := s.Term.revoke(record.AllPartitions)
	if !s.Term.awaitPublished(ctx, last, leaveLimit) {
		return s.EpochStore.ForgetWorkers(ctx, []string{s.id}, nil)
	}
	return s.EpochStore.RemoveWorker(ctx, s.id)
}

// awaitDrained waits until all outcomes are stored that were decided under the epochs before.
func (a *rebuild) awaitDrained(ctx context.Context) error {
	a.reportProgress("waiting for outcomes in flight")
	ids := epochIDs(a.partitions, func(int) string { return a.epoch })
	for end := a.lost.Add(a.Drain); ; {
		left, err := a.EpochStore.Undrained(ctx, ids, a.Drain)
		if err == nil && len(left) == 0 {
			return nil
		}
		wait := time.Until(end)
		if wait <= 0 {
			if err == nil {
				a.Log.Info().Strs("workers", left).Msg("workers have not said that they publish nothing more, waited for them")
				err = a.EpochStore.ForgetWorkers(ctx, left, ids)
			}
			return err
		}
		if err := sleep(ctx, min(wait, drainPoll)); err != nil {
			return err
		}
	}
}
