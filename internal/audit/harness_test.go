package audit_test

import (
	"context"
	"fmt"
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
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

// harness is a namespace of its own on real servers, with workers that can be stopped.
type harness struct {
	testing.TB
	namespace string
	subjects  events.Namespace
	nc        *nats.Conn
	js        jetstream.JetStream
	client    *client.Client
	redis     *redis.Client
	store     *store.Store
	backends  audit.Backends
	term      *holds.EpochTerm
	policy    holds.Policy

	stop func() // ends the workers that run
}

var harnessPolicy = holds.Policy{
	HoldTTL: 10 * time.Minute, HoldTTLMax: time.Hour, HoldLifetimeMax: 2 * time.Hour, PaymentWindow: 5 * time.Minute,
	LatePayment: holds.LateAcceptedIfFree, HoldsPerUser: 10, NightsMax: 30,
	HorizonDays: 1095, RequestKeyTTL: memory, LockWait: 2 * time.Second,
}

const memory = 24 * time.Hour

// newHarness makes a namespace ready. No worker runs in it yet.
func newHarness(t testing.TB) *harness {
	t.Helper()
	shared := stacktest.Shared()
	w := &harness{TB: t, namespace: stacktest.Namespace(t), redis: redis.NewClient(stacktest.RedisOptions(shared.RedisURL)), policy: harnessPolicy, stop: func() {}}
	t.Cleanup(func() { _ = w.redis.Close() })
	w.subjects = events.Namespace(w.namespace)
	ctx := t.Context()
	var err error
	w.nc, err = events.Connect(shared.NATSURL, t.Name(), t.Logf)
	w.must(err)
	t.Cleanup(w.nc.Close)
	w.js, err = events.NewJetStream(w.nc)
	w.must(err)
	w.client, err = client.New(w.nc, w.subjects)
	w.must(err)
	w.store, err = store.Open(ctx, shared.PostgresURL, w.namespace)
	w.must(err)
	t.Cleanup(w.store.Close)
	w.must(w.store.Migrate(ctx, w.namespace))
	w.beginEpoch()
	w.must(events.Setup(ctx, w.js, w.subjects, events.Retention{HoldLifetime: w.policy.HoldLifetimeMax, AnswerTTL: memory}, zerolog.Nop()))
	pool, err := audit.OpenPostgres(ctx, shared.PostgresURL, w.namespace)
	w.must(err)
	t.Cleanup(pool.Close)
	w.backends = audit.Backends{Namespace: w.namespace, JetStream: w.js, Redis: w.redis, Postgres: pool}
	return w
}

func (w *harness) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// beginEpoch has Redis and Postgres belong together.
func (w *harness) beginEpoch() {
	w.Helper()
	epoch, err := w.store.Epoch(w.Context())
	w.must(err)
	server, err := holds.Initialise(w.Context(), w.namespace, w.redis, epoch.Name)
	w.must(err)
	w.must(w.store.CompleteEpoch(w.Context(), epoch.Name, server, ""))
	w.term = holds.StaticTerm(epoch.Name, server)
}

// service returns what decides in this town.
func (w *harness) service() *holds.Service {
	locker := locking.New(locking.NewRange(w.redis, locking.RangeOptions{Lease: locking.FixedLease(5 * time.Second), FenceBase: w.store.FenceBase}), locking.Options{})
	w.Cleanup(func() { _ = locker.Close() })
	return holds.NewService(w.namespace, w.redis, locker, w.store, w.term, w.policy)
}

// startWorkers runs a number of workers until rest.
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
		x := holds.NewExpirer(service, events.NewAnnouncer(w.js, w.subjects), holds.ExpirerOptions{NoNotifications: true}, zerolog.Nop())
		running.Go(func() { _ = x.Sweep(ctx) })
		running.Go(func() { _ = x.Announce(ctx) })
	}
	w.stop = func() { cancel(); running.Wait(); w.stop = func() {} }
	w.Cleanup(func() { w.stop() })
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
	r, err := client.NewEvent(w.subjects, event, resource, "/test", data)
	w.must(err)
	m, err := r.Message()
	w.must(err)
	return m
}

func (w *harness) setInventory(resource string, capacity int64, slots ...string) {
	w.Helper()
	w.publish(events.InventorySet, resource, events.InventorySetData{ResourceID: resource, SlotSelection: holds.SlotSelection{Slots: slots}, Capacity: capacity})
}

// request asks for a hold and returns its id, "" when it was refused.
func (w *harness) request(resource, user string, ttl time.Duration, quantity int64, slots ...string) string {
	w.Helper()
	seconds := int64(ttl / time.Second)
	o := w.publish(events.BookingRequested, resource, events.BookingRequestedData{
		RequestKey: "key-of-" + user, UserID: user, ResourceID: resource, SlotSelection: holds.SlotSelection{Slots: slots}, Quantity: quantity, TTLSeconds: &seconds,
	})
	if o.Type != events.Type(holds.EventHoldCreated) {
		return ""
	}
	return o.Subject
}

func (w *harness) pay(hold, payment string) string {
	w.Helper()
	resource, _, _ := strings.Cut(hold, ".")
	return w.publish(events.PaymentConfirmed, resource, events.PaymentConfirmedData{HoldID: hold, PaymentID: payment}).Type
}

// awaitOutcomes waits until so many outcomes of a kind are stored.
func (w *harness) awaitOutcomes(event string, n int) {
	w.Helper()
	stacktest.Eventually(w, fmt.Sprintf("%d %s", n, event), func() bool { return len(w.outcomes(event)) >= n })
}

// outcomes returns the stored outcomes of a kind, "" = all, in order, each once.
func (w *harness) outcomes(event string) (found []events.Envelope) {
	w.Helper()
	stream, err := w.js.Stream(w.Context(), w.subjects.OutStream())
	w.must(err)
	info, err := stream.Info(w.Context())
	w.must(err)
	for seq := uint64(1); seq <= info.State.LastSeq; seq++ {
		m, err := stream.GetMsg(w.Context(), seq)
		w.must(err)
		var e events.Envelope
		w.must(json.Unmarshal(m.Data, &e))
		if event == "" || e.Type == events.Type(event) {
			found = append(found, e)
		}
	}
	return found
}

// stopWorkers stops the workers.
func (w *harness) stopWorkers() {
	w.Helper()
	w.stop()
}

// key is the name of a key of a resource.
func (w *harness) key(resource, name string) string {
	return fmt.Sprintf("%s:{%d}:%s:%s", w.namespace, holds.Partition(resource), resource, name)
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
	report := w.audit(audit.Options{})
	if len(report.Findings) > 0 {
		w.Errorf("the audit is not silent:\n%s", findingsText(report))
	}
	return report
}

// findingsText is what an audit has found, a line each.
func findingsText(r *audit.Report) string {
	var lines []string
	for _, f := range r.Findings {
		after := "nothing"
		if f.After != nil {
			after = fmt.Sprintf("%s %d, %s", f.After.Stream, f.After.Seq, f.After.Type)
		}
		lines = append(lines, fmt.Sprintf("%s: %s [expected %s, found %s, in %s, after %s] %s (%v)", f.Kind, f.Text, f.Expected, f.Found, f.Where, after, f.Remedy, f.Automatic))
	}
	return strings.Join(append(lines, r.Inconclusive...), "\n")
}

// kinds are the kinds of what an audit has found.
func kinds(r *audit.Report) (all []string) {
	for _, f := range r.Findings {
		all = append(all, string(f.Kind))
	}
	slices.Sort(all)
	return all
}

func uuidOf(hold string) string { return hold[strings.IndexByte(hold, '.')+1:] }
