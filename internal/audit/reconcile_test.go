package audit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"holdfast/internal/audit"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// recordedReconciler is a Reconciler whose log and measurements are kept.
type recordedReconciler struct {
	*audit.Reconciler
	t      testing.TB
	reader *sdkmetric.ManualReader

	mu  sync.Mutex
	log bytes.Buffer
}

func (w *recordedReconciler) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

func (s *scene) newReconciler(heal bool) *recordedReconciler {
	return s.newReconcilerWithTerm(s.term, heal)
}

func (s *scene) newReconcilerWithTerm(term *recovery.EpochTerm, heal bool) *recordedReconciler {
	s.Helper()
	w := &recordedReconciler{t: s.TB, reader: sdkmetric.NewManualReader()}
	metrics, err := audit.NewMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(w.reader)).Meter("test"))
	s.must(err)
	backends := s.backends
	backends.JetStream = nil // it needs none
	w.Reconciler = audit.NewReconciler(backends, s.store, term, audit.ReconcilerOptions{Heal: heal, Memory: memory, Share: 1}, metrics, zerolog.New(w))
	return w
}

// logged returns the kinds of the differences that were logged since the last call, and whether
// each was healed.
func (w *recordedReconciler) logged() (kinds []string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range bytes.Lines(w.log.Bytes()) {
		var entry struct {
			Level, Kind string
			Resource    string `json:"resource_id"`
			Healed      bool
		}
		if err := json.Unmarshal(line, &entry, json.MatchCaseInsensitiveNames(true)); err != nil || entry.Level != "error" || entry.Resource == "" {
			w.t.Errorf("logged %s: %v", line, err)
		}
		kind := entry.Kind
		if !entry.Healed {
			kind += ", left"
		}
		kinds = append(kinds, kind)
	}
	w.log.Reset()
	slices.Sort(kinds)
	return kinds
}

// measured is the sum of a measurement over all kinds.
func (w *recordedReconciler) measured(name string) (sum int64) {
	w.t.Helper()
	var all metricdata.ResourceMetrics
	if err := w.reader.Collect(w.t.Context(), &all); err != nil {
		w.t.Fatal(err)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					sum += p.Value
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					sum += p.Value
				}
			}
		}
	}
	return sum
}

// leftToOperator are the damages that a Reconciler leaves to people although a repair can mend them: what
// could be the trace of a lost hold.
var leftToOperator = []string{"an ended hold is due", "nobody is due", "an index of nobody"}

// TestReconciler_EachCorruption_Healed makes each thing wrong in Redis that can be mended, one after another, and sees that a
// round of the Reconciler heals it, logs it and counts it; one that may only report does no more than
// that.
func TestReconciler_EachCorruption_Healed(t *testing.T) {
	t.Parallel()
	repairable := slices.DeleteFunc(slices.Clone(inRedis), func(d corruption) bool {
		return !d.repairable || slices.Contains(leftToOperator, d.name) || d.name == "the agenda has what is over" // who sweeps takes it off
	})
	for part := range slices.Chunk(repairable, 10) {
		t.Run(strings.ReplaceAll(part[0].name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			for _, d := range part {
				s.checkHealed(d)
			}
		})
	}
}

func (s *scene) checkHealed(d corruption) {
	s.Helper()
	ctx := s.Context()
	quiet := s.newReconciler(true)
	s.must(quiet.Round(ctx))
	if got := quiet.logged(); len(got) > 0 || quiet.measured("holdfast.audit.differences") > 0 || quiet.measured("holdfast.audit.resources") != 2 || quiet.measured("holdfast.audit.rounds") != 1 {
		s.Fatalf("before %s it says %v", d.name, got)
	}
	d.apply(s)
	want := strings.Fields(d.wantKinds)
	reporting := s.newReconciler(false)
	for range 2 { // what is left is told once
		s.must(reporting.Round(ctx))
	}
	if got := reporting.logged(); !slices.Equal(got, suffixed(want, ", left")) {
		s.Errorf("when %s it logged %v, want %v", d.name, got, suffixed(want, ", left"))
	}
	if got := reporting.measured("holdfast.audit.left"); got != int64(len(want)) || reporting.measured("holdfast.audit.differences") != got || reporting.measured("holdfast.audit.healed") != 0 {
		s.Errorf("when %s, %d differences are left, want %d", d.name, got, len(want))
	}
	if report := s.audit(audit.Options{}); !slices.Equal(kinds(report), want) {
		s.Errorf("who may only report has changed, when %s:\n%s", d.name, findingsText(report))
	}

	healing := s.newReconciler(true)
	s.must(healing.Round(ctx))
	got := healing.logged()
	// An index that is corrected is no residue any more, if it was seen in this order.
	if !slices.Equal(got, want) && !slices.Equal(append(got, "residue"), want) || healing.measured("holdfast.audit.left") != 0 || healing.measured("holdfast.audit.healed") != int64(len(got)) {
		s.Errorf("when %s it logged %v, want %v healed", d.name, got, want)
	}
	s.wantNoFindings()
	if s.redis.Exists(ctx, s.key("hall", "departing")).Val() == 1 { // it has one announced again
		s.startWorkers(1)
		stacktest.Eventually(s, "the announcement", func() bool { return s.redis.Exists(ctx, s.key("hall", "departing")).Val() == 0 })
		s.stopWorkers()
	}
}

// TestReconciler_TraceOfLostHold_OnlyReported makes wrong what a repair can mend and what could be the trace of a lost hold: it is told,
// and left to people.
func TestReconciler_TraceOfLostHold_OnlyReported(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, d := range inRedis {
		if slices.Contains(leftToOperator, d.name) {
			d.apply(s)
		}
	}
	w := s.newReconciler(true)
	s.must(w.Round(t.Context()))
	if got := w.logged(); !slices.Equal(got, []string{"due, left", "due, left", "residue, left"}) {
		t.Errorf("it logged %v", got)
	}
}

func suffixed(words []string, suffix string) (all []string) {
	for _, word := range words {
		all = append(all, word+suffix)
	}
	return all
}

// TestReconciler_RecordLost_NothingFreed takes away a record, as lost data would be, and sees that nothing is given back of
// what the hold took, but that it is told.
func TestReconciler_RecordLost_NothingFreed(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.redis.HDel(t.Context(), s.key("hall", "records"), uuidOf(s.other))
	w := s.newReconciler(true)
	s.must(w.Round(t.Context()))
	if got := w.logged(); !slices.Equal(got, []string{"counter, left", "due, left", "residue, left", "residue, left", "users, left"}) {
		t.Errorf("it logged %v", got)
	}
	if got := s.redis.HGet(t.Context(), s.key("hall", "counts"), "A-1").Val(); got != "3" {
		t.Errorf("%s are held of A-1, want 3", got)
	}
	// It may be that the counters are what is damaged besides; they are still not lowered.
	s.redis.HSet(t.Context(), s.key("hall", "counts"), "A-2", "1", "A-1", "x")
	s.must(w.Round(t.Context()))
	if got := s.redis.HMGet(t.Context(), s.key("hall", "counts"), "A-1", "A-2").Val(); got[0] != "x" || got[1] != "2" {
		t.Errorf("the counters are %v, want what is too low raised and the other left", got)
	}
}

// TestReconciler_RecordAndUserLost_NothingFreed takes away all that is counted of a user as well: the deadline still says that there is
// a hold.
func TestReconciler_RecordAndUserLost_NothingFreed(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.redis.HDel(t.Context(), s.key("hall", "records"), uuidOf(s.other))
	s.redis.HDel(t.Context(), s.key("hall", "users"), "olga", s.indexOf("olga", "A-1"))
	s.must(s.newReconciler(true).Round(t.Context()))
	if got := s.redis.HGet(t.Context(), s.key("hall", "counts"), "A-1").Val(); got != "3" {
		t.Errorf("%s are held of A-1, want 3", got)
	}
}

// failAfterRepair is a Redis that is lost after the first script which repairs something.
type failAfterRepair struct {
	redis.Hook
	repaired bool
}

func (h *failAfterRepair) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		repairs := func(c redis.Cmder) bool {
			return slices.Contains(c.Args(), any("counter")) || slices.Contains(c.Args(), any("users"))
		}
		if !slices.ContainsFunc(commands, repairs) {
			return next(ctx, commands)
		}
		if h.repaired {
			err := errors.New("it is lost")
			for _, c := range commands {
				c.SetErr(err)
			}
			return err
		}
		err := next(ctx, commands)
		h.repaired = err == nil
		return err
	}
}

func (*failAfterRepair) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*failAfterRepair) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// TestReconciler_DiesAfterFirstStep_CountersComplete damages what has more fields than are mended in one step, and has who mends it die after the
// first: what others decide by is there again, or not yet.
func TestReconciler_DiesAfterFirstStep_CountersComplete(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"counts", "users"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			ctx := t.Context()
			slots := make([]string, 250)
			for i := range slots {
				slots[i] = fmt.Sprintf("S-%03d", i)
			}
			w.startWorkers(1)
			w.setInventory("hall", 1000, slots...)
			w.placeMany("hall", 150, slots[:1])
			for i := range 5 {
				if w.request("hall", fmt.Sprintf("u%d", i), time.Hour, 1, slots[i*50:i*50+50]...) == "" {
					t.Fatal("refused")
				}
			}
			w.stopWorkers()
			key := w.key("hall", name)
			before := w.redis.HGetAll(ctx, key).Val()
			w.redis.Del(ctx, key)
			w.redis.RPush(ctx, key, "oops")
			hook := &failAfterRepair{}
			client := redis.NewClient(stacktest.RedisOptions(stacktest.Shared().RedisURL))
			t.Cleanup(func() { _ = client.Close() })
			client.AddHook(hook)
			s := &scene{harness: w}
			s.backends.Redis = client
			if err := s.newReconciler(true).Round(ctx); err == nil || !hook.repaired {
				t.Fatalf("nobody died: %v", err)
			}
			if after := w.redis.HGetAll(ctx, key).Val(); len(before) < 200 || !maps.Equal(before, after) {
				t.Errorf("%d fields after one step, before %d", len(after), len(before))
			}
		})
	}
}

// TestRepair_RecordUnreadable_CountersNotGuessed damages the counters while a record cannot be read: what it takes is not known, and who asks for a
// repair all the same does not have them made up.
func TestRepair_RecordUnreadable_CountersNotGuessed(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	s.redis.HSet(ctx, s.key("hall", "records"), uuidOf(s.other), "nonsense")
	s.redis.Del(ctx, s.key("hall", "counts"))
	s.redis.RPush(ctx, s.key("hall", "counts"), "oops")
	report := s.audit(audit.Options{})
	s.must(audit.Repair(ctx, s.backends, report.Findings, memory))
	if kind := s.redis.Type(ctx, s.key("hall", "counts")).Val(); kind != "list" {
		t.Errorf("the counters are a %s with %v", kind, s.redis.HGetAll(ctx, s.key("hall", "counts")).Val())
	}
}

// TestReconciler_ClaimedRecordLost_NothingFreed takes away the record of a hold that is being paid, which has no deadline: only the
// number of its user's holds says still that there was one.
func TestReconciler_ClaimedRecordLost_NothingFreed(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	s.redis.HDel(ctx, s.key("hall", "records"), uuidOf(s.other))
	s.redis.ZRem(ctx, s.key("hall", "due"), uuidOf(s.other))
	s.redis.Del(ctx, s.key("hall", "hold:"+uuidOf(s.other)))
	w := s.newReconciler(true)
	for range 3 {
		s.must(w.Round(ctx))
	}
	if got := w.logged(); !slices.Equal(got, []string{"counter, left", "residue, left", "users, left"}) {
		t.Errorf("it logged %v", got)
	}
	for _, key := range []string{"users", "counts"} {
		s.redis.Rename(ctx, s.key("hall", key), s.key("hall", "kept"))
		s.redis.RPush(ctx, s.key("hall", key), "oops")
		s.must(w.Round(ctx))
		if got := s.redis.Type(ctx, s.key("hall", key)).Val(); got != "list" {
			t.Errorf("the %s are a %s: what they were is lost", key, got)
		}
		s.redis.Rename(ctx, s.key("hall", "kept"), s.key("hall", key))
	}
}

// TestReconciler_ReservedWrong_OnlyReported makes Postgres' sums wrong: they are told, and left to people.
func TestReconciler_ReservedWrong_OnlyReported(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.execute(`UPDATE inventory SET reserved = 3 WHERE slot = 'A-1'`)
	w := s.newReconciler(true)
	s.must(w.Round(t.Context()))
	if got := w.logged(); !slices.Equal(got, []string{"reserved, left"}) || w.measured("holdfast.audit.left") != 1 {
		t.Errorf("it logged %v", got)
	}
	s.execute(`UPDATE inventory SET reserved = 1 WHERE slot = 'A-1'`)
	s.must(w.Round(t.Context()))
	if got := w.measured("holdfast.audit.left"); got != 0 {
		t.Errorf("%d differences are left", got)
	}
}

// TestReconciler_CorruptionReported_RechecksSoon has a running Reconciler told of a damaged resource.
func TestReconciler_CorruptionReported_RechecksSoon(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	w := s.newReconciler(true)
	var running sync.WaitGroup
	ctx := t.Context()
	defer running.Wait()
	stopping, stop := context.WithCancel(ctx)
	defer stop()
	running.Go(func() { _ = w.Run(stopping) })
	stacktest.Eventually(t, "the first round", func() bool { return w.measured("holdfast.audit.rounds") == 1 })
	s.redis.HSet(ctx, s.key("hall", "counts"), "A-1", "x")
	w.RecheckSoon("hall")
	w.RecheckSoon("no resource\n")
	stacktest.Eventually(t, "the counter to be healed", func() bool {
		return s.redis.HGet(ctx, s.key("hall", "counts"), "A-1").Val() == "3"
	})
	if got := w.measured("holdfast.audit.rounds"); got != 1 {
		t.Errorf("it took %d rounds", got)
	}
}

// TestReconciler_EpochLost_DoesNothing takes the epoch away: whoever rebuilds is not to be disturbed.
func TestReconciler_EpochLost_DoesNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.redis.HSet(t.Context(), s.key("hall", "counts"), "A-1", "7")
	s.redis.Del(t.Context(), strings.TrimSuffix(s.agenda("hall"), "agenda")+"epoch")
	w := s.newReconciler(true)
	s.must(w.Round(t.Context()))
	if got := w.logged(); len(got) > 0 || s.redis.HGet(t.Context(), s.key("hall", "counts"), "A-1").Val() != "7" {
		t.Errorf("it logged %v", got)
	}
	report := s.audit(audit.Options{})
	if got := kinds(report); !slices.Equal(got, []string{"data_lost"}) {
		t.Errorf("found %v", got)
	}
	if got := strings.Join(report.Inconclusive, "\n"); !strings.Contains(got, "1 resource could not be looked at in redis") {
		t.Errorf("cannot tell %s", got)
	}
	w.RecheckSoon("hall")
}

// TestReconciler_PaymentUnanswered_ReportedAfterADay has a payment claim a hold, and its event be gone. It is reported when
// that is a day ago; the payment, published again, ends it as a reservation.
func TestReconciler_PaymentUnanswered_ReportedAfterADay(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	claimed := func(ago time.Duration) {
		t.Helper()
		line := s.redis.HGet(ctx, s.key("hall", "records"), uuidOf(s.other)).Val()
		words := strings.SplitN(line, " ", 7)
		words[0], words[4], words[5] = "confirming", fmt.Sprint(s.redis.Time(ctx).Val().Add(-ago).UnixMilli()), "p-olga"
		s.redis.HSet(ctx, s.key("hall", "records"), uuidOf(s.other), strings.Join(words, " "))
		s.redis.ZRem(ctx, s.key("hall", "due"), uuidOf(s.other))
		s.redis.Del(ctx, s.key("hall", "hold:"+uuidOf(s.other)))
	}
	for _, c := range []struct {
		ago  time.Duration
		want []string
	}{{23 * time.Hour, nil}, {25 * time.Hour, []string{"claim_stuck, left"}}} {
		claimed(c.ago)
		w := s.newReconciler(true)
		s.must(w.Round(ctx))
		if got := w.logged(); !slices.Equal(got, c.want) {
			t.Errorf("after %s it logged %v, want %v", c.ago, got, c.want)
		}
	}
	if got := kinds(s.audit(audit.Options{})); !slices.Equal(got, []string{"claim_stuck"}) {
		t.Errorf("the audit found %v", got)
	}
	s.startWorkers(1)
	if got := s.pay(s.other, "p-olga"); got != events.Type(holds.EventHoldConfirmed) {
		t.Errorf("the payment was answered %s", got)
	}
	s.stopWorkers()
	w := s.newReconciler(true)
	s.must(w.Round(ctx))
	if got := w.logged(); len(got) > 0 {
		t.Errorf("afterwards it logged %v", got)
	}
}
