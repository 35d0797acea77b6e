package holds

import (
	"context"
	"errors"
	"strings"
	"time"

	"holdfast/internal/lua"
)

// In tests the scripts read their clock from a key beside the epoch when there is one, so that
// a test can stop time and move it. Nothing else about them is different.
func init() {
	const real = "    now = time_ms\n"
	const test = real + "local clock = redis.call('GET', EPOCH .. ':clock')\nif clock then now = tonumber(clock) end"
	if strings.Count(prelude, real) != 1 {
		panic("the prelude's clock is not where the tests expect it")
	}
	prelude = strings.Replace(prelude, real, test, 1)
	for _, s := range []*lua.Script{
		&scriptPlace, &scriptClaim, &scriptSettle, &scriptRelease, &scriptExpire, &scriptForget,
		&scriptExtend, &scriptBump, &scriptAvailability, &scriptShow, &scriptAgenda, &scriptRebuild,
	} {
		*s = load(s.Name, s.Flags)
	}
	dryScripts = loadDryScripts()
}

// SkipDrain has a Keeper not wait for what is on its way: nobody publishes.
func (k *Supervisor) SkipDrain() { k.drain = 0 }

// RelaxTimeouts has a Keeper wait for Redis' answers, however slow the machine is.
func (k *Supervisor) RelaxTimeouts() { k.inspectTimeout = postgresCheckTimeout }

// ClockKeys are the keys from which the scripts of a namespace read their clock in tests.
func ClockKeys(namespace string) []string {
	keys := make([]string, Partitions)
	for p := range keys {
		keys[p] = keyspace(namespace).epoch(p) + ":clock"
	}
	return keys
}

// SweepAndAnnounce sweeps every partition once and announces what has lapsed.
func (e *Expirer) SweepAndAnnounce(ctx context.Context) error {
	if err := e.SweepOnly(ctx); err != nil {
		return err
	}
	for len(e.toAnnounce) > 0 {
		d := <-e.toAnnounce
		if err := e.announce(ctx, d.service, d.outcomes); err != nil {
			return err
		}
	}
	return nil
}

// SweepOnly sweeps every partition once, as a worker does that dies before it announces.
func (e *Expirer) SweepOnly(ctx context.Context) error {
	sw, failed := newSweeper(e), []error(nil)
	sw.agendaTimeout = postgresCheckTimeout
	for partitions := everyPartition(); len(partitions) > 0; {
		var err error
		partitions, _, err = sw.round(ctx, partitions)
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// Rounds returns what takes one round of a sweep through all partitions after another. A resource that fails rests for so
// long. The function returned reports how many rest then.
func (e *Expirer) Rounds(rest time.Duration) func(ctx context.Context) (resting int, err error) {
	sw := newSweeper(e)
	sw.restFor, sw.agendaTimeout = rest, postgresCheckTimeout
	return func(ctx context.Context) (int, error) {
		_, _, err := sw.round(ctx, everyPartition())
		return len(sw.resting), err
	}
}

// What bounds a round of a sweep.
const (
	DueMax     = dueMax
	RestingMax = restingMax
)

// ExpireOnce has expire.lua look at resources, all in one round trip.
func (s *Service) ExpireOnce(ctx context.Context, resources ...string) (more []bool, err error) {
	if s, err = s.forCurrentEpoch(); err != nil {
		return nil, err
	}
	calls := make([]*lua.Call, len(resources))
	for i, resource := range resources {
		calls[i] = s.newCall(scriptExpire, resource, s.requestKeyTTLMS(), sweepMax, announceLease.Milliseconds())
	}
	s.run(ctx, calls...)
	for _, c := range calls {
		if err := c.Expect(1); err != nil {
			return nil, err
		}
		more = append(more, c.Reply[0] != "0")
	}
	return more, nil
}

// Key names what tests look at directly.
func Key(namespace, resource, name string) string { return keyspace(namespace).prefix(resource) + name }

// EpochKey is the epoch's key of a resource's partition.
func EpochKey(namespace, resource string) string {
	return keyspace(namespace).epoch(Partition(resource))
}

// PartitionOfHold is keyspace.partitionOfHold.
func PartitionOfHold(namespace, key string) (int, bool) {
	return keyspace(namespace).partitionOfHold(key)
}

// AnnounceLease is how long a hold that was handed out is not handed out again.
const AnnounceLease = announceLease

// SweepMax is how many holds one call lapses.
const SweepMax = sweepMax

// ReadAge is how old what was read from Postgres may be when it is decided on.
const ReadAge = readAge

// What a Tenure does about doubt.

func (t *EpochTerm) ReportMismatch(epoch string)    { t.reportMismatch(epoch) }
func (t *EpochTerm) TakeMismatch(epoch string) bool { return t.takeMismatch(epoch) }

// What a Tenure does about damage.
const (
	HealWithin               = healWithin
	CorruptionForgottenAfter = corruptionForgottenAfter
	CorruptionsMax           = corruptionsMax
)

// NoteCorruption and TakeCorruption are noteCorruption and takeCorruption.
func (t *EpochTerm) NoteCorruption(epoch, resource string, err error) {
	t.noteCorruption(epoch, resource, err)
}
func (t *EpochTerm) TakeCorruption(epoch string) error { return t.takeCorruption(epoch) }

// AgeCorruptions has all damage been found long ago for the first time.
func (t *EpochTerm) AgeCorruptions() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.corruptions {
		d.first = d.first.Add(-healWithin)
	}
}

// IndexField is indexField.
func IndexField(user, slots string) string { return indexField(user, slots) }
