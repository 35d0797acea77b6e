package audit_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"holdfast/internal/audit"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
	"holdfast/internal/telemetry"
)

// scene is a namespace in which everything has happened that can happen. All of it has ended except
// two holds.
type scene struct {
	*harness
	live, other                              string // holds
	paid, late, cancelled, released, expired string // holds that have ended
}

func newScene(t testing.TB) *scene {
	t.Helper()
	s := &scene{harness: newHarness(t)}
	s.startWorkers(1)
	s.setInventory("hall", 5, "A-1", "A-2")
	s.setInventory("tent", 2)
	s.expired = s.request("hall", "dan", time.Second, 1, "A-2")
	s.late = s.request("tent", "eve", time.Second, 1)
	s.awaitOutcomes(holds.EventHoldExpired, 2)
	if got := s.pay(s.late, "p-eve"); got != events.Type(holds.EventHoldConfirmed) {
		t.Fatalf("the late payment was answered %s", got)
	}
	s.live = s.request("hall", "ana", time.Hour, 2, "A-1", "A-2")
	s.other = s.request("hall", "olga", time.Hour, 1, "A-1")
	s.paid = s.request("hall", "ben", time.Hour, 1, "A-1")
	s.pay(s.paid, "p-ben")
	s.pay(s.paid, "p-ben-2") // refused
	s.released = s.request("hall", "cleo", time.Hour, 1, "A-2")
	s.publish(events.BookingCancelled, "hall", events.BookingCancelledData{HoldID: s.released})
	s.cancelled = s.request("tent", "fay", time.Hour, 1)
	s.pay(s.cancelled, "p-fay")
	s.publish(events.ReservationCancelled, "tent", events.ReservationCancelledData{HoldID: s.cancelled})
	s.publish(events.PaymentStarted, "hall", events.PaymentStartedData{HoldID: s.live})
	if s.request("hall", "gus", time.Hour, 4, "A-1") != "" {
		t.Fatal("gus was granted more than the capacity")
	}
	bad := s.message(events.BookingRequested, "hall", "no object")
	if a, err := s.client.Request(stacktest.WaitContext(t), bad); err != nil || a.DeadLetter == nil {
		t.Fatalf("a malformed event: %+v, %v", a, err)
	}
	s.stopWorkers()
	return s
}

// wantWorking fails the test unless workers decide events as usual.
func (s *scene) wantWorking() {
	s.Helper()
	s.startWorkers(1)
	hugo := s.request("hall", "hugo", time.Hour, 2, "A-2")
	if hugo == "" || s.request("hall", "ida", time.Hour, 2, "A-2") != "" {
		s.Error("A-2 does not have room for exactly two more")
	}
	if o := s.pay(hugo, "p-hugo"); o != events.Type(holds.EventHoldConfirmed) {
		s.Errorf("hugo's payment was answered %s", o)
	}
	s.stopWorkers()
	s.wantNoFindings()
}

// outlast waits longer than the clocks of the servers may differ: for the life of a hold.
func (s *scene) outlast() {
	s.Helper()
	expired := len(s.outcomes(holds.EventHoldExpired))
	s.request("tent", fmt.Sprintf("kim-%d", expired), 2*time.Second, 1)
	s.awaitOutcomes(holds.EventHoldExpired, expired+1)
}

// recreateDatabase replaces the database by a new one of the same name, and empties Redis.
func (s *scene) recreateDatabase() {
	s.Helper()
	s.execute(`DROP SCHEMA ` + s.namespace + ` CASCADE`)
	s.removeRedisData()
	var err error
	s.store, err = store.Open(s.Context(), stacktest.Shared().PostgresURL, s.namespace)
	s.must(err)
	s.Cleanup(s.store.Close)
	s.must(s.store.Migrate(s.Context(), s.namespace))
	s.beginEpoch()
	s.backends.Postgres, err = audit.OpenPostgres(s.Context(), stacktest.Shared().PostgresURL, s.namespace)
	s.must(err)
	s.Cleanup(s.backends.Postgres.Close)
}

// lastInbound returns the sequence of the last inbound event.
func (s *scene) lastInbound() uint64 {
	s.Helper()
	stream, err := s.js.Stream(s.Context(), s.subjects.InStream())
	s.must(err)
	info, err := stream.Info(s.Context())
	s.must(err)
	return info.State.LastSeq
}

// inboundSeq returns the sequence of the first event on a subject.
func (s *scene) inboundSeq(event, resource string) uint64 {
	s.Helper()
	stream, err := s.js.Stream(s.Context(), s.subjects.InStream())
	s.must(err)
	m, err := stream.GetMsg(s.Context(), 1)
	for seq := uint64(2); err == nil && m.Subject != s.subjects.In(event, resource); seq++ {
		m, err = stream.GetMsg(s.Context(), seq)
	}
	s.must(err)
	return m.Sequence
}

// outcomeOf returns an outcome of an event about a hold.
func (s *scene) outcomeOf(event, hold string) events.Envelope {
	s.Helper()
	for _, e := range s.outcomes(event) {
		if e.Subject == hold {
			return e
		}
	}
	s.Fatalf("no %s about %s", event, hold)
	return events.Envelope{}
}

// stored stores an outcome, as a worker would.
func (s *scene) stored(event, resource, hold, cause string, data any) {
	s.Helper()
	body, err := json.Marshal(data)
	s.must(err)
	s.storedAs(uuid.NewString(), event, resource, hold, cause, body)
}

func (s *scene) storedAs(id, event, resource, hold, cause string, data []byte) {
	s.Helper()
	s.placed(events.Envelope{
		SpecVersion: "1.0", ID: id, Source: "/test", Type: events.Type(event), Subject: hold, CausationID: cause,
		Data: data,
		Time: holds.Time{Time: time.Now()},
	}, s.subjects.Out(event, resource))
}

// erase removes the outcomes of an event about a hold from the stream.
func (s *scene) erase(event, hold string) {
	s.Helper()
	s.eachOutcome(func(stream jetstream.Stream, seq uint64, e events.Envelope) {
		if e.Type == events.Type(event) && e.Subject == hold {
			s.must(stream.DeleteMsg(s.Context(), seq))
		}
	})
}

// publishDeadLetter publishes a dead letter of an inbound sequence, as a worker would.
func (s *scene) publishDeadLetter(seq uint64, subject, reason string) {
	s.Helper()
	m := nats.NewMsg(s.subjects.DLQ(reason))
	m.Header.Set(events.HeaderDLQReason, reason)
	m.Header.Set(events.HeaderDLQSubject, subject)
	m.Header.Set(events.HeaderDLQStreamSeq, strconv.FormatUint(seq, 10))
	_, err := s.js.PublishMsg(s.Context(), m)
	s.must(err)
}

// answerByHand stores an event and its outcome, and acknowledges the event, as a faulty worker
// would. It stores no outcome if event is "".
func (s *scene) answerByHand(m *nats.Msg, event, hold string, data any) {
	s.Helper()
	stored, err := s.js.PublishMsg(s.Context(), m)
	s.must(err)
	if event != "" {
		in, err := s.subjects.Decode(m.Subject, m.Header, m.Data, time.Now())
		s.must(err)
		body, err := json.Marshal(data)
		s.must(err)
		s.storedAs(in.OutcomeID, event, in.Resource, hold, in.ID, body)
	}
	// A consumer may receive an event after its PubAck.
	stacktest.Eventually(s, "the event to be acknowledged", func() bool {
		last := uint64(0)
		for _, name := range []string{events.ConsumerRequests, events.ConsumerChanges, events.ConsumerPayments} {
			c, err := s.js.Consumer(s.Context(), s.subjects.InStream(), name)
			s.must(err)
			batch, err := c.FetchNoWait(100)
			s.must(err)
			for m := range batch.Messages() {
				s.must(m.DoubleAck(s.Context()))
				meta, err := m.Metadata()
				s.must(err)
				last = max(last, meta.Sequence.Stream)
			}
		}
		return last >= stored.Sequence
	})
}

// grantByHand stores a request and a grant of it for an hour that no worker has decided.
func (s *scene) grantByHand(key, user, hold string, slots ...string) {
	s.Helper()
	requested := holds.SlotSelection{Slots: slots}
	now := holds.Time{Time: s.redis.Time(s.Context()).Val().UTC().Truncate(time.Millisecond)}
	id := holds.NewHoldID("hall")
	if hold != "" {
		s.must(id.UnmarshalText([]byte(hold)))
	}
	one := int64(1)
	data := holds.HoldData{ResourceID: "hall", HoldID: id, RequestKey: key, UserID: user, SlotSelection: requested,
		Quantity: &one}
	m := s.message(events.BookingRequested, "hall",
		events.BookingRequestedData{RequestKey: key, UserID: user, ResourceID: "hall", SlotSelection: requested,
			Quantity: 1})
	s.answerByHand(m, holds.EventHoldCreated, id.String(),
		holds.HoldCreated{HoldData: data, CreatedAt: now, ExpiresAt: holds.Time{Time: now.Add(time.Hour)}})
}

// placed stores an outcome on a subject.
func (s *scene) placed(e events.Envelope, subject string) {
	s.Helper()
	body, err := json.Marshal(e)
	s.must(err)
	_, err = s.js.Publish(s.Context(), subject, body)
	s.must(err)
}

func (s *scene) setInventoryByHand(resource string, capacity int64) {
	s.Helper()
	m := s.message(events.InventorySet, resource, events.InventorySetData{ResourceID: resource, Capacity: capacity})
	s.answerByHand(m, holds.EventInventoryUpdated, "",
		holds.InventoryUpdated{ResourceID: resource, Slots: []holds.SlotCounts{{Slot: "stock", Capacity: capacity}}})
}

// read decodes the data of an outcome.
func read[T any](s *scene, e events.Envelope) (data T) {
	s.Helper()
	s.must(json.Unmarshal(e.Data, &data))
	return data
}

// changeRecord changes the words of a hold's record.
func (s *scene) changeRecord(hold string, change func(words []string)) {
	s.Helper()
	key := s.key("hall", "records")
	line, err := s.redis.HGet(s.Context(), key, uuidOf(hold)).Result()
	s.must(err)
	words := strings.SplitN(line, " ", 11)
	change(words)
	s.must(s.redis.HSet(s.Context(), key, uuidOf(hold), strings.Join(words, " ")).Err())
}

// claimOther lets a payment claim s.other some time ago, as claim.lua does.
func (s *scene) claimOther(ago time.Duration) {
	s.Helper()
	at := s.redis.Time(s.Context()).Val().Add(-ago).UnixMilli()
	s.changeRecord(s.other, func(words []string) { words[0], words[4], words[5] = "confirming", fmt.Sprint(at), "p-olga" })
	s.redis.ZRem(s.Context(), s.key("hall", "due"), uuidOf(s.other))
	s.redis.Del(s.Context(), s.key("hall", "hold:"+uuidOf(s.other)))
}

// commandHook calls each with the arguments of each command of a pipeline.
type commandHook struct {
	stacktest.PassHook
	each func(args []any)
}

func (h commandHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.each(cmd.Args())
		}
		return next(ctx, cmds)
	}
}

// recordedReconciler is a Reconciler whose log and metrics are recorded.
type recordedReconciler struct {
	*audit.Reconciler
	t   testing.TB
	set *telemetry.Set

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
	return s.newReconcilerWith(s.store, term, heal)
}

func (s *scene) newReconcilerWith(leases audit.Leases, term *recovery.EpochTerm, heal bool) *recordedReconciler {
	s.Helper()
	w := &recordedReconciler{t: s.TB, set: telemetry.NewSet()}
	backends := s.backends
	backends.JetStream = nil // it needs none
	w.Reconciler = audit.NewReconciler(backends, leases, term,
		audit.ReconcilerOptions{Heal: heal, Share: 1}, audit.NewMetrics(w.set), zerolog.New(w))
	return w
}

// start runs the Reconciler until stop is called or the test ends.
func (w *recordedReconciler) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = w.Run(ctx) })
	stop = func() { cancel(); running.Wait() }
	w.t.Cleanup(stop)
	return stop
}

// round runs a round, and checks the kinds of the differences that it logs, as logged returns them.
func (w *recordedReconciler) round(want ...string) {
	w.t.Helper()
	stacktest.Must(w.t, w.Round(w.t.Context()))
	if got := w.logged(); !slices.Equal(got, want) {
		w.t.Errorf("it logged %v, want %v", got, want)
	}
}

// logged returns the kinds of the differences that were logged since the last call, sorted. Those
// that were not healed have the suffix ", left".
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
		if err := json.Unmarshal(line, &entry, json.MatchCaseInsensitiveNames(true)); err != nil ||
			entry.Level != "error" || entry.Resource == "" {
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

// hookRedis lets the Reconcilers that a scene starts next use a client with a hook.
func (s *scene) hookRedis(hook redis.Hook) {
	s.Helper()
	client := stacktest.ConnectRedis(s, stacktest.Shared().RedisURL)
	client.AddHook(hook)
	s.backends.Redis = client
}

// measured returns the sum of a metric over all kinds.
func (w *recordedReconciler) measured(name string) (sum int64) {
	w.t.Helper()
	scopes, err := w.set.Produce(w.t.Context())
	stacktest.Must(w.t, err)
	for _, scope := range scopes {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					sum += p.Value
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					sum += int64(p.Value)
				}
			}
		}
	}
	return sum
}

// storePolicy stores a policy with a request-key-ttl. The first one is in force at once.
func (s *scene) storePolicy(requestKeyTTL time.Duration) {
	s.Helper()
	policy := s.policy
	policy.RequestKeyTTL = requestKeyTTL
	_, err := s.store.StorePolicy(s.Context(), policy)
	s.must(err)
}
