package recovery

import (
	"context"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/record"
)

// What a term does about corruption.
const (
	HealWithin               = healWithin
	CorruptionForgottenAfter = corruptionForgottenAfter
	CorruptionsMax           = corruptionsMax
)

// TakeMismatches reports in which partitions takeMismatches finds one, when all have the same epoch.
func (t *EpochTerm) TakeMismatches(epoch string) record.PartitionSet {
	return t.takeMismatches(uniform(epoch))
}

// TakeCorruptions returns what takeCorruptions returns when all partitions have the same epoch.
func (t *EpochTerm) TakeCorruptions(epoch string) map[int]error {
	return t.takeCorruptions(uniform(epoch))
}

func uniform(epoch string) *Epochs {
	var epochs Epochs
	for p := range epochs {
		epochs[p].Name = epoch
	}
	return &epochs
}

// AgeCorruptions makes all corruption that was reported old enough to invalidate the epoch when it is found again.
func (t *EpochTerm) AgeCorruptions() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.corruptions {
		d.first = d.first.Add(-healWithin)
	}
}

// AwaitPublished revokes all epochs, and reports whether everything is stored, or never will be, that was published
// until then.
func (t *EpochTerm) AwaitPublished(ctx context.Context, limit time.Duration) bool {
	return t.awaitPublished(ctx, t.revoke(record.AllPartitions), limit)
}

// TermValidity is how long a worker relies on a check.
const TermValidity = termValidity

// SealedTogether is how many partitions are written, sealed and used together.
const SealedTogether = sealedTogether

// PublishDelayMax is the longest time until a message that was sent is stored.
const PublishDelayMax = publishDelayMax

// Begin begins or renews the terms of all partitions, under one epoch.
func (t *EpochTerm) Begin(epoch string) {
	t.begin(record.AllPartitions, uniform(epoch), nil, "", time.Now())
}

// End ends the terms of partitions.
func (t *EpochTerm) End(of record.PartitionSet) { t.end(of, holds.RebuildingError{Progress: "a test"}) }

// Suspend lets the machine have been suspended for a time: only its wall clock has gone on.
func (t *EpochTerm) Suspend(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for p := range t.partitions {
		t.partitions[p].verified.wall = t.partitions[p].verified.wall.Add(-d)
	}
}

// DescribeProgress returns why a partition waits, and how far its rebuild is.
func (e *Epoch) DescribeProgress() string { return e.progress() }

// OldestGeneration returns the lowest generation of the data of all partitions.
func (e *Epochs) OldestGeneration() int64 { return e.oldestGeneration(record.AllPartitions) }

// Connections returns how many servers the cluster has clients of.
func (c *Cluster) Connections() int { return len(c.clients) }

// KeepLong makes a check count for an hour, however slow the machine is.
func (g *HistoryGuard) KeepLong() { g.knownFor = time.Hour }

// Age makes the last check older than that.
func (c *HistoryChecker) Age() {
	c.knownAt.wall = c.knownAt.wall.Add(-2 * time.Hour)
	c.Guard.allow(c.known, c.knownAt)
}

// NoticedAt returns when the history that is not compared yet was noticed, after it has made that d earlier.
func (c *HistoryChecker) NoticedAt(d time.Duration) time.Time {
	c.noticedAt = c.noticedAt.Add(-d)
	return c.noticedAt
}

// RetryLostEvery changes how often lost commits are tried. It comes after Supervisor.CheckHistory.
func (c *HistoryChecker) RetryLostEvery(d time.Duration) { c.lostRetryEvery = d }

// LostAt returns when the last of the partitions that are lost was found to be lost.
func (s *Supervisor) LostAt() time.Time { return s.lostAt(record.AllPartitions) }
