package audit_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/audit"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// TestRun_LargeResource_FoundAndRepaired makes data of a resource wrong that is read in pages.
func TestRun_LargeResource_FoundAndRepaired(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.startWorkers(1)
	w.setInventory("arena", 1_000_000, "a", "b")
	const number = 1100 // more than are read in one step, and more than a report lists
	w.placeMany("arena", number-1, []string{"a", "b"})
	live := w.request("arena", "zoe", time.Hour, 1, "a")
	w.stopWorkers()
	if report := w.wantNoFindings(); report.Stats.Records != number {
		t.Fatalf("checked %+v", report.Stats)
	}
	ctx := t.Context()
	w.redis.HIncrBy(ctx, w.key("arena", "counts"), "a", -3)
	w.redis.HSet(ctx, w.key("arena", "counts"), "c", "1")
	w.redis.HSet(ctx, w.key("arena", "users"), "unknown", "1")
	w.redis.ZRem(ctx, w.key("arena", "due"), uuidOf(live))
	w.redis.ZAdd(ctx, w.key("arena", "due"), redis.Z{Score: 4e12, Member: strings.Repeat("0", 32)})
	w.redis.ZAdd(ctx, w.key("arena", "tombstones"), redis.Z{Score: 4e12, Member: strings.Repeat("1", 32)})
	w.redis.Del(ctx, w.key("arena", "hold:"+uuidOf(live)))
	w.redis.Set(ctx, w.key("arena", "rev"), "x", 0)
	report := w.audit(audit.Options{})
	if got := kinds(report); !slices.Equal(got,
		[]string{"counter", "counter", "due", "due", "hold_key", "rev", "tombstone", "users"}) {
		t.Fatalf("found %v\n%s", got, findingsText(report))
	}
	w.must(audit.Repair(ctx, w.backends, report.Findings, memory))
	w.wantNoFindings()
	w.redis.HIncrBy(ctx, w.key("arena", "users"), "zoe", 1) // the counters stay right
	report = w.audit(audit.Options{})
	if got := kinds(report); !slices.Equal(got, []string{"users"}) {
		t.Fatalf("found %v\n%s", got, findingsText(report))
	}
	w.must(audit.Repair(ctx, w.backends, report.Findings, memory))
	w.wantNoFindings()

	w.redis.HSet(ctx, w.key("arena", "records"), uuidOf(live), "rubbish")
	report = w.audit(audit.Options{})
	if got := kinds(report); !slices.Equal(got, []string{"record"}) {
		t.Errorf("found %v\n%s", got, findingsText(report))
	}
	w.redis.Del(ctx, w.key("arena", "records"))
	w.redis.RPush(ctx, w.key("arena", "records"), "oops")
	report = w.audit(audit.Options{})
	if report.Counts[audit.WrongType] != 1 || report.Counts[audit.HoldLost] != number || len(report.Counts) != 2 ||
		len(report.Findings) != 1001 {
		t.Errorf("found %v, %d of them listed", report.Counts, len(report.Findings))
	}
}

// writeHotResource writes a resource with many live holds, as the scripts would: each takes one of
// two slots and belongs to a user of its own.
func (w *harness) writeHotResource(resource string, number int) {
	w.Helper()
	ctx := w.Context()
	deadline := time.Now().Add(time.Hour).Truncate(time.Second)
	created := strconv.FormatInt(deadline.Add(-2*time.Hour).UnixMilli(), 10)
	at := strconv.FormatInt(deadline.UnixMilli(), 10)
	key := func(name string) string { return w.key(resource, name) }
	hashes := []string{w.sha1("S-0"), w.sha1("S-1")}
	pipe := w.redis.Pipeline()
	for i := range number {
		id, user, slot := fmt.Sprintf("%032x", i), fmt.Sprint("u", i), fmt.Sprint("S-", i%2)
		pipe.HSet(ctx, key("records"), id, "held "+at+" "+created+" 1 0 - "+user+" k-"+user+" "+slot+" {} ")
		pipe.ZAdd(ctx, key("due"), redis.Z{Score: float64(deadline.UnixMilli()), Member: id})
		pipe.HSet(ctx, key("users"), user, 1, user+" "+hashes[i%2], id)
		pipe.SetArgs(ctx, key("hold:"+id), "{}", redis.SetArgs{ExpireAt: deadline})
		pipe.Set(ctx, key("request:k-"+user), "created a b c "+id+":", time.Hour)
		if pipe.Len() > 10_000 {
			_, err := pipe.Exec(ctx)
			w.must(err)
		}
	}
	pipe.HSet(ctx, key("counts"), "S-0", (number+1)/2, "S-1", number/2)
	pipe.ZAdd(ctx, w.agenda(resource), redis.Z{Score: float64(deadline.UnixMilli()), Member: resource})
	_, err := pipe.Exec(ctx)
	w.must(err)
}

// onRedis moves a namespace to another Redis.
func (w *harness) onRedis(client *redis.Client) {
	w.Helper()
	epochs, err := w.store.Epochs(w.Context())
	w.must(err)
	server, err := recovery.Initialise(w.Context(), w.namespace, client, record.AllPartitions, epochs[0].Name)
	w.must(err)
	w.redis, w.backends.Redis, w.term = client, client, recovery.StaticTerm(epochs[0].Name, server)
}

// monitor counts how many entries each run of a script handles, as MONITOR shows, until stop is
// called. A command that reads all of a key without a limit counts as a million.
func monitor(t *testing.T, options *redis.Options) (stop func(*redis.Client) []int) {
	t.Helper()
	conn, err := net.Dial("tcp", options.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(conn)
	if answer, err := lines.ReadString('\n'); err != nil || !strings.HasPrefix(answer, "+OK") {
		t.Fatalf("monitor: %q %v", answer, err)
	}
	counted := make(chan []int, 1)
	go func() {
		var entries []int
		for {
			line, err := lines.ReadString('\n')
			if err != nil || strings.Contains(line, `"the end"`) {
				counted <- entries
				return
			}
			if n := entriesOf(line); n == 0 {
				entries = append(entries, 0)
			} else if len(entries) > 0 {
				entries[len(entries)-1] += n
			}
		}
	}()
	return func(client *redis.Client) []int {
		if err := client.Echo(t.Context(), "the end").Err(); err != nil {
			t.Fatal(err)
		}
		return <-counted
	}
}

// entriesOf returns how many entries the command of a script handles, 0 for the script itself.
func entriesOf(line string) int {
	switch {
	case !strings.Contains(line, " lua] "):
		if strings.Contains(strings.ToUpper(line), `] "EVAL`) {
			return 0
		}
		return 1
	case strings.Contains(line, `"HGETALL"`), strings.Contains(line, `"ZRANGE"`) && strings.Contains(line, `"0" "-1"`):
		return 1_000_000
	}
	if _, count, found := strings.Cut(line, `"COUNT" "`); found {
		digits, _, _ := strings.Cut(count, `"`)
		n, _ := strconv.Atoi(digits)
		return n
	}
	return 1
}

// TestReconciler_HotResource_RepairedInBoundedSteps makes counters of a resource with 6,000 holds
// wrong. They are healed, and each run of a script handles only a few pages of entries.
func TestReconciler_HotResource_RepairedInBoundedSteps(t *testing.T) {
	t.Parallel()
	const number, boundedBy = 6000, 3000
	w := newHarness(t)
	url := stacktest.StartRedis(t).RedisURL
	client := redis.NewClient(stacktest.RedisOptions(url))
	t.Cleanup(func() { _ = client.Close() })
	w.onRedis(client)
	w.writeHotResource("hot", number)
	s := &scene{harness: w}
	ctx := t.Context()
	client.HIncrBy(ctx, s.key("hot", "counts"), "S-0", 5)
	client.HSet(ctx, s.key("hot", "counts"), "S-1", "x")
	client.HSet(ctx, s.key("hot", "users"), "u8", "0")
	client.HDel(ctx, s.key("hot", "users"), "u7")

	stop := monitor(t, client.Options())
	w1 := s.newReconciler(true)
	s.must(w1.Round(ctx))
	if got := w1.logged(); !slices.Equal(got, []string{"counter, left", "counter, left", "users", "users"}) {
		t.Errorf("it logged %v", got) // a counter is not lowered as long as users differ too
	}
	s.must(w1.Round(ctx))
	if got := w1.logged(); !slices.Equal(got, []string{"counter", "counter"}) {
		t.Errorf("then it logged %v", got)
	}
	entries := stop(client)
	if most := slices.Max(entries); most > boundedBy || len(entries) < number/200 {
		t.Errorf("one of %d runs handles %d entries, want at most %d", len(entries), most, boundedBy)
	}
	if got := client.HMGet(ctx, s.key("hot", "counts"), "S-0", "S-1").Val(); got[0] != "3000" || got[1] != "3000" {
		t.Errorf("the counters are %v", got)
	}
	if got := client.HMGet(ctx, s.key("hot", "users"), "u7", "u8").Val(); got[0] != "1" || got[1] != "1" {
		t.Errorf("the users are %v", got)
	}
}

// TestReconciler_LargeResource_LastEndedHoldIsPaid makes a counter of a large resource wrong whose
// last ended holds were paid and settled in one millisecond. The counter is repaired.
func TestReconciler_LargeResource_LastEndedHoldIsPaid(t *testing.T) {
	t.Parallel()
	const number, paid = 700, 3
	w := newHarness(t)
	w.writeHotResource("hot", number)
	now := time.Now().UnixMilli()
	for i := range paid {
		id := fmt.Sprintf("%032x", number+i)
		w.redis.HSet(t.Context(), w.key("hot", "records"), id,
			fmt.Sprintf("confirmed %d %d 1 %d - paid k-%s S-0 {} ", now+60_000, now-60_000, now-1000, id))
		w.redis.ZAdd(t.Context(), w.key("hot", "tombstones"),
			redis.Z{Score: float64(now + time.Hour.Milliseconds()), Member: id})
	}
	w.redis.HIncrBy(t.Context(), w.key("hot", "counts"), "S-0", 5)
	s := &scene{harness: w}
	watcher := s.newReconciler(true)
	s.must(watcher.Round(t.Context()))
	if got := watcher.logged(); !slices.Equal(got, []string{"counter"}) {
		t.Errorf("it logged %v", got)
	}
	if got := w.redis.HGet(t.Context(), w.key("hot", "counts"), "S-0").Val(); got != "350" {
		t.Errorf("%s are held", got)
	}
}

// TestRepair_ClockSetBack_CountersUnchanged lets the live holds of a large resource say that they were
// granted in the future, as after Redis' clock was set back. Their counters are neither reported nor
// repaired.
func TestRepair_ClockSetBack_CountersUnchanged(t *testing.T) {
	t.Parallel()
	const number = 700 // more than a repair sums up in one step
	w := newHarness(t)
	w.writeHotResource("hot", number)
	ctx := t.Context()
	ahead := fmt.Sprint(w.redis.Time(ctx).Val().Add(5 * time.Minute).UnixMilli())
	pipe := w.redis.Pipeline()
	for id, line := range w.redis.HGetAll(ctx, w.key("hot", "records")).Val() {
		words := strings.SplitN(line, " ", 4)
		words[2] = ahead
		pipe.HSet(ctx, w.key("hot", "records"), id, strings.Join(words, " "))
	}
	_, err := pipe.Exec(ctx)
	w.must(err)
	s := &scene{harness: w}
	watcher := s.newReconciler(true)
	s.must(watcher.Round(ctx))
	if got := watcher.logged(); len(got) > 0 {
		t.Errorf("it logged %v", got)
	}
	report := w.audit(audit.Options{})
	if report.Counts[audit.Counter] != 0 || report.Counts[audit.Users] != 0 {
		t.Errorf("found %v", report.Counts)
	}
	if text := strings.Join(report.Inconclusive, "\n"); !strings.Contains(text, "1 resource has counters that could not") {
		t.Errorf("inconclusive:\n%s", text)
	}
	w.must(audit.Repair(ctx, w.backends, report.Findings, memory))
	if got := w.redis.HMGet(ctx, w.key("hot", "counts"), "S-0", "S-1").Val(); got[0] != "350" || got[1] != "350" {
		t.Errorf("the counters are %v", got)
	}
	if got := w.redis.HGet(ctx, w.key("hot", "users"), "u7").Val(); got != "1" {
		t.Errorf("u7 has %q holds", got)
	}
}

// beforeAdjust calls do once, before a repair changes counters.
type beforeAdjust struct {
	redis.Hook
	do   func()
	done bool
}

func (h *beforeAdjust) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		for _, c := range commands {
			if slices.Contains(c.Args(), any("adjust")) && !h.done {
				h.done = true
				h.do()
			}
		}
		return next(ctx, commands)
	}
}

func (*beforeAdjust) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*beforeAdjust) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// TestReconciler_TwoRepair_CounterCorrectedOnce repairs a large resource by two Reconcilers at
// once. The second leaves it alone. If the lease of the first has ended, the second repairs it, and
// the first does not.
func TestReconciler_TwoRepair_CounterCorrectedOnce(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprint("late=", late), func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			w.writeHotResource("hot", 700)
			w.redis.HIncrBy(t.Context(), w.key("hot", "counts"), "S-0", 5)
			s := &scene{harness: w}
			second := s.newReconciler(true)
			client := redis.NewClient(stacktest.RedisOptions(stacktest.Shared().RedisURL))
			t.Cleanup(func() { _ = client.Close() })
			hook := &beforeAdjust{do: func() {
				if late {
					w.redis.Del(t.Context(), w.key("hot", "lock"))
				}
				s.must(second.Round(t.Context()))
			}}
			client.AddHook(hook)
			s.backends.Redis = client
			first := s.newReconciler(true)
			s.must(first.Round(t.Context()))
			if got := w.redis.HGet(t.Context(), w.key("hot", "counts"), "S-0").Val(); got != "350" || !hook.done {
				t.Errorf("%s are held", got)
			}
			healed := []string{"counter"}
			left := []string{"counter, left"}
			if late {
				healed, left = left, healed
			}
			if got, other := first.logged(), second.logged(); !slices.Equal(got, healed) || !slices.Equal(other, left) {
				t.Errorf("they logged %v and %v", got, other)
			}
			if got := w.redis.Exists(t.Context(), w.key("hot", "lock")).Val(); got != 0 {
				t.Error("the mark of the repair is left")
			}
		})
	}
}
