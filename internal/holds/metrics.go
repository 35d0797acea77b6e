package holds

import (
	"cmp"
	"sync"
	"time"

	"holdfast/internal/telemetry"
)

// The triggers of a sweep: the label trigger of the lateness.
const (
	triggerTimer        = "timer"
	triggerNotification = "notification" // a keyspace notification or a new subscription
	triggerBacklog      = "backlog"      // the round before has reached its limit
)

// latenessBounds are in seconds. 2 s is the promise.
var latenessBounds = []float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800}

// outcomeReasons lists the reasons of each outbound event; the others have none.
var outcomeReasons = map[string][]string{
	EventHoldRejected: {
		ReasonInvalidRequest, ReasonKeyReused, ReasonCancelled, ReasonAlreadyHolding, ReasonHoldLimit,
		ReasonUnknownResource, ReasonSoldOut,
	},
	EventExtensionRejected: {
		ReasonInvalidRequest, ReasonLimitReached, ReasonAlreadyStarted, ReasonExpired, ReasonReleased, ReasonConfirmed,
		ReasonUnknownHold,
	},
	EventReleaseRejected: {ReasonExpired, ReasonReleased, ReasonConfirmed, ReasonUnknownHold},
	EventConfirmRejected: {
		ReasonExpired, ReasonReleased, ReasonUnknownHold, ReasonAlreadyConfirmed, ReasonSoldOut,
	},
	EventCancelRejected:    {ReasonUnknownReservation, ReasonAlreadyCancelled},
	EventInventoryRejected: {ReasonInvalidRequest, ReasonBelowReserved},
}

// The values of labels besides events, reasons and triggers.
const (
	noReason                         = "none"
	endReleased, endExpired, endPaid = "released", "expired", "confirmed"
	paymentConfirmed, paymentLate    = "confirmed", "confirmed_late"
	paymentRejected                  = "rejected"
	stateHeld, stateUnannounced      = "held", "unannounced"
)

const (
	unsettledMax = 10_000           // payments that are remembered
	unsettledFor = 30 * time.Second // without another attempt: another worker has it
)

// Metrics are the metrics of holds. A nil *Metrics records nothing.
type Metrics struct {
	outcomes        *telemetry.Vec[telemetry.Counter]
	created         *telemetry.Counter
	ended, payments *telemetry.Vec[telemetry.Counter]
	lateness        *telemetry.Vec[telemetry.Histogram]

	unsettledCount, unsettledAge *telemetry.Gauge

	holds                                *telemetry.Vec[telemetry.Gauge]
	unannouncedAge, resources, countedAt *telemetry.Gauge

	mu         sync.Mutex
	unsettled  map[paymentKey]claim
	failed     time.Time // when the oldest hold was restored whose announcement failed; zero when none did
	failedSeen time.Time // when an announcement failed last
}

// claim is a claim of a payment that this worker could not settle.
type claim struct {
	at   time.Time // by Redis' clock
	seen time.Time // the last attempt, by the local clock
}

// NewMetrics adds the metrics to a set.
func NewMetrics(set *telemetry.Set) *Metrics {
	m := &Metrics{
		outcomes: set.Counters("holdfast.outcomes", "{event}",
			"Outcomes that were published, by outbound event and, for a rejection, its reason.", "event", "reason"),
		created: set.Counters("holdfast.holds.created", "{hold}", "Holds that were created.").With(),
		ended:   set.Counters("holdfast.holds.ended", "{hold}", "Holds that have ended, by how.", "how"),
		payments: set.Counters("holdfast.payments", "{payment}",
			"Payments that were answered. Each rejected one has to be refunded.", "outcome"),
		lateness: set.Histograms("holdfast.expiry.lateness", "s",
			"Time from the deadline of a hold until its counts were restored, by the trigger of the sweep that "+
				"announced it.",
			latenessBounds, "trigger"),
		unsettledCount: set.Gauges("holdfast.payments.unsettled", "{payment}",
			"Payments that have claimed a hold in Redis and that this worker could not decide in Postgres yet.").With(),
		unsettledAge: set.Gauges("holdfast.payments.unsettled.oldest.age", "s",
			"Age of the oldest of these claims, 0 when there is none.").With(),
		holds: set.Gauges("holdfast.holds", "{hold}",
			"Holds in Redis as counted last: held, or expired and not announced yet.", "state"),
		unannouncedAge: set.Gauges("holdfast.holds.unannounced.oldest.age", "s",
			"Time since the counts of the oldest hold were restored that this worker failed to announce, 0 when "+
				"there is none.").With(),
		resources: set.Gauges("holdfast.resources", "{resource}",
			"Resources with holds that are live or remembered, as counted last.").With(),
		countedAt: set.Gauges("holdfast.holds.counted.timestamp", "s",
			"Unix time at which the last count of holds and resources was complete, 0 before the first.").With(),
		unsettled: make(map[paymentKey]claim),
	}
	for event := range outcomeTypes {
		if len(outcomeReasons[event]) == 0 {
			m.outcomes.With(event, noReason)
		}
		for _, reason := range outcomeReasons[event] {
			m.outcomes.With(event, reason)
		}
	}
	for _, how := range []string{endReleased, endExpired, endPaid} {
		m.ended.With(how)
	}
	for _, outcome := range []string{paymentConfirmed, paymentLate, paymentRejected} {
		m.payments.With(outcome)
	}
	for _, trigger := range []string{triggerTimer, triggerNotification, triggerBacklog} {
		m.lateness.With(trigger)
	}
	for _, state := range []string{stateHeld, stateUnannounced} {
		m.holds.With(state)
	}
	return m
}

// Published records an outcome that was stored in the outbound stream.
func (m *Metrics) Published(o Outcome) {
	if m == nil {
		return
	}
	m.outcomes.With(o.Event, cmp.Or(o.Reason(), noReason)).Add(1)
	switch data := o.Data.(type) {
	case HoldCreated:
		if !data.Replayed {
			m.created.Add(1)
		}
	case HoldReleased:
		m.ended.With(endReleased).Add(1)
	case HoldExpired:
		m.ended.With(endExpired).Add(1)
	case HoldConfirmed:
		if data.Late { // the hold itself has expired
			m.payments.With(paymentLate).Add(1)
		} else {
			m.ended.With(endPaid).Add(1)
			m.payments.With(paymentConfirmed).Add(1)
		}
	case ConfirmRejected:
		m.payments.With(paymentRejected).Add(1)
	}
}

// announced records the announcement of expired holds: all of them were announced when err is nil. It counts each
// hold once, when it is forgotten. While announcements fail it keeps the time of the oldest hold. That others succeed
// says nothing of it: it is tried again after announceLease.
func (m *Metrics) announced(batch, forgotten []Outcome, trigger string, err error) {
	if m == nil {
		return
	}
	late := m.lateness.With(trigger)
	for _, o := range forgotten {
		m.Published(o)
		if data, is := o.Data.(HoldExpired); is {
			late.Record(max(0, data.RestoredAt.Sub(data.ExpiresAt.Time).Seconds()))
		}
	}
	if err == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failedSeen = time.Now()
	for _, o := range batch {
		if m.failed.IsZero() || o.At.Before(m.failed) {
			m.failed = o.At.Time
		}
	}
}

// settled records which payments were decided, and which have claimed their hold and were not.
func (m *Metrics) settled(payments []*paying) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range payments {
		key := paymentKey{p.Hold, p.PaymentID}
		_, known := m.unsettled[key]
		switch {
		case p.answer.Err == nil:
			delete(m.unsettled, key)
		case p.Claimed && (known || len(m.unsettled) < unsettledMax):
			m.unsettled[key] = claim{at: p.At.Time, seen: time.Now()}
		}
	}
}

// ObserveAges updates the ages of payments that wait for Postgres, and of expired holds that wait
// for NATS. now is Redis' time. It forgets a payment that this worker has not received again, and holds
// that it was not given again to announce: another worker was.
func (m *Metrics) ObserveAges(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unannouncedAge.Set(0)
	if time.Since(m.failedSeen) > unsettledFor {
		m.failed = time.Time{}
	}
	if !m.failed.IsZero() {
		m.unannouncedAge.Set(max(0, now.Sub(m.failed).Seconds()))
	}
	age := time.Duration(0)
	for key, c := range m.unsettled {
		if time.Since(c.seen) > unsettledFor {
			delete(m.unsettled, key)
			continue
		}
		age = max(age, now.Sub(c.at))
	}
	m.unsettledCount.Set(float64(len(m.unsettled)))
	m.unsettledAge.Set(age.Seconds())
}
