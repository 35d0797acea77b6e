package audit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/audit"
	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

// harness is a namespace on real servers, with workers that can be stopped.
type harness struct {
	testing.TB
	namespace string
	subjects  events.Namespace
	nc        *nats.Conn
	js        events.JetStream
	client    *client.Client
	redis     *redis.Client
	store     *store.Store
	backends  audit.Backends
	term      *recovery.EpochTerm
	policy    holds.Policy

	stop func() // ends the running workers
}

var harnessPolicy = holds.Policy{
	HoldTTL: 10 * time.Minute, HoldTTLMax: time.Hour, HoldLifetimeMax: 2 * time.Hour, PaymentWindow: 5 * time.Minute,
	LatePayment: holds.LateAcceptedIfFree, HoldsPerUser: 10, NightsMax: 30,
	HorizonDays: 1095, RequestKeyTTL: memory, LockWait: 2 * time.Second,
}

const memory = 24 * time.Hour

// newHarness creates a namespace. It runs no worker yet.
func newHarness(t testing.TB) *harness {
	t.Helper()
	shared := stacktest.Shared()
	w := &harness{TB: t, namespace: stacktest.Namespace(t),
		redis: redis.NewClient(stacktest.RedisOptions(shared.RedisURL)), policy: harnessPolicy, stop: func() {}}
	t.Cleanup(func() { _ = w.redis.Close() })
	w.subjects = events.Namespace(w.namespace)
	ctx := t.Context()
	var err error
	w.nc, err = events.Connect(shared.NATSURL, t.Name(), t.Logf)
	w.must(err)
	t.Cleanup(w.nc.Close)
	w.js, err = events.NewJetStream(w.nc, w.subjects)
	w.must(err)
	w.client, err = client.New(w.nc, w.subjects)
	w.must(err)
	w.store, err = store.Open(ctx, shared.PostgresURL, w.namespace)
	w.must(err)
	t.Cleanup(w.store.Close)
	w.must(w.store.Migrate(ctx, w.namespace))
	w.beginEpoch()
	w.must(events.Setup(ctx, w.js, w.subjects,
		events.Retention{HoldLifetime: w.policy.HoldLifetimeMax, AnswerTTL: memory}, zerolog.Nop()))
	pool, err := audit.OpenPostgres(ctx, shared.PostgresURL, w.namespace)
	w.must(err)
	t.Cleanup(pool.Close)
	w.backends = audit.Backends{Namespace: w.namespace, JetStream: w.js, Redis: w.redis, Postgres: pool}
	return w
}

func (w *harness) must(err error) {
	w.Helper()
	stacktest.Must(w, err)
}

// beginEpoch writes the epoch of Postgres to Redis and marks it as complete.
func (w *harness) beginEpoch() {
	w.Helper()
	epochs, err := w.store.Epochs(w.Context())
	w.must(err)
	epoch := epochs[0].Name
	server, err := recovery.Initialise(w.Context(), w.namespace, w.redis, record.AllPartitions, epoch)
	w.must(err)
	w.must(w.store.CompleteEpoch(w.Context(), record.AllPartitions, epoch, server, ""))
	w.term = recovery.StaticTerm(epoch, server)
}

// service returns a Service of the namespace.
func (w *harness) service() *holds.Service {
	locker := locking.New(locking.NewRange(w.redis,
		locking.RangeOptions{Lease: locking.FixedLease(5 * time.Second), FenceBase: w.store.FenceBase}),
		locking.Options{})
	w.Cleanup(func() { _ = locker.Close() })
	return holds.NewService(w.namespace, w.redis, locker, w.store, w.term, w.policy)
}

// startWorkers runs a number of workers until stopWorkers.
func (w *harness) startWorkers(number int) {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for n := range number {
		service := w.service()
		process := events.NewProcess(fmt.Sprintf("worker-%d", n), w.store, zerolog.Nop())
		for _, name := range []string{events.ConsumerRequests, events.ConsumerChanges, events.ConsumerPayments} {
			c, err := events.NewConsumer(ctx, name, w.subjects, service, w.nc, w.js, process)
			w.must(err)
			running.Go(func() { _ = c.Run(ctx) })
		}
		x := holds.NewExpirer(service, events.NewAnnouncer(w.js, w.subjects),
			holds.ExpirerOptions{NoNotifications: true}, zerolog.Nop())
		running.Go(func() { _ = x.Sweep(ctx) })
		running.Go(func() { _ = x.Announce(ctx) })
	}
	w.stop = func() { cancel(); running.Wait(); w.stop = func() {} }
	w.Cleanup(func() { w.stop() })
}

// stopWorkers stops the workers.
func (w *harness) stopWorkers() {
	w.Helper()
	w.stop()
}

// publish publishes an event and returns its outcome.
func (w *harness) publish(event, resource string, data any) events.Envelope {
	w.Helper()
	a, err := w.client.Request(stacktest.WaitContext(w), w.message(event, resource, data))
	w.must(err)
	if a.DeadLetter != nil {
		w.Fatalf("%s was dead-lettered: %+v", event, a.DeadLetter)
	}
	return a.Envelope
}

func (w *harness) message(event, resource string, data any) *nats.Msg {
	w.Helper()
	m, _, err := client.NewEvent(w.subjects, event, resource, "/test", data)
	w.must(err)
	return m
}

func (w *harness) setInventory(resource string, capacity int64, slots ...string) {
	w.Helper()
	w.publish(events.InventorySet, resource,
		events.InventorySetData{ResourceID: resource, SlotSelection: holds.SlotSelection{Slots: slots},
			Capacity: capacity})
}

// request requests a hold and returns its id, "" when it was refused.
func (w *harness) request(resource, user string, ttl time.Duration, quantity int64, slots ...string) string {
	w.Helper()
	seconds := int64(ttl / time.Second)
	o := w.publish(events.BookingRequested, resource, events.BookingRequestedData{
		RequestKey: "key-of-" + user, UserID: user, ResourceID: resource,
		SlotSelection: holds.SlotSelection{Slots: slots}, Quantity: quantity, TTLSeconds: &seconds,
	})
	if o.Type != events.Type(holds.EventHoldCreated) {
		return ""
	}
	return o.Subject
}

func (w *harness) pay(hold, payment string) string {
	w.Helper()
	resource, _, _ := strings.Cut(hold, ".")
	return w.publish(events.PaymentConfirmed, resource,
		events.PaymentConfirmedData{HoldID: hold, PaymentID: payment}).Type
}

// awaitOutcomes waits until n outcomes of an event are stored.
func (w *harness) awaitOutcomes(event string, n int) {
	w.Helper()
	stacktest.Eventually(w, fmt.Sprintf("%d %s", n, event), func() bool { return len(w.outcomes(event)) >= n })
}

// outcomes returns the stored outcomes of an event in order; all outcomes for "".
func (w *harness) outcomes(event string) (found []events.Envelope) {
	w.Helper()
	w.eachOutcome(func(_ jetstream.Stream, _ uint64, e events.Envelope) {
		if event == "" || e.Type == events.Type(event) {
			found = append(found, e)
		}
	})
	return found
}

// eachOutcome calls each with every stored outcome in order.
func (w *harness) eachOutcome(each func(stream jetstream.Stream, seq uint64, e events.Envelope)) {
	w.Helper()
	stream, err := w.js.Stream(w.Context(), w.subjects.OutStream())
	w.must(err)
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		m, err := stream.GetMsg(w.Context(), seq)
		w.must(err)
		var e events.Envelope
		w.must(json.Unmarshal(m.Data, &e))
		each(stream, seq, e)
	}
}

// key returns a key of a resource.
func (w *harness) key(resource, name string) string {
	return fmt.Sprintf("%s:{%d}:%s:%s", w.namespace, record.Partition(resource), resource, name)
}

func (s *harness) agenda(resource string) string {
	return fmt.Sprintf("%s:{%d}:agenda", s.namespace, record.Partition(resource))
}

func (w *harness) execute(sql string, args ...any) {
	w.Helper()
	_, err := w.backends.Postgres.Exec(w.Context(), sql, args...)
	w.must(err)
}

func (w *harness) audit(options audit.Options) *audit.Report {
	w.Helper()
	report, err := audit.Run(w.Context(), w.backends, options)
	w.must(err)
	return report
}

// wantNoFindings fails the test unless an audit finds nothing.
func (w *harness) wantNoFindings() *audit.Report {
	w.Helper()
	return w.wantFindings()
}

// wantFindings fails the test unless an audit has findings of these kinds, sorted.
func (w *harness) wantFindings(want ...string) *audit.Report {
	w.Helper()
	report := w.audit(audit.Options{})
	if !slices.Equal(kinds(report), want) {
		w.Errorf("the audit has not found %v, but:\n%s", want, findingsText(report))
	}
	return report
}

// wantCount checks a counter of a resource.
func (w *harness) wantCount(resource, slot, want string) {
	w.Helper()
	if got := w.redis.HGet(w.Context(), w.key(resource, "counts"), slot).Val(); got != want {
		w.Errorf("%q are held of %s of %s, want %s", got, slot, resource, want)
	}
}

// findingsText formats a report, one line per finding.
func findingsText(r *audit.Report) string {
	var lines []string
	for _, f := range r.Findings {
		after := "nothing"
		if f.After != nil {
			after = fmt.Sprintf("%s %d, %s", f.After.Stream, f.After.Seq, f.After.Type)
		}
		lines = append(lines,
			fmt.Sprintf("%s: %s [expected %s, found %s, in %s, after %s] %s (%v)", f.Kind, f.Text, f.Expected, f.Found,
				f.Where, after, f.Remedy, f.Automatic))
	}
	return strings.Join(append(lines, r.Inconclusive...), "\n")
}

// kinds returns the kinds of the findings, sorted.
func kinds(r *audit.Report) (all []string) {
	for _, f := range r.Findings {
		all = append(all, string(f.Kind))
	}
	slices.Sort(all)
	return all
}

func uuidOf(hold string) string { return hold[strings.IndexByte(hold, '.')+1:] }

// placeMany requests many holds at once, and waits until all are granted.
func (w *harness) placeMany(resource string, number int, slots []string) {
	w.Helper()
	ttl := int64(3600)
	for i := range number {
		user := fmt.Sprintf("filler-%d", i)
		m := w.message(events.BookingRequested, resource, events.BookingRequestedData{
			RequestKey: user, UserID: user, ResourceID: resource,
			SlotSelection: holds.SlotSelection{Slots: slots[:1+i%len(slots)]}, Quantity: 1, TTLSeconds: &ttl,
		})
		if _, err := w.js.PublishMsgAsync(m, stacktest.WithoutHurry()); err != nil {
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
		w.publish(events.BookingCancelled, resource,
			events.BookingCancelledData{ResourceID: resource, RequestKey: "key-of-" + user})
	case 2:
		w.publish(events.BookingExtended, resource,
			events.BookingExtendedData{HoldID: hold, TTLSeconds: 1 + rand.Int64N(5)})
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

// newSupervisor returns a supervisor, which detects that Redis has lost data and rebuilds it.
func (w *harness) newSupervisor(term *recovery.EpochTerm) *recovery.Supervisor {
	return recovery.NewSupervisor(recovery.SupervisorOptions{
		Namespace: w.namespace, Name: "supervisor", Policy: w.policy, Term: term, Guard: recovery.NewConnGuard(),
		Servers: recovery.LoneServer(func() *redis.Options {
			return stacktest.RedisOptions(stacktest.Shared().RedisURL)
		}),
		EpochStore: w.store, Inventory: w.store, OutcomeLog: events.NewOutcomeLog(w.js, w.subjects, zerolog.Nop()),
		Fence: locking.FenceBase(w.store.FenceBase).Next, Log: zerolog.Nop(),
	})
}

// runSupervisor runs a supervisor until the test ends, as every worker does. Without it outcomes
// may be published for only two seconds after the last check.
func (w *harness) runSupervisor(supervisor *recovery.Supervisor) {
	var running sync.WaitGroup
	running.Go(func() { _ = supervisor.Run(w.Context()) })
	w.Cleanup(running.Wait)
}

// checkEpoch lets a supervisor check the servers, which may be slow to answer, and fails the test
// unless the epoch is complete or not, as wanted.
func (w *harness) checkEpoch(supervisor *recovery.Supervisor, written bool) {
	w.Helper()
	stacktest.Eventually(w, "the servers to answer", func() bool {
		epochs, err := supervisor.Check(w.Context())
		if complete := epochs.Complete() == record.AllPartitions; err == nil && complete != written {
			w.Fatalf("the epochs are %+v", epochs)
		}
		if err != nil {
			w.Logf("check: %v", err)
		}
		return err == nil
	})
}

// removeRedisData removes all data of the namespace from Redis.
func (w *harness) removeRedisData() {
	w.Helper()
	ctx := w.Context()
	keys := w.redis.Scan(ctx, 0, w.namespace+":*", 1000).Iterator()
	for keys.Next(ctx) {
		w.redis.Del(ctx, keys.Val())
	}
	w.must(keys.Err())
}
