package recovery_test

import (
	"bytes"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"holdfast/internal/holds"
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

// evict lets Redis evict a key, and perhaps others that have a TTL. It writes the key if it is missing.
func (w *evictionHarness) evict(t *testing.T, key string) {
	t.Helper()
	pipe := w.client.TxPipeline()
	pipe.SetNX(t.Context(), key, "1", 0)
	pipe.Expire(t.Context(), key, time.Hour)
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.config(t, "maxmemory-policy", "volatile-random", "maxmemory", "1")
	stacktest.Eventually(t, "the key to be evicted", func() bool {
		_ = w.client.Set(t.Context(), "another", "1", 0).Err() // refused when no key is left to evict
		return w.client.Exists(t.Context(), key).Val() == 0
	})
	w.config(t, "maxmemory", "0")
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
	w.evict(t, "first")
	if e := w.check(t); !e.Complete || e.Name != w.epoch {
		t.Errorf("epoch is %+v", e)
	}
	w.expect(t, 0, 0, 1, "has evicted 1 keys")
	if err := w.client.ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	w.check(t)
	w.evict(t, "second")
	w.check(t)
	w.expect(t, 0, 0, 1, "has evicted 2 keys")
	rebuilder := w.newSupervisor(&replayLog{harness: w.harness}, "rebuilder", recovery.NewEpochTerm())
	rebuilder.Drain = 0
	if _, err := rebuilder.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
		t.Fatal(err)
	}
	w.check(t)
	w.expect(t, 0, 0, 1)
	w.evict(t, "third")
	w.check(t)
	w.expect(t, 0, 0, 2, "has evicted 1 keys")
}

// TestSupervisor_KeysEvictedBeforeRestart_Rebuilds lets Redis evict a hold, and then be restarted. It is rebuilt: to bring it
// up to date would leave the hold out, and no longer report that.
func TestSupervisor_KeysEvictedBeforeRestart_Rebuilds(t *testing.T) {
	t.Parallel()
	w := newEvictionHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	w.startNewTerm(t)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	want := w.contents(t)
	w.mark(t)
	w.evict(t, w.key("room", "records"))
	w.check(t)
	r, err := w.supervisor.Rebuild(t.Context(), anotherServer, false, func(string) {})
	if err != nil || r.Resumed || r.Live != 1 {
		t.Errorf("recovered %+v %v", r, err)
	}
	if got := w.contents(t); !maps.Equal(got, want) {
		t.Errorf("redis has\n%v, want\n%v", got, want)
	}
}
