package audit_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"holdfast/internal/audit"
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
	report := w.audit(audit.Options{})
	if got := kinds(report); !slices.Equal(got, []string{"counter", "counter", "users", "users"}) {
		t.Errorf("found %v:\n%s", got, findingsText(report))
	}
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
func TestRepair_UnusualResource_ReservedRepaired(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.execute(`INSERT INTO inventory (resource_id, slot, capacity) VALUES ('Grand Hotel', 'A-1', 5)`)
	w.execute(`UPDATE inventory SET reserved = 3`)
	report := w.audit(audit.Options{})
	w.must(audit.Repair(t.Context(), w.backends, report.Findings, memory))
	if got := kinds(report); !slices.Equal(got, []string{"reserved"}) || report.Findings[0].Result != audit.Done {
		t.Errorf("found %v, and repaired %+v", got, report.Findings)
	}
	w.wantNoFindings()
}
