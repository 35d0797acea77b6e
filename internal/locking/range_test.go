package locking_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/locking"
	"holdfast/internal/stack/stacktest"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

// keys are some keys of a test, and the fence beside them.
type keys struct {
	client *redis.Client
	prefix string
}

func newKeys(t *testing.T) keys {
	t.Helper()
	options, err := redis.ParseURL(stacktest.Shared().RedisURL)
	if err != nil {
		t.Fatal(err)
	}
	options.MaxRetries = -1
	k := keys{redis.NewClient(options), stacktest.Namespace(t) + ":{1}:"}
	t.Cleanup(func() { _ = k.client.Close() })
	return k
}

func (k keys) named(names ...string) []string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = k.prefix + name
	}
	return all
}

// try tries to lock one set and returns its token, "" when it is blocked.
func (k keys) try(t *testing.T, l *locking.Range, names ...string) (token string, wait time.Duration) {
	t.Helper()
	tokens, waits, err := l.TryLock(context.Background(), k.named("fence"), [][]string{k.named(names...)})
	if err != nil {
		t.Fatal(err)
	}
	return tokens[0], waits[0]
}

func (k keys) unlock(t *testing.T, l *locking.Range, token string, names ...string) {
	t.Helper()
	if err := l.Unlock(context.Background(), [][]string{k.named(names...)}, []string{token}); err != nil {
		t.Fatal(err)
	}
}

// TestAllOrNothing locks sets that overlap, in one round trip and one after the other.
func TestAllOrNothing(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	l := locking.NewRange(k.client, time.Minute)
	first, _ := k.try(t, l, "b", "c")
	blocked, wait := k.try(t, l, "a", "b")
	if first == "" || blocked != "" || wait <= 0 || wait > time.Minute {
		t.Errorf("first %q, second %q, which waits %v", first, blocked, wait)
	}
	if n := k.client.Exists(t.Context(), k.named("a")...).Val(); n != 0 {
		t.Error("a set that is blocked has locked one of its keys")
	}
	fences := []string{k.named("fence")[0], k.named("fence")[0], k.named("fence")[0]}
	tokens, _, err := l.TryLock(t.Context(), fences, [][]string{k.named("a"), k.named("c", "d"), k.named("e", "f")})
	if err != nil || tokens[0] == "" || tokens[1] != "" || tokens[2] == "" {
		t.Errorf("three sets at once: %q %v, want the second blocked", tokens, err)
	}
	k.unlock(t, l, first, "b", "c")
	if again, _ := k.try(t, l, "b", "c", "d"); again == "" {
		t.Error("unlocked keys cannot be locked")
	}
}

// TestOwnerOnly unlocks with tokens that are not, or not any more, those of the keys.
func TestOwnerOnly(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	short, long := locking.NewRange(k.client, time.Millisecond), locking.NewRange(k.client, time.Minute)
	expired, _ := k.try(t, short, "a", "b")
	var next string
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ; next == ""; <-tick.C { // until the lease is over
		next, _ = k.try(t, long, "a")
	}
	k.unlock(t, short, expired, "a", "b")
	if got := k.client.Get(t.Context(), k.named("a")[0]).Val(); got != next {
		t.Errorf("a late unlock has left %q of the next owner's %q", got, next)
	}

	// One lost key does not keep the others locked.
	whole, _ := k.try(t, long, "x", "y", "z")
	if err := k.client.Set(t.Context(), k.named("y")[0], "another:1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	k.unlock(t, long, whole, "x", "y", "z")
	values := k.client.MGet(t.Context(), k.named("x", "y", "z")...).Val()
	if fmt.Sprint(values) != "[<nil> another:1 <nil>]" {
		t.Errorf("after a partial loss: %v", values)
	}
}

// TestMutualExclusion has contenders for overlapping sets count, without any other protection,
// how many are inside; and checks that fencing tokens rise.
func TestMutualExclusion(t *testing.T) {
	t.Parallel()
	const contenders, rounds = 20, 10
	k := newKeys(t)
	l := locking.NewRange(k.client, time.Minute)
	var inside atomic.Int32
	var last atomic.Int64
	var all sync.WaitGroup
	for c := range contenders {
		all.Go(func() {
			names := []string{"common", fmt.Sprintf("own-%d", c)}
			for range rounds {
				token := ""
				tick := time.NewTicker(time.Millisecond)
				for ; token == ""; <-tick.C {
					token, _ = k.try(t, l, names...)
				}
				tick.Stop()
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d are inside", n)
				}
				_, fence, _ := strings.Cut(token, ":")
				n, err := strconv.ParseInt(fence, 10, 64)
				if before := last.Swap(n); err != nil || n <= before {
					t.Errorf("fencing token %q after %d: %v", fence, before, err)
				}
				inside.Add(-1)
				k.unlock(t, l, token, names...)
			}
		})
	}
	all.Wait()
}

// TestUnknownScripts forgets the scripts between two locks.
func TestUnknownScripts(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	l := locking.NewRange(k.client, time.Minute)
	token, _ := k.try(t, l, "a")
	if err := k.client.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	k.unlock(t, l, token, "a")
	if err := k.client.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if again, _ := k.try(t, l, "a"); again == "" {
		t.Error("not unlocked")
	}
}
