package recovery_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

const (
	evictsLogged  = "redis evicts keys when its memory is full, slots may be sold twice"
	ceasedLogged  = "redis evicts no keys any more"
	evictedLogged = "redis has evicted keys, holds and answers to request keys may be missing"
)

// evictionHarness has a supervisor on a Redis of its own, whose eviction policy it changes.
type evictionHarness struct {
	*harness
	supervisor *recovery.Supervisor
	logged     bytes.Buffer
}

func newEvictionHarness(t *testing.T) *evictionHarness {
	t.Helper()
	w := &evictionHarness{harness: newHarnessOn(t, stacktest.StartRedis(t).RedisURL)}
	w.term = recovery.NewEpochTerm()
	w.supervisor = w.newSupervisor(&replayLog{harness: w.harness}, "w1", w.term)
	w.supervisor.Log = zerolog.New(&w.logged)
	w.supervisor.Drain = 0 // no worker publishes
	w.check(t)
	return w
}

// config sets values of Redis.
func (w *evictionHarness) config(t *testing.T, namesAndValues ...string) {
	t.Helper()
	for i := 0; i < len(namesAndValues); i += 2 {
		if err := w.client.ConfigSet(t.Context(), namesAndValues[i], namesAndValues[i+1]).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// check lets the supervisor check once.
func (w *evictionHarness) check(t *testing.T) recovery.Epoch {
	t.Helper()
	e, err := checkAll(t, w.supervisor)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// expect fails the test unless the messages were logged so often, and Eviction contains all the texts, or is empty when
// none is given.
func (w *evictionHarness) expect(t *testing.T, evicts, ceased, evicted int, texts ...string) {
	t.Helper()
	for message, times := range map[string]int{evictsLogged: evicts, ceasedLogged: ceased, evictedLogged: evicted} {
		if n := strings.Count(w.logged.String(), message); n != times {
			t.Errorf("%q was logged %d times, want %d: %s", message, n, times, w.logged.String())
		}
	}
	is := w.term.Eviction()
	for _, text := range texts {
		if !strings.Contains(is, text) {
			t.Errorf("the term says %q, want %q", is, text)
		}
	}
	if len(texts) == 0 && is != "" {
		t.Errorf("the term says %q", is)
	}
}

// TestSupervisor_PolicyEvicts_LogsAndReportsIt sets a policy that evicts, with and without maxmemory, and sets it back.
func TestSupervisor_PolicyEvicts_LogsAndReportsIt(t *testing.T) {
	t.Parallel()
	w := newEvictionHarness(t)
	w.config(t, "maxmemory-policy", "allkeys-lru")
	w.check(t)
	w.expect(t, 0, 0, 0) // without maxmemory it evicts nothing
	w.config(t, "maxmemory", "1gb")
	for range 2 {
		w.check(t)
		w.expect(t, 1, 0, 0, w.redisOptions.Addr, "maxmemory-policy allkeys-lru with maxmemory 1.00G",
			"CONFIG SET maxmemory-policy noeviction")
	}
	w.config(t, "maxmemory-policy", "noeviction")
	for range 2 {
		w.check(t)
		w.expect(t, 1, 1, 0)
	}
}

// TestSupervisor_EpochEvicted_ReasonNamesEviction lets Redis evict everything. The reason of the loss names that, also
// when the policy is set back before the next check.
func TestSupervisor_EpochEvicted_ReasonNamesEviction(t *testing.T) {
	t.Parallel()
	w := newEvictionHarness(t)
	w.config(t, "maxmemory-policy", "allkeys-random", "maxmemory", "1")
	stacktest.Eventually(t, "all keys to be evicted", func() bool {
		_ = w.client.Set(t.Context(), "another", "1", 0).Err() // refused when no key is left to evict
		return w.client.DBSize(t.Context()).Val() == 0
	})
	w.config(t, "maxmemory-policy", "noeviction", "maxmemory", "0")
	e := w.check(t)
	evicted := info(t, w.client, "stats", "evicted_keys")
	if want := "epoch missing: data was removed, or not persisted across a restart; this redis has evicted " + evicted +
		" keys, its maxmemory-policy is noeviction"; e.Complete || e.Why != want {
		t.Errorf("epoch is %+v, want %q", e, want)
	}
	w.expect(t, 0, 0, 1, "has evicted "+evicted+" keys")
}

// TestSupervisor_OtherKeysEvicted_ReportsUntilRebuilt lets Redis evict keys with a TTL, which may be those of others.
// Nothing is invalidated for that. It is reported until all partitions are rebuilt.
func TestSupervisor_OtherKeysEvicted_ReportsUntilRebuilt(t *testing.T) {
	t.Parallel()
	w := newEvictionHarness(t)
	evict := func(key string) {
		t.Helper()
		if err := w.client.Set(t.Context(), key, "1", time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		w.config(t, "maxmemory-policy", "volatile-random", "maxmemory", "1")
		stacktest.Eventually(t, "the key to be evicted", func() bool {
			_ = w.client.Set(t.Context(), "another", "1", 0).Err() // refused when no key is left to evict
			return w.client.Exists(t.Context(), key).Val() == 0
		})
		w.config(t, "maxmemory", "0")
	}
	evict("first")
	if e := w.check(t); !e.Complete || e.Name != w.epoch {
		t.Errorf("epoch is %+v", e)
	}
	w.expect(t, 0, 0, 1, "has evicted 1 keys")
	if err := w.client.ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	w.check(t)
	evict("second")
	w.check(t)
	w.expect(t, 0, 0, 1, "has evicted 2 keys")
	rebuilder := w.newSupervisor(&replayLog{harness: w.harness}, "rebuilder", recovery.NewEpochTerm())
	rebuilder.Drain = 0
	if _, err := rebuilder.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
		t.Fatal(err)
	}
	w.check(t)
	w.expect(t, 0, 0, 1)
	evict("third")
	w.check(t)
	w.expect(t, 0, 0, 2, "has evicted 1 keys")
}
