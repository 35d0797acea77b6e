package preflight_test

import (
	"strconv"
	"strings"
	"testing"

	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// usedMemory returns how many bytes of memory Redis uses. A few megabytes come and go with its clients.
func (w *harness) usedMemory() int {
	w.t.Helper()
	text, err := w.redis.Info(w.t.Context(), "memory").Result()
	stacktest.Must(w.t, err)
	used, err := strconv.Atoi(recovery.InfoFields(text)["used_memory"])
	stacktest.Must(w.t, err)
	return used
}

// TestRedisWrites_MemoryIsFull_Fails fills the memory of Redis up to its limit: it refuses each grant.
func TestRedisWrites_MemoryIsFull_Fails(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	stacktest.Must(t, w.redis.SetRange(t.Context(), "large", 100<<20, "x").Err())
	used := w.usedMemory()
	w.config("maxmemory", strconv.Itoa(2*used))
	w.expect("half of the memory", nil)
	w.config("maxmemory", strconv.Itoa(used+used/20))
	c := w.expect("95 % of the memory", []string{"redis.writes warn"})["redis.writes"]
	if !strings.Contains(c.Found, "with maxmemory") {
		t.Errorf("%+v", c)
	}
	w.config("maxmemory", strconv.Itoa(used/2))
	w.expect("all of the memory, as a user who may not run scripts",
		[]string{"redis.writes fail", "redis.commands fail"}, w.user("limited", "-eval -evalsha"))
	c = w.expect("all of the memory", []string{"redis.writes fail"})["redis.writes"]
	if !strings.Contains(c.Impact, "no request is answered") {
		t.Errorf("%+v", c)
	}
	w.applyFix(c)
	w.expect("with more memory", nil)
}

// TestRedisWrites_TooFewReplicas_Fails has Redis refuse writes because replicas are missing.
func TestRedisWrites_TooFewReplicas_Fails(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.config("min-replicas-to-write", "1")
	w.expect("a user who may not run scripts", []string{"redis.writes unknown", "redis.commands fail"},
		w.user("limited", "-eval -evalsha"))
	c := w.expect("no replica", []string{"redis.writes fail"})["redis.writes"]
	if !strings.Contains(c.Found, "NOREPLICAS") || !strings.Contains(c.Found, "good: 0") {
		t.Errorf("%+v", c)
	}
	w.applyFix(c)
	w.expect("none needed", nil)
}
