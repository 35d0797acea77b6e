package client

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

// seqs are the letters that a filter means.
func (d *DeadLetters) seqs(t testing.TB, f DeadLetterFilter, bodies bool) (seqs []uint64) {
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
	b.storeDeadLetter(events.ReasonMalformed, "data.quantity: want a number", on(events.BookingRequested, "room"), nil, keyed("k"))
	b.storeDeadLetter(events.ReasonMalformed, "data.user_id: missing", on(events.InventorySet, "room"), nil, envelopeOf(events.InventorySet, "e1", `{"resource_id":"room","capacity":1}`))
	b.storeDeadLetter(events.ReasonPoison, "panic: a bug", on(events.PaymentConfirmed, "room"), nil, envelopeOf(events.PaymentConfirmed, "e1", `{"hold_id":"`+holdID+`"}`))
	fourth := b.storeDeadLetter(events.ReasonUnknownType, "type: unknown: x", on(events.BookingRequested, "hall"), nil, "no JSON")
	b.storeDeadLetter(events.ReasonMalformed, "", on(events.BookingRequested, "hall"), nil, "no JSON")
	middle := b.get(d, fourth).StoredAt
	for name, c := range map[string]struct {
		filter DeadLetterFilter
		want   []uint64
	}{
		"all":            {DeadLetterFilter{}, []uint64{1, 2, 3, 4, 5}},
		"a reason":       {DeadLetterFilter{Reasons: []string{events.ReasonMalformed}}, []uint64{1, 2, 5}},
		"two reasons":    {DeadLetterFilter{Reasons: []string{events.ReasonMalformed, events.ReasonPoison}}, []uint64{1, 2, 3, 5}},
		"no such reason": {DeadLetterFilter{Reasons: []string{events.ReasonTooLarge}}, nil},
		"a type":         {DeadLetterFilter{Type: events.BookingRequested}, []uint64{1, 4, 5}},
		"a resource":     {DeadLetterFilter{ResourceID: "room"}, []uint64{1, 2, 3}},
		"a user":         {DeadLetterFilter{UserID: "u"}, []uint64{1}},
		"text":           {DeadLetterFilter{Contains: "a bug"}, []uint64{3}},
		"since":          {DeadLetterFilter{Since: middle}, []uint64{4, 5}},
		"until":          {DeadLetterFilter{Until: middle}, []uint64{1, 2, 3}},
		"in the future":  {DeadLetterFilter{Since: middle.Add(time.Hour)}, nil},
		"all of it":      {DeadLetterFilter{Reasons: []string{events.ReasonMalformed}, Type: events.BookingRequested, ResourceID: "hall", Since: middle}, []uint64{5}},
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
				b.storeDeadLetter(events.ReasonMalformed, fmt.Sprint(i), b.ns.In(events.BookingRequested, "room"), nil, "no JSON")
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
					b.storeDeadLetter(events.ReasonMalformed, "late", b.ns.In(events.BookingRequested, "room"), nil, "no JSON")
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
		b.storeDeadLetter(events.ReasonMalformed, fmt.Sprint(i), b.ns.In(events.BookingRequested, "room"), nil, strings.Repeat("x", 1000))
	}
	late := &stacktest.StallingDialer{Pause: 1500 * time.Millisecond}
	d := newHarnessWithoutStreams(t, stacktest.Shared().NATSURL, b.ns, nats.SetCustomDialer(late)).deadLetters()
	late.PauseAfter(number * 100)
	if got := len(d.seqs(t, DeadLetterFilter{}, true)); got != number {
		t.Errorf("%d letters were read of %d", got, number)
	}
}

// TestDeadLetters_Pages_AreTheListInEitherOrder reads dead letters page by page, of a stream from which many
// were removed, and compares them with what is read at once.
func TestDeadLetters_Pages_AreTheListInEitherOrder(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	d := b.deadLetters()
	page := func(deadLetters iter.Seq2[*events.DeadLetter, error], most int) (seqs []uint64) {
		t.Helper()
		for l, err := range deadLetters {
			if err != nil {
				t.Fatal(err)
			}
			if seqs = append(seqs, l.Seq); len(seqs) == most {
				break
			}
		}
		return seqs
	}
	if got := page(d.Before(t.Context(), DeadLetterFilter{}, true, 0), 1); got != nil {
		t.Errorf("of an empty stream: %v", got)
	}
	const number = 5 * newestBlock
	for i := range number {
		m := nats.NewMsg(b.ns.DLQ(events.ReasonMalformed))
		if i%3 == 0 {
			m.Subject = b.ns.DLQ(events.ReasonPoison)
		}
		m.Data = []byte("x")
		m.Header.Set(events.HeaderDLQReason, m.Subject[len(b.ns.DLQ("")):])
		m.Header.Set(events.HeaderDLQSubject, onRequest)
		if _, err := b.js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	for seq := uint64(newestBlock); seq < 4*newestBlock; seq++ { // more than a block, and pieces of others
		if seq%50 != 0 {
			if err := d.Remove(t.Context(), seq); err != nil {
				t.Fatal(err)
			}
		}
	}
	middle, err := d.Get(t.Context(), newestBlock/2)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]DeadLetterFilter{
		"all": {}, "a reason": {Reasons: []string{events.ReasonPoison}}, "since": {Since: middle.StoredAt}, "until": {Until: middle.StoredAt},
		"none": {Since: time.Now().Add(time.Hour)}, "with bodies": {ResourceID: "room"},
	} {
		want := page(d.All(t.Context(), f, false), math.MaxInt)
		if name == "all" && len(want) != number-3*newestBlock+3*newestBlock/50 {
			t.Errorf("there are %d", len(want))
		}
		for _, newest := range []bool{false, true} {
			read := d.After
			if newest {
				slices.Reverse(want)
				read = d.Before
			}
			for _, size := range []int{math.MaxInt, 170} {
				var got []uint64
				for after := uint64(0); ; after = got[len(got)-1] {
					next := page(read(t.Context(), f, false, after), size)
					if got = append(got, next...); len(next) < size {
						break
					}
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s, newest first %v, %d a page: got\n%v\nwant\n%v", name, newest, size, got, want)
				}
			}
		}
	}
	// A page goes on where the last one ended, also when that dead letter was removed.
	if got := page(d.Before(t.Context(), DeadLetterFilter{}, true, newestBlock+1), 1); fmt.Sprint(got) != fmt.Sprint([]uint64{newestBlock}) {
		t.Errorf("before a removed one: %v", got)
	}
	if got := page(d.After(t.Context(), DeadLetterFilter{}, true, newestBlock+1), 1); fmt.Sprint(got) != fmt.Sprint([]uint64{newestBlock + 50}) {
		t.Errorf("after a removed one: %v", got)
	}
	if got := page(d.After(t.Context(), DeadLetterFilter{}, true, math.MaxUint64), 1); got != nil {
		t.Errorf("after the last: %v", got)
	}
}

// TestDeadLetter_EventTooLarge_StoresClaimCheck has events die that fill a message, so that no letter could have them and
// say why: because of what the server takes, and of what the stream takes. Each is parked as a
// pointer, with its headers if those fit, and read from where it is. None is lost, and none is
// delivered again.
func TestDeadLetter_EventTooLarge_StoresClaimCheck(t *testing.T) {
	t.Parallel()
	const limit = 4096
	fill := strings.Repeat("x", limit-250)
	inbound := map[string]struct {
		header nats.Header
		body   string
		bare   bool // the headers do not fit either
	}{
		"large body":    {header: nats.Header{"X-Name": {"large body"}, "traceparent": {"00-1-2-01"}}, body: "no JSON " + fill},
		"large headers": {header: nats.Header{"X-Name": {"large headers"}, "X-Fill": {fill}}, body: "no JSON", bare: true},
		"small":         {header: nats.Header{"X-Name": {"small"}}, body: "no JSON"},
	}
	for name, small := range map[string]func(*testing.T) *harness{
		"for the server": func(t *testing.T) *harness {
			return newHarnessAt(t, stacktest.NATSWithMaxPayload(t, limit))
		},
		"for the stream": func(t *testing.T) *harness {
			b := newHarness(t)
			config := b.deadLetters().stream.CachedInfo().Config
			config.MaxMsgSize = limit
			if _, err := b.js.UpdateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := small(t)
			for _, e := range inbound {
				b.publish(b.ns.In(events.BookingRequested, "room"), e.header, e.body)
			}
			b.await("the letters", func() bool { return len(b.dlq) == len(inbound) })
			if info := b.awaitIdle(events.ConsumerRequests); info.Delivered.Consumer != uint64(len(inbound)) {
				t.Errorf("%d deliveries of %d events", info.Delivered.Consumer, len(inbound))
			}
			d := b.deadLetters()
			for l, err := range d.All(t.Context(), DeadLetterFilter{}, true) {
				if err != nil {
					t.Fatal(err)
				}
				e := inbound[l.Header.Get("X-Name")]
				same := b.get(d, l.Seq)
				for _, l := range []*events.DeadLetter{l, same} {
					if l.Missing != nil || string(l.Body) != e.body || l.Reason != events.ReasonMalformed || l.Detail == "" || l.StreamSeq == 0 || l.Size != len(e.body) {
						t.Errorf("letter %+v", l)
					}
				}
				m, err := l.Original(b.ns)
				if err != nil || string(m.Data) != e.body || m.Subject != b.ns.In(events.BookingRequested, "room") || len(m.Header) != len(e.header) {
					t.Errorf("%v: original %+v", err, m)
				}
				raw, err := d.stream.GetMsg(t.Context(), l.Seq)
				if err != nil {
					t.Fatal(err)
				}
				claimCheck := raw.Header.Get(events.HeaderClaimCheckSHA256) != ""
				if claimCheck != (e.body != "no JSON" || e.bare) || claimCheck && len(raw.Data) > 0 || (raw.Header.Get("X-Name") == "") != e.bare {
					t.Errorf("%s: is a pointer: %v; headers %.300v", l.Header.Get("X-Name"), claimCheck, raw.Header)
				}
				if !claimCheck {
					continue
				}
				// The event is gone: the letter itself can still be read.
				if err := d.inbound.DeleteMsg(t.Context(), l.StreamSeq); err != nil {
					t.Fatal(err)
				}
				lost := b.get(d, l.Seq)
				if _, err := lost.Original(b.ns); !errors.Is(err, events.ErrEventGone) || !strings.Contains(err.Error(), "is gone") || lost.Reason != events.ReasonMalformed {
					t.Errorf("%v: %+v", err, lost)
				}
			}
		})
	}
}

func sha256Of(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:])
}

// TestClaimCheck_WrongTarget_IsEventGone has letters point to what is not their event, and an event that wants to pass for
// a pointer.
func TestClaimCheck_WrongTarget_IsEventGone(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	forged := nats.Header{events.HeaderClaimCheckStream: {b.ns.OutStream()}, events.HeaderClaimCheckSeq: {"1"}, events.HeaderClaimCheckSHA256: {sha256Of("")}}
	b.publish(b.ns.In(events.BookingRequested, "room"), forged, "no JSON")
	b.await("the letter", func() bool { return len(b.dlq) == 1 })
	d := b.deadLetters()
	if l := b.get(d, 1); l.ClaimCheck != nil || string(l.Body) != "no JSON" {
		t.Errorf("an event passes for a pointer: %+v", l)
	}
	for name, c := range map[string]struct {
		claimCheck events.ClaimCheck
		want       string
	}{
		"another message": {events.ClaimCheck{Stream: b.ns.InStream(), Seq: 1, SHA256: sha256Of("another")}, "another message now"},
		"another stream":  {events.ClaimCheck{Stream: b.ns.OutStream(), Seq: 1, SHA256: sha256Of("no JSON")}, "not the inbound stream"},
		"nothing":         {events.ClaimCheck{Stream: b.ns.InStream(), Seq: 77, SHA256: sha256Of("no JSON")}, "is gone"},
		"no sequence":     {events.ClaimCheck{Stream: b.ns.InStream(), Seq: 0, SHA256: sha256Of("no JSON")}, ""},
		"right":           {events.ClaimCheck{Stream: b.ns.InStream(), Seq: 1, SHA256: sha256Of("no JSON")}, "fine"},
	} {
		l := &events.DeadLetter{Subject: b.ns.In(events.BookingRequested, "room"), ClaimCheck: &c.claimCheck}
		d.resolveClaimCheck(t.Context(), l)
		_, err := l.Original(b.ns)
		if c.want == "fine" {
			if err != nil || string(l.Body) != "no JSON" {
				t.Errorf("%s: %v", name, err)
			}
		} else if !errors.Is(err, events.ErrEventGone) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
