package holds

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"holdfast/internal/telemetry"
)

// TestMetrics_PaymentNotDecided_IsUnsettledUntilItIs records attempts to decide payments.
func TestMetrics_PaymentNotDecided_IsUnsettledUntilItIs(t *testing.T) {
	t.Parallel()
	m := NewMetrics(telemetry.NewSet())
	claimedAt := TimeFromMillis(1_700_000_000_000)
	now := claimedAt.Add(90 * time.Second)
	payment := func(id string, claimed bool, answer PaymentDecision) *paying {
		request := ConfirmRequest{Hold: HoldID{"hall", "1"}, PaymentID: id}
		return &paying{Payment: Payment{ConfirmRequest: request, Claimed: claimed, At: claimedAt}, answer: answer}
	}
	failed := PaymentDecision{Err: errors.New("postgres is down")}
	expect := func(what string, count, age float64) {
		t.Helper()
		m.ObserveAges(now)
		if m.unsettledCount.Value() != count || m.unsettledAge.Value() != age {
			t.Errorf("%s: %v payments, the oldest of %v s; want %v and %v", what, m.unsettledCount.Value(),
				m.unsettledAge.Value(), count, age)
		}
	}
	m.settled([]*paying{
		payment("p1", true, failed), payment("p2", false, failed), payment("p3", true, PaymentDecision{}),
	})
	expect("one claimed and not decided", 1, 90)
	m.settled([]*paying{payment("p1", true, PaymentDecision{Confirmed: true})})
	expect("decided", 0, 0)
	m.settled([]*paying{payment("p1", true, failed)})
	key := paymentKey{HoldID{"hall", "1"}, "p1"}
	m.unsettled[key] = claim{at: claimedAt.Time, seen: time.Now().Add(-2 * unsettledFor)}
	expect("another worker has it", 0, 0)
	for i := range unsettledMax {
		m.settled([]*paying{payment(fmt.Sprint("q", i), true, failed)})
	}
	oldest := paymentKey{HoldID{"hall", "1"}, "q0"}
	m.unsettled[oldest] = claim{at: claimedAt.Add(-time.Minute), seen: time.Now().Add(-2 * unsettledFor)}
	again := payment("q0", true, failed)
	again.At = Time{claimedAt.Add(-time.Minute)}
	m.settled([]*paying{again, payment("one more", true, failed)})
	expect("as many as are remembered", unsettledMax, 150)
}

// TestMetrics_AnnouncementFails_AgeIsThatOfTheOldestHold records attempts to announce holds.
func TestMetrics_AnnouncementFails_AgeIsThatOfTheOldestHold(t *testing.T) {
	t.Parallel()
	m := NewMetrics(telemetry.NewSet())
	restoredAt := TimeFromMillis(1_700_000_000_000)
	batch := func(after time.Duration) []Outcome {
		at := Time{restoredAt.Add(after)}
		return []Outcome{{Event: EventHoldExpired, At: at, Data: HoldExpired{ExpiresAt: restoredAt, RestoredAt: at}}}
	}
	recorded := func(trigger string) (n int64) {
		for _, count := range m.lateness.With(trigger).Counts() {
			n += int64(count)
		}
		return n
	}
	down := errors.New("nats is down")
	m.announced(batch(2*time.Second), nil, triggerTimer, down)
	m.announced(batch(time.Second), nil, triggerTimer, down)
	m.announced(batch(3*time.Second), nil, triggerTimer, down)
	m.ObserveAges(restoredAt.Add(61 * time.Second))
	if age := m.unannouncedAge.Value(); age != 60 {
		t.Errorf("the oldest hold waits for %v s, want 60", age)
	}
	if n := m.ended.With(endExpired).Value() + recorded(triggerTimer); n != 0 {
		t.Errorf("holds that were not announced were counted: %d", n)
	}
	m.announced(batch(3*time.Second), batch(3*time.Second), triggerNotification, nil)
	m.ObserveAges(restoredAt.Add(61 * time.Second))
	if age, n := m.unannouncedAge.Value(), recorded(triggerNotification); age != 60 || n != 1 {
		t.Errorf("after the announcement of another hold: %v s, %d announced", age, n)
	}
	m.failedSeen = time.Now().Add(-2 * unsettledFor)
	m.ObserveAges(restoredAt.Add(61 * time.Second))
	if age := m.unannouncedAge.Value(); age != 0 {
		t.Errorf("the oldest hold waits for %v s although it was announced, or another worker has it", age)
	}
}
