package audit_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/audit"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestRun_WorkersBusy_NoFindings audits again and again while publishers book, extend, pay, pay
// late and cancel, and holds expire. Two workers decide the events, on one resource that is read in
// pages and on small ones. No audit finds anything. At rest nothing is pending.
func TestRun_WorkersBusy_NoFindings(t *testing.T) {
	t.Parallel()
	const publishers, each = 8, 60
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

// TestRun_MessagesArriveLate_AreAwaited delays messages of a stream after the server has sent all
// of them and has reported that there are no more. The audit waits for them.
func TestRun_MessagesArriveLate_AreAwaited(t *testing.T) {
	t.Parallel()
	const number = 300
	w := newHarness(t)
	w.startWorkers(1)
	w.setInventory("hot", number, "a")
	w.placeMany("hot", number, []string{"a"})
	w.awaitOutcomes(holds.EventHoldCreated, number)
	w.stopWorkers()
	late := &stacktest.StallingDialer{Pause: 2 * time.Second}
	nc, err := events.Connect(stacktest.Shared().NATSURL, t.Name(), t.Logf, nats.SetCustomDialer(late))
	w.must(err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	w.must(err)
	w.backends.JetStream = js
	for _, bytes := range []int64{number * 300, number * 1000} { // among the events, and among the outcomes
		late.PauseAfter(bytes)
		if checked := w.wantNoFindings().Stats; checked.Events != number+1 || checked.Outcomes != number+1 {
			t.Errorf("paused after %d bytes, checked %+v", bytes, checked)
		}
	}
}

// placeMany requests many holds at once, and waits until all are granted.
func (w *harness) placeMany(resource string, number int, slots []string) {
	w.Helper()
	ttl := int64(3600)
	for i := range number {
		user := fmt.Sprintf("filler-%d", i)
		m := w.message(events.BookingRequested, resource, events.BookingRequestedData{
			RequestKey: user, UserID: user, ResourceID: resource, SlotSelection: holds.SlotSelection{Slots: slots[:1+i%len(slots)]}, Quantity: 1, TTLSeconds: &ttl,
		})
		if _, err := w.js.PublishMsgAsync(m); err != nil {
			w.Fatal(err)
		}
	}
	stacktest.Eventually(w, "all to be granted", func() bool {
		return w.redis.HLen(w.Context(), w.key(resource, "records")).Val() == int64(number)
	})
}

// playCustomer requests a hold, and then cancels, extends, pays or leaves it at random.
func (w *harness) playCustomer(resource, user string, slots []string) {
	some := slices.Clone(slots)
	rand.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	ttl := time.Hour
	if rand.N(3) == 0 {
		ttl = time.Second
	}
	hold := w.request(resource, user, ttl, 1+rand.Int64N(2), some[:1+rand.N(min(3, len(some)))]...)
	if hold == "" {
		return
	}
	switch rand.N(7) {
	case 0:
		w.publish(events.BookingCancelled, resource, events.BookingCancelledData{HoldID: hold})
	case 1:
		w.publish(events.BookingCancelled, resource, events.BookingCancelledData{ResourceID: resource, RequestKey: "key-of-" + user})
	case 2:
		w.publish(events.BookingExtended, resource, events.BookingExtendedData{HoldID: hold, TTLSeconds: 1 + rand.Int64N(5)})
	case 3:
		w.pay(hold, "p-"+user)
		w.publish(events.ReservationCancelled, resource, events.ReservationCancelledData{HoldID: hold})
	case 4:
		w.publish(events.PaymentStarted, resource, events.PaymentStartedData{HoldID: hold})
		w.pay(hold, "p-"+user)
		w.pay(hold, "q-"+user)
	case 5:
		if ttl == time.Second {
			w.awaitDeadline(resource, hold)
			w.pay(hold, "late-"+user)
		}
	}
}

// awaitDeadline waits until the deadline of a hold has passed by Redis' clock.
func (w *harness) awaitDeadline(resource, hold string) {
	stacktest.Eventually(w, "the deadline", func() bool {
		return w.redis.Exists(w.Context(), w.key(resource, "hold:"+uuidOf(hold))).Val() == 0
	})
}

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
