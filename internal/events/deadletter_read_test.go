package events

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/stack/stacktest"
)

// storeDeadLetter stores a letter as a worker would have written it, and returns its sequence.
func (b *harness) storeDeadLetter(reason, detail, subject string, header nats.Header, body string) uint64 {
	b.t.Helper()
	m := nats.NewMsg(b.ns.DLQ(reason))
	m.Data = []byte(body)
	for name, values := range header {
		m.Header[name] = values
	}
	m.Header.Set(HeaderDLQReason, reason)
	m.Header.Set(HeaderDLQDetail, detail)
	m.Header.Set(HeaderDLQSubject, subject)
	ack, err := b.js.PublishMsg(b.t.Context(), m)
	if err != nil {
		b.t.Fatal(err)
	}
	b.await("the letter to be seen, before anybody removes it", func() bool {
		if len(b.dlq) == 0 {
			return false
		}
		last, err := b.dlq[len(b.dlq)-1].Metadata()
		return err == nil && last.Sequence.Stream >= ack.Sequence
	})
	return ack.Sequence
}

// seqs are the letters that a filter means.
func (d *DeadLetters) seqs(t *testing.T, f DeadLetterFilter, bodies bool) (seqs []uint64) {
	t.Helper()
	for l, err := range d.All(t.Context(), f, bodies) {
		if err != nil {
			t.Fatal(err)
		}
		if read := l.Body != nil; read != (bodies || f.NeedsBody()) || l.Size == 0 {
			t.Errorf("letter %d has a body: %v, of %d bytes", l.Seq, read, l.Size)
		}
		seqs = append(seqs, l.Seq)
	}
	return seqs
}

// TestDeadLetterFilter_EachField_Matches is the table of what filters mean, on a real stream.
func TestDeadLetterFilter_EachField_Matches(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	d := b.deadLetters()
	if got := d.seqs(t, DeadLetterFilter{}, true); got != nil {
		t.Errorf("letters of an empty stream: %v", got)
	}
	on := func(event, resource string) string { return b.ns.In(event, resource) }
	b.storeDeadLetter(ReasonMalformed, "data.quantity: want a number", on(BookingRequested, "room"), nil, request(``))
	b.storeDeadLetter(ReasonMalformed, "data.user_id: missing", on(InventorySet, "room"), nil, envelopeOf(InventorySet, "e1", `{"resource_id":"room","capacity":1}`))
	b.storeDeadLetter(ReasonPoison, "panic: a bug", on(PaymentConfirmed, "room"), nil, envelopeOf(PaymentConfirmed, "e1", `{"hold_id":"`+holdID+`"}`))
	fourth := b.storeDeadLetter(ReasonUnknownType, "type: unknown: x", on(BookingRequested, "hall"), nil, "no JSON")
	b.storeDeadLetter(ReasonMalformed, "", on(BookingRequested, "hall"), nil, "no JSON")
	middle := d.must(t, fourth).StoredAt
	for name, c := range map[string]struct {
		filter DeadLetterFilter
		want   []uint64
	}{
		"all":            {DeadLetterFilter{}, []uint64{1, 2, 3, 4, 5}},
		"a reason":       {DeadLetterFilter{Reasons: []string{ReasonMalformed}}, []uint64{1, 2, 5}},
		"two reasons":    {DeadLetterFilter{Reasons: []string{ReasonMalformed, ReasonPoison}}, []uint64{1, 2, 3, 5}},
		"no such reason": {DeadLetterFilter{Reasons: []string{ReasonTooLarge}}, nil},
		"a type":         {DeadLetterFilter{Type: BookingRequested}, []uint64{1, 4, 5}},
		"a resource":     {DeadLetterFilter{ResourceID: "room"}, []uint64{1, 2, 3}},
		"a user":         {DeadLetterFilter{UserID: "u"}, []uint64{1}},
		"text":           {DeadLetterFilter{Contains: "a bug"}, []uint64{3}},
		"since":          {DeadLetterFilter{Since: middle}, []uint64{4, 5}},
		"until":          {DeadLetterFilter{Until: middle}, []uint64{1, 2, 3}},
		"in the future":  {DeadLetterFilter{Since: middle.Add(time.Hour)}, nil},
		"all of it":      {DeadLetterFilter{Reasons: []string{ReasonMalformed}, Type: BookingRequested, ResourceID: "hall", Since: middle}, []uint64{5}},
	} {
		for _, bodies := range []bool{true, false} {
			if got := d.seqs(t, c.filter, bodies); !slices.Equal(got, c.want) {
				t.Errorf("%s (bodies %v): letters %v, want %v", name, bodies, got, c.want)
			}
		}
	}
	if err := d.Remove(t.Context(), 2); err != nil {
		t.Error(err)
	}
	if err := d.Remove(t.Context(), 2); !errors.Is(err, ErrDeadLetterNotFound) {
		t.Errorf("removed twice: %v", err)
	}
	if _, err := d.Get(t.Context(), 2); !errors.Is(err, ErrDeadLetterNotFound) {
		t.Errorf("read after it was removed: %v", err)
	}
	if got := d.seqs(t, DeadLetterFilter{}, true); !slices.Equal(got, []uint64{1, 3, 4, 5}) {
		t.Errorf("letters %v", got)
	}
}

// TestDeadLetters_PurgedWhileRead_ReadEnds has another operator remove all letters while they are read, and in one case
// another letter come: the reader comes to an end, and does not see what came after it began.
func TestDeadLetters_PurgedWhileRead_ReadEnds(t *testing.T) {
	t.Parallel()
	for _, another := range []bool{false, true} {
		t.Run(fmt.Sprintf("another comes=%v", another), func(t *testing.T) {
			t.Parallel()
			b := newHarness(t)
			const number = 2000 // more than a reader is sent at a time
			for i := range number {
				b.storeDeadLetter(ReasonMalformed, fmt.Sprint(i), b.ns.In(BookingRequested, "room"), nil, "no JSON")
			}
			d := b.deadLetters()
			read := 0
			for l, err := range d.All(t.Context(), DeadLetterFilter{}, true) {
				if err != nil {
					t.Fatal(err)
				}
				if l.Seq > number {
					t.Errorf("it reads what came later")
				}
				if read++; read > 1 {
					continue
				}
				if err := d.stream.Purge(t.Context()); err != nil {
					t.Fatal(err)
				}
				if another {
					b.storeDeadLetter(ReasonMalformed, "late", b.ns.In(BookingRequested, "room"), nil, "no JSON")
				}
			}
			if read == 0 || read == number {
				t.Errorf("%d letters were read of %d", read, number)
			}
		})
	}
}

// TestDeadLetters_StallingConnection_AllAreRead has letters arrive late: the server has sent all of them, and says that it has no more, while
// the reader has some of them only.
func TestDeadLetters_StallingConnection_AllAreRead(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	const number = 300 // fewer than a reader is sent at a time
	for i := range number {
		b.storeDeadLetter(ReasonMalformed, fmt.Sprint(i), b.ns.In(BookingRequested, "room"), nil, strings.Repeat("x", 1000))
	}
	late := &stacktest.StallingDialer{Pause: 3 * readStallAfter}
	nc, err := Connect(stacktest.Shared().NATSURL, t.Name(), t.Logf, nats.SetCustomDialer(late))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	client, err := NewClient(nc, b.ns)
	if err != nil {
		t.Fatal(err)
	}
	d, err := client.DeadLetters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	late.PauseAfter(number * 100)
	if got := len(d.seqs(t, DeadLetterFilter{}, true)); got != number {
		t.Errorf("%d letters were read of %d", got, number)
	}
}
