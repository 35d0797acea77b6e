package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// TestRebuild_DecisionNotPublished_ResolvesHold loses Redis after a worker has decided and before it has
// published the decision. The rebuilt holds take no more than before, and pending events get the answer of
// that decision.
func TestRebuild_DecisionNotPublished_ResolvesHold(t *testing.T) {
	t.Parallel()
	const (
		key, payment     = "k1", "p1"
		rejectedExpired  = "hold.confirm_rejected expired"
		rejectedReleased = "hold.confirm_rejected released"
	)
	type deed func(t *testing.T, w *harness, c *replayLog, hold holds.HoldID)
	wait := func(t *testing.T, w *harness, c *replayLog, hold holds.HoldID) {
		request := holds.ConfirmRequest{Hold: hold, PaymentID: payment}
		c.payments = append(c.payments, holds.Payment{ConfirmRequest: request, At: holds.Time{Time: w.now}})
	}
	cancel := func(byKey bool) deed {
		return func(t *testing.T, w *harness, c *replayLog, hold holds.HoldID) {
			r := holds.ReleaseRequest{EventID: "cancelled", Resource: "room", Hold: hold}
			if byKey {
				r.Hold, r.RequestKey = holds.HoldID{}, key
			}
			c.cancels = append(c.cancels, pendingCancellation{r, holds.Time{Time: w.now}})
		}
	}
	pass := func(d time.Duration) deed {
		return func(t *testing.T, w *harness, _ *replayLog, _ holds.HoldID) { w.pass(d) }
	}
	unpublished := func(do deed) deed {
		return func(t *testing.T, w *harness, c *replayLog, hold holds.HoldID) {
			kept := w.outcomes
			do(t, w, c, hold)
			w.outcomes = kept
		}
	}
	release := func(t *testing.T, w *harness, _ *replayLog, hold holds.HoldID) {
		w.release(t, hold, "cancelled")
	}
	extend := func(t *testing.T, w *harness, _ *replayLog, hold holds.HoldID) {
		if o := w.extend(t, holds.ExtendRequest{Hold: hold, TTLSeconds: 3000}); o.Event != holds.EventHoldExtended {
			t.Fatalf("extend: %s", brief(o))
		}
	}
	sweep := func(t *testing.T, w *harness, _ *replayLog, _ holds.HoldID) { w.sweep(t) }
	pay := func(t *testing.T, w *harness, _ *replayLog, hold holds.HoldID) { w.pay(t, hold, payment) }
	other := func(t *testing.T, w *harness, _ *replayLog, _ holds.HoldID) {
		created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben", RequestKey: "k2"})[0])
	}
	elsewhere := func(t *testing.T, w *harness, _ *replayLog, _ holds.HoldID) {
		slot := holds.SlotSelection{Slots: []string{"other"}}
		w.setInventory(t, "room", slot, 1)
		created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben", RequestKey: "k2", Selection: slot})[0])
	}
	forgetCreated := func(t *testing.T, w *harness, c *replayLog, _ holds.HoldID) {
		isCreated := func(o holds.StoredOutcome) bool { return o.Event == holds.EventHoldCreated }
		w.outcomes = slices.DeleteFunc(w.outcomes, isCreated)
	}
	backwards := func(t *testing.T, w *harness, _ *replayLog, _ holds.HoldID) { w.now = w.now.Add(-time.Hour) }

	for name, c := range map[string]struct {
		deeds       []deed
		state       holds.State // of the hold after the rebuild, "" when it is not known
		held        int64
		paid        string // outcome of a payment after that
		redelivered string // outcome of the request when it is delivered again
	}{
		"no event": {
			nil, holds.Held, 1, "hold.confirmed", "hold.created",
		},
		"extended": {
			[]deed{extend, pass(40 * time.Minute)}, holds.Held, 1, "hold.confirmed", "hold.created",
		},
		"extended, not published": {
			[]deed{unpublished(extend)}, holds.Held, 1, "hold.confirmed", "hold.created",
		},
		"extended, not published, deadline passed": {
			[]deed{unpublished(extend), pass(40 * time.Minute)}, holds.Expired, 0, rejectedExpired, "hold.created",
		},
		"extended, not published, later grant on the resource": {
			[]deed{unpublished(extend), pass(40 * time.Minute), elsewhere, backwards}, holds.Expired, 0, rejectedExpired, "hold.created",
		},
		"payment pending, deadline passed": {
			[]deed{wait, pass(time.Hour)}, holds.Confirming, 1, "hold.confirmed", "hold.created",
		},
		"payment claimed": {
			[]deed{wait, unpublished(func(t *testing.T, w *harness, _ *replayLog, hold holds.HoldID) {
				w.claimUndecided(t, hold, payment)
			}), pass(time.Hour)}, holds.Confirming, 1, "hold.confirmed", "hold.created",
		},
		"payment pending, stored after the deadline": {
			[]deed{pass(time.Hour), wait}, holds.Expired, 0, rejectedExpired, "hold.created",
		},
		"payment pending, slot granted to another user": {
			[]deed{wait, pass(time.Hour), other}, holds.Expired, 1, rejectedExpired, "hold.created",
		},
		"payment pending, later grant of another slot": {
			[]deed{wait, pass(time.Hour), elsewhere}, holds.Expired, 0, rejectedExpired, "hold.created",
		},
		"payment decided in postgres, not published": {
			[]deed{wait, unpublished(pay)}, holds.Confirmed, 0, "hold.confirmed", "hold.created",
		},
		"payment decided in postgres, not published, its event removed": {
			[]deed{unpublished(pay), pass(time.Hour)}, holds.Confirmed, 0, "hold.confirmed", "hold.created",
		},
		"payment published, not acknowledged": {
			[]deed{wait, pay}, holds.Confirmed, 0, "hold.confirmed", "hold.created",
		},
		"cancellation pending": {
			[]deed{cancel(false)}, holds.Released, 0, rejectedReleased, "hold.created",
		},
		"cancellation by key pending": {
			[]deed{cancel(true)}, holds.Released, 0, rejectedReleased, "hold.created",
		},
		"cancelled, not published, slot granted to another user": {
			[]deed{cancel(false), unpublished(release), other}, holds.Released, 1, rejectedReleased, "hold.created",
		},
		"cancellation pending, stored after the deadline": {
			[]deed{pass(time.Hour), cancel(false)}, holds.Expired, 0, rejectedExpired, "hold.created",
		},
		"cancellation rejected, not acknowledged": {
			[]deed{cancel(false), pass(time.Hour), release}, holds.Expired, 0, rejectedExpired, "hold.created",
		},
		"expired, not published": {
			[]deed{pass(time.Hour), unpublished(sweep)}, holds.Expired, 0, rejectedExpired, "hold.created",
		},
		"expired, slot granted to another user, clock set back": {
			[]deed{pass(time.Hour), other, backwards}, holds.Expired, 1, rejectedExpired, "hold.created",
		},
		"creation not published": {
			[]deed{forgetCreated}, "", 0, "hold.confirm_rejected unknown_hold", "hold.created new",
		},
		"creation not published, release published": {
			[]deed{release, forgetCreated}, holds.Released, 0, rejectedReleased, "hold.created replayed",
		},
	} {
		for _, when := range []string{lostAll, lostSinceRequest, lostSinceHold} {
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				if when == lostSinceHold && (strings.HasPrefix(name, "creation not published") ||
					strings.HasSuffix(name, "its event removed")) {
					return // Redis has the hold, and nothing names it
				}
				w := newHarness(t)
				w.setInventory(t, "room", holds.SlotSelection{}, 1)
				request := holds.PlaceRequest{EventID: "requested", Resource: "room", User: "ana", RequestKey: key}
				lose := w.markAndCopy(t)
				first := w.place(t, request)[0]
				hold := created(t, first)
				if when == lostSinceHold {
					lose = w.markAndCopy(t)
				}
				replay := &replayLog{harness: w}
				for _, do := range c.deeds {
					do(t, w, replay, hold.HoldID)
				}
				w.takeAnnounced()
				if when == lostAll {
					w.loseAndRebuild(t, replay)
				} else {
					lose()
					if r := w.resume(t, replay); !r.Resumed {
						t.Errorf("redis was rebuilt: %+v", r)
					}
				}
				view, _, err := w.service.GetHold(t.Context(), hold.HoldID)
				if err != nil || view.State != c.state {
					t.Errorf("hold is %q %v, want %q", view.State, err, c.state)
				}
				if held := w.held(t, "room"); held != c.held {
					t.Errorf("%d held, want %d", held, c.held)
				}
				w.sweep(t)
				announced := slices.DeleteFunc(w.takeAnnounced(), func(o holds.Outcome) bool { return o.Hold != hold.HoldID })
				expired := c.state == holds.Expired && !wasPublished(w, hold.HoldID, holds.EventHoldExpired)
				if len(announced) > 1 || expired && len(announced) == 0 {
					t.Errorf("announced: %+v", announced)
				}
				again := w.place(t, request)[0]
				got := brief(again)
				switch data, ok := again.Data.(holds.HoldCreated); {
				case ok && data.HoldID != hold.HoldID:
					got += " new"
				case ok && data.Replayed:
					got += " replayed"
				case ok && exactText(t, again) != exactText(t, first):
					got += " changed"
				}
				if got != c.redelivered {
					t.Errorf("redelivered: %s, want %s", got, c.redelivered)
				}
				if got := brief(w.pay(t, hold.HoldID, payment)); got != c.paid {
					t.Errorf("payment: %s, want %s", got, c.paid)
				}
			})
		}
	}
}

// What Redis loses.
const (
	lostAll          = "everything lost"
	lostSinceRequest = "lost since the request"
	lostSinceHold    = "lost since the hold"
)

// markAndCopy writes markers, and returns a function that makes Redis lose all later writes.
func (w *harness) markAndCopy(t *testing.T) (lose func()) {
	t.Helper()
	w.mark(t)
	return w.copyKeys(t)
}

// TestRebuild_GrantWhileClockWasAhead_LaterHoldsLive grants a hold, or accepts a late payment, while the clock of Redis is an
// hour ahead, and grants holds after it is right again, with a deadline before that grant. These stay live when Redis is
// rebuilt or resumed, and the hold that was there before the grant has expired with it.
func TestRebuild_GrantWhileClockWasAhead_LaterHoldsLive(t *testing.T) {
	t.Parallel()
	for granted, live := range map[string]int64{"request": 3, "late payment": 2} {
		for _, when := range []string{lostAll, lostSinceRequest} {
			t.Run(granted+", "+when, func(t *testing.T) {
				t.Parallel()
				w := newHarness(t)
				w.setPolicy(t, func(p *holds.Policy) { p.LatePayment = holds.LateAcceptedIfFree })
				w.setInventory(t, "room", holds.SlotSelection{}, 5)
				lose := w.markAndCopy(t)
				at := func(ahead time.Duration, do func() holds.Outcome) holds.HoldID {
					w.pass(ahead + time.Second)
					o := do()
					w.pass(-ahead)
					w.outcomes[len(w.outcomes)-1].StoredAt = holds.Time{Time: w.now} // the clock of JetStream is right
					return o.Hold
				}
				request := func(user string) func() holds.Outcome {
					return func() holds.Outcome { return w.place(t, holds.PlaceRequest{Resource: "room", User: user})[0] }
				}
				before := at(0, request("ana"))
				if granted == "request" {
					at(time.Hour, request("ben"))
				} else {
					at(time.Hour, func() holds.Outcome { return w.pay(t, before, "late") })
				}
				after := at(0, request("cleo"))
				at(0, request("dan"))
				w.takeAnnounced() // ana's hold was expired by the grant, which was not published
				if when == lostAll {
					w.loseAndRebuild(t, &replayLog{})
				} else {
					lose()
					if r := w.resume(t, &replayLog{harness: w}); !r.Resumed {
						t.Errorf("redis was rebuilt: %+v", r)
					}
				}
				for id, want := range map[holds.HoldID]holds.State{before: holds.Expired, after: holds.Held} {
					if view, _, err := w.service.GetHold(t.Context(), id); err != nil || view.State != want {
						t.Errorf("hold is %q %v, want %q", view.State, err, want)
					}
				}
				if held := w.held(t, "room"); held != live {
					t.Errorf("%d held, want %d", held, live)
				}
				if got := brief(w.pay(t, after, "p")); got != "hold.confirmed" {
					t.Errorf("payment before the deadline: %s", got)
				}
			})
		}
	}
}

// TestRebuild_LatePaymentNotPublished_RestoresBothRecords pays an expired hold late and does not publish it.
// The rebuild restores the late record as confirmed and the hold as expired.
func TestRebuild_LatePaymentNotPublished_RestoresBothRecords(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setPolicy(t, func(p *holds.Policy) { p.LatePayment = holds.LateAcceptedIfFree })
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	w.pass(time.Hour)
	w.sweep(t)
	request := holds.ConfirmRequest{Hold: hold.HoldID, PaymentID: "p"}
	pending := []holds.Payment{{ConfirmRequest: request, At: holds.Time{Time: w.now}}}
	kept := w.outcomes
	if got := brief(w.pay(t, hold.HoldID, "p")); got != "hold.confirmed late" {
		t.Fatalf("late payment: %s", got)
	}
	w.outcomes = kept
	records := func() map[string]string {
		return w.client.HGetAll(t.Context(), w.key("room", "records")).Val()
	}
	had := records()
	w.loseAndRebuild(t, &replayLog{payments: pending})
	if has := records(); len(had) != 2 || !maps.Equal(has, had) {
		t.Errorf("records are\n%v, want\n%v", has, had)
	}
}

// wasPublished reports whether an event of a hold was published.
func wasPublished(w *harness, id holds.HoldID, event string) bool {
	return slices.ContainsFunc(w.outcomes, func(o holds.StoredOutcome) bool { return o.Hold == id && o.Event == event })
}

var errDown = errors.New("postgres is down")

// failingInventory is Postgres that fails to decide payments.
type failingInventory struct{ holds.Inventory }

func (*failingInventory) Decide(context.Context, []holds.Payment) ([]holds.PaymentDecision, error) {
	return nil, errDown
}

// claimUndecided claims a hold for a payment that Postgres fails to decide.
func (w *harness) claimUndecided(t *testing.T, id holds.HoldID, payment string) {
	t.Helper()
	request := holds.ConfirmRequest{Hold: id, PaymentID: payment}
	service := w.newService(t, w.client, &failingInventory{w.store})
	for _, r := range service.Confirm(t.Context(), []holds.ConfirmRequest{request}) {
		if !errors.Is(r.Err, errDown) {
			t.Errorf("claim: %+v", r)
		}
	}
}

// TestRebuild_OutcomeStoredMeanwhile_IsIncluded stores an outcome after all were read, as a worker does that
// was stopped before it sent it. The rebuild includes it.
func TestRebuild_OutcomeStoredMeanwhile_IsIncluded(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	first := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0])
	w.release(t, first.HoldID, "released")
	late := w.outcomes[1:]
	w.outcomes = slices.Clone(w.outcomes[:1])
	r := w.loseAndRebuild(t, &replayLog{late: late})
	if r.Live != 1 || r.Ended != 1 || r.Outcomes != 3 {
		t.Errorf("rebuilt %+v", r)
	}
	if held := w.held(t, "room"); held != 1 {
		t.Errorf("%d held", held)
	}
}

// TestRebuild_TwoHoldsOnSameSlots_IsDeterministic rebuilds users with two holds on the same slots, which should
// not exist. The index is the same each time, so it passes the verification.
func TestRebuild_TwoHoldsOnSameSlots_IsDeterministic(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 100)
	users := w.key("room", "users")
	for i := range 8 {
		user := fmt.Sprintf("user-%d", i)
		for n := range 2 {
			request := holds.PlaceRequest{Resource: "room", User: user, RequestKey: fmt.Sprintf("%s-%d", user, n)}
			created(t, w.place(t, request)[0])
			for _, field := range w.client.HKeys(t.Context(), users).Val() {
				if strings.HasPrefix(field, user+" ") {
					w.client.HDel(t.Context(), users, field)
				}
			}
		}
	}
	before := w.client.HLen(t.Context(), w.key("room", "records")).Val()
	for range 2 {
		w.loseAndRebuild(t, &replayLog{})
	}
	if after := w.client.HLen(t.Context(), w.key("room", "records")).Val(); after != before || before != 16 {
		t.Errorf("%d records, before %d", after, before)
	}
}

// TestRebuild_ManyHoldsOnOneResource_RestoresAll rebuilds more holds of one resource than one command reads.
func TestRebuild_ManyHoldsOnOneResource_RestoresAll(t *testing.T) {
	t.Parallel()
	const number = 2500
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, number)
	requests := make([]holds.PlaceRequest, number)
	for i := range requests {
		requests[i] = holds.PlaceRequest{Resource: "room", User: fmt.Sprintf("u%d", i), RequestKey: fmt.Sprintf("k%d", i)}
	}
	for some := range slices.Chunk(requests, 250) {
		for _, o := range w.place(t, some...) {
			created(t, o)
		}
	}
	if r := w.loseAndRebuild(t, &replayLog{}); r.Live != number {
		t.Errorf("rebuilt %+v", r)
	}
	if held := w.held(t, "room"); held != number {
		t.Errorf("%d held", held)
	}
}

// TestRebuild_RequestKeyUsedTwice_KeepsLaterAnswer uses a request key again after its first answer was
// forgotten. The later answer is remembered, whatever the order of the two outcomes.
func TestRebuild_RequestKeyUsedTwice_KeepsLaterAnswer(t *testing.T) {
	t.Parallel()
	inOrder := func([]holds.StoredOutcome) {}
	for _, reorder := range []func([]holds.StoredOutcome){inOrder, slices.Reverse[[]holds.StoredOutcome]} {
		w := newHarness(t)
		w.setInventory(t, "room", holds.SlotSelection{}, 5)
		request := holds.PlaceRequest{Resource: "room", User: "ana", RequestKey: "k", Quantity: 5}
		first := created(t, w.place(t, request)[0])
		w.release(t, first.HoldID, "released")
		if err := w.client.Del(t.Context(), w.key("room", "request:k")).Err(); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Second)
		second := created(t, w.place(t, request)[0])
		reorder(w.outcomes)
		w.loseAndRebuild(t, &replayLog{})
		if again := created(t, w.place(t, request)[0]); again.HoldID != second.HoldID || !again.Replayed {
			t.Errorf("request again: %+v", again)
		}
	}
}

// TestRebuild_OnlyEndPublished_KeyIsOfItsUserAndSlots loses the hold.created of a hold that was cancelled, as a worker does
// that dies before it has published it. The key then has the answer to the same user and slots, and to no others.
func TestRebuild_OnlyEndPublished_KeyIsOfItsUserAndSlots(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{Slots: []string{"a", "b"}}, 5)
	request := func(user, slot string) holds.PlaceRequest {
		return holds.PlaceRequest{
			EventID: user + slot, Resource: "room", User: user, RequestKey: "k", Selection: holds.SlotSelection{Slots: []string{slot}},
		}
	}
	first := created(t, w.place(t, request("ana", "a"))[0])
	w.outcomes = nil
	r := holds.ReleaseRequest{EventID: "cancelled", Resource: "room", RequestKey: "k"}
	w.publish("cancelled", only(t, 1, slices.All(w.service.Release(t.Context(), []holds.ReleaseRequest{r})))[0])
	w.loseAndRebuild(t, &replayLog{})
	if again := created(t, w.place(t, request("ana", "a"))[0]); again.HoldID != first.HoldID || !again.Replayed {
		t.Errorf("the request again: %+v", again)
	}
	for _, other := range []holds.PlaceRequest{request("ben", "a"), request("ana", "b")} {
		if o := w.place(t, other)[0]; brief(o) != "hold.rejected request_key_reused" {
			t.Errorf("the same key for %s and %v: %s", other.User, other.Selection.Slots, exactText(t, o))
		}
	}
}

// TestRebuild_PaymentStoredWhileOthersAreWritten_Counts stores a payment in time, when a rebuild of many partitions has
// written the first of them. The hold, in one of the last, expires meanwhile, unless the payment counts.
func TestRebuild_PaymentStoredWhileOthersAreWritten_Counts(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	if p := record.Partition("room"); p < recovery.SealedTogether {
		t.Fatalf("partition %d is among the first that are written", p)
	}
	w.pass(hold.ExpiresAt.Sub(w.now) - time.Second)
	l := &replayLog{}
	reads := 0
	l.onOutcomes = func(context.Context, time.Time, uint64) {
		if reads++; reads == 3 { // to fold them, until there are no more; then before the first partitions are sealed
			l.payments = append(l.payments, holds.Payment{
				ConfirmRequest: holds.ConfirmRequest{Hold: hold.HoldID, PaymentID: "p"}, At: holds.Time{Time: w.now},
			})
		}
	}
	w.loseAndRebuild(t, l)
	w.pass(time.Minute)
	if o := w.pay(t, hold.HoldID, "p"); o.Event != holds.EventHoldConfirmed {
		t.Errorf("the payment is answered with %s", brief(o))
	}
}

// TestRebuild_OutcomesWithoutMetadata_SameAnswers rebuilds from outcomes of a worker that did not store
// RebuildMetadata yet. The same key has the same answer, whatever the content.
func TestRebuild_OutcomesWithoutMetadata_SameAnswers(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	request := holds.PlaceRequest{EventID: "first", Resource: "room", User: "ana", RequestKey: "k"}
	refused := holds.PlaceRequest{EventID: "refused", Resource: "room", User: "ben", RequestKey: "k2"}
	first, second := w.place(t, request)[0], w.place(t, refused)[0]
	w.extend(t, holds.ExtendRequest{Hold: first.Hold, PaymentStarted: true})
	for i := range w.outcomes {
		w.outcomes[i].RebuildMetadata = holds.RebuildMetadata{}
	}
	w.loseAndRebuild(t, &replayLog{})
	if again := w.place(t, request)[0]; exactText(t, again) != exactText(t, first) {
		t.Errorf("redelivered: %s, want %s", exactText(t, again), exactText(t, first))
	}
	if again := w.place(t, refused)[0]; exactText(t, again) != exactText(t, second) {
		t.Errorf("redelivered: %s, want %s", exactText(t, again), exactText(t, second))
	}
	other := request
	other.EventID, other.Quantity = "other", 2
	if again := created(t, w.place(t, other)[0]); again.HoldID != first.Hold || !again.Replayed {
		t.Errorf("other content with the same key: %+v", again)
	}
	// The start of its payment is unknown, so it may be started again.
	if o := w.extend(t, holds.ExtendRequest{Hold: first.Hold, PaymentStarted: true}); o.Event != holds.EventHoldExtended {
		t.Errorf("second start: %s", brief(o))
	}
}

// startLog returns a log that stores since when outcomes are read first.
func (w *harness) startLog(from *time.Time) *replayLog {
	return &replayLog{harness: w, onOutcomes: func(_ context.Context, since time.Time, after uint64) {
		if after == 0 {
			*from = since
		}
	}}
}

// TestRebuild_LifetimeShortened_ReadsAsFarBackAsHoldsLive shortens the longest life of a hold and how long
// answers are remembered. While a hold of the policy before may live, a rebuild reads back to its creation.
func TestRebuild_LifetimeShortened_ReadsAsFarBackAsHoldsLive(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", recovery.NewEpochTerm())
	w.changePolicy(t, supervisor, "", func(p *holds.Policy) {
		p.HoldLifetimeMax, p.RequestKeyTTL = 50*time.Hour, 60*time.Hour
	})
	w.changePolicy(t, supervisor, "now() - interval '100 hours'", func(p *holds.Policy) {
		p.HoldLifetimeMax, p.RequestKeyTTL = 2*time.Hour, 3*time.Hour
	})
	read := func() time.Duration {
		t.Helper()
		var from time.Time
		other := w.newRebuilder(w.startLog(&from))
		if _, err := other.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
			t.Fatal(err)
		}
		return time.Since(from)
	}
	if got := read(); got < 110*time.Hour {
		t.Errorf("read back %v, want 110 h: a hold of the policy before may be remembered", got)
	}
	w.execute(t, `UPDATE policies SET since = now() - interval '200 hours' WHERE since > to_timestamp(0)`)
	if got := read(); got < 5*time.Hour || got > 6*time.Hour {
		t.Errorf("read back %v, want 5 to 6 h: the policy before does not matter any more", got)
	}
}

// TestRebuild_ClockOfMachineWrong_ReadsAsFarBackAsHoldsLive rebuilds on a machine whose clock is two days ahead, and
// on one whose clock is two days behind.
func TestRebuild_ClockOfMachineWrong_ReadsAsFarBackAsHoldsLive(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	for _, wrong := range []time.Duration{48 * time.Hour, -48 * time.Hour} {
		var from time.Time
		supervisor := w.newRebuilder(w.startLog(&from))
		supervisor.Now = func() time.Time { return time.Now().Add(wrong) }
		if _, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
			t.Fatal(err)
		}
		if got, want := time.Since(from), w.policy.HoldLifetimeMax+w.policy.RequestKeyTTL; got < want {
			t.Errorf("clock off by %v: read back %v, want %v", wrong, got, want)
		}
	}
}

// TestRebuild_StreamOfAnotherNATS_ChangesNothing rebuilds as an operator who has given the URL of another NATS, or of another
// Postgres: the published outcomes of this one's holds are not there.
func TestRebuild_StreamOfAnotherNATS_ChangesNothing(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	w.maintain(t)
	before, err := w.store.Epochs(t.Context())
	stacktest.Must(t, err)
	other := &replayLog{harness: newHarness(t), created: logCreated.Add(time.Hour)}
	_, err = w.newRebuilder(other).Rebuild(t.Context(), "a test", true, func(string) {})
	if err == nil || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("rebuilding ended with %v", err)
	}
	if after, err := w.store.Epochs(t.Context()); err != nil || after != before {
		t.Errorf("the epochs are %v (%v), want %v", after, err, before)
	}
	if got := brief(w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0]); got != "hold.rejected sold_out" {
		t.Errorf("another customer got %s", got)
	}
}

// TestRebuild_PaymentWaitsForLong_HoldStaysClaimed rebuilds while a payment has waited for Postgres for longer than ended
// holds and answers are remembered.
func TestRebuild_PaymentWaitsForLong_HoldStaysClaimed(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.now = w.now.Add(-3 * time.Hour)
	w.setPolicy(t, func(p *holds.Policy) { p.RequestKeyTTL = 30 * time.Minute })
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0]).HoldID
	payment := holds.Payment{ConfirmRequest: holds.ConfirmRequest{Hold: hold, PaymentID: "p"}, At: holds.Time{Time: w.now}}
	w.execute(t, "ALTER TABLE payments RENAME TO payments_gone") // an outage of Postgres
	if r := w.service.Confirm(t.Context(), []holds.ConfirmRequest{payment.ConfirmRequest}); r[0].Err == nil {
		t.Fatal("the payment was decided")
	}
	w.pass(3 * time.Hour)
	w.execute(t, "ALTER TABLE payments_gone RENAME TO payments")
	if r := w.loseAndRebuild(t, &replayLog{payments: []holds.Payment{payment}}); r.Live != 1 {
		t.Fatalf("rebuilt %+v", r)
	}
	if got := brief(w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0]); got != "hold.rejected sold_out" {
		t.Errorf("another customer got %s", got)
	}
	if got := brief(w.pay(t, hold, "p")); got != "hold.confirmed" {
		t.Errorf("the payment was answered %s", got)
	}
}

// TestRebuild_AnswerAboutForgottenHoldRepeated_StaysForgotten repeats an answer about a hold that has ended so long ago
// that a rebuild reads neither its creation nor its end. The hold does not end once more, and its request key is free.
func TestRebuild_AnswerAboutForgottenHoldRepeated_StaysForgotten(t *testing.T) {
	t.Parallel()
	const again = "again"
	request := holds.PlaceRequest{EventID: "asked", Resource: "room", User: "ana", RequestKey: "k"}
	ask := func(eventID string) func(*testing.T, *harness, holds.HoldID) holds.Outcome {
		return func(t *testing.T, w *harness, _ holds.HoldID) holds.Outcome {
			repeated := request
			repeated.EventID = eventID
			return w.place(t, repeated)[0]
		}
	}
	release := func(t *testing.T, w *harness, id holds.HoldID) { w.release(t, id, "released") }
	expire := func(t *testing.T, w *harness, _ holds.HoldID) {
		w.pass(11 * time.Minute)
		w.sweep(t)
	}
	pay := func(t *testing.T, w *harness, id holds.HoldID) holds.Outcome { return w.pay(t, id, "p") }
	for name, c := range map[string]struct {
		end    func(*testing.T, *harness, holds.HoldID)
		repeat func(*testing.T, *harness, holds.HoldID) holds.Outcome
		want   int // records that are still remembered
	}{
		"replayed":                {release, ask(again), 0},
		"request published again": {release, ask(request.EventID), 0},
		"paid late":               {expire, pay, 1},
		"late payment published again": {func(t *testing.T, w *harness, id holds.HoldID) {
			expire(t, w, id)
			pay(t, w, id)
		}, pay, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			w.setPolicy(t, func(p *holds.Policy) { p.LatePayment = holds.LateAcceptedIfFree })
			w.setInventory(t, "room", holds.SlotSelection{}, 5)
			now, begun := w.now, w.now.Add(-27*time.Hour)
			w.now = begun
			first := created(t, w.place(t, request)[0]).HoldID
			c.end(t, w, first)
			w.pass(23 * time.Hour)
			repeated := c.repeat(t, w, first)
			w.now = now
			id := first
			if data, is := repeated.Data.(holds.HoldConfirmed); is { // its id has the time of its creation
				id.UUID = fmt.Sprintf("%012x", begun.UnixMilli()) + first.UUID[12:]
				data.HoldID = id
				repeated.Hold, repeated.Data = id, data
			}
			w.takeAnnounced()
			last := w.outcomes[len(w.outcomes)-1]
			last.Outcome = repeated
			w.outcomes = []holds.StoredOutcome{last}
			if r := w.loseAndRebuild(t, &replayLog{}); r.Live != 0 || r.Ended != c.want || r.Outcomes != 1 {
				t.Errorf("rebuilt %+v, want %d ended holds", r, c.want)
			}
			w.sweep(t)
			if announced := w.takeAnnounced(); len(announced) != 0 {
				t.Errorf("announced again: %+v", announced)
			}
			if hold := created(t, w.place(t, request)[0]); hold.HoldID == id || hold.Replayed {
				t.Errorf("the request key is still that of the forgotten hold: %+v", hold)
			}
		})
	}
}
