package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/stack/stacktest"
)

// near reports whether two figures are equal but for rounding errors.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Max(math.Abs(a), math.Abs(b)) }

// wantRate checks the number of events and the processes of a rate.
func wantRate(t *testing.T, what string, r Rate, number int, processes ...string) {
	t.Helper()
	if r.Number != number || r.Seconds <= 0 || !near(r.PerSecond, float64(number)/r.Seconds) {
		t.Errorf("%s: %+v, want a rate of %d", what, r, number)
	}
	if len(r.Processor) != len(processes) {
		t.Errorf("%s: CPU time of %v, want that of %v", what, r.Processor, processes)
	}
	for _, name := range processes {
		if used, known := r.Processor[name]; !known || used < 0 {
			t.Errorf("%s: CPU time of %v, want that of %s", what, r.Processor, name)
		}
	}
}

// wantOrder checks that quantiles are in ascending order.
func wantOrder(t *testing.T, what string, times Quantiles) {
	t.Helper()
	if !slices.IsSorted([]float64{0, times.P50, times.P99, times.P999, times.Max}) || times.P50 == 0 {
		t.Errorf("%s: %+v", what, times)
	}
}

// TestRun_OwnServers_MeasuresParts measures sales, expiry and growth on servers that Run starts.
func TestRun_OwnServers_MeasuresParts(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	var lines, steps []string
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Options{
		Worker: workerProgram, Parts: []string{"growth", "sales", "expiry"}, Size: Tiny, NATSCommand: []string{own, asNATS},
		Progress: func(line string) { lines = append(lines, line) },
		Step: func(done, total int, what string) {
			if done != len(steps) || total != 11 {
				t.Errorf("step %d of %d after %d steps", done, total, len(steps))
			}
			steps = append(steps, what)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(steps) != 11 || !strings.HasPrefix(steps[0], "sale of 3 nights, 1,000 resources, 1 worker, round 1 of 1") {
		t.Errorf("steps: %q", steps)
	}
	if !r.OwnServers || r.Size != "tiny" || r.At.IsZero() || r.Machine.Processors == 0 ||
		r.Versions.NATS == "" || r.Versions.Redis == "" || r.Versions.Postgres == "" {
		t.Errorf("machine and versions: %+v", r)
	}
	size := allSizes[Tiny]
	withoutWorker := []string{processBench, processNATS, processRedis, processPostgres}
	deciding := append([]string{processWorker}, withoutWorker...)
	want := []scenario{
		{3, load{resources: 1000}, 1}, {3, load{resources: 10}, 1}, {3, load{resources: 1}, 1},
		{3, load{size.allResources, spreadAlone}, 1}, {3, load{size.allResources, spreadZipf}, 1},
		{3, load{resources: 1000}, 2}, {3, load{resources: 1000}, 3},
	}
	if len(r.Throughputs) != len(want) {
		t.Fatalf("%d sales", len(r.Throughputs))
	}
	for i, s := range r.Throughputs {
		what := want[i].String()
		if (scenario{s.Nights, s.load(), s.Workers}) != want[i] || len(s.Ceiling) != 1 || len(s.Holdfast) != 1 {
			t.Fatalf("%s: %+v", what, s)
		}
		wantRate(t, what, s.Holdfast[0], size.scenarioEvents, deciding...)
		wantRate(t, what+", ceiling", s.Ceiling[0], size.ceilingCalls, withoutWorker...)
		if s.PerSecond != s.Holdfast[0].PerSecond || !near(s.OfCeiling, s.PerSecond/s.Ceiling[0].PerSecond) ||
			!near(s.TimesMany, s.PerSecond/r.Throughputs[0].PerSecond) {
			t.Errorf("%s: ratios: %+v", what, s)
		}
		if len(s.ProcessorMicros) != len(deciding) || len(s.CeilingMicros) != len(withoutWorker) {
			t.Errorf("%s: CPU time: %v, %v", what, s.ProcessorMicros, s.CeilingMicros)
		}
	}
	if len(r.Expiries) != 2 {
		t.Fatalf("expiries: %+v", r.Expiries)
	}
	for i, e := range r.Expiries {
		if e.Notified != (i == 1) || e.Number != size.expiring || e.Keys != size.keys || e.Within <= 0 {
			t.Errorf("expiry: %+v", e)
		}
		on := strings.Contains(e.RedisNotifies, "E") && strings.Contains(e.RedisNotifies, "x")
		if on != e.Notified || !on && e.RedisNotifies != "" {
			t.Errorf("expiry: notify-keyspace-events is %q: %+v", e.RedisNotifies, e)
		}
		wantOrder(t, "expiry", e.Late)
	}
	if len(r.Scaling) != len(size.liveHolds) {
		t.Fatalf("growth: %+v", r.Scaling)
	}
	for i, g := range r.Scaling {
		what := fmt.Sprint(g.Live)
		wantRate(t, what, g.Rate, size.moreHolds, deciding...)
		if g.Live != size.liveHolds[i] || g.RedisBytes <= 0 || g.WireIn <= 0 || g.WireOut <= 0 || g.EventBytes <= 0 ||
			g.OutcomeBytes <= 0 || g.RedisTotal <= 0 || g.Parts["hold"] <= 0 || g.Parts["records"] <= 0 ||
			g.WorkerBytes <= 0 || g.WorkerEmpty <= 0 {
			t.Errorf("growth: %+v", g)
		}
	}
	for _, name := range []string{"3 nights: of the ceiling", "expiry without notifications: p99.9 in ms"} {
		if !slices.ContainsFunc(r.Goals, func(g Goal) bool { return g.Name == name }) {
			t.Errorf("no goal %q: %+v", name, r.Goals)
		}
	}
	all := strings.Join(lines, "\n")
	for _, text := range []string{"servers of its own", "sales: ", "growth: cost of one more hold"} {
		if !strings.Contains(all, text) {
			t.Errorf("progress lacks %q:\n%s", text, all)
		}
	}
}

// TestRun_GivenServers_LeavesNothing measures the other parts on servers of Options. Run removes its data
// and restores the setting of Redis.
func TestRun_GivenServers_LeavesNothing(t *testing.T) {
	t.Parallel()
	o := given("payments", "latency")
	o.RedisURL = stacktest.LockServers(t, 1)[0] // no other test of this package changes its settings
	options, err := redis.ParseURL(o.RedisURL)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(options)
	defer func() { _ = client.Close() }()
	if err := client.Set(t.Context(), "ceiling:theirs", "kept", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.ConfigSet(t.Context(), optionNotify, "K$").Err(); err != nil {
		t.Fatal(err)
	}
	before := client.ConfigGet(t.Context(), optionNotify).Val()[optionNotify]
	unreachable := o
	unreachable.PostgresURL = "postgres://127.0.0.1:1/none"
	if _, err := Run(t.Context(), unreachable); err == nil {
		t.Error("measured without Postgres")
	}
	if now := client.ConfigGet(t.Context(), optionNotify).Val()[optionNotify]; now != before {
		t.Errorf("without Postgres: %s was %s and is %s", optionNotify, before, now)
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	size := allSizes[Tiny]
	if r.OwnServers || strings.Contains(r.Circumstances(), "during") ||
		len(r.Throughputs) != 0 || len(r.Scaling) != 0 || len(r.Expiries) != 0 {
		t.Errorf("%+v", r)
	}
	if p := r.Payments; p == nil || len(p.Ceiling) != 1 || len(p.Holdfast) != 1 {
		t.Fatalf("payments: %+v", p)
	}
	wantRate(t, "payments", r.Payments.Holdfast[0], size.payments)
	wantRate(t, "payments in Postgres", r.Payments.Ceiling[0], size.payments)
	if p := r.Payments; p.PerSecond != p.Holdfast[0].PerSecond || !near(p.OfCeiling, p.PerSecond/p.Ceiling[0].PerSecond) {
		t.Errorf("payments: %+v", p)
	}
	if len(r.Latencies) != len(strategies)*len(loads) {
		t.Fatalf("latencies: %+v", r.Latencies)
	}
	for i, l := range r.Latencies {
		percent := loads[i%len(loads)]
		rate := l.Full * float64(percent) / 100
		if percent == 0 {
			rate = steadyRate
		}
		what := fmt.Sprintf("latency at %d %%", percent)
		if l.Percent != percent || !near(l.PerSecond, rate) || l.Strategy != strategies[i/len(loads)] ||
			l.Number != int(l.PerSecond*size.latencyFor.Seconds())+1 {
			t.Errorf("%s: %+v", what, l)
		}
		wantOrder(t, what, l.Quantiles)
		wantOrder(t, what+", published", l.Sent)
	}
	if len(r.Goals) != 6 { // of the ceiling; p99 at three rates; with locks, times that without, at two
		t.Errorf("goals: %+v", r.Goals)
	}
	keys, err := client.Keys(t.Context(), "*").Result()
	if err != nil || !slices.Equal(keys, []string{"ceiling:theirs"}) {
		t.Errorf("keys: %q, %v", keys, err)
	}
	if now := client.ConfigGet(t.Context(), optionNotify).Val()[optionNotify]; now != before {
		t.Errorf("%s was %s and is %s", optionNotify, before, now)
	}
}

// TestRun_GivenServers_SkipsWhatNeedsOwnOnes runs the parts that need servers of their own. The report says why it lacks them.
func TestRun_GivenServers_SkipsWhatNeedsOwnOnes(t *testing.T) {
	t.Parallel()
	r, err := Run(t.Context(), given("overload", "scale", "idle"))
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range []string{"overload: it throttles", "scale: it starts", "idle: the CPU times"} {
		if len(r.Skipped) != 3 || !strings.HasPrefix(r.Skipped[i], part) {
			t.Errorf("skipped %q, want %s", r.Skipped, part)
		}
	}
	if len(r.Overloads) > 0 || len(r.ScaleOuts) > 0 || r.Idle != nil {
		t.Errorf("%+v", r)
	}
}

// wantNothingLeft checks that the servers have no namespace whose name begins with prefix.
func wantNothingLeft(t *testing.T, o Options, prefix string) {
	t.Helper()
	js := stacktest.ConnectNATS(t, o.NATSURL)
	names := js.StreamNames(t.Context())
	for name := range names.Name() {
		if strings.HasPrefix(name, strings.ToUpper(prefix)) {
			t.Errorf("stream %s is left", name)
		}
	}
	if names.Err() != nil {
		t.Error(names.Err())
	}
	b := newRunner(t)
	var schemas int
	const query = `SELECT count(*) FROM pg_namespace WHERE nspname LIKE $1`
	err := b.pool.QueryRow(t.Context(), query, prefix+"%").Scan(&schemas)
	if err != nil || schemas > 0 {
		t.Errorf("%d schemas are left, %v", schemas, err)
	}
	if keys, err := b.redis.Keys(t.Context(), prefix+"*").Result(); err != nil || len(keys) > 0 {
		t.Errorf("keys %q are left, %v", keys, err)
	}
}

// script writes a program that runs some lines of shell and then the worker program, and returns its path.
func script(t *testing.T, lines string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "worker")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+lines+"\nexec "+workerProgram+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRun_WorkerFails_ReportsAndLeavesNothing runs workers that fail in several ways. Run returns an error
// and removes its data.
func TestRun_WorkerFails_ReportsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lines string
		want  []string
	}{
		"dies": {
			`[ "$1" = run ] && export HOLDFAST_FAILPOINT=requests.published`,
			[]string{"worker (pid ", ") exited: signal: killed", "worker started"},
		},
		"does not start": {
			`[ "$1" = run ] && echo no more rooms >&2 && exit 7`,
			[]string{"worker (pid ", ") exited: exit status 7", "no more rooms"},
		},
		"cannot migrate": {
			`[ "$1" = migrate ] && echo no schema for you >&2 && exit 1`,
			[]string{"migrate: exit status 1: no schema for you"},
		},
		"does not exist": {`exec /nonexistent`, []string{"/nonexistent"}},
		"rejects": {
			`export HOLDFAST_HORIZON=1`,
			[]string{"outcomes are map[hold.rejected:", "want map[hold.created:"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := given("latency")
			o.Worker = script(t, c.lines)
			r, err := Run(t.Context(), o)
			if err == nil {
				t.Fatalf("measured: %+v", r)
			}
			for _, text := range c.want {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error lacks %q: %v", text, err)
				}
			}
			if strings.Contains(err.Error(), "remove namespace") {
				t.Error(err)
			}
		})
	}
}

// TestRun_Cancelled_ReturnsWhatItHas interrupts a run. Run returns an error and the figures measured so
// far.
func TestRun_Cancelled_ReturnsWhatItHas(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	o := given("expiry", "growth")
	o.Step = func(done, _ int, _ string) {
		if done == 2 {
			stop()
		}
	}
	r, err := Run(ctx, o)
	if err == nil || err.Error() != "measure growth: interrupted" {
		t.Errorf("interrupted: %v", err)
	}
	if r == nil || len(r.Expiries) != 2 || len(r.Scaling) != 0 {
		t.Errorf("figures so far: %+v", r)
	}
}

// TestRun_WrongOptions_Fails runs with some URLs, and with malformed URLs, whose errors must not show the
// password.
func TestRun_WrongOptions_Fails(t *testing.T) {
	t.Parallel()
	o := given()
	o.PostgresURL = ""
	if _, err := Run(t.Context(), o); !errors.Is(err, ErrPartialURLs) {
		t.Error(err)
	}
	for _, url := range []*string{&o.NATSURL, &o.RedisURL, &o.PostgresURL} {
		o = given()
		*url = "redis://:secret@127.0.0.1:1:2"
		_, err := Run(t.Context(), o)
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Error(err)
		}
	}
}

// TestClose_UsedAndEmpty_RemovesNamespace removes a namespace with data and workers, and one that does
// not exist.
func TestClose_UsedAndEmpty_RemovesNamespace(t *testing.T) {
	t.Parallel()
	b := newRunner(t)
	s, err := b.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.setInventory(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := s.start(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	err = s.preload(t.Context(), 10, func(n int) (*nats.Msg, error) { return s.request(n, load{resources: 1}, 1) })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.awaitAnswers(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	workers := slices.Clone(s.workers)
	for range 2 { // the second call finds nothing
		if err := s.close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for _, w := range workers {
		select {
		case <-w.Exited():
		default:
			t.Error("a worker still runs")
		}
	}
	wantNothingLeft(t, b.Options, b.name)
}

// TestTally_OutcomesDiffer_Fails compares the outcomes with other numbers.
func TestTally_OutcomesDiffer_Fails(t *testing.T) {
	t.Parallel()
	s := newCluster(t)
	for _, event := range []string{"hold.created", "hold.created", "hold.rejected"} {
		if err := s.publish(nats.NewMsg(s.ns.Out(event, "loft"))); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.published(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []map[string]int{
		nil, {"hold.created": 2}, {"hold.created": 3}, {"hold.created": 3, "hold.rejected": 0},
		{"hold.created": 2, "hold.rejected": 1, "hold.expired": 1},
	} {
		if err := s.tally(t.Context(), want); err == nil {
			t.Errorf("no error for %v", want)
		}
	}
	if err := s.tally(t.Context(), map[string]int{"hold.created": 2, "hold.rejected": 1}); err != nil {
		t.Error(err)
	}
	if err := s.publish(nats.NewMsg(s.ns.Out("hold.created", "loft"))); err != nil {
		t.Fatal(err)
	}
	if err := s.published(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.tally(t.Context(), nil); err == nil {
		t.Error("no error for an outcome more than at the last tally")
	}
	if err := s.tally(t.Context(), map[string]int{"hold.created": 1}); err != nil {
		t.Error(err)
	}
}

// TestCeiling_Calls_WriteAllThatAHoldNeeds checks the keys that the minimal script writes.
func TestCeiling_Calls_WriteAllThatAHoldNeeds(t *testing.T) {
	t.Parallel()
	b := newRunner(t)
	calls := ceilingCallsOf(b.name, 1, 100, 7, load{resources: 3})
	script := redis.NewScript(ceilingSource)
	if err := script.Load(t.Context(), b.redis).Err(); err != nil {
		t.Fatal(err)
	}
	conn := b.redis.Conn()
	defer func() { _ = conn.Close() }()
	if err := ceilingOn(t.Context(), script, conn, calls); err != nil {
		t.Fatal(err)
	}
	sum, due := 0, 0
	for _, resource := range []string{"r00000", "r00001", "r00002"} {
		prefix := b.name + ":" + resource + ":"
		for _, count := range b.redis.HVals(t.Context(), prefix+"counts").Val() {
			var n int
			if _, err := fmt.Sscan(count, &n); err != nil {
				t.Fatal(err)
			}
			sum += n
		}
		due += int(b.redis.ZCard(t.Context(), prefix+"due").Val())
	}
	if sum != 100*7 || due != 100 {
		t.Errorf("%d nights and %d deadlines, want %d and 100", sum, due, 100*7)
	}
	for _, kind := range []string{"request", "hold"} {
		keys := b.redis.Keys(t.Context(), b.name+":*:"+kind+":*").Val()
		if len(keys) != 100 || b.redis.PTTL(t.Context(), keys[0]).Val() <= 0 {
			t.Errorf("%d keys of kind %s, want 100 with a TTL", len(keys), kind)
		}
	}
	if err := ceilingOn(t.Context(), script, conn, calls); err == nil || !strings.Contains(err.Error(), "returned 0") {
		t.Errorf("the same calls again: %v", err)
	}
	if err := b.removeKeys(t.Context(), b.name); err != nil {
		t.Error(err)
	}
	wantNothingLeft(t, b.Options, b.name)
}

// TestPace_ThingsDue_DoneInOrderNotEarly checks that pace calls do in order, and never early.
func TestPace_ThingsDue_DoneInOrderNotEarly(t *testing.T) {
	t.Parallel()
	due := evenly(time.Now(), 2000)
	done := 0
	err := pace(t.Context(), 100, due, func(n int) error {
		if n != done || due(n).After(time.Now()) {
			t.Errorf("call %d came early or instead of call %d", n, done)
		}
		done++
		return nil
	})
	if err != nil || done != 100 {
		t.Errorf("%d calls, want 100: %v", done, err)
	}
	failed := errors.New("failed")
	if err := pace(t.Context(), 2, due, func(int) error { return failed }); !errors.Is(err, failed) {
		t.Error(err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	nextYear := evenly(time.Now().AddDate(1, 0, 0), 1)
	if err := pace(cancelled, 1, nextYear, func(int) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
