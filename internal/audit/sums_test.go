package audit_test

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	report := w.wantFindings("counter", "counter", "due", "due", "hold_key", "rev", "tombstone", "users")
	w.must(audit.Repair(ctx, w.backends, report.Findings, memory))
	w.wantNoFindings()
	w.redis.HIncrBy(ctx, w.key("arena", "users"), "zoe", 1) // the counters stay right
	report = w.wantFindings("users")
	w.must(audit.Repair(ctx, w.backends, report.Findings, memory))
	w.wantNoFindings()

	w.redis.HSet(ctx, w.key("arena", "records"), uuidOf(live), "rubbish")
	w.wantFindings("record")
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
	w.writeHolds(resource, number, func(i int) string { return fmt.Sprint("S-", i%2) })
}

// writeHolds writes a resource with live holds, as the scripts would: slots returns those of each, separated by commas.
func (w *harness) writeHolds(resource string, number int, slots func(i int) string) {
	w.Helper()
	ctx := w.Context()
	deadline := time.Now().Add(time.Hour).Truncate(time.Second)
	created := strconv.FormatInt(deadline.Add(-2*time.Hour).UnixMilli(), 10)
	at := strconv.FormatInt(deadline.UnixMilli(), 10)
	key := func(name string) string { return w.key(resource, name) }
	pipe := w.redis.Pipeline()
	for i := range number {
		id, user, taken := fmt.Sprintf("%032x", i), fmt.Sprint("u", i), slots(i)
		pipe.HSet(ctx, key("records"), id, "held "+at+" "+created+" 1 0 - "+user+" k-"+user+" "+taken+" {} ")
		pipe.ZAdd(ctx, key("due"), redis.Z{Score: float64(deadline.UnixMilli()), Member: id})
		pipe.HSet(ctx, key("users"), user, 1, record.IndexField(user, taken), id)
		for slot := range strings.SplitSeq(taken, ",") {
			pipe.HIncrBy(ctx, key("counts"), slot, 1)
		}
		pipe.SetArgs(ctx, key("hold:"+id), "{}", redis.SetArgs{ExpireAt: deadline})
		pipe.Set(ctx, key("request:k-"+user), "created a b 1 "+id+":1 - ", time.Hour)
		if pipe.Len() > 10_000 {
			_, err := pipe.Exec(ctx)
			w.must(err)
		}
	}
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
	stacktest.Must(t, err)
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
		stacktest.Must(t, client.Echo(t.Context(), "the end").Err())
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
	client := stacktest.ConnectRedis(t, url)
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
	w1.round("counter, left", "counter, left", "users", "users") // a counter is not lowered as long as users differ too
	w1.round("counter", "counter")
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
	s.newReconciler(true).round("counter")
	w.wantCount("hot", "S-0", "350")
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
	s.newReconciler(true).round()
	report := w.audit(audit.Options{})
	if report.Counts[audit.Counter] != 0 || report.Counts[audit.Users] != 0 {
		t.Errorf("found %v", report.Counts)
	}
	if text := strings.Join(report.Inconclusive, "\n"); !strings.Contains(text, "resources whose counters could not") ||
		!strings.HasSuffix(text, ": 1") {
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

// endClaim ends a claimed hold of slot S-0, as settle.lua does.
const endClaim = `
local p, id, user, decision = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local line = redis.call('HGET', p .. 'records', id)
local time = redis.call('TIME')
redis.call('HINCRBY', p .. 'counts', 'S-0', -1)
redis.call('HDEL', p .. 'users', user, user .. ' ' .. redis.sha1hex('S-0'))
if decision == 'rejected' then return redis.call('HDEL', p .. 'records', id) end
redis.call('PEXPIRE', p .. 'request:k-' .. user, 3600000)
redis.call('HSET', p .. 'records', id, (string.gsub(line, '^confirming', 'confirmed')))
return redis.call('ZADD', p .. 'tombstones', time[1] * 1000 + math.floor(time[2] / 1000) + 3600000, id)`

// claims are claimed holds of slot S-0 of a large resource. One of them ends each time before a part
// of the resource is read.
type claims struct {
	*scene
	decision string // of their payments: confirmed | rejected, then they are those of late payments
	left     []int
}

// claimMany writes a large resource, and beside its 700 held holds some claimed ones.
func claimMany(t *testing.T, decision, before string) *claims {
	t.Helper()
	const number, claimed = 700, 60
	w := newHarness(t)
	w.writeHotResource("hot", number)
	c := &claims{scene: &scene{harness: w}, decision: decision}
	ctx, key := t.Context(), func(name string) string { return w.key("hot", name) }
	now := time.Now().UnixMilli()
	pipe := w.redis.Pipeline()
	for i := number; i < number+claimed; i++ {
		user := fmt.Sprint("u", i)
		pipe.HSet(ctx, key("records"), c.id(i), fmt.Sprintf("confirming %d %d 1 %d pay %s k-%s S-0 {} ",
			now+600_000, now-600_000, now-60_000, user, user))
		pipe.HSet(ctx, key("users"), user, 1)
		if decision == "confirmed" {
			pipe.HSet(ctx, key("users"), record.IndexField(user, "S-0"), c.id(i))
			pipe.Set(ctx, key("request:k-"+user), "created a b 1 "+c.id(i)+":1 - ", 0)
		}
		c.left = append(c.left, i)
	}
	pipe.HIncrBy(ctx, key("counts"), "S-0", claimed)
	_, err := pipe.Exec(ctx)
	w.must(err)
	c.hookRedis(commandHook{each: func(args []any) {
		if i := slices.Index(args, any(before)); i > 0 && i+1 < len(args) && args[i+1] == any("0") { // its first page
			c.endOne()
		}
	}})
	return c
}

func (c *claims) id(i int) string {
	if c.decision == "rejected" {
		return fmt.Sprintf("late:%032x", i)
	}
	return fmt.Sprintf("%032x", i)
}

func (c *claims) endOne() {
	if len(c.left) == 0 {
		return
	}
	i := c.left[0]
	c.left = c.left[1:]
	c.must(c.redis.Eval(c.Context(), endClaim, []string{c.key("hot", "")}, c.id(i), fmt.Sprint("u", i), c.decision).Err())
}

// wantWrongBy checks by how much the counter of S-0 is too high.
func (c *claims) wantWrongBy(want int) {
	c.Helper()
	c.wantCount("hot", "S-0", strconv.Itoa(350+len(c.left)+want))
}

// TestReconciler_ClaimEndsWhileRead_CounterUnchanged ends the claim of a hold in each pass over the
// records of a large resource, after its counter was read. The counter is right and is not repaired.
func TestReconciler_ClaimEndsWhileRead_CounterUnchanged(t *testing.T) {
	t.Parallel()
	for _, decision := range []string{"confirmed", "rejected"} {
		t.Run(decision, func(t *testing.T) {
			t.Parallel()
			c := claimMany(t, decision, "records")
			// This hold was settled an hour ago, when HOLDFAST_REQUEST_KEY_TTL still was 24 h.
			now, old := time.Now().UnixMilli(), strings.Repeat("f", 32)
			c.redis.HSet(t.Context(), c.key("hot", "records"), old, fmt.Sprintf("confirmed %d %d 1 %d pay old k-old S-1 {} ",
				now-3_600_000, now-7_200_000, now-3_600_000))
			c.redis.ZAdd(t.Context(), c.key("hot", "tombstones"), redis.Z{Score: float64(now + 23*3_600_000), Member: old})
			before := len(c.left)
			c.newReconciler(true).round()
			c.wantWrongBy(0)
			if len(c.left) == before || len(c.left) == 0 {
				t.Errorf("%d of %d claims have ended", before-len(c.left), before)
			}
		})
	}
}

// TestReconciler_WrongCounterMoves_LoweredLater makes a counter of a large resource too high, and
// ends the claim of a hold after each time that the counter is read. The counter is only lowered when
// no more holds end.
func TestReconciler_WrongCounterMoves_LoweredLater(t *testing.T) {
	t.Parallel()
	c := claimMany(t, "confirmed", "records")
	c.redis.HIncrBy(t.Context(), c.key("hot", "counts"), "S-0", 5)
	watcher := c.newReconciler(true)
	watcher.round("counter, left")
	c.wantWrongBy(5)
	for len(c.left) > 0 {
		c.endOne()
	}
	watcher.round("counter")
	c.wantWrongBy(0)
}

// TestReconciler_ClaimEndsBeforeReading_CounterLowered makes a counter of a large resource too high,
// and ends the claim of a hold before each time that the counter is read again. Its tombstone shows
// that it has ended by then.
func TestReconciler_ClaimEndsBeforeReading_CounterLowered(t *testing.T) {
	t.Parallel()
	c := claimMany(t, "confirmed", "named")
	c.redis.HIncrBy(t.Context(), c.key("hot", "counts"), "S-0", 5)
	c.newReconciler(true).round("counter")
	c.wantWrongBy(0)
}

// beforeStep returns a hook that calls do once, before a step of the repair of a large resource: "adjust" changes
// counters.
func beforeStep(step string, do func()) commandHook {
	var once sync.Once
	return commandHook{each: func(args []any) {
		if slices.Contains(args, any(step)) {
			once.Do(do)
		}
	}}
}

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
			s.hookRedis(beforeStep("adjust", func() {
				if late {
					w.redis.Del(t.Context(), w.key("hot", "lock"))
				}
				s.must(second.Round(t.Context()))
			}))
			first := s.newReconciler(true)
			s.must(first.Round(t.Context()))
			w.wantCount("hot", "S-0", "350")
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

// TestReconciler_TwoBeginRepair_CounterCorrectedOnce lets two Reconcilers find a large resource whose repair has not
// begun. The second begins it, and the first leaves the resource alone.
func TestReconciler_TwoBeginRepair_CounterCorrectedOnce(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.writeHotResource("hot", 700)
	w.redis.HIncrBy(t.Context(), w.key("hot", "counts"), "S-0", 5)
	s := &scene{harness: w}
	reconciler := func(hook commandHook) *recordedReconciler {
		s.hookRedis(hook)
		return s.newReconciler(true)
	}
	ctx := stacktest.WaitContext(t)
	begun, left, repaired := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	second := reconciler(beforeStep("adjust", func() {
		close(begun)
		<-left
	}))
	first := reconciler(beforeStep("begin", func() {
		go func() { repaired <- second.Round(t.Context()) }()
		select {
		case <-begun:
		case <-ctx.Done():
		}
	}))
	s.must(first.Round(ctx))
	close(left)
	s.must(<-repaired)
	w.wantCount("hot", "S-0", "350")
	got, other := first.logged(), second.logged()
	if !slices.Equal(got, []string{"counter, left"}) || !slices.Equal(other, []string{"counter"}) {
		t.Errorf("they logged %v and %v", got, other)
	}
}

// TestReconciler_ShrinksDuringRepair_CounterCorrectedOnce ends most holds of a large resource while its
// counter is about to be corrected, so that an operator's repair reads it in one step. The counter is not
// corrected twice, which would free slots of live holds.
func TestReconciler_ShrinksDuringRepair_CounterCorrectedOnce(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	const before, after = 700, 100
	w.writeHotResource("hot", before)
	w.redis.HIncrBy(t.Context(), w.key("hot", "counts"), "S-0", 5)
	var found []*audit.Finding
	for _, f := range w.audit(audit.Options{}).Findings {
		if f.Kind == audit.Counter {
			found = append(found, f)
		}
	}
	operator := w.backends
	s := &scene{harness: w}
	s.hookRedis(beforeStep("adjust", func() {
		pipe := w.redis.Pipeline()
		for i := after; i < before; i++ {
			id, user, slot := fmt.Sprintf("%032x", i), fmt.Sprint("u", i), fmt.Sprint("S-", i%2)
			pipe.HDel(t.Context(), w.key("hot", "records"), id)
			pipe.ZRem(t.Context(), w.key("hot", "due"), id)
			pipe.HDel(t.Context(), w.key("hot", "users"), user, record.IndexField(user, slot))
			pipe.HIncrBy(t.Context(), w.key("hot", "counts"), slot, -1)
			pipe.Del(t.Context(), w.key("hot", "hold:"+id))
		}
		_, err := pipe.Exec(t.Context())
		w.must(err)
		w.must(audit.Repair(t.Context(), operator, found, memory))
	}))
	s.must(s.newReconciler(true).Round(t.Context()))
	w.wantCount("hot", "S-0", strconv.Itoa(after/2))
	if len(found) != 1 {
		t.Errorf("found %d wrong counters", len(found))
	}
}
