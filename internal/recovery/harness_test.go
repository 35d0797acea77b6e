package recovery_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

// harness is a worker on a namespace of its own on real servers.
type harness struct {
	namespace string
	redisURL  string
	client    *redis.Client
	store     *store.Store
	service   *holds.Service
	policy    holds.Policy
	epoch     string
	term      *recovery.EpochTerm

	redisOptions *redis.Options // of supervisors: on the shared server they have the least privileges of a worker

	mu        sync.Mutex
	now       time.Time             // of the scripts; zero when Redis' clock rules
	outcomes  []holds.StoredOutcome // everything that was published
	announced []holds.Outcome       // each hold.expired since the last takeAnnounced
}

var testPolicy = holds.Policy{
	HoldTTL: 10 * time.Minute, HoldTTLMax: time.Hour, HoldLifetimeMax: 90 * time.Minute, PaymentWindow: 5 * time.Minute,
	LatePayment: holds.LateRejected, HoldsPerUser: 3, NightsMax: 30,
	HorizonDays: 1095, RequestKeyTTL: 24 * time.Hour, LockWait: time.Minute,
}

// newHarness returns a harness whose clock stands still until pass moves it.
func newHarness(t *testing.T) *harness {
	t.Helper()
	w := newRealTimeHarness(t)
	w.now = time.Now().UTC().Truncate(time.Second)
	return w
}

// newRealTimeHarness returns a harness in which Redis' own clock rules.
func newRealTimeHarness(t *testing.T) *harness {
	t.Helper()
	return newHarnessOn(t, stacktest.Shared().RedisURL)
}

// newHarnessOn returns a real-time harness on another Redis than the shared one.
func newHarnessOn(t *testing.T, redisURL string) *harness {
	t.Helper()
	w := &harness{
		namespace: stacktest.Namespace(t), redisURL: redisURL, client: stacktest.ConnectRedis(t, redisURL), policy: testPolicy,
		redisOptions: stacktest.RedisOptions(redisURL),
	}
	if redisURL == stacktest.Shared().RedisURL {
		w.redisOptions = stacktest.WorkerOptions(t, redisURL, w.namespace)
	}
	ctx := t.Context()
	var err error
	if w.store, err = store.Open(ctx, stacktest.Shared().PostgresURL, w.namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.store.Close)
	if err := w.store.Migrate(ctx, w.namespace); err != nil {
		t.Fatal(err)
	}
	epochs, err := w.store.Epochs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	epoch := epochs[0].Name
	server, err := recovery.Initialise(ctx, w.namespace, w.client, record.AllPartitions, epoch)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.store.CompleteEpoch(ctx, record.AllPartitions, epoch, server, ""); err != nil {
		t.Fatal(err)
	}
	w.epoch, w.term = epoch, recovery.StaticTerm(epoch, server)
	w.startNewTerm(t)
	return w
}

// startNewTerm makes the harness decide under its current term and policy.
func (w *harness) startNewTerm(t *testing.T) {
	t.Helper()
	w.service = w.newService(t, w.client, w.store)
}

// newService returns another worker's service on the same servers.
func (w *harness) newService(t *testing.T, client redis.UniversalClient, i holds.Inventory) *holds.Service {
	t.Helper()
	l := locking.New(locking.NewNone(client), locking.Options{})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close the locker: %v", err)
		}
	})
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

// pass moves the clock.
func (w *harness) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// key is a key of a resource.
func (w *harness) key(resource, name string) string {
	return record.Keyspace(w.namespace).Prefix(resource) + name
}

// setPolicy makes the harness decide by another policy from now on.
func (w *harness) setPolicy(t *testing.T, change func(*holds.Policy)) {
	t.Helper()
	change(&w.policy)
	w.startNewTerm(t)
}

// execute runs plain SQL in the schema of the harness, and returns its value.
func (w *harness) execute(t *testing.T, sql string) (value string) {
	t.Helper()
	return stacktest.PostgresSQL(t, stacktest.Shared().PostgresURL+"&search_path="+w.namespace, sql)
}

// newSupervisor returns a supervisor of another worker than the harness' own.
func (w *harness) newSupervisor(l recovery.OutcomeLog, name string, term *recovery.EpochTerm) *recovery.Supervisor {
	return w.newSupervisorWith(w.store, l, name, term)
}

func (w *harness) newSupervisorWith(
	s recovery.EpochStore, l recovery.OutcomeLog, name string, term *recovery.EpochTerm,
) *recovery.Supervisor {
	server := recovery.LoneServer(func() *redis.Options { o := *w.redisOptions; return &o })
	return w.newSupervisorOf(server, s, l, name, term)
}

func (w *harness) newSupervisorOf(
	servers func(context.Context) ([]recovery.Server, error), s recovery.EpochStore, l recovery.OutcomeLog, name string,
	term *recovery.EpochTerm,
) *recovery.Supervisor {
	supervisor := recovery.NewSupervisor(recovery.SupervisorOptions{
		Namespace: w.namespace, Name: name, Policy: w.policy, Term: term, Guard: recovery.NewConnGuard(),
		Servers:    servers,
		EpochStore: s, Inventory: w.store, OutcomeLog: l, Log: zerolog.Nop(),
		Fence: locking.FenceBase(w.store.FenceBase).Next,
	})
	supervisor.InspectTimeout = time.Minute // however slow the machine is
	supervisor.Clock = w.clock()
	supervisor.CutBytes = 1 // so that no two outcomes share a cut
	return supervisor
}

// common returns the epoch that all partitions have. It fails the test when they differ.
func common(t *testing.T, epochs recovery.Epochs) recovery.Epoch {
	t.Helper()
	for p := range epochs {
		if epochs[p] != epochs[0] {
			t.Fatalf("epoch of partition %d is %+v, of partition 0 %+v", p, epochs[p], epochs[0])
		}
	}
	return epochs[0]
}

// newRebuilder returns a supervisor that recovers Redis from a log while no worker publishes.
func (w *harness) newRebuilder(l recovery.OutcomeLog) *recovery.Supervisor {
	supervisor := w.newSupervisor(l, "rebuilder", recovery.NewEpochTerm())
	supervisor.Drain = 0
	return supervisor
}

// lose removes all keys of the harness from Redis.
func (w *harness) lose(t *testing.T) {
	t.Helper()
	keys, err := w.client.Keys(t.Context(), w.namespace+":*").Result()
	if err == nil && len(keys) > 0 {
		err = w.client.Del(t.Context(), keys...).Err()
	}
	if err != nil {
		t.Fatalf("lose: %v", err)
	}
}

// loseAndRebuild removes all keys of the harness from Redis, and rebuilds them from a log. The harness decides
// under the new epoch.
func (w *harness) loseAndRebuild(t *testing.T, l *replayLog) recovery.RebuildResult {
	t.Helper()
	w.lose(t)
	return w.recover(t, l, "a test")
}

// recover lets another worker recover Redis, for a reason. The harness decides under the new epoch. No key is left that
// only a recovery uses.
func (w *harness) recover(t *testing.T, l *replayLog, why string) recovery.RebuildResult {
	t.Helper()
	l.harness = w
	r, err := w.newRebuilder(l).Rebuild(t.Context(), why, false, func(string) {})
	if err != nil {
		t.Fatalf("recover: %v", err)
	}
	if left := w.client.Keys(t.Context(), w.namespace+":*fold*").Val(); len(left) != 0 {
		t.Errorf("keys are left: %q", left)
	}
	w.adoptEpoch(t)
	return r
}

// adoptEpoch makes the harness decide under the epoch that all partitions have now.
func (w *harness) adoptEpoch(t *testing.T) {
	t.Helper()
	epochs, err := w.store.Epochs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e := common(t, epochs)
	w.epoch, w.term = e.Name, recovery.StaticTerm(e.Name, e.Server)
	w.startNewTerm(t)
}

// mark writes markers as a worker does, and fails the test unless it may.
func (w *harness) mark(t *testing.T) {
	t.Helper()
	marker := recovery.NewMarker(w.newSupervisor(&replayLog{harness: w}, "marker", w.term).SupervisorOptions)
	if own, err := marker.Mark(t.Context()); err != nil || !own {
		t.Fatalf("mark: %v %v", own, err)
	}
}

// copyKeys copies all keys of the harness. The function that it returns makes Redis lose all later writes.
func (w *harness) copyKeys(t *testing.T) (restore func()) {
	t.Helper()
	restoreKeys, err := stacktest.CopyKeys(t.Context(), w.client, w.namespace+":*")
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := restoreKeys(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// anotherServer is the reason for which workers resume.
const anotherServer = "another server, or the same after a restart or a failover: it may have older data"

// resume lets another worker recover Redis after it has lost later writes. The harness decides under the new epoch.
func (w *harness) resume(t *testing.T, l *replayLog) recovery.RebuildResult {
	t.Helper()
	return w.recover(t, l, anotherServer)
}

// replayLog is a recovery.OutcomeLog of what a harness has published.
type replayLog struct {
	*harness
	payments []holds.Payment // without a decision, stored at At
	cancels  []pendingCancellation
	late     []holds.StoredOutcome // published while Redis is being rebuilt
	missing  bool                  // outcomes after the marker are missing
	created  time.Time             // when the stream was restored; zero for logCreated

	// What is called before outcomes, or unacknowledged events, are read; nil for nothing.
	onOutcomes       func(ctx context.Context, since time.Time, after uint64)
	onUnacknowledged func() error
}

type pendingCancellation struct {
	request  holds.ReleaseRequest
	storedAt holds.Time
}

func (l *replayLog) Outcomes(
	ctx context.Context, since time.Time, after uint64, each func(holds.StoredOutcome) error, progress func(done, all uint64),
) (last uint64, err error) {
	if l.onOutcomes != nil {
		l.onOutcomes(ctx, since, after)
	}
	if progress(0, 1); ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	l.mu.Lock()
	outcomes := slices.Clone(l.outcomes)
	l.mu.Unlock()
	for _, outcome := range outcomes[after:] {
		if after == 0 && !outcome.StoredAt.IsZero() && outcome.StoredAt.Before(since) {
			continue
		}
		if err := each(outcome); err != nil {
			return 0, err
		}
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
	}
	return uint64(len(outcomes)), nil
}

func (l *replayLog) Position(context.Context) (holds.LogPosition, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.outcomes)
	return holds.LogPosition{Created: l.createdAt(), Seq: uint64(n), StoredAt: logStored(uint64(n))}, nil
}

func (l *replayLog) createdAt() time.Time {
	if l.created.IsZero() {
		return logCreated
	}
	return l.created
}

// logStored is when the outcome with a sequence was stored.
func logStored(seq uint64) time.Time { return logCreated.Add(time.Duration(seq)) }

// logCreated is when the outbound stream of each harness was created.
var logCreated = time.Unix(1_790_000_000, 123)

func (l *replayLog) MissingAfter(ctx context.Context, after holds.LogPosition) (string, error) {
	end, _ := l.Position(ctx) // without an error
	if !after.Created.Equal(end.Created) || after.Seq > end.Seq || !after.StoredAt.Equal(logStored(after.Seq)) || l.missing {
		return "the stream has lost outcomes", nil
	}
	return "", nil
}

func (*replayLog) Gaps(context.Context, time.Time) (string, error) { return "", nil }

func (l *replayLog) OldestPayment(context.Context) (oldest time.Time, err error) {
	for _, p := range l.payments {
		if oldest.IsZero() || p.At.Before(oldest) {
			oldest = p.At.Time
		}
	}
	return oldest, nil
}

func (l *replayLog) Unacknowledged(
	_ context.Context, after uint64, payment func(holds.ConfirmRequest, holds.Time) error,
	cancel func(holds.ReleaseRequest, holds.Time) error,
) (last uint64, err error) {
	if l.onUnacknowledged != nil {
		if err := l.onUnacknowledged(); err != nil {
			return 0, err
		}
	}
	cancels := uint64(len(l.cancels)) // their sequences come first
	for _, c := range l.cancels[min(after, cancels):] {
		if err := cancel(c.request, c.storedAt); err != nil {
			return 0, err
		}
	}
	for _, p := range l.payments[max(after, cancels)-cancels:] {
		if err := payment(p.ConfirmRequest, p.At); err != nil {
			return 0, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outcomes, l.late = append(l.outcomes, l.late...), nil
	return cancels + uint64(len(l.payments)), nil
}

// newBlockedLog returns a log whose unacknowledged events are read only when resume is closed. It closes reached before.
func (w *harness) newBlockedLog() (l *replayLog, reached, resume chan struct{}) {
	reached, resume = make(chan struct{}), make(chan struct{})
	var once sync.Once
	return &replayLog{harness: w, onUnacknowledged: func() error {
		once.Do(func() { close(reached) })
		<-resume
		return nil
	}}, reached, resume
}

// Announce implements holds.Announcer.
func (w *harness) Announce(_ context.Context, outcomes []holds.Outcome) ([]holds.Outcome, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.announced = append(w.announced, outcomes...)
	for _, o := range outcomes {
		w.outcomes = append(w.outcomes, holds.StoredOutcome{Outcome: o, ID: uuid.NewString()})
	}
	return outcomes, nil
}

// takeAnnounced returns each hold.expired since the last call.
func (w *harness) takeAnnounced() []holds.Outcome {
	announced := w.announced
	w.announced = nil
	return announced
}

// sweep expires what is due, and returns when all of it is announced.
func (w *harness) sweep(t *testing.T) {
	t.Helper()
	expirer := holds.NewExpirer(w.service, w, holds.ExpirerOptions{}, zerolog.Nop())
	ctx, cancel := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	loops.Go(func() { _ = expirer.Sweep(ctx) })
	loops.Go(func() { _ = expirer.Announce(ctx) })
	stacktest.Eventually(t, "every due hold to be announced", func() bool {
		pipe := w.client.Pipeline()
		due := make([]*redis.IntCmd, record.Partitions)
		for p := range due {
			due[p] = pipe.ZCount(ctx, record.Keyspace(w.namespace).Agenda(p), "-inf", strconv.FormatInt(w.now.UnixMilli(), 10))
		}
		departing := pipe.Keys(ctx, w.namespace+":*:departing")
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
		return len(departing.Val()) == 0 && !slices.ContainsFunc(due, func(n *redis.IntCmd) bool { return n.Val() > 0 })
	})
	cancel()
	loops.Wait()
}

// publish records an outcome.
func (w *harness) publish(id string, o holds.Outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outcomes = append(w.outcomes, holds.StoredOutcome{Outcome: o, ID: id, StoredAt: holds.Time{Time: w.now}})
}

// only fails the test unless each of n requests has one result, and none an error. It returns the outcomes.
func only(t *testing.T, n int, results iter.Seq2[int, holds.Result]) []holds.Outcome {
	t.Helper()
	outcomes := make([]holds.Outcome, n)
	for i, r := range results {
		if r.Err != nil || outcomes[i].Event != "" {
			t.Fatalf("request %d: %+v after %q", i, r, outcomes[i].Event)
		}
		outcomes[i] = r.Outcome
	}
	return outcomes
}

// place decides requests and publishes their outcomes. It fills in missing ids and keys, quantity 1 and the time.
func (w *harness) place(t *testing.T, requests ...holds.PlaceRequest) []holds.Outcome {
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
	outcomes := only(t, len(requests), w.service.Place(t.Context(), requests))
	for i, o := range outcomes {
		w.publish(requests[i].EventID, o)
	}
	return outcomes
}

func (w *harness) pay(t *testing.T, id holds.HoldID, payment string) holds.Outcome {
	t.Helper()
	o := only(t, 1, slices.All(w.service.Confirm(t.Context(), []holds.ConfirmRequest{{Hold: id, PaymentID: payment}})))[0]
	w.publish(uuid.NewString(), o)
	return o
}

func (w *harness) release(t *testing.T, id holds.HoldID, eventID string) holds.Outcome {
	t.Helper()
	o := only(t, 1, slices.All(w.service.Release(t.Context(), []holds.ReleaseRequest{{EventID: eventID, Resource: id.Resource, Hold: id}})))[0]
	w.publish(eventID, o)
	return o
}

func (w *harness) extend(t *testing.T, r holds.ExtendRequest) holds.Outcome {
	t.Helper()
	if r.EventID == "" {
		r.EventID = uuid.NewString()
	}
	o := only(t, 1, slices.All(w.service.Extend(t.Context(), []holds.ExtendRequest{r})))[0]
	w.publish(r.EventID, o)
	return o
}

// inboundSeq is the sequence of the last inventory.set, of all harnesses.
var inboundSeq atomic.Uint64

func (w *harness) setInventory(t *testing.T, resource string, selection holds.SlotSelection, capacity int64) {
	t.Helper()
	r := w.service.SetInventory(t.Context(), []holds.InventoryRequest{{
		EventID: uuid.NewString(), Position: holds.StreamPosition{At: time.Now(), Seq: inboundSeq.Add(1)},
		Resource: resource, Selection: selection, Capacity: capacity,
	}})[0]
	if r.Err != nil {
		t.Fatalf("set inventory: %v", r.Err)
	}
}

// held returns how much live holds take of the slot stock.
func (w *harness) held(t *testing.T, resource string) int64 {
	t.Helper()
	slots, err := w.service.Availability(t.Context(), resource, holds.SlotSelection{})
	if err != nil {
		t.Fatalf("availability: %v", err)
	}
	return slots[0].Held
}

func created(t *testing.T, o holds.Outcome) holds.HoldCreated {
	t.Helper()
	data, ok := o.Data.(holds.HoldCreated)
	if !ok {
		t.Fatalf("want hold.created, got %s %+v", o.Event, o.Data)
	}
	return data
}

// brief is an outcome's event and reason.
func brief(o holds.Outcome) string {
	reason := o.Reason()
	if data, is := o.Data.(holds.HoldConfirmed); is && data.Late {
		reason = "late"
	}
	return strings.TrimSpace(o.Event + " " + reason)
}

// exactText is all of an outcome as text.
func exactText(t *testing.T, o holds.Outcome) string {
	t.Helper()
	data, err := json.Marshal(o.Data)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s %s %s %s %s", o.Event, o.Resource, o.Hold, o.At.Format(holds.TimeFormat), data)
}
