package main

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"go.uber.org/fx/fxtest"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/lua"
	"holdfast/internal/stack"
	"holdfast/internal/stack/endpoints"
	"holdfast/internal/stack/stacktest"
)

// TestLocks_RealWorker_ShowsItsMetrics books at a real worker, and sees it in /metrics and `worker locks`.
func TestLocks_RealWorker_ShowsItsMetrics(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	// Postgres tells of the change also who listens, at some moment: to a booking that is being decided that is a conflict.
	setUp := s.startWorker()
	s.setInventory("shoes", holds.SlotSelection{}, 1000)
	if err := setUp.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-setUp.exited
	worker := s.startWorker("HOLDFAST_LOCK_LEASE=1m")
	const bookings = 20
	for i := range bookings {
		s.answer(s.publish(events.BookingRequested, "shoes", bookingData("shoes", fmt.Sprintf("user-%d", i), "k", holds.SlotSelection{}, 600)))
	}
	status, metrics := worker.get(t, "/metrics")
	for _, want := range []string{
		locking.MetricSections + `_count\{slots="1"\} 20\n`,
		locking.MetricAttempts + `\{result="held",slots="1"\} 2[01]\n`, // optimistic begins again when Redis did not know the script
		"go_goroutines ", "process_open_fds ",
	} {
		if status != 200 || !regexp.MustCompile(want).MatchString(metrics) {
			t.Errorf("/metrics: %d without %s:\n%s", status, want, metrics)
		}
	}
	for _, noise := range []string{"otel_scope", "target_info", locking.MetricConflicts} {
		if strings.Contains(metrics, noise) {
			t.Errorf("/metrics shows %s", noise)
		}
	}

	dir := t.TempDir() // as `worker dev` leaves it
	if err := os.WriteFile(filepath.Join(dir, "endpoints.env"), []byte("HOLDFAST_HTTP_ADDR="+worker.http+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out := locks("--data-dir", dir); code != exitOK || !regexp.MustCompile(`(?m)^ +1 +20 .* too few: 20 of 200$`).MatchString(out) {
		t.Errorf("worker locks: %d\n%s", code, out)
	}
	other := s.startWorker()
	code, out := locks("-o", "json", "--http-addr", worker.http+","+other.http)
	var report struct {
		Workers []string
		Classes []map[string]any
	}
	if err := json.Unmarshal([]byte(out), &report, json.MatchCaseInsensitiveNames(true)); err != nil || code != exitOK {
		t.Fatalf("worker locks -o json: %d, %v\n%s", code, err, out)
	}
	if len(report.Workers) != 2 || len(report.Classes) != len(locking.SizeClasses) {
		t.Fatalf("worker locks -o json: %s", out)
	}
	if one := report.Classes[0]; one["slots"] != "1" || one["sections"] != float64(bookings) || one["section_p99_ms"] == 0.0 || one["lease_ms"] != nil {
		t.Errorf("worker locks -o json: %v", one)
	}
}

// locks runs `worker locks`.
func locks(args ...string) (code int, out string) {
	var text strings.Builder
	code = run(context.Background(), append([]string{"locks"}, args...), streams{&text, &text})
	return code, text.String()
}

// newMetrics is a registry, as the worker has it, and what is measured into it.
func newMetrics(t *testing.T) (*prometheus.Registry, *locking.Metrics) {
	t.Helper()
	lc := fxtest.NewLifecycle(t)
	registry, metrics, _, err := provideMetrics(lc)
	if err != nil {
		t.Fatal(err)
	}
	lc.RequireStart()
	t.Cleanup(func() { lc.RequireStop() })
	return registry, metrics
}

func metricFamilies(t *testing.T, r *prometheus.Registry) []*dto.MetricFamily {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// lockHarness is where locks are taken on a real Redis.
type lockHarness struct {
	client *redis.Client
	prefix string
}

func newLockHarness(t *testing.T) *lockHarness {
	t.Helper()
	client := redis.NewClient(stacktest.RedisOptions(stacktest.Shared().RedisURL))
	t.Cleanup(func() { _ = client.Close() })
	return &lockHarness{client, stacktest.Namespace(t) + ":{1}:"}
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
	return locking.KeySet{Keys: []string{b.prefix + name}, Fence: b.prefix + "fence", Version: b.prefix + "version", Scope: b.prefix}
}

var releaseScript = lua.New("release", "", `
local time = redis.call('TIME')
local value, until_ms = string.match(redis.call('HGET', KEYS[1], ARGV[2]) or '', '^(%S+) (%d+)$')
if value ~= ARGV[1] or tonumber(until_ms) <= time[1] * 1000 + math.floor(time[2] / 1000) then return {'lock_lost'} end
redis.call('HDEL', KEYS[1], ARGV[2])
return {'ok'}`)

// section takes a lock, works, and commits. It returns the status.
func (b *lockHarness) section(ctx context.Context, l *locking.Locker, name string, work func(*locking.Lock)) (string, error) {
	lock, err := l.Lock(ctx, "", time.Second, b.set(name))
	if err != nil {
		return "", err
	}
	work(lock)
	call := &lua.Call{Script: releaseScript, Keys: []string{b.prefix + "locks"}, Args: []any{lock.Token, lock.KeySet.Names()[0]}}
	l.Exec(ctx, []*locking.Lock{lock}, []*lua.Call{call})
	return call.Status, call.Err
}

// awaitLeaseEnd waits until the lease of a lock is over, by Redis' clock.
func (b *lockHarness) awaitLeaseEnd(t *testing.T, lock *locking.Lock) {
	stacktest.Eventually(t, "the end of a lease", func() bool {
		_, until, _ := strings.Cut(b.client.HGet(t.Context(), b.prefix+"locks", lock.KeySet.Names()[0]).Val(), " ")
		if until == "" {
			return true // the hash has ended with the last lease in it
		}
		ms, err := strconv.ParseInt(until, 10, 64)
		return err == nil && ms <= b.client.Time(t.Context()).Val().UnixMilli()
	})
}

// TestMetricNames_TextAndRegistry_AreEqual keeps the names of package locking those that Prometheus sees, and reads the
// same from its text as from the registry.
func TestMetricNames_TextAndRegistry_AreEqual(t *testing.T) {
	t.Parallel()
	registry, metrics := newMetrics(t)
	b := newLockHarness(t)
	ctx := t.Context()
	l := b.locker(t, locking.FixedLease(100*time.Millisecond), metrics)
	lasting := b.locker(t, locking.FixedLease(time.Hour), nil)
	if _, err := lasting.Lock(ctx, "", time.Second, b.set("c")); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Lock(ctx, "", time.Millisecond, b.set("c")); !errors.Is(err, locking.ErrTimeout) {
		t.Errorf("what is locked was locked again: %v", err)
	}
	status, err := b.section(ctx, l, "a", func(lock *locking.Lock) { b.awaitLeaseEnd(t, lock) })
	if status != locking.StatusLockLost || err != nil {
		t.Errorf("a lock that was over: %s, %v", status, err)
	}
	optimist := locking.New(locking.NewOptimistic(b.client), locking.Options{Metrics: metrics})
	status, err = b.section(ctx, optimist, "b", func(lock *locking.Lock) { b.client.Incr(ctx, lock.KeySet.Version) })
	if status != locking.StatusConflict || err != nil {
		t.Errorf("a version that changed: %s, %v", status, err)
	}

	families := metricFamilies(t, registry)
	for _, name := range []string{locking.MetricAttempts, locking.MetricLost, locking.MetricConflicts} {
		if n := lockCounts(families, name)["1"]; n < 1 {
			t.Errorf("%s: %v", name, n)
		}
	}
	web := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer web.Close()
	read, err := readMetrics(ctx, strings.TrimPrefix(web.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{locking.MetricSections, locking.MetricWaits} {
		one, err := lockDurations(families, name)
		if err != nil || one["1"].Total() != 1 {
			t.Errorf("%s: %v, %v", name, one, err)
		}
		if again, err := lockDurations(read, name); err != nil || !reflect.DeepEqual(again, one) {
			t.Errorf("%s: %v, %v as text, want %v", name, again, err, one)
		}
		two, err := lockDurations(slices.Concat(families, read), name)
		if err != nil || two["1"].Total() != 2 {
			t.Errorf("%s of two workers: %v, %v", name, two, err)
		}
	}
}

// TestLockReport_Samples_CountsAndRecommends is about what is counted and suggested.
func TestLockReport_Samples_CountsAndRecommends(t *testing.T) {
	t.Parallel()
	for n, enough := range map[int]bool{locking.MinSamples - 1: false, locking.MinSamples: true} {
		if _, ok := locking.RecommendLease("1", locking.Histogram{Bounds: []float64{1}, Counts: []float64{float64(n), 0}}); ok != enough {
			t.Errorf("a lease is suggested from %d sections: %v; package locking has another minimum", n, ok)
		}
	}
	histogram := func(bound float64, below, all uint64) *dto.MetricFamily {
		name, label, class := locking.MetricSections, locking.LabelSlots, "2-7"
		return &dto.MetricFamily{Name: &name, Metric: []*dto.Metric{{
			Label:     []*dto.LabelPair{{Name: &label, Value: &class}},
			Histogram: &dto.Histogram{SampleCount: &all, Bucket: []*dto.Bucket{{UpperBound: &bound, CumulativeCount: &below}}},
		}}}
	}
	name, label, class, conflicts := locking.MetricConflicts, locking.LabelSlots, "2-7", 100.0
	clashes := &dto.MetricFamily{Name: &name, Metric: []*dto.Metric{{
		Label: []*dto.LabelPair{{Name: &label, Value: &class}}, Counter: &dto.Counter{Value: &conflicts},
	}}}
	classes, err := lockReport([]*dto.MetricFamily{histogram(0.2, 100, 100), clashes, histogram(0.2, 200, 200)})
	if err != nil {
		t.Fatal(err)
	}
	want := lockClass{
		Slots: "2-7", Sections: 300, SectionP50: 100, SectionP95: 190, SectionP99: 198,
		Conflicts: 100, ConflictRate: 0.25, Lease: 1980, LeaseNeeds: locking.MinSamples,
	}
	if got := classes[1]; got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	var table strings.Builder
	if err := printLocks(&table, classes); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{" 198 ms ", "100 (25.0 %)", "1.98s, from the p99 of 300 sections\n", "too few: 0 of 200\n"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, table.String())
		}
	}
	if _, err := lockReport([]*dto.MetricFamily{histogram(0.2, 1, 1), histogram(0.3, 1, 1)}); err == nil {
		t.Error("histograms that cannot be added were added")
	}
}

// TestLeaser_SectionsChange_LeaseFollows shortens the lease after many short sections, and lengthens it again
// when some outlive it.
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
		if err := x.runOnce(); err != nil {
			t.Fatal(err)
		}
		return x.lease(1)
	}
	if first := choose(); first != leaseFirst || log.Len() > 0 {
		t.Errorf("without evidence: %v, %s", first, log.String())
	}
	var short time.Duration
	stacktest.Eventually(t, "so many short sections that the lease is shortened", func() bool { // a busy machine needs more
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
				t.Errorf("a section that outlived its lease: %s, %v", status, err)
			}
		})
	}
	all.Wait()
	if long := choose(); long <= short {
		t.Errorf("after sections that outlived %v: %v, %s", short, long, log.String())
	}
	for _, field := range []string{"lock lease chosen from measurement", `"slots":"1"`, `"lease_ms":`, `"p99_ms":`, `"margin":`} {
		if !strings.Contains(log.String(), field) {
			t.Errorf("no %s in %s", field, log.String())
		}
	}
	evidence := regexp.MustCompile(`"samples":(\d+)`).FindAllStringSubmatch(log.String(), -1)
	if len(evidence) < 2 { // of the shorter lease and of the longer one
		t.Errorf("no samples in %s", log.String())
	}
	for _, samples := range evidence {
		if n, err := strconv.Atoi(samples[1]); err != nil || n < locking.MinSamples {
			t.Errorf("a lease was chosen from %s samples", samples[1])
		}
	}
	t.Log(log.String())
}

// TestEmbedded_Redlock_StartsLockServers starts Redlock's servers, with their data in directories of their own,
// and kills one.
func TestEmbedded_Redlock_StartsLockServers(t *testing.T) {
	t.Parallel()
	dir := stacktest.DataDir(t)
	c := Config{
		Connections: Connections{NATSURL: "n", RedisURL: "r", PostgresURL: "p", Namespace: "n"},
		Operations:  Operations{HTTPAddr: "h:1"}, Locks: Locks{LockServers: LockServers{LockStrategy: redlockStrategy}},
	}
	started, err := startServers(t.Context(), &c, stack.Options{Dir: dir, Progress: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := started.close(); err != nil {
			t.Error(err)
		}
	}()
	path, err := c.writeEndpoints(started, dir)
	if err != nil {
		t.Fatal(err)
	}
	found, err := endpoints.Read(path)
	if urls := strings.Split(found["HOLDFAST_LOCK_REDIS_URLS"], ","); err != nil || len(urls) != lockServersMin || !slices.Equal(urls, c.LockRedisURLs) {
		t.Errorf("endpoints: %v, %v, want %v", found, err, c.LockRedisURLs)
	}
	if err := c.LockServers.AfterApply(); err != nil {
		t.Error(err)
	}
	for i := range lockServersMin {
		if _, err := os.Stat(filepath.Join(dir, fmt.Sprintf("redis-lock-%d", i+1), "redis")); err != nil {
			t.Error(err)
		}
	}
	victim, err := os.FindProcess(started.locks[1].RedisPID())
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-started.failed:
		if !strings.Contains(err.Error(), "lock server 2") {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("nobody says that a lock server has ended")
	}
}
