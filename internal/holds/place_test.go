package holds_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// TestPlace_SoldOut_RetryAtIsEarliestDeadline makes several requests in one call, some of which are
// sold out. Each of these gets the earliest deadline that may free enough, including that of a hold
// of the same call, whatever requests are between.
func TestPlace_SoldOut_RetryAtIsEarliestDeadline(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	after := func(o holds.Outcome, want time.Duration) {
		t.Helper()
		r := rejected(t, o, holds.ReasonSoldOut)
		if r.RetryAt == nil || r.RetryAt.Sub(w.now) != want {
			t.Errorf("retry_at is %v, want %v after %v", r.RetryAt, want, w.now)
		}
	}
	request := func(resource, user string, ttl int64, names ...string) holds.PlaceRequest {
		return holds.PlaceRequest{Resource: resource, User: user, Selection: slots(names...), TTLSeconds: &ttl}
	}
	w.setInventory(t, "room", slots("a"), 3)
	w.setInventory(t, "room", slots("b"), 1)
	o := w.place(t,
		request("room", "1", 300, "a"), request("room", "2", 60, "a"), request("room", "3", 600, "a", "b"),
		request("room", "4", 60, "a"), request("room", "5", 60, "b"), request("room", "6", 60, "a", "b"))
	for i, want := range []time.Duration{time.Minute, 10 * time.Minute, time.Minute} {
		after(o[3+i], want)
	}
	o = w.place(t, request("room", "4", 60, "a"), request("room", "5", 60, "b"), request("room", "6", 60, "a"), request("room", "7", 60, "a", "b"))
	for i, want := range []time.Duration{time.Minute, 10 * time.Minute, time.Minute, time.Minute} {
		after(o[i], want)
	}

	// More holds expire before the blocking one than place.lua examines: retry_at is then not later
	// than the deadline that may help.
	const many = 1000
	w.setInventory(t, "hall", slots("a"), 1)
	w.setInventory(t, "hall", slots("b"), many)
	requests := []holds.PlaceRequest{request("hall", "x", 600, "a")}
	for i := range many {
		requests = append(requests, request("hall", fmt.Sprint(i), 60, "b"))
	}
	for _, o := range w.place(t, requests...) {
		created(t, o)
	}
	after(w.place(t, request("hall", "y", 60, "a"))[0], time.Minute)
}

// TestPlace_ManyHolds_RetryAtIsNotTooLate refuses a request in the call that grants the last unit for an hour, while more
// holds than place.lua examines end before the one that frees the slot in half an hour.
func TestPlace_ManyHolds_RetryAtIsNotTooLate(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setInventory(t, "show", slots("a"), 2)
	w.setInventory(t, "show", slots("b"), 1000)
	request := func(user string, name string, ttl int64) holds.PlaceRequest {
		return holds.PlaceRequest{Resource: "show", User: user, Selection: slots(name), TTLSeconds: &ttl}
	}
	first := created(t, w.place(t, request("ana", "a", 1800))[0])
	var many []holds.PlaceRequest
	for i := range 1000 {
		many = append(many, request(fmt.Sprint("u", i), "b", 600))
	}
	w.place(t, many...)
	answers := w.place(t, request("ben", "a", 3600), request("cleo", "a", 60))
	created(t, answers[0])
	if at := rejected(t, answers[1], holds.ReasonSoldOut).RetryAt; at == nil || at.After(first.ExpiresAt.Time) {
		t.Errorf("retry at %v, although a hold on the slot ends at %v", at, first.ExpiresAt)
	}
}

// TestPlace_SoldOutOfManyResources_RunReadsFewHolds refuses requests of several resources with many holds in one run: all
// of them together examine few more holds than one would. A resource with few holds still has its own deadline.
func TestPlace_SoldOutOfManyResources_RunReadsFewHolds(t *testing.T) {
	if os.Getenv("HOLDFAST_LOCK_STRATEGY") == "optimistic" {
		t.Skip("a transaction has a run for each resource")
	}
	t.Parallel()
	w := newHarnessOn(t, stacktest.StartRedis(t).RedisURL)
	const resources, many = 4, 1000
	longer := int64(1800)
	var refused []holds.PlaceRequest
	small := holds.PlaceRequest{Resource: "small", User: "x", Selection: slots("a"), TTLSeconds: &longer}
	w.setInventory(t, "small", slots("a", "b"), 1)
	frees := created(t, w.place(t, small)[0]).ExpiresAt
	w.place(t, holds.PlaceRequest{Resource: "small", User: "z", Selection: slots("b")})
	for r := range resources {
		resource := fmt.Sprint("hall", r)
		w.setInventory(t, resource, slots("a"), 1)
		w.setInventory(t, resource, slots("b"), many)
		requests := []holds.PlaceRequest{{Resource: resource, User: "x", Selection: slots("a"), TTLSeconds: &longer}}
		for i := range many {
			requests = append(requests, holds.PlaceRequest{Resource: resource, User: fmt.Sprint(i), Selection: slots("b")})
		}
		w.place(t, requests...)
		refused = append(refused, holds.PlaceRequest{Resource: resource, User: "y", Selection: slots("a")})
	}
	small.User = "y"
	stacktest.Must(t, w.client.ConfigResetStat(t.Context()).Err())
	for _, o := range w.place(t, append(refused, small)...) {
		if at := rejected(t, o, holds.ReasonSoldOut).RetryAt; at == nil || o.Resource == "small" && !at.Equal(frees.Time) {
			t.Errorf("%s: retry at %v, the hold on the slot of the small one ends at %v", o.Resource, at, frees)
		}
	}
	stats := recovery.InfoFields(w.client.Info(t.Context(), "commandstats").Val())
	var records int
	if _, err := fmt.Sscanf(stats["cmdstat_hget"], "calls=%d", &records); err != nil || records > 2*many {
		t.Errorf("%d records were read, want at most %d (%v)", records, 2*many, err)
	}
}

// TestPlace_RequestAnswer_OutlastsItsHold checks how long the answer to a request is remembered:
// longer than its hold lives, during the whole decision of a payment, but not for ever.
func TestPlace_RequestAnswer_OutlastsItsHold(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	ctx := t.Context()
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", RequestKey: "k"})[0]).HoldID
	memory := func() time.Duration { return w.client.PTTL(ctx, holds.Key(w.namespace, "room", "request:k")).Val() }
	if got := memory(); got <= w.policy.RequestKeyTTL || got > w.policy.RequestKeyTTL+w.policy.HoldTTL {
		t.Errorf("answer of a live hold: %v", got)
	}
	longer := w.extend(t, holds.ExtendRequest{EventID: "longer", Hold: hold, TTLSeconds: int64(w.policy.HoldTTLMax / time.Second)}).Data.(holds.HoldExtended)
	if got := memory(); got <= w.policy.RequestKeyTTL+w.policy.HoldTTL || got > w.policy.RequestKeyTTL+w.policy.HoldTTLMax {
		t.Errorf("answer of an extended hold: %v", got)
	}
	if got := w.client.PTTL(ctx, holds.Key(w.namespace, "room", "extension:longer")).Val(); got <= 0 || got > w.policy.RequestKeyTTL {
		t.Errorf("answer of an extension: %v", got)
	}
	w.extend(t, holds.ExtendRequest{EventID: "start", Hold: hold, PaymentStarted: true})
	started := w.client.PExpireTime(ctx, holds.Key(w.namespace, "room", "started:"+hold.UUID)).Val()
	if answer := w.client.PExpireTime(ctx, holds.Key(w.namespace, "room", "request:k")).Val(); started != answer {
		t.Errorf("start of a payment until %v, want %v, as the answer", started, answer)
	}
	if got := w.client.PExpireTime(ctx, holds.Key(w.namespace, "room", "hold:"+hold.UUID)).Val(); got.Milliseconds() != longer.ExpiresAt.UnixMilli() {
		t.Errorf("the key of the hold expires at %v, the hold at %v", got, longer.ExpiresAt)
	}
	w.claim(t, hold, "p")
	if got := memory(); got != -1 {
		t.Errorf("answer of a claimed hold: %v, want no TTL", got)
	}
	w.pay(t, hold, "p")
	if got := memory(); got <= 0 || got > w.policy.RequestKeyTTL {
		t.Errorf("answer of an ended hold: %v", got)
	}
	rejected(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben", RequestKey: "refused"})[0], holds.ReasonSoldOut)
	if got := w.client.PTTL(ctx, holds.Key(w.namespace, "room", "request:refused")).Val(); got <= w.policy.RequestKeyTTL-time.Minute || got > w.policy.RequestKeyTTL {
		t.Errorf("answer of a refused request: %v", got)
	}
	w.release(t, holds.ReleaseRequest{Resource: "room", RequestKey: "never"})
	if got := w.client.PTTL(ctx, holds.Key(w.namespace, "room", "request:never")).Val(); got <= w.policy.RequestKeyTTL-time.Minute {
		t.Errorf("answer of a cancelled key: %v", got)
	}
}

// TestPlace_NightPassedSinceStored_IsGranted requests a night that has passed since the event was
// stored. An event that waited through an outage, or is redelivered, gets the answer that it would
// have had.
func TestPlace_NightPassedSinceStored_IsGranted(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", nights(-5, 3), 1)
	old := holds.PlaceRequest{Resource: "room", User: "ana", Selection: nights(-5, 3), StoredAt: time.Now().AddDate(0, 0, -5)}
	created(t, w.place(t, old)[0])
	old.StoredAt = time.Now()
	if got := rejected(t, w.place(t, old)[0], holds.ReasonInvalidRequest); got.Field != "check_in" {
		t.Errorf("%+v", got)
	}
}

// TestPlace_IndexNamesEndedHold_IsGranted makes the index contain an ended hold of the user: it
// does not prevent a new hold. A hold that ends does not remove the index of a later one.
func TestPlace_IndexNamesEndedHold_IsGranted(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", slots("a"), 2)
	ctx, users := t.Context(), holds.Key(w.namespace, "room", "users")
	request := func(key string) holds.PlaceRequest {
		return holds.PlaceRequest{Resource: "room", User: "ana", RequestKey: key, Selection: slots("a")}
	}
	first := created(t, w.place(t, request("k1"))[0]).HoldID
	index := record.IndexField("ana", "a")
	if id := w.client.HGet(ctx, users, index).Val(); id != first.UUID {
		t.Fatalf("the index contains %q, want %s", id, first.UUID)
	}
	w.client.HDel(ctx, users, index) // like a worker of a version with another index
	second := created(t, w.place(t, request("k2"))[0]).HoldID
	w.release(t, holds.ReleaseRequest{Hold: first})
	rejected(t, w.place(t, request("k3"))[0], holds.ReasonAlreadyHolding)
	w.release(t, holds.ReleaseRequest{Hold: second})
	w.client.HSet(ctx, users, index, first.UUID)
	created(t, w.place(t, request("k4"))[0])
}

// TestPlace_BatchExceedsScriptLimit_AnswersAll makes more requests for one resource in one call
// than a script decides at once, and some for another resource of the same partition. All are
// answered, and the counts match the granted holds.
func TestPlace_BatchExceedsScriptLimit_AnswersAll(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	const total = 2500
	two := samePartition(2)
	hot, other := two[0], two[1]
	w.setInventory(t, hot, holds.SlotSelection{}, total-10)
	w.setInventory(t, other, holds.SlotSelection{}, 1)
	requests := []holds.PlaceRequest{{Resource: other, User: "ana"}}
	for i := range total {
		requests = append(requests, holds.PlaceRequest{Resource: hot, User: fmt.Sprint("user-", i)})
	}
	requests = append(requests, holds.PlaceRequest{Resource: other, User: "ben"})
	outcomes := w.place(t, requests...)
	for i, o := range outcomes {
		want := holds.EventHoldCreated
		if i > total-10 { // the first request is for the other resource
			want = holds.EventHoldRejected + " " + holds.ReasonSoldOut
		}
		if brief(o) != want {
			t.Fatalf("request %d: %s, want %s", i, brief(o), want)
		}
	}
	if slot := w.available(t, hot, holds.SlotSelection{})[0]; slot.Held != total-10 || slot.Available != 0 {
		t.Errorf("%d holds were granted: %+v", total-10, slot)
	}
	for name, want := range map[string]int64{"records": total - 10, "due": total - 10} {
		key := holds.Key(w.namespace, hot, name)
		if got := w.client.HLen(t.Context(), key).Val() + w.client.ZCard(t.Context(), key).Val(); got != want {
			t.Errorf("%s has %d holds, want %d", name, got, want)
		}
	}
}

// TestPlace_SameSlotsWrittenOtherwise_SameAnswer requests with a used key the same set of slots in the other way of
// writing it, and with other metadata. Neither is another content: the answer is the first one, with what the first
// request wrote.
func TestPlace_SameSlotsWrittenOtherwise_SameAnswer(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	stay := nights(3, 2)
	in, err := time.Parse(holds.DateFormat, stay.CheckIn)
	stacktest.Must(t, err)
	named := slots(in.AddDate(0, 0, 1).Format(holds.DateFormat), stay.CheckIn)
	w.setInventory(t, "room", stay, 1)
	check := func(what string, got holds.HoldData, replayed bool) {
		t.Helper()
		if !replayed || string(got.Metadata) != `{"cart":1}` || got.CheckIn != stay.CheckIn || got.Slots != nil {
			t.Errorf("%s: replayed %v, data %+v", what, replayed, got)
		}
	}
	request := holds.PlaceRequest{Resource: "room", User: "ana", RequestKey: "granted", Selection: stay, Metadata: []byte(`{"cart":1}`)}
	again := request
	again.Selection, again.Metadata = named, []byte(`{"cart":2}`)
	first := created(t, w.place(t, request)[0])
	second := created(t, w.place(t, again)[0])
	check("the grant", second.HoldData, second.Replayed)
	if second.HoldID != first.HoldID {
		t.Errorf("the second answer is %s, want %s", second.HoldID, first.HoldID)
	}
	request.User, request.RequestKey = "ben", "refused"
	again.User, again.RequestKey = "ben", "refused"
	rejected(t, w.place(t, request)[0], holds.ReasonSoldOut)
	refused := rejected(t, w.place(t, again)[0], holds.ReasonSoldOut)
	check("the refusal", refused.HoldData, refused.Replayed)
}

// TestPlace_MillenniaOfNights_AreCounted requests more nights than fit into a time.Duration.
func TestPlace_MillenniaOfNights_AreCounted(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	stay := holds.SlotSelection{CheckIn: "0001-01-01", CheckOut: "9999-12-31"}
	refused, is := w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", Selection: stay})[0].Data.(holds.HoldRejected)
	if !is || !strings.Contains(refused.Message, "3652058 nights are more than the 30 allowed") {
		t.Errorf("got %+v", refused)
	}
}
