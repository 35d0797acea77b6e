package audit_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/audit"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// TestRun_Healthy_NoFindings audits a namespace without faults: in one group, in many groups, and
// one resource at a time.
func TestRun_Healthy_NoFindings(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	report := s.wantNoFindings()
	if c := report.Stats; c.Events != 18 || c.Outcomes != 20-1 || c.DeadLetters != 1 || c.Resources != 2 ||
		c.Reservations != 3 || c.Payments != 4 || c.Slots != 3 {
		t.Errorf("checked %+v", c)
	}
	if len(report.Inconclusive) > 0 || report.Pending.Events > 0 {
		t.Errorf("inconclusive %v, pending %+v", report.Inconclusive, report.Pending)
	}
	groups := s.audit(audit.InGroups(audit.Options{}, 3))
	if len(groups.Findings) > 0 || groups.Stats.Events != report.Stats.Events ||
		groups.Stats.Reservations != report.Stats.Reservations {
		t.Errorf("in groups, checked %+v:\n%s", groups.Stats, findingsText(groups))
	}
	c, parts := report.Stats, make(map[float64]bool) // the shares of the audit that are done when Redis is read
	limit := audit.InGroups(audit.Options{Progress: func(what string, share float64) {
		if what == "redis" && share > 0 {
			parts[share] = true
		}
	}}, uint64(c.Events+c.Outcomes+c.DeadLetters))
	if s.audit(limit); parts[audit.RedisShare] {
		t.Error("the rows of Postgres are read into the memory that the messages of the streams fill")
	}
	for _, resource := range []string{"hall", "tent", "nowhere"} {
		if one := s.audit(audit.Options{ResourceID: resource}); len(one.Findings) > 0 {
			t.Errorf("%s alone:\n%s", resource, findingsText(one))
		}
	}
}

// TestRun_HoldKeyMoved_NoFindings lets the key of a hold expire a little later, as after resharding.
func TestRun_HoldKeyMoved_NoFindings(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	key := s.key("hall", "hold:"+uuidOf(s.live))
	deadline := s.redis.PExpireTime(s.Context(), key).Val().Milliseconds()
	if moved := s.redis.PExpireAt(s.Context(), key, time.UnixMilli(deadline+3)); !moved.Val() {
		t.Fatal(moved)
	}
	s.wantNoFindings()
}

// TestRun_AnnouncementPutOff_NoFindings has an expired hold that is to be announced, on a resource that is to be swept
// a little later, as after a sweep of a worker whose queue of announcements was full.
func TestRun_AnnouncementPutOff_NoFindings(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := s.Context()
	now := s.redis.Time(ctx).Val()
	s.must(s.redis.ZRem(ctx, s.key("hall", "tombstones"), uuidOf(s.expired)).Err())
	s.must(s.redis.ZAdd(ctx, s.key("hall", "departing"), redis.Z{Score: 1, Member: uuidOf(s.expired)}).Err())
	s.must(s.redis.ZAdd(ctx, s.agenda("hall"), redis.Z{Score: float64(now.UnixMilli() + 500), Member: "hall"}).Err())
	if report := s.audit(audit.Options{}); len(report.Findings) > 0 {
		t.Error(findingsText(report))
	}
}

// corruptionsAtOnce is how many scenes are corrupted at a time, on any number of processors: most
// of the time they wait for holds to expire.
const corruptionsAtOnce = 8

// TestRun_EachCorruption_FoundAndRepaired makes data wrong in each way. An audit finds exactly that
// and names it and the event since which it is true. A repair corrects what can be repaired, and
// nothing is found after it.
func TestRun_EachCorruption_FoundAndRepaired(t *testing.T) {
	t.Parallel()
	turns := make(chan struct{}, corruptionsAtOnce)
	var all sync.WaitGroup
	defer all.Wait()
	for _, d := range stacktest.Sample(t, slices.Concat(inRedis, inPostgres, inStreams, inHistories)) {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			t.Run(strings.ReplaceAll(d.name, " ", "_"), d.check)
		})
	}
}

func (d corruption) check(t *testing.T) {
	s := newScene(t)
	d.apply(s)
	report := s.audit(audit.Options{})
	if got := strings.Join(kinds(report), " "); got != d.wantKinds {
		t.Fatalf("found %q, want %q:\n%s", got, d.wantKinds, findingsText(report))
	}
	if !strings.Contains(findingsText(report), d.wantText) {
		t.Errorf("no text has %q:\n%s", d.wantText, findingsText(report))
	}
	if after := strings.Join(afters(report), " "); after != d.wantAfter {
		t.Errorf("true after %q, want %q:\n%s", after, d.wantAfter, findingsText(report))
	}
	for _, f := range report.Findings {
		if f.Automatic != d.repairable {
			t.Errorf("automatic is %v:\n%s", f.Automatic, findingsText(report))
		}
	}
	s.must(audit.Repair(t.Context(), s.backends, report.Findings, memory))
	if !d.repairable {
		if again := s.audit(audit.Options{}); !slices.Equal(kinds(again), kinds(report)) {
			t.Errorf("a difference that cannot be repaired has changed:\n%s", findingsText(again))
		}
		return
	}
	if left := report.Unrepaired(); left != 0 {
		t.Errorf("%d differences are left:\n%s", left, findingsText(report))
	}
	s.wantNoFindings()
	s.wantWorking()
}

// afters returns the types of the events after which the findings are true, sorted and without
// repeats.
func afters(r *audit.Report) (all []string) {
	for _, f := range r.Findings {
		if f.After != nil {
			all = append(all, f.After.Type)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestRun_WorkersBusy_NoFindings audits again and again while publishers book, extend, pay, pay
// late and cancel, and holds expire. Two workers decide the events, on one resource that is read in
// pages and on small ones. No audit finds anything. At rest nothing is pending.
func TestRun_WorkersBusy_NoFindings(t *testing.T) {
	t.Parallel()
	const publishers = 8
	each := 20
	if stacktest.Long(t.Name()) {
		each = 60
	}
	w := newHarness(t)
	w.startWorkers(2)
	slots := []string{"a", "b", "c", "d", "e"}
	w.setInventory("hot", 1_000_000, slots...)
	resources := []string{"hot"}
	for i := range 5 {
		resources = append(resources, fmt.Sprintf("small-%d", i))
		w.setInventory(resources[i+1], 4, slots...)
	}
	w.placeMany("hot", 2*audit.InspectRecordsMax, slots)

	done := make(chan struct{})
	var audits sync.WaitGroup
	number := 0
	audits.Go(func() {
		for over := false; !over; number++ {
			select {
			case <-done:
				over = true
			default:
			}
			report, err := audit.Run(t.Context(), w.backends, audit.InGroups(audit.Options{}, 3000))
			if err != nil {
				t.Error(err)
				return
			}
			if len(report.Findings) > 0 {
				t.Errorf("audit %d under load:\n%s", number, findingsText(report))
			}
		}
	})
	var all sync.WaitGroup
	for p := range publishers {
		all.Go(func() {
			for i := range each {
				w.playCustomer(resources[rand.N(len(resources))], fmt.Sprintf("u%d-%d", p, i), slots)
			}
		})
	}
	all.Wait()
	close(done)
	audits.Wait()
	stacktest.Eventually(t, "rest", func() bool {
		report := w.audit(audit.Options{})
		return report.Pending == audit.Pending{}
	})
	report := w.wantNoFindings()
	t.Logf("%d audits while %d events were answered, of %+v", number, report.Stats.Events, report.Stats)
	w.stopWorkers()
	w.wantNoFindings()
}

// TestRun_WorkIsPending_IsCounted audits work that stays in progress: an event that no worker
// fetches, a payment that has claimed its hold and waits for Postgres, and an expired hold that is
// not swept.
func TestRun_WorkIsPending_IsCounted(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	w := s.harness
	w.startWorkers(1)
	short := w.request("tent", "kim", time.Second, 1)
	conn, err := pgx.Connect(t.Context(), stacktest.Shared().PostgresURL)
	w.must(err)
	defer func() { _ = conn.Close(t.Context()) }()
	tx, err := conn.Begin(t.Context())
	w.must(err)
	_, err = tx.Exec(t.Context(), `UPDATE `+w.namespace+`.inventory SET capacity = capacity`)
	w.must(err)
	w.must(w.client.Publish(t.Context(),
		w.message(events.PaymentConfirmed, "hall", events.PaymentConfirmedData{HoldID: s.other, PaymentID: "p-olga"})))
	stacktest.Eventually(t, "the claim", func() bool {
		return strings.HasPrefix(w.redis.HGet(t.Context(), w.key("hall", "records"), uuidOf(s.other)).Val(),
			"confirming ")
	})
	report := w.wantNoFindings()
	if report.Pending.Events != 1 || report.Pending.Oldest == nil {
		t.Errorf("while a payment waits, pending is %+v", report.Pending)
	}
	w.stopWorkers()
	w.must(w.client.Publish(t.Context(), w.message(events.BookingRequested, "hall", "no object")))
	w.awaitDeadline("tent", short)
	report = w.wantNoFindings()
	if p := report.Pending; p.Events != 2 ||
		p.Expirations+p.Announcements == 0 && len(w.outcomes(holds.EventHoldExpired)) < 3 {
		t.Errorf("without workers, pending is %+v", p)
	}
	w.must(tx.Rollback(t.Context()))
	w.startWorkers(1)
	stacktest.Eventually(t, "rest", func() bool { return w.audit(audit.Options{}).Pending == audit.Pending{} })
	w.wantNoFindings()
}

// TestRun_StrangeSubjectWaits_IsPending pauses the consumers that answer events with too many words in their
// subjects, while another consumer has gone past them.
func TestRun_StrangeSubjectWaits_IsPending(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	paused := []string{events.ConsumerPayments, events.ConsumerChanges}
	for _, name := range paused {
		_, err := s.js.PauseConsumer(t.Context(), s.subjects.InStream(), name, time.Now().Add(time.Hour))
		s.must(err)
	}
	for _, event := range []string{events.PaymentConfirmed, events.BookingCancelled} {
		_, err := s.js.PublishMsg(t.Context(), nats.NewMsg(s.subjects.In(event, "hall.suite")))
		s.must(err)
	}
	s.startWorkers(1)
	s.request("hall", "pia", time.Hour, 1, "A-1")
	last := s.lastInbound()
	stacktest.Eventually(t, "the requests to be acknowledged", func() bool {
		c, err := s.js.Consumer(t.Context(), s.subjects.InStream(), events.ConsumerRequests)
		s.must(err)
		return c.CachedInfo().AckFloor.Stream >= last
	})
	if report := s.wantNoFindings(); report.Pending.Events != len(paused) {
		t.Errorf("pending is %+v", report.Pending)
	}
	for _, name := range paused {
		_, err := s.js.ResumeConsumer(t.Context(), s.subjects.InStream(), name)
		s.must(err)
	}
	stacktest.Eventually(t, "rest", func() bool { return s.audit(audit.Options{}).Pending == audit.Pending{} })
	s.stopWorkers()
	s.wantNoFindings()
}

// TestRun_RedisLostAndRebuilt_NoFindings removes all data from Redis. Until the rebuild nothing is
// checked or repaired, even where data is left. After it an audit finds nothing, and new corruption
// is healed as before.
func TestRun_RedisLostAndRebuilt_NoFindings(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	term := recovery.NewEpochTerm()
	supervisor := s.newSupervisor(term)
	w := s.newReconcilerWithTerm(term, true)
	check := func(written bool) { s.checkEpoch(supervisor, written) }
	wrongCounter := func() {
		t.Helper()
		s.must(s.redis.HSet(ctx, s.key("hall", "counts"), "A-1", 7).Err())
	}
	check(true)
	wrongCounter()
	planned := s.audit(audit.Options{})
	s.removeRedisData()
	check(false)

	wrongCounter()
	if err := w.Round(ctx); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("a round ended with %v", err)
	}
	report := s.audit(audit.Options{})
	if got := findingsText(report); len(report.Findings) != 1 || report.Findings[0].Kind != audit.DataLost ||
		!strings.Contains(got, "epoch missing") || !strings.Contains(got, "the rebuild has not started") ||
		!strings.HasSuffix(got, "which has lost their data or was rebuilt meanwhile: 2") {
		t.Errorf("found\n%s", got)
	}
	if err := audit.Repair(ctx, s.backends, planned.Findings, memory); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("a repair ended with %v", err)
	}
	s.wantCount("hall", "A-1", "7")

	if _, err := supervisor.Rebuild(ctx, "a test", false, func(string) {}); err != nil {
		t.Fatal(err)
	}
	check(true)
	s.wantNoFindings()
	if format, err := recovery.ReadFormat(ctx, s.namespace, s.redis); err != nil || format != recovery.Format {
		t.Errorf("the format is %d, %v", format, err)
	}
	wrongCounter()
	s.must(w.Round(ctx))
	s.wantCount("hall", "A-1", "3")
	s.wantNoFindings()
	s.term = term
	s.runSupervisor(supervisor)
	s.startWorkers(1)
	s.pay(s.live, "p-ana")
	s.stopWorkers()
	s.wantNoFindings()
}

// TestRun_EpochOfAnotherDatabase_RebuildIsTheRemedy gives a partition the epoch of another database. Workers leave it
// alone, so the audit names the command that replaces it. An older epoch of this database is rebuilt by a worker.
func TestRun_EpochOfAnotherDatabase_RebuildIsTheRemedy(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	key := fmt.Sprintf("%s:{%d}:epoch", s.namespace, record.Partition("hall"))
	own := s.redis.Get(t.Context(), key).Val()
	for epoch, want := range map[string]string{
		"x": "Workers leave such data alone", "00000000-0000-4000-8000-000000000000/2": "Workers leave such data alone",
		own + "/0": "A running worker detects this and rebuilds Redis", own + " lost": "A running worker detects this",
	} {
		s.must(s.redis.Set(t.Context(), key, epoch, 0).Err())
		report := s.audit(audit.Options{})
		if len(report.Findings) != 1 || !strings.HasPrefix(report.Findings[0].Remedy, want) {
			t.Errorf("the epoch is %s, and the audit finds\n%s", epoch, findingsText(report))
		}
	}
	s.must(s.redis.Set(t.Context(), key, "x", 0).Err())
	if _, err := s.newSupervisor(recovery.NewEpochTerm()).Check(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "belongs to another database") {
		t.Errorf("a worker finds %v", err)
	}
	s.rebuild()
	s.wantNoFindings()
}

// TestRun_DatabaseRecreated_NoFindings recreates Redis and Postgres under the same name and leaves
// the streams. Their outcomes are those of another database.
func TestRun_DatabaseRecreated_NoFindings(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	s.recreateDatabase()
	report := s.wantNoFindings()
	if text := strings.Join(report.Inconclusive, "\n"); !strings.HasPrefix(text,
		"outcomes published before the schema of this database was created, which are not checked: 19") {
		t.Errorf("inconclusive:\n%s", text)
	}
	s.startWorkers(1)
	s.setInventory("hall", 1, "A-1")
	if s.request("hall", "ana", time.Hour, 1, "A-1") == "" || s.request("hall", "olga", time.Hour, 1, "A-1") != "" {
		t.Error("A-1 does not have a capacity of exactly one")
	}
	s.stopWorkers()
	s.wantNoFindings()
	s.redis.HSet(ctx, s.key("hall", "counts"), "A-1", "0")
	s.wantFindings("counter")
}

// TestRun_RebuiltFromOlderStreams_OnlyUnannouncedFound recreates the database and rebuilds Redis
// from streams that stayed. A hold in Redis whose outcomes were published before the schema was
// created is no finding. A hold without any outcome is one.
func TestRun_RebuiltFromOlderStreams_OnlyUnannouncedFound(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	s := newScene(t)
	ctx := t.Context()
	s.recreateDatabase()
	term := recovery.NewEpochTerm()
	if _, err := s.newSupervisor(term).Rebuild(ctx, "a test", true, func(string) {}); err != nil {
		t.Fatal(err)
	}
	records := s.redis.HGetAll(ctx, s.key("hall", "records")).Val()
	if !strings.HasPrefix(records[uuidOf(s.live)], "held ") ||
		!strings.HasPrefix(records[uuidOf(s.released)], "released ") {
		t.Fatalf("redis was rebuilt with %v", records)
	}
	report := s.wantNoFindings()
	if text := strings.Join(report.Inconclusive, "\n"); !strings.HasPrefix(text,
		"outcomes published before the schema of this database was created, which are not checked: 19") {
		t.Errorf("inconclusive:\n%s", text)
	}
	for i, line := range []string{records[uuidOf(s.live)], records[uuidOf(s.released)]} {
		s.must(s.redis.HSet(ctx, s.key("hall", "records"), strings.Repeat(strconv.Itoa(i), 32), line).Err())
	}
	if got := kinds(s.audit(audit.Options{})); !slices.Contains(got, "hold_untold") ||
		!slices.Contains(got, "end_untold") {
		t.Errorf("holds without outcomes: found %v", got)
	}
}

// BenchmarkAudit audits 100,000 live holds: on a thousand resources, and on one.
func BenchmarkAudit(b *testing.B) {
	const number = 100_000
	for _, resources := range []int{1000, 1} {
		b.Run(fmt.Sprintf("resources=%d", resources), func(b *testing.B) {
			w := newHarness(b)
			w.startWorkers(2)
			first := time.Now().UTC().AddDate(0, 0, 7)
			stay := func(from, nights int) holds.SlotSelection {
				in := first.AddDate(0, 0, from)
				return holds.SlotSelection{CheckIn: in.Format(holds.DateFormat),
					CheckOut: in.AddDate(0, 0, nights).Format(holds.DateFormat)}
			}
			for r := range resources {
				name := fmt.Sprintf("room-%d", r)
				w.publish(events.InventorySet, name,
					events.InventorySetData{ResourceID: name, SlotSelection: stay(0, 30), Capacity: 1_000_000})
			}
			ttl := int64(3600)
			for i := range number {
				name, user := fmt.Sprintf("room-%d", i%resources), fmt.Sprintf("u%d", i)
				m := w.message(events.BookingRequested, name, events.BookingRequestedData{
					RequestKey: user, UserID: user, ResourceID: name, SlotSelection: stay(i%20, 1+i%7), Quantity: 1,
					TTLSeconds: &ttl,
				})
				if _, err := w.js.PublishMsgAsync(m, stacktest.WithoutHurry()); err != nil {
					b.Fatal(err)
				}
				if i%1000 == 999 {
					<-w.js.PublishAsyncComplete()
				}
			}
			stacktest.Eventually(b, "all to be granted", func() bool {
				stream, err := w.js.Stream(b.Context(), w.subjects.OutStream())
				return err == nil && stream.CachedInfo().State.Msgs == uint64(number+resources)
			})
			w.stopWorkers()
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			peak, reported := uint64(0), 0
			options := audit.Options{Progress: func(string, float64) {
				if reported++; reported%100 != 0 { // ReadMemStats stops the world
					return
				}
				var now runtime.MemStats
				runtime.ReadMemStats(&now)
				peak = max(peak, now.HeapAlloc)
			}}
			for b.Loop() {
				report := w.audit(options)
				if len(report.Findings) > 0 || report.Stats.Records != number {
					b.Fatalf("checked %+v, found %v", report.Stats, report.Counts)
				}
			}
			b.StopTimer()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(number)*float64(b.N)/b.Elapsed().Seconds(), "holds/s")
			b.ReportMetric(float64(peak-before.HeapAlloc)/(1<<20), "MiB-peak")
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(b.N)/number, "B-allocated/hold")
		})
	}
}
