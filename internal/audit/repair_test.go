package audit_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/audit"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// TestRepair_WorkersBusy_CountersRepaired makes counters of a large and of a small resource wrong
// under load. An audit finds exactly those, and a repair corrects them although the counters change
// all the time.
func TestRepair_WorkersBusy_CountersRepaired(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.startWorkers(1)
	slots := []string{"a", "b"}
	resources := []string{"hot", "small"}
	for _, resource := range resources {
		w.setInventory(resource, 1_000_000, slots...)
	}
	w.placeMany("hot", audit.InspectRecordsMax+500, slots)
	stop := make(chan struct{})
	var all sync.WaitGroup
	for p := range 2 {
		all.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					w.playCustomer(resources[i%2], fmt.Sprintf("u%d-%d", p, i), slots)
				}
			}
		})
	}
	for _, resource := range resources {
		w.redis.HIncrBy(t.Context(), w.key(resource, "counts"), "a", 5)
		w.redis.HIncrBy(t.Context(), w.key(resource, "users"), "zoe", 1)
	}
	report := w.wantFindings("counter", "counter", "users", "users")
	w.must(audit.Repair(t.Context(), w.backends, report.Findings, memory))
	if left := report.Unrepaired(); left != 0 {
		t.Errorf("%d differences are left", left)
	}
	w.wantNoFindings()
	close(stop)
	all.Wait()
	w.wantNoFindings()
}

// TestRepair_RecordUnreadable_CountersNotGuessed corrupts the counters while a record cannot be
// read. Which slots that record takes is unknown, so even a requested repair does not compute the
// counters.
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

// TestRepair_CountersGoneBesideLostRecord_StayGone removes the counters and the record of a live hold. While the counters are
// missing nothing is granted: written from the records they would free the slots of that hold.
func TestRepair_CountersGoneBesideLostRecord_StayGone(t *testing.T) {
	t.Parallel()
	for name, repair := range map[string]func(s *scene){
		"reconciler": func(s *scene) { s.must(s.newReconciler(true).Round(s.Context())) },
		"audit": func(s *scene) {
			s.must(audit.Repair(s.Context(), s.backends, s.audit(audit.Options{}).Findings, memory))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.redis.HDel(t.Context(), s.key("hall", "records"), uuidOf(s.live))
			s.redis.Del(t.Context(), s.key("hall", "counts"))
			repair(s)
			if counts := s.redis.HGetAll(t.Context(), s.key("hall", "counts")).Val(); len(counts) > 0 {
				t.Errorf("the counters are %v, without those of the lost hold", counts)
			}
		})
	}
}

// recordChanges change the record of a live hold whose quantity is two, as a mistake by hand would, and the
// kind of the finding that says so. The words are those of record.Record.
var recordChanges = map[string]struct {
	change func(words []string)
	want   audit.Kind
}{
	"quantity":                {func(words []string) { words[3] = "1" }, audit.HoldDiffers},
	"slots":                   {func(words []string) { words[8] = "A-2" }, audit.HoldDiffers},
	"user":                    {func(words []string) { words[6] = "zoe" }, audit.HoldDiffers},
	"deadline":                {func(words []string) { words[1] = words[2] }, audit.HoldDiffers},
	"released":                {func(words []string) { words[0], words[4] = "released", words[2] }, audit.EndUnannounced},
	"expired":                 {func(words []string) { words[0], words[4] = "expired", words[2] }, audit.EndUnannounced},
	"confirmed":               {func(words []string) { words[0], words[4] = "confirmed", words[2] }, audit.EndUnannounced},
	"released before created": {func(words []string) { words[0], words[4] = "released", "1" }, audit.EndUnannounced},
	"released without a time": {func(words []string) { words[0] = "released" }, audit.RecordCorrupt},
	"expired without a time":  {func(words []string) { words[0] = "expired" }, audit.RecordCorrupt},
	"claimed without a time":  {func(words []string) { words[0] = "confirming" }, audit.RecordCorrupt},
}

// TestRepair_RecordChanged_NothingFreed changes the record of a hold that is live according to the published
// outcomes. A repair neither frees its slots nor ends it. A rebuild restores it.
func TestRepair_RecordChanged_NothingFreed(t *testing.T) {
	t.Parallel()
	for name, d := range recordChanges {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			before := s.heldData()
			s.changeRecord(s.live, d.change)
			report := s.audit(audit.Options{})
			if got := kinds(report); !slices.Contains(got, string(d.want)) {
				t.Errorf("found %v, want %s:\n%s", got, d.want, findingsText(report))
			}
			for _, f := range report.Findings {
				if f.Kind == d.want && !strings.Contains(f.Remedy, "worker rebuild") {
					t.Errorf("the remedy of %s is %q", f.Kind, f.Remedy)
				}
			}
			s.must(audit.Repair(t.Context(), s.backends, report.Findings, memory))
			s.wantNothingFreed(before)
			s.rebuild()
			s.wantNoFindings()
			if after := s.heldData(); !maps.Equal(after, before) {
				t.Errorf("the rebuild wrote %v, want %v", after, before)
			}
		})
	}
}

// TestRepair_RecordExpiredByHand_NotAnnounced changes the record of a live hold to an expired one, whose announcement is due
// much later. A repair does not announce it now.
func TestRepair_RecordExpiredByHand_NotAnnounced(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	before := s.heldData()
	s.changeRecord(s.live, recordChanges["expired"].change)
	at := redis.Z{Score: 4e12, Member: uuidOf(s.live)}
	s.must(s.redis.ZAdd(t.Context(), s.key("hall", "departing"), at).Err())
	report := s.audit(audit.Options{})
	s.must(audit.Repair(t.Context(), s.backends, report.Findings, memory))
	if score := s.redis.ZScore(t.Context(), s.key("hall", "departing"), uuidOf(s.live)).Val(); score != at.Score {
		t.Errorf("it is to be announced at %.0f:\n%s", score, findingsText(report))
	}
	s.redis.ZRem(t.Context(), s.key("hall", "departing"), uuidOf(s.live))
	s.wantNothingFreed(before)
}

// TestRepair_RequestOrRecordUnreadable_RebuildRestoresIt destroys what a repair cannot compute. The audit names the
// command that restores it, which leaves each value as it was.
func TestRepair_RequestOrRecordUnreadable_RebuildRestoresIt(t *testing.T) {
	t.Parallel()
	destroyed := map[string]func(s *scene){
		"request deleted":      deleted("request:key-of-ana"),
		"request overwritten":  overwritten("request:key-of-ana", "x"),
		"refusal overwritten":  overwritten("request:key-of-gus", "x"),
		"extension answered x": overwritten("extension:*", "x"),
		"live record":          func(s *scene) { s.redis.HSet(s.Context(), s.key("hall", "records"), uuidOf(s.live), "x") },
		"record of an end":     func(s *scene) { s.redis.HSet(s.Context(), s.key("hall", "records"), uuidOf(s.released), "x") },
		"record of no hold id": hset("records", "tom", "x"),
	}
	for name, destroy := range destroyed {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			stored := func() map[string]string {
				values := s.redis.HGetAll(t.Context(), s.key("hall", "records")).Val()
				for _, key := range s.redis.Keys(t.Context(), s.key("hall", "[re]*:*")).Val() { // answers
					values[key] = s.redis.Get(t.Context(), key).Val()
				}
				return values
			}
			before := stored()
			destroy(s)
			report := s.audit(audit.Options{})
			for _, f := range report.Findings {
				if !strings.Contains(f.Remedy, "Run worker rebuild, which restores") {
					t.Errorf("found\n%s", findingsText(report))
				}
			}
			if len(report.Findings) == 0 {
				t.Error("nothing was found")
			}
			s.rebuild()
			s.wantNoFindings()
			if after := stored(); !maps.Equal(after, before) {
				t.Errorf("the rebuild wrote %q, want %q", after, before)
			}
		})
	}
}

// heldData returns what the live holds of the hall take, and their deadlines.
func (s *scene) heldData() map[string]int64 {
	s.Helper()
	held := make(map[string]int64)
	for slot, count := range s.redis.HGetAll(s.Context(), s.key("hall", "counts")).Val() {
		n, err := strconv.ParseInt(count, 10, 64)
		s.must(err)
		held[slot] = n
	}
	for _, due := range s.redis.ZRangeWithScores(s.Context(), s.key("hall", "due"), 0, -1).Val() {
		held[due.Member.(string)] = int64(due.Score)
	}
	return held
}

// wantNothingFreed fails the test if a slot has become free, or the end of a hold earlier, since heldData returned
// before.
func (s *scene) wantNothingFreed(before map[string]int64) {
	s.Helper()
	after := s.heldData()
	for name, n := range before {
		if after[name] < n {
			s.Errorf("%s is %d after the repair, want at least %d", name, after[name], n)
		}
	}
	if leaving := s.redis.ZCard(s.Context(), s.key("hall", "departing")).Val(); leaving != 0 {
		s.Errorf("%d holds are to be announced as expired", leaving)
	}
}

// rebuild rebuilds Redis, as worker rebuild does.
func (s *scene) rebuild() {
	s.Helper()
	_, err := s.newSupervisor(recovery.NewEpochTerm()).Rebuild(s.Context(), "a test", true, func(string) {})
	s.must(err)
}

// TestRepair_NoMemoryGiven_PolicyDecidesTombstones removes the tombstone of an ended hold. A repair writes
// it again with the time that it is given, else with the request-key-ttl of the stored policy, and with the
// default when no policy is stored.
func TestRepair_NoMemoryGiven_PolicyDecidesTombstones(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	repair := func(what string, given, want time.Duration) {
		t.Helper()
		s.redis.ZRem(t.Context(), s.key("hall", "tombstones"), uuidOf(s.paid))
		s.must(audit.Repair(t.Context(), s.backends, s.audit(audit.Options{}).Findings, given))
		if got := s.tombstoneTTL("hall", s.paid); got < want-time.Minute || got > want {
			t.Errorf("%s: the record is remembered for %v, want %v", what, got, want)
		}
	}
	repair("no policy stored", 0, 24*time.Hour)
	s.storePolicy(2 * memory)
	repair("policy stored", 0, 2*memory)
	repair("given", 3*memory, 3*memory)
}

// TestRepair_UnusualResource_ReservedRepaired makes what is reserved wrong of a resource that only plain SQL can name.
// Workers are notified of the repair: they may have the old number in memory.
func TestRepair_UnusualResource_ReservedRepaired(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.execute(`INSERT INTO inventory (resource_id, slot, capacity) VALUES ('Grand Hotel', 'A-1', 5)`)
	w.execute(`UPDATE inventory SET reserved = 3`)
	report := w.audit(audit.Options{})
	worker := stacktest.ConnectPostgres(t, stacktest.Shared().PostgresURL)
	_, err := worker.Exec(t.Context(), `LISTEN `+w.namespace+`_inventory`)
	w.must(err)
	w.must(audit.Repair(t.Context(), w.backends, report.Findings, memory))
	if got := kinds(report); !slices.Equal(got, []string{"reserved"}) || report.Findings[0].Result != audit.Done {
		t.Errorf("found %v, and repaired %+v", got, report.Findings)
	}
	if notified, err := worker.WaitForNotification(stacktest.WaitContext(t)); err != nil || notified.Payload != "Grand Hotel" {
		t.Errorf("workers are notified of %+v: %v", notified, err)
	}
	w.wantNoFindings()
}

// seatsOf returns so many slots for each hold of writeHolds, which no other hold takes.
func seatsOf(number int) func(i int) string {
	return func(i int) string {
		seats := make([]string, number)
		for n := range seats {
			seats[n] = fmt.Sprintf("R%d-%d", i, n)
		}
		return strings.Join(seats, ",")
	}
}

// countersOf returns the counters of a resource.
func (w *harness) countersOf(resource string) map[string]string {
	return w.redis.HGetAll(w.Context(), w.key(resource, "counts")).Val()
}

// wantCounters fails the test unless a resource has these counters.
func (w *harness) wantCounters(resource string, want map[string]string) {
	w.Helper()
	if got := w.countersOf(resource); !maps.Equal(got, want) {
		w.Errorf("%d counters are written, want %d", len(got), len(want))
	}
}

// TestRepair_CountersGoneOfLargeResource_AllWrittenAtOnce removes the key of more counters than a report lists, and than
// one step adjusts of a key that exists. The next grant would take a missing field of it for zero.
func TestRepair_CountersGoneOfLargeResource_AllWrittenAtOnce(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.writeHolds("arena", audit.RepairRecordsMax+1, seatsOf(20))
	before := w.countersOf("arena")
	w.redis.Del(t.Context(), w.key("arena", "counts"))
	report := w.audit(audit.Options{})
	w.must(audit.Repair(t.Context(), w.backends, report.Findings, memory))
	listed, counted := len(slices.DeleteFunc(report.Findings,
		func(f *audit.Finding) bool { return f.Result != audit.Done })), report.Counts[audit.Counter]
	if listed == 0 || listed >= counted || counted != len(before) {
		t.Errorf("%d of %d wrong counters are listed as repaired", listed, counted)
	}
	w.wantCounters("arena", before)
}

// TestReconciler_CountersVanishDuringReading_AllWrittenAtOnce removes the counters of a large resource after some of
// them were read: the first reading misses only the others.
func TestReconciler_CountersVanishDuringReading_AllWrittenAtOnce(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.writeHolds("arena", audit.RepairRecordsMax+1, seatsOf(2))
	before := w.countersOf("arena")
	s := &scene{harness: w}
	s.hookRedis(commandHook{each: func(args []any) {
		if i := slices.Index(args, any("counts")); i > 0 && args[i+1] != any("0") { // its second page
			w.redis.Del(t.Context(), w.key("arena", "counts"))
		}
	}})
	s.must(s.newReconciler(true).Round(t.Context()))
	w.wantCounters("arena", before)
}

// TestReconciler_CountersVanishBeforeRepair_NoneWritten removes the counters of a large resource when one of them is about
// to be corrected. Scripts refuse to grant until the next round has written all.
func TestReconciler_CountersVanishBeforeRepair_NoneWritten(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.writeHolds("arena", audit.RepairRecordsMax+1, seatsOf(2))
	before := w.countersOf("arena")
	w.redis.HDel(t.Context(), w.key("arena", "counts"), "R0-0")
	s := &scene{harness: w}
	s.hookRedis(beforeStep("adjust", func() { w.redis.Del(t.Context(), w.key("arena", "counts")) }))
	r := s.newReconciler(true)
	r.round("counter, left")
	if after := w.countersOf("arena"); len(after) != 0 {
		t.Errorf("written: %v", after)
	}
	s.must(r.Round(t.Context()))
	w.wantCounters("arena", before)
}
