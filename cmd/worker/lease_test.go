package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/locking"
	"holdfast/internal/lua"
	"holdfast/internal/stack/stacktest"
)

// lockHarness has a real Redis for locks.
type lockHarness struct {
	client *redis.Client
	prefix string
}

func newLockHarness(t *testing.T) *lockHarness {
	t.Helper()
	return &lockHarness{stacktest.ConnectRedis(t, stacktest.Shared().RedisURL), stacktest.Namespace(t) + ":{1}:"}
}

func (b *lockHarness) locker(t *testing.T, lease locking.LeaseFunc, m *locking.Metrics) *locking.Locker {
	t.Helper()
	var base atomic.Int64
	l := locking.New(locking.NewRange(b.client, locking.RangeOptions{
		Lease: lease, FenceBase: func(context.Context) (int64, error) { return base.Add(1), nil },
	}), locking.Options{Metrics: m})
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func (b *lockHarness) set(name string) locking.KeySet {
	return locking.KeySet{Names: []string{name}, Fence: b.prefix + "fence", Version: b.prefix + "version", Scope: b.prefix}
}

var releaseScript = lua.New("release", "", `
local time = redis.call('TIME')
local value, until_ms = string.match(redis.call('HGET', KEYS[1], ARGV[2]) or '', '^(%S+) (%d+)$')
if value ~= ARGV[1] or tonumber(until_ms) <= time[1] * 1000 + math.floor(time[2] / 1000) then return {'lock_lost'} end
redis.call('HDEL', KEYS[1], ARGV[2])
return {'ok'}`)

// section takes a lock, calls work and commits. It returns the status of the commit.
func (b *lockHarness) section(
	ctx context.Context, l *locking.Locker, name string, work func(*locking.Lock),
) (string, error) {
	lock, err := l.Lock(ctx, "", time.Second, b.set(name))
	if err != nil {
		return "", err
	}
	work(lock)
	call := &lua.Call{Script: releaseScript, Keys: []string{b.prefix + "locks"},
		Args: []any{lock.Token, lock.KeySet.Names[0]}}
	l.Exec(ctx, []*locking.Lock{lock}, []*lua.Call{call})
	return call.Status, call.Err
}

// awaitLeaseEnd waits until the lease of a lock has expired by Redis' clock.
func (b *lockHarness) awaitLeaseEnd(t *testing.T, lock *locking.Lock) {
	stacktest.Eventually(t, "the lease to expire", func() bool {
		_, until, _ := strings.Cut(b.client.HGet(t.Context(), b.prefix+"locks", lock.KeySet.Names[0]).Val(), " ")
		if until == "" {
			return true // the hash expires with its last lease
		}
		ms, err := strconv.ParseInt(until, 10, 64)
		return err == nil && ms <= b.client.Time(t.Context()).Val().UnixMilli()
	})
}

// TestLeaser_SectionsChange_LeaseFollows shortens the lease after many short sections, and
// lengthens it when some sections exceed it.
func TestLeaser_SectionsChange_LeaseFollows(t *testing.T) {
	t.Parallel()
	registry, metrics := newMetrics(t)
	b := newLockHarness(t)
	ctx := t.Context()
	var log strings.Builder
	x := newLeaser(Config{Locks: Locks{LockLease: leaseAuto}}, registry, zerolog.New(&log))
	l := b.locker(t, x.lease, metrics)
	choose := func() time.Duration {
		t.Helper()
		stacktest.Must(t, x.runOnce(t.Context()))
		return x.lease(1)
	}
	if first := choose(); first != leaseFirst || log.Len() > 0 {
		t.Errorf("without samples: %v, %s", first, log.String())
	}
	var short time.Duration
	stacktest.Eventually(t, "enough short sections to shorten the lease", func() bool { // a busy machine needs more
		for range locking.MinSamples {
			if status, err := b.section(ctx, l, "short", func(*locking.Lock) {}); status != "ok" || err != nil {
				t.Fatalf("%s, %v", status, err)
			}
		}
		short = choose()
		return short < leaseFirst
	})
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			status, err := b.section(ctx, l, fmt.Sprintf("long-%d", i), func(lock *locking.Lock) { b.awaitLeaseEnd(t, lock) })
			if status != locking.StatusLockLost || err != nil {
				t.Errorf("a section that exceeded its lease: %s, %v", status, err)
			}
		})
	}
	all.Wait()
	if long := choose(); long <= short {
		t.Errorf("after sections that exceeded %v: %v, %s", short, long, log.String())
	}
	for _, field := range []string{"lock lease chosen from measurement", `"slots":"1"`, `"lease_ms":`, `"p99_ms":`,
		`"margin":`} {
		if !strings.Contains(log.String(), field) {
			t.Errorf("no %s in %s", field, log.String())
		}
	}
	evidence := regexp.MustCompile(`"samples":(\d+)`).FindAllStringSubmatch(log.String(), -1)
	if len(evidence) < 2 { // one for the shorter lease, one for the longer
		t.Errorf("no samples in %s", log.String())
	}
	for _, samples := range evidence {
		if n, err := strconv.Atoi(samples[1]); err != nil || n < locking.MinSamples {
			t.Errorf("a lease was chosen from only %s samples", samples[1])
		}
	}
	t.Log(log.String())
}
