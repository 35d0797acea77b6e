package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// newHarnessWithRedis returns a system with its own Redis, which a test may flush and kill.
func newHarnessWithRedis(t *testing.T, o stack.Options) (*harness, *stack.Stack) {
	t.Helper()
	o.Redis = true
	own := stacktest.Start(t, o)
	shared := stacktest.Shared()
	return newHarnessOn(t, urls{shared.NATSURL, own.RedisURL, shared.PostgresURL}), own
}

// epochs reads the epochs in Postgres.
func (s *harness) epochs() recovery.Epochs {
	s.t.Helper()
	if s.store == nil {
		var err error
		if s.store, err = store.Open(s.t.Context(), s.urls.postgres, s.namespace); err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(s.store.Close)
	}
	epochs, err := s.store.Epochs(context.Background())
	stacktest.Must(s.t, err)
	return epochs
}

// epoch reads the epoch of the partition of the resource hall.
func (s *harness) epoch() recovery.Epoch {
	s.t.Helper()
	return s.epochs()[record.Partition("hall")]
}

// awaitRebuilt waits until Redis is rebuilt, and the partition of the resource hall has a later epoch than
// after.
func (s *harness) awaitRebuilt(after recovery.Epoch) (e recovery.Epoch) {
	s.t.Helper()
	stacktest.Eventually(s.t, "redis to be rebuilt", func() bool {
		epochs := s.epochs()
		e = epochs[record.Partition("hall")]
		return epochs.Complete() == record.AllPartitions && e.Name != after.Name
	})
	return e
}

// losePartition removes all keys of a resource's partition.
func (s *harness) losePartition(t *testing.T, resource string) {
	t.Helper()
	keys, err := s.redis.Keys(t.Context(), fmt.Sprintf("%s:{%d}:*", s.namespace, record.Partition(resource))).Result()
	if err != nil || len(keys) == 0 {
		t.Fatalf("%v %v", keys, err)
	}
	stacktest.Must(t, s.redis.Del(t.Context(), keys...).Err())
}

// exchange is an event and its answer.
type exchange struct {
	subject string
	body    []byte
	answer  []byte
	outcome events.Envelope
}

// request publishes an event, possibly again, and waits for its answer.
func (s *harness) request(subject string, body []byte) exchange {
	s.t.Helper()
	m := events.NewStructuredMsg(body)
	m.Subject = subject // without Nats-Msg-Id, else the stream drops a duplicate
	answer, err := s.client.Request(stacktest.WaitContext(s.t), m)
	stacktest.Must(s.t, err)
	if answer.DeadLetter != nil {
		s.t.Fatalf("%s was dead-lettered: %+v", subject, answer.DeadLetter)
	}
	return exchange{subject, body, answer.Body, answer.Envelope}
}

// scenario publishes every kind of request of which Redis remembers something.
type scenario struct {
	*harness
	exchanges []exchange
}

func (y *scenario) step(event, resource string, data any, want string) events.Envelope {
	y.t.Helper()
	m, _, err := client.NewEvent(y.subjects, event, resource, "/test", data)
	stacktest.Must(y.t, err)
	a := y.request(m.Subject, m.Data)
	got := strings.TrimSuffix(strings.TrimPrefix(a.outcome.Type, "holdfast."), ".v1")
	var reason struct {
		Reason string `json:"reason"`
	}
	stacktest.Must(y.t, json.Unmarshal(a.outcome.Data, &reason))
	if got = strings.TrimSpace(got + " " + reason.Reason); got != want {
		y.t.Fatalf("%s was answered %s, want %s: %s", event, got, want, a.answer)
	}
	y.exchanges = append(y.exchanges, a)
	return a.outcome
}

// run publishes events of every kind, with every outcome that leaves data in Redis.
func (y *scenario) run() {
	y.t.Helper()
	in := time.Now().UTC().AddDate(0, 0, 9)
	stay := holds.SlotSelection{CheckIn: in.Format(holds.DateFormat),
		CheckOut: in.AddDate(0, 0, 3).Format(holds.DateFormat)}
	seats := func(names ...string) holds.SlotSelection { return holds.SlotSelection{Slots: names} }
	one := func(user, key string, of holds.SlotSelection, ttl int64) events.BookingRequestedData {
		return bookingData("hall", user, key, of, ttl)
	}
	request := func(data events.BookingRequestedData, want string) string {
		y.t.Helper()
		return y.step(events.BookingRequested, data.ResourceID, data, want).Subject
	}
	cancel := func(hold, want string) {
		y.t.Helper()
		y.step(events.BookingCancelled, "hall", events.BookingCancelledData{HoldID: hold}, want)
	}
	cancelKey := func(key, want string) {
		y.t.Helper()
		y.step(events.BookingCancelled, "hall", events.BookingCancelledData{ResourceID: "hall", RequestKey: key}, want)
	}
	extend := func(hold string, ttl int64, want string) {
		y.t.Helper()
		y.step(events.BookingExtended, "hall", events.BookingExtendedData{HoldID: hold, TTLSeconds: ttl}, want)
	}
	start := func(hold, want string) {
		y.t.Helper()
		y.step(events.PaymentStarted, "hall", events.PaymentStartedData{HoldID: hold}, want)
	}
	pay := func(hold, payment, want string) {
		y.t.Helper()
		y.step(events.PaymentConfirmed, "hall", events.PaymentConfirmedData{HoldID: hold, PaymentID: payment}, want)
	}

	y.step(events.InventorySet, "double",
		events.InventorySetData{ResourceID: "double", SlotSelection: stay, Capacity: 3}, "inventory.updated")
	y.step(events.InventorySet, "hall",
		events.InventorySetData{ResourceID: "hall", SlotSelection: seats("A", "B", "C", "D", "E", "F", "G"), Capacity: 1},
		"inventory.updated")
	y.step(events.InventorySet, "shoes", events.InventorySetData{ResourceID: "shoes", Capacity: 50}, "inventory.updated")

	plain := bookingData("double", "ana", "k-plain", stay, 3600)
	plain.TTLSeconds, plain.Quantity = nil, 2
	plain.Metadata = []byte(`{"note":"two  rooms, \"é\" \u00fc \ud83d\ude00 <b> \/","n":[1,2.50,null]}`)
	request(plain, "hold.created")
	again := plain
	again.Metadata = nil
	request(again, "hold.created") // replayed
	other := plain
	other.Quantity = 1
	request(other, "hold.rejected request_key_reused")
	odd := bookingData("double", `o'"\/:{1}*?>%~`, `k:"\/{}`, stay, 3600) // every special character that a name can have
	odd.ResourceID, odd.SlotSelection = "shoes", holds.SlotSelection{}
	request(odd, "hold.created")
	twice := plain
	twice.RequestKey = "k-twice"
	request(twice, "hold.rejected already_holding")
	request(bookingData("double", "ben", "k-ben", stay, 3600), "hold.created")
	full := bookingData("double", "cleo", "k-full", stay, 3600)
	full.Metadata = []byte(`{"shop":"x y"}`)
	request(full, "hold.rejected sold_out")
	full.Metadata = nil
	request(full, "hold.rejected sold_out") // replayed
	request(bookingData("hall", "ana", "k-none", seats("Z"), 60), "hold.rejected unknown_resource")
	request(bookingData("hall", "ana", "k-invalid", seats("A"), 100000), "hold.rejected invalid_request")
	for i := range 10 {
		request(bookingData("shoes", "dan", fmt.Sprintf("k-dan-%d", i), holds.SlotSelection{}, 3600-int64(i)),
			map[bool]string{true: "hold.created", false: "hold.rejected already_holding"}[i == 0])
	}

	cancelKey("k-never", "booking.cancelled")
	request(one("eve", "k-never", seats("A"), 60), "hold.rejected cancelled")
	released := request(one("eve", "k-a", seats("A"), 60), "hold.created")
	cancel(released, "hold.released")
	cancel(released, "hold.release_rejected released")
	request(one("eve", "k-b", seats("A"), 60), "hold.created")
	cancelKey("k-b", "hold.released")
	request(one("eve", "k-c", seats("A"), 1200), "hold.created")

	extended := request(one("fay", "k-d", seats("B"), 60), "hold.created")
	extend(extended, 1800, "hold.extended")
	start(extended, "hold.extended")
	start(extended, "hold.extension_rejected already_started")
	extend(extended, 5, "hold.extended")
	extend(extended, 100000, "hold.extension_rejected invalid_request")
	long := request(one("gus", "k-e", seats("C"), 1800), "hold.created")

	paid := request(one("hal", "k-f", seats("D"), 60), "hold.created")
	start(paid, "hold.extended")
	pay(paid, "p1", "hold.confirmed")
	pay(paid, "p2", "hold.confirm_rejected already_confirmed")
	extend(paid, 60, "hold.extension_rejected confirmed")
	gone := request(one("ida", "k-g", seats("E"), 60), "hold.created")
	pay(gone, "p3", "hold.confirmed")
	y.step(events.ReservationCancelled, "hall", events.ReservationCancelledData{HoldID: gone}, "reservation.cancelled")
	pay("hall."+strings.Repeat("0", 32), "p4", "hold.confirm_rejected unknown_hold")

	expired := request(one("joe", "k-h", seats("F"), 1), "hold.created")
	late := request(one("kim", "k-i", seats("G"), 1), "hold.created")
	y.awaitExpired(2)
	extend(long, 3600, "hold.extension_rejected limit_reached") // because of the time that has passed
	extend(expired, 60, "hold.extension_rejected expired")
	cancel(expired, "hold.release_rejected expired")
	pay(late, "p5", "hold.confirmed")
	request(one("leo", "k-j", seats("G"), 60), "hold.rejected sold_out")
}

// contents returns the data of a namespace that a rebuild must restore, by key. It leaves out the
// keys of work in progress, which end with that work.
func (s *harness) contents() map[string]any {
	s.t.Helper()
	ctx := s.t.Context()
	all := make(map[string]any)
	keys := s.redis.Scan(ctx, 0, s.namespace+":*", 1000).Iterator()
	for keys.Next(ctx) {
		key := keys.Val()
		name := strings.SplitN(key, "}:", 2)[1]
		switch parts := strings.SplitN(name, ":", 3); {
		case name == "epoch", name == "primary", name == "fence", name == "applied", name == "marking", len(parts) > 1 &&
			(parts[1] == "rev" || parts[1] == "lock" || parts[1] == "locks" || parts[1] == "waited_for"):
			continue
		}
		switch kind := s.redis.Type(ctx, key).Val(); kind {
		case "string":
			all[name] = value{s.redis.Get(ctx, key).Val(), s.redis.PExpireTime(ctx, key).Val()}
		case "hash":
			all[name] = s.redis.HGetAll(ctx, key).Val()
		case "zset":
			all[name] = s.redis.ZRangeWithScores(ctx, key, 0, -1).Val()
		default:
			s.t.Errorf("%s is a %s", key, kind)
		}
	}
	stacktest.Must(s.t, keys.Err())
	return all
}

// value is a string and its expiry time, which is negative when it never expires.
type value struct {
	text    string
	expires time.Duration
}

// rebuiltTolerance is by how much the expiry of an ended hold may differ after a rebuild. The
// outcome has the time at which the hold ended, not the moment at which it was announced or its
// claim was settled, which comes a little later.
const rebuiltTolerance = 10 * time.Second

// sameContents compares the data before and after a rebuild.
func sameContents(t *testing.T, had, has map[string]any) {
	t.Helper()
	near := func(a, b float64) bool {
		return a == b || max(a, b)-min(a, b) < float64(rebuiltTolerance.Milliseconds())
	}
	for _, name := range slices.Sorted(maps.Keys(had)) {
		if _, found := has[name]; !found {
			t.Errorf("%s is missing, it was %v", name, had[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(has)) {
		var same bool
		switch now := has[name].(type) {
		case value:
			was, _ := had[name].(value)
			same = now.text == was.text && (now.expires < 0) == (was.expires < 0) &&
				near(float64(now.expires.Milliseconds()), float64(was.expires.Milliseconds()))
		case map[string]string:
			was, _ := had[name].(map[string]string)
			same = maps.Equal(now, was)
		case []redis.Z:
			was, _ := had[name].([]redis.Z)
			byMember := func(a, b redis.Z) int { return strings.Compare(a.Member.(string), b.Member.(string)) }
			slices.SortFunc(now, byMember)
			slices.SortFunc(was, byMember)
			same = slices.EqualFunc(now, was, func(a, b redis.Z) bool {
				// The agenda may have an earlier time for a resource, never a later one.
				return a.Member == b.Member && (near(a.Score, b.Score) || name == "agenda" && b.Score < a.Score)
			})
		}
		if !same {
			t.Errorf("%s\nis  %v\nwas %v", name, has[name], had[name])
		}
	}
}

// TestRedisLost_Rebuilt_EqualsWhatWasThere loses all data of Redis after events of every kind. The
// rebuilt data equals the data before, and every repeated event gets the same answer as before,
// byte for byte.
func TestRedisLost_Rebuilt_EqualsWhatWasThere(t *testing.T) {
	t.Parallel()
	s, _ := newHarnessWithRedis(t, stack.Options{})
	settings := []string{"HOLDFAST_LATE_PAYMENT=accept_if_free", "HOLDFAST_HOLD_LIFETIME_MAX=1h"}
	worker := s.startWorker(settings...)
	s.startWorker(settings...)
	y := &scenario{harness: s}
	y.run()
	stacktest.Eventually(t, "every expiry to be announced", func() bool { return !has(s.contents(), "departing") })
	before, had := s.epoch(), s.contents()
	stacktest.Must(t, s.redis.FlushAll(t.Context()).Err())
	s.awaitRebuilt(before)
	sameContents(t, had, s.contents())
	if len(had) < 55 {
		t.Errorf("there were only %d keys", len(had))
	}
	for _, a := range y.exchanges {
		if repeated := s.request(a.subject, a.body); !bytes.Equal(repeated.answer, a.answer) {
			t.Errorf("%s: repeated, the answer is\n%s\nbefore it was\n%s", a.body, repeated.answer, a.answer)
		}
	}
	sameContents(t, had, s.contents())
	worker.awaitReady(t)
}

// has reports whether there is a key whose last part is last.
func has(contents map[string]any, last string) bool {
	for name := range contents {
		if strings.HasSuffix(name, ":"+last) {
			return true
		}
	}
	return false
}
