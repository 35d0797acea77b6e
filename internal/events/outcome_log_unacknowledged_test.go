package events

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
)

// unacknowledged returns the cancellations and payments that wait, by their request keys and payment ids.
func (b *harness) unacknowledged() (found []string) {
	b.t.Helper()
	err := NewOutcomeLog(b.js, b.ns, zerolog.Nop()).Unacknowledged(b.t.Context(),
		func(r holds.ConfirmRequest, _ holds.Time) { found = append(found, r.PaymentID) },
		func(r holds.ReleaseRequest, _ holds.Time) { found = append(found, r.RequestKey) })
	if err != nil {
		b.t.Fatal(err)
	}
	slices.Sort(found)
	return found
}

// TestUnacknowledged_DeadLetteredEvents_AreExcluded keeps the floors of the consumers low by events that are busy. Behind them
// a cancellation becomes poison, and a payment has a dead letter, as one that the version before could not read.
// Neither waits: a rebuild must not act on them.
func TestUnacknowledged_DeadLetteredEvents_AreExcluded(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.setFault(func(key string, _ int) error {
		if strings.HasPrefix(key, "busy") {
			return holds.ErrBusy
		}
		return &encodeError{errors.New("its own fault")}
	})
	cancel := func(key string) {
		data := `{"resource_id":"room","request_key":"` + key + `"}`
		b.publish(b.ns.In(BookingCancelled, "room"), nil, envelopeOf(BookingCancelled, key, data))
	}
	pay := func(id string) {
		data := `{"hold_id":"` + holdID + `","payment_id":"` + id + `"}`
		b.publish(b.ns.In(PaymentConfirmed, "room"), nil, envelopeOf(PaymentConfirmed, id, data))
	}
	cancel("busy1")
	pay("busy2")
	pay("busy3") // the third event
	cancel("poison")
	b.await("the dead letter", func() bool { return len(b.dlq) == 1 })
	if got, want := b.unacknowledged(), []string{"busy1", "busy2", "busy3"}; !slices.Equal(got, want) {
		t.Errorf("%v wait, want %v", got, want)
	}
	header := nats.Header{HeaderDLQSubject: {b.ns.In(PaymentConfirmed, "room")}, HeaderDLQStreamSeq: {strconv.Itoa(3)}}
	b.publish(b.ns.DLQ(ReasonMalformed), header, "{}")
	if got, want := b.unacknowledged(), []string{"busy1", "busy2"}; !slices.Equal(got, want) {
		t.Errorf("with a dead letter of the payment %v wait, want %v", got, want)
	}

	// The dead letters are not those of the events of another stream.
	if err := b.js.DeleteStream(t.Context(), b.ns.InStream()); err != nil {
		t.Fatal(err)
	}
	if err := Setup(t.Context(), b.js, b.ns, Retention{HoldLifetime: 2 * time.Hour}, zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	pay("busy5")
	pay("busy6")
	pay("busy7")
	cancel("busy8")
	if got, want := b.unacknowledged(), []string{"busy5", "busy6", "busy7", "busy8"}; !slices.Equal(got, want) {
		t.Errorf("of the next stream %v wait, want %v", got, want)
	}
}
