package holds_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// modelChecks is how many random histories a test against the model tries in the short form; in the long
// form it is rapid's default, 100.
const modelChecks = "15"

func TestMain(m *testing.M) {
	if !stacktest.Long("models") {
		if err := flag.Set("rapid.checks", modelChecks); err != nil { // the command line overrides it
			panic(err)
		}
	}
	stacktest.Main(m)
}

// fatal contains the methods that *testing.T and *rapid.T have in common.
type fatal interface {
	Helper()
	Fatalf(format string, args ...any)
}

// harness is a namespace on real servers. Its clock stands still until pass moves it.
type harness struct {
	namespace string
	redisURL  string
	client    *redis.Client
	store     *store.Store
	service   *holds.Service
	expirer   *holds.Expirer
	policy    holds.Policy
	epoch     string
	term      *recovery.EpochTerm
	now       time.Time

	mu        sync.Mutex
	outcomes  []holds.StoredOutcome // every outcome; nil when they are not recorded
	announced []holds.Outcome
	unstored  int // announcements whose first hold is not stored, before they succeed
}

// testPolicy differs from the defaults where a test needs fewer of something.
var testPolicy = holds.Policy{
	HoldTTL: 10 * time.Minute, HoldTTLMax: time.Hour, HoldLifetimeMax: 90 * time.Minute, PaymentWindow: 5 * time.Minute,
	LatePayment: holds.LateRejected, HoldsPerUser: 3, NightsMax: 30,
	HorizonDays: 1095, RequestKeyTTL: 24 * time.Hour, LockWait: time.Minute,
}

// newRealTimeHarness returns a harness that uses Redis' own clock.
func newRealTimeHarness(t testing.TB) *harness {
	t.Helper()
	return newHarnessOn(t, stacktest.Shared().RedisURL)
}

// newHarnessOn returns a harness on another Redis than the shared one, with Redis' own clock.
func newHarnessOn(t testing.TB, redisURL string) *harness {
	t.Helper()
	w := newSchema(t)
	w.redisURL, w.client = redisURL, stacktest.ConnectRedis(t, redisURL)
	server, err := recovery.Initialise(t.Context(), w.namespace, w.client, record.AllPartitions, w.epoch)
	stacktest.Must(t, err)
	stacktest.Must(t, w.store.CompleteEpoch(t.Context(), record.AllPartitions, w.epoch, server, ""))
	w.term = recovery.StaticTerm(w.epoch, server)
	w.serve(w.client, w.locker(t))
	return w
}

// serve gives the harness a new service and expirer, under its term and policy.
func (w *harness) serve(client redis.UniversalClient, l *locking.Locker) {
	w.service = w.newService(client, l, w.store)
	w.expirer = holds.NewExpirer(w.service, w, holds.ExpirerOptions{}, zerolog.Nop())
}

// newSchema returns a harness with a schema in Postgres and its first epoch, which has no Redis yet.
func newSchema(t testing.TB) *harness {
	t.Helper()
	w := &harness{namespace: stacktest.Namespace(t), policy: testPolicy}
	var err error
	if w.store, err = store.Open(t.Context(), stacktest.Shared().PostgresURL, w.namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.store.Close)
	stacktest.Must(t, w.store.Migrate(t.Context(), w.namespace))
	epochs, err := w.store.Epochs(t.Context())
	stacktest.Must(t, err)
	w.epoch = epochs[0].Name
	return w
}

// syncInventory lets a service use cached inventory rows, like a worker that has received every
// change of them. The changes in these tests bump rev before they return, unless a test says
// otherwise.
func (w *harness) syncInventory(t fatal, s *holds.Service) {
	t.Helper()
	now, err := s.Now(context.Background())
	if err != nil {
		t.Fatalf("clock of redis: %v", err)
	}
	s.InventorySynced(now)
}

// watchInventory notifies the service of changes of the inventory by SQL until the test ends.
func (w *harness) watchInventory(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	watched := make(chan error)
	service := w.service
	go func() { watched <- w.store.Watch(ctx, service, zerolog.Nop()) }()
	t.Cleanup(func() {
		stop()
		stacktest.Must(t, <-watched)
	})
}

// execute runs plain SQL in the schema of the harness, as an upstream system may.
func (w *harness) execute(t testing.TB, sql string) {
	t.Helper()
	conn := w.connect(t)
	defer func() { _ = conn.Close(context.Background()) }()
	stacktest.Exec(t, conn, sql)
}

// connect connects to the schema of the harness.
func (w *harness) connect(t testing.TB) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(stacktest.Shared().PostgresURL)
	stacktest.Must(t, err)
	config.RuntimeParams["search_path"] = w.namespace
	conn, err := pgx.ConnectConfig(t.Context(), config)
	stacktest.Must(t, err)
	return conn
}

// newService returns the service of another worker on the same servers.
func (w *harness) newService(client redis.UniversalClient, l *locking.Locker, i holds.Inventory) *holds.Service {
	return holds.NewService(w.namespace, client, l, i, clockTerm{w.term, w}, w.policy)
}

// clockTerm gives the clock of a harness to the scripts.
type clockTerm struct {
	*recovery.EpochTerm
	harness *harness
}

func (t clockTerm) Current() *holds.CurrentEpochs {
	return t.EpochTerm.Current().WithClock(t.harness.clock())
}

// clock returns the time that the scripts use in ms, 0 when Redis' clock rules.
func (w *harness) clock() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now.IsZero() {
		return 0
	}
	return w.now.UnixMilli()
}

// lockLease is longer than any test holds a lock.
const lockLease = time.Minute

// locker returns a locker with the strategy that HOLDFAST_LOCK_STRATEGY names. CI runs these tests
// with each strategy.
func (w *harness) locker(t testing.TB) *locking.Locker {
	t.Helper()
	var strategy locking.Strategy
	switch name := os.Getenv("HOLDFAST_LOCK_STRATEGY"); name {
	case "", "range":
		strategy = w.rangeLocks(w.client, lockLease)
	case "redlock":
		var servers []redis.UniversalClient
		for _, url := range stacktest.LockServers(t, 3) {
			servers = append(servers, stacktest.ConnectRedis(t, url))
		}
		strategy = locking.NewRedlock(w.client, servers, locking.FixedLease(lockLease))
	case "optimistic":
		strategy = locking.NewOptimistic(w.client)
	case "none":
		strategy = locking.NewNone(w.client)
	default:
		t.Fatalf("HOLDFAST_LOCK_STRATEGY=%s: no such strategy", name)
	}
	return newLocker(t, strategy)
}

func (w *harness) rangeLocks(client redis.UniversalClient, lease time.Duration) locking.Strategy {
	return locking.NewRange(client, locking.RangeOptions{Lease: locking.FixedLease(lease), FenceBase: w.store.FenceBase})
}

func newLocker(t testing.TB, s locking.Strategy) *locking.Locker {
	t.Helper()
	l := locking.New(s, locking.Options{})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close the locker: %v", err)
		}
	})
	return l
}

// newHarness returns a harness whose clock stands still until pass moves it.
func newHarness(t testing.TB) *harness {
	t.Helper()
	return newRealTimeHarness(t).stopClock(t)
}

// stopClock stops the clock of a harness until pass moves it.
func (w *harness) stopClock(t testing.TB) *harness {
	t.Helper()
	w.now = time.Now().UTC().Truncate(time.Second)
	return w
}

// pass moves the clock forward.
func (w *harness) pass(t fatal, d time.Duration) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// Announce implements holds.Announcer.
func (w *harness) Announce(_ context.Context, outcomes []holds.Outcome) (stored []holds.Outcome, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unstored--; w.unstored >= 0 {
		outcomes, err = outcomes[1:], errors.New("not stored")
	}
	w.announced = append(w.announced, outcomes...)
	for _, o := range outcomes {
		if w.outcomes != nil {
			w.outcomes = append(w.outcomes, holds.StoredOutcome{Outcome: o, ID: uuid.NewString()})
		}
	}
	return outcomes, err
}

// record records an outcome if outcomes are recorded.
func (w *harness) record(id string, o holds.Outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.outcomes != nil {
		w.outcomes = append(w.outcomes, holds.StoredOutcome{Outcome: o, ID: id, StoredAt: holds.Time{Time: w.now}})
	}
}

// takeAnnounced returns what was announced since the last call.
func (w *harness) takeAnnounced() []holds.Outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	announced := w.announced
	w.announced = nil
	return announced
}

// place decides requests and returns their outcomes in order. It sets missing event ids.
func (w *harness) place(t fatal, requests ...holds.PlaceRequest) []holds.Outcome {
	t.Helper()
	for i := range requests {
		r := &requests[i]
		if r.EventID == "" {
			r.EventID = uuid.NewString()
		}
		if r.RequestKey == "" {
			r.RequestKey = uuid.NewString()
		}
		if r.StoredAt.IsZero() {
			r.StoredAt = time.Now()
		}
		if r.Quantity == 0 {
			r.Quantity = 1
		}
	}
	w.syncInventory(t, w.service)
	outcomes := collect(t, len(requests), w.service.Place(context.Background(), requests))
	for i, o := range outcomes {
		w.record(requests[i].EventID, o)
	}
	return outcomes
}

// collect checks that each result comes once and without an error.
func collect(t fatal, n int, results iter.Seq2[int, holds.Result]) []holds.Outcome {
	t.Helper()
	outcomes, seen := make([]holds.Outcome, n), make([]int, n)
	for i, r := range results {
		if r.Err != nil {
			t.Fatalf("request %d: %v", i, r.Err)
		}
		outcomes[i] = r.Outcome
		seen[i]++
	}
	for i, times := range seen {
		if times != 1 {
			t.Fatalf("request %d had %d results", i, times)
		}
	}
	return outcomes
}

// newRequest returns a request of a new user.
func newRequest(resource string) holds.PlaceRequest {
	return holds.PlaceRequest{
		EventID: uuid.NewString(), RequestKey: uuid.NewString(), Resource: resource, User: uuid.NewString(), Quantity: 1, StoredAt: time.Now(),
	}
}

// tryPlace decides one request and returns its result, which may be an error.
func (w *harness) tryPlace(request holds.PlaceRequest) (result holds.Result) {
	for _, r := range w.service.Place(context.Background(), []holds.PlaceRequest{request}) {
		result = r
	}
	return result
}

// sweep expires and announces what is due, and returns what was announced since the last call.
func (w *harness) sweep(t fatal) []holds.Outcome {
	t.Helper()
	if err := w.expirer.SweepAndAnnounce(context.Background()); err != nil {
		t.Fatalf("sweep: %v", err)
	}
	return w.takeAnnounced()
}

var errDown = errors.New("postgres is down")

// claim pays for a hold while Postgres fails: the payment has claimed the hold then, and is not decided.
func (w *harness) claim(t testing.TB, id holds.HoldID, payment string) {
	t.Helper()
	down := &hookedInventory{Inventory: w.store, onDecide: func() error { return errDown }}
	paid := []holds.ConfirmRequest{{Hold: id, PaymentID: payment}}
	if r := w.newService(w.client, w.locker(t), down).Confirm(t.Context(), paid)[0]; !errors.Is(r.Err, errDown) {
		t.Errorf("the result while Postgres fails: %+v", r)
	}
}

// hookedInventory is an Inventory that calls functions around the calls of another one, those that are not nil.
type hookedInventory struct {
	holds.Inventory
	reads     int            // of rows
	onRows    func(read int) // after each read of rows
	onFound   func()         // after a search for decisions
	onDecide  func() error   // before payments are decided; with its error they are not
	onDecided func()         // after that
}

func (h *hookedInventory) InventoryRows(
	ctx context.Context, resources []string, slots [][]string,
) ([][]holds.InventoryRow, error) {
	rows, err := h.Inventory.InventoryRows(ctx, resources, slots)
	if h.reads++; h.onRows != nil {
		h.onRows(h.reads)
	}
	return rows, err
}

func (h *hookedInventory) FindDecisions(ctx context.Context, payments []holds.Payment) ([]holds.PaymentDecision, error) {
	answers, err := h.Inventory.FindDecisions(ctx, payments)
	if h.onFound != nil {
		h.onFound()
	}
	return answers, err
}

func (h *hookedInventory) Decide(ctx context.Context, payments []holds.Payment) ([]holds.PaymentDecision, error) {
	if h.onDecide != nil {
		if err := h.onDecide(); err != nil {
			return nil, err
		}
	}
	answers, err := h.Inventory.Decide(ctx, payments)
	if h.onDecided != nil {
		h.onDecided()
	}
	return answers, err
}

// afterFirstRead returns an Inventory that calls a function after its first read of rows.
func afterFirstRead(inventory holds.Inventory, f func()) *hookedInventory {
	return &hookedInventory{Inventory: inventory, onRows: func(read int) {
		if read == 1 {
			f()
		}
	}}
}

func (w *harness) pay(t fatal, id holds.HoldID, payment string) holds.Outcome {
	t.Helper()
	o := collect(t, 1, slices.All(w.service.Confirm(context.Background(), []holds.ConfirmRequest{{Hold: id, PaymentID: payment}})))[0]
	w.record(uuid.NewString(), o)
	return o
}

func (w *harness) release(t fatal, r holds.ReleaseRequest) holds.Outcome {
	t.Helper()
	if r.EventID == "" {
		r.EventID = uuid.NewString()
	}
	if r.Resource == "" {
		r.Resource = r.Hold.Resource
	}
	o := collect(t, 1, slices.All(w.service.Release(context.Background(), []holds.ReleaseRequest{r})))[0]
	w.record(r.EventID, o)
	return o
}

func (w *harness) extend(t fatal, r holds.ExtendRequest) holds.Outcome {
	t.Helper()
	if r.EventID == "" {
		r.EventID = uuid.NewString()
	}
	o := collect(t, 1, slices.All(w.service.Extend(context.Background(), []holds.ExtendRequest{r})))[0]
	w.record(r.EventID, o)
	return o
}

func (w *harness) cancelReservation(t fatal, r holds.CancelRequest) holds.Outcome {
	t.Helper()
	if r.EventID == "" {
		r.EventID = uuid.NewString()
	}
	return collect(t, 1, slices.All(w.service.Cancel(context.Background(), []holds.CancelRequest{r})))[0]
}

// setPolicy changes the policy of the harness from now on.
func (w *harness) setPolicy(t testing.TB, change func(*holds.Policy)) {
	t.Helper()
	change(&w.policy)
	w.serve(w.client, w.locker(t))
}

// inboundSeq is the sequence of the last inventory.set of all harnesses.
var inboundSeq atomic.Uint64

func (w *harness) setInventory(t fatal, resource string, selection holds.SlotSelection, capacity int64) holds.Outcome {
	t.Helper()
	r := w.service.SetInventory(context.Background(), []holds.InventoryRequest{{
		EventID: uuid.NewString(), Position: holds.StreamPosition{At: time.Now(), Seq: inboundSeq.Add(1)}, Resource: resource, Selection: selection, Capacity: capacity,
	}})[0]
	if r.Err != nil {
		t.Fatalf("set inventory: %v", r.Err)
	}
	return r.Outcome
}

func (w *harness) available(t fatal, resource string, selection holds.SlotSelection) []holds.SlotAvailability {
	t.Helper()
	slots, err := w.service.Availability(context.Background(), resource, selection)
	if err != nil {
		t.Fatalf("availability: %v", err)
	}
	return slots
}

// onlyHold returns a hold of ana on the only unit of a resource.
func (w *harness) onlyHold(t fatal, resource string, ttl int64) holds.HoldCreated {
	t.Helper()
	w.setInventory(t, resource, holds.SlotSelection{}, 1)
	return created(t, w.place(t, holds.PlaceRequest{Resource: resource, User: "ana", TTLSeconds: &ttl})[0])
}

// assertNothingHeld checks that only tombstones and answers remain when no hold is live.
func (w *harness) assertNothingHeld(t fatal, resource string) {
	t.Helper()
	ctx := context.Background()
	for _, name := range []string{"counts", "due", "departing", "users", "locks"} {
		if n := w.client.Exists(ctx, holds.Key(w.namespace, resource, name)).Val(); n != 0 {
			t.Fatalf("%s exists although no hold is live", name)
		}
	}
	for _, pattern := range []string{"hold:*", "started:*"} {
		keys, err := w.client.Keys(ctx, holds.Key(w.namespace, resource, pattern)).Result()
		if err != nil || len(keys) > 0 {
			t.Fatalf("keys exist although no hold is live: %v %v", keys, err)
		}
	}
}

func slots(names ...string) holds.SlotSelection { return holds.SlotSelection{Slots: names} }

// nights returns n nights, the first of them a number of days from now.
func nights(from, n int) holds.SlotSelection {
	in := time.Now().UTC().AddDate(0, 0, from)
	return holds.SlotSelection{CheckIn: in.Format(holds.DateFormat), CheckOut: in.AddDate(0, 0, n).Format(holds.DateFormat)}
}

func seconds(n int64) *int64 { return &n }

// created and rejected check the event of an outcome and return its data.
func created(t fatal, o holds.Outcome) holds.HoldCreated {
	t.Helper()
	data, ok := o.Data.(holds.HoldCreated)
	if !ok {
		t.Fatalf("want hold.created, got %s %+v", o.Event, o.Data)
	}
	return data
}

func rejected(t fatal, o holds.Outcome, reason string) holds.HoldRejected {
	t.Helper()
	data, ok := o.Data.(holds.HoldRejected)
	if !ok || data.Reason != reason {
		t.Fatalf("want hold.rejected %s, got %s %+v", reason, o.Event, o.Data)
	}
	return data
}

// brief returns the event and the reason of an outcome, or that a payment was late.
func brief(o holds.Outcome) string {
	reason := o.Reason()
	if data, is := o.Data.(holds.HoldConfirmed); is && data.Late {
		reason = "late"
	}
	return strings.TrimSpace(o.Event + " " + reason)
}

// wantBrief checks the event and the reason of an outcome.
func wantBrief(t fatal, o holds.Outcome, want string) {
	t.Helper()
	if got := brief(o); got != want {
		t.Fatalf("want %s, got %s %+v", want, got, o.Data)
	}
}

func briefs(outcomes []holds.Outcome) []string {
	texts := make([]string, len(outcomes))
	for i, o := range outcomes {
		texts[i] = fmt.Sprintf("%s %s", brief(o), o.Hold)
	}
	slices.Sort(texts)
	return texts
}
