package holds_test

import (
	"errors"
	"testing"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// TestExtend_DeadlineIsLaterAlready_KeepsDeadline requests a deadline that is earlier than the
// present one. The present one exceeds the lifetime since the policy was changed. The hold keeps
// it, and the outcome is hold.extended.
func TestExtend_DeadlineIsLaterAlready_KeepsDeadline(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	hold := w.onlyHold(t, "room", 3600)
	w.setPolicy(t, func(p *holds.Policy) { p.HoldLifetimeMax = 30 * time.Minute })
	got, ok := w.extend(t, holds.ExtendRequest{Hold: hold.HoldID, TTLSeconds: 60}).Data.(holds.HoldExtended)
	if !ok || got.ExpiresAt != hold.ExpiresAt {
		t.Errorf("%+v", got)
	}
	wantBrief(t, w.extend(t, holds.ExtendRequest{Hold: hold.HoldID, TTLSeconds: 3601}), "hold.extension_rejected invalid_request")
}

// TestExtend_LimitsRaised_PaymentStartsOnce starts the payment of a hold, raises the limits, and extends the hold for
// longer than answers were remembered before. That its payment was started must be remembered as long as the hold.
func TestExtend_LimitsRaised_PaymentStartsOnce(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	w.setPolicy(t, func(p *holds.Policy) {
		p.HoldTTL, p.HoldTTLMax, p.HoldLifetimeMax = time.Minute, time.Minute, time.Minute
		p.PaymentWindow, p.RequestKeyTTL = time.Minute, time.Minute
	})
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	start := holds.ExtendRequest{EventID: "a", Hold: hold.HoldID, PaymentStarted: true}
	w.setPolicy(t, func(p *holds.Policy) { p.HoldLifetimeMax = time.Hour })
	wantBrief(t, w.extend(t, start), "hold.extended")
	w.setPolicy(t, func(p *holds.Policy) { *p = testPolicy })
	extension := holds.ExtendRequest{EventID: "b", Hold: hold.HoldID, TTLSeconds: 1800}
	wantBrief(t, w.extend(t, extension), "hold.extended")
	prefix := record.Keyspace(w.namespace).Prefix("room")
	started, err := w.client.PTTL(t.Context(), prefix+"started:"+hold.HoldID.UUID).Result()
	stacktest.Must(t, err)
	held, err := w.client.PTTL(t.Context(), prefix+"hold:"+hold.HoldID.UUID).Result()
	if err != nil || held < 20*time.Minute || started < held {
		t.Errorf("the start of the payment is forgotten in %v, and the hold lasts %v (%v)", started, held, err)
	}
}

// TestExtend_StartedWhileDeadlinesCorrupt_IsAnsweredAfterRepair delivers a payment.started again after the deadlines of its
// resource, which the first delivery found to be a list, are a sorted set again. The first has not counted as the start.
func TestExtend_StartedWhileDeadlinesCorrupt_IsAnsweredAfterRepair(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	hold := w.onlyHold(t, "room", 60)
	key := func(name string) string { return holds.Key(w.namespace, "room", name) }
	start := holds.ExtendRequest{EventID: "start", Hold: hold.HoldID, PaymentStarted: true}
	stacktest.Must(t, w.client.Rename(t.Context(), key("due"), key("aside")).Err())
	stacktest.Must(t, w.client.RPush(t.Context(), key("due"), "no deadline").Err())
	if got := w.service.Extend(t.Context(), []holds.ExtendRequest{start})[0]; !errors.Is(got.Err, holds.ErrCorrupt) {
		t.Fatalf("with corrupt deadlines: %+v", got)
	}
	stacktest.Must(t, w.client.Rename(t.Context(), key("aside"), key("due")).Err())
	wantBrief(t, w.extend(t, start), "hold.extended")
}
