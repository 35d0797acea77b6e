package client

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

// seqsOf returns the sequences of the dead letters that match a filter.
func seqsOf(t *testing.T, d *DeadLetters, f DeadLetterFilter, bodies bool) (seqs []uint64) {
	t.Helper()
	for l, err := range d.All(t.Context(), f, bodies) {
		if err != nil {
			t.Fatal(err)
		}
		if read := l.Body != nil; read != (bodies || f.NeedsBody()) || l.Size == 0 {
			t.Errorf("dead letter %d: body read %v, size %d", l.Seq, read, l.Size)
		}
		seqs = append(seqs, l.Seq)
	}
	return seqs
}

// TestDeadLetterFilter_EachField_Matches checks each condition of a filter on a stream.
func TestDeadLetterFilter_EachField_Matches(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	d := h.deadLetters()
	if got := seqsOf(t, d, DeadLetterFilter{}, true); got != nil {
		t.Errorf("dead letters of an empty stream: %v", got)
	}
	store := func(reason, detail, event, resource, body string) uint64 {
		return h.storeDeadLetter(reason, detail, h.ns.In(event, resource), nil, body)
	}
	store(events.ReasonMalformed, "data.quantity: want a number", events.BookingRequested, "room", keyed("k"))
	store(events.ReasonMalformed, "data.user_id: missing", events.InventorySet, "room",
		envelopeOf(events.InventorySet, "e1", `{"resource_id":"room","capacity":1}`))
	store(events.ReasonPoison, "panic: a bug", events.PaymentConfirmed, "room",
		envelopeOf(events.PaymentConfirmed, "e1", `{"hold_id":"`+holdID+`"}`))
	fourth := store(events.ReasonUnknownType, "type: unknown: x", events.BookingRequested, "hall", "no JSON")
	store(events.ReasonMalformed, "", events.BookingRequested, "hall", "no JSON")
	middle := h.get(d, fourth).StoredAt
	for name, c := range map[string]struct {
		filter DeadLetterFilter
		want   []uint64
	}{
		"all":      {DeadLetterFilter{}, []uint64{1, 2, 3, 4, 5}},
		"a reason": {DeadLetterFilter{Reasons: []string{events.ReasonMalformed}}, []uint64{1, 2, 5}},
		"two reasons": {
			DeadLetterFilter{Reasons: []string{events.ReasonMalformed, events.ReasonPoison}}, []uint64{1, 2, 3, 5},
		},
		"a reason twice": {DeadLetterFilter{Reasons: []string{events.ReasonPoison, events.ReasonPoison}}, []uint64{3}},
		"no such reason": {DeadLetterFilter{Reasons: []string{events.ReasonTooLarge}}, nil},
		"a type":         {DeadLetterFilter{Type: events.BookingRequested}, []uint64{1, 4, 5}},
		"a resource":     {DeadLetterFilter{ResourceID: "room"}, []uint64{1, 2, 3}},
		"a user":         {DeadLetterFilter{UserID: "u"}, []uint64{1}},
		"text":           {DeadLetterFilter{Contains: "a bug"}, []uint64{3}},
		"since":          {DeadLetterFilter{Since: middle}, []uint64{4, 5}},
		"until":          {DeadLetterFilter{Until: middle}, []uint64{1, 2, 3}},
		"in the future":  {DeadLetterFilter{Since: middle.Add(time.Hour)}, nil},
		"several fields": {DeadLetterFilter{
			Reasons: []string{events.ReasonMalformed}, Type: events.BookingRequested, ResourceID: "hall", Since: middle,
		}, []uint64{5}},
	} {
		for _, bodies := range []bool{true, false} {
			if got := seqsOf(t, d, c.filter, bodies); !slices.Equal(got, c.want) {
				t.Errorf("%s (bodies %v): dead letters %v, want %v", name, bodies, got, c.want)
			}
		}
	}
	if err := d.Remove(t.Context(), 2); err != nil {
		t.Error(err)
	}
	if err := d.Remove(t.Context(), 2); !errors.Is(err, ErrDeadLetterNotFound) {
		t.Errorf("second removal: error %v, want ErrDeadLetterNotFound", err)
	}
	if _, err := d.Get(t.Context(), 2); !errors.Is(err, ErrDeadLetterNotFound) {
		t.Errorf("read after the removal: error %v, want ErrDeadLetterNotFound", err)
	}
	if got := seqsOf(t, d, DeadLetterFilter{}, true); !slices.Equal(got, []uint64{1, 3, 4, 5}) {
		t.Errorf("dead letters %v, want those that were not removed", got)
	}
}

// TestDeadLetters_PurgedWhileRead_ReadEnds removes all dead letters while they are read, and in one
// case stores a new one. The read ends, and does not return the new one.
func TestDeadLetters_PurgedWhileRead_ReadEnds(t *testing.T) {
	t.Parallel()
	for _, storesNew := range []bool{false, true} {
		t.Run(fmt.Sprintf("stores a new one=%v", storesNew), func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			const number = 2000 // more than one fetch
			subject := h.ns.In(events.BookingRequested, "room")
			for i := range number {
				h.storeDeadLetter(events.ReasonMalformed, fmt.Sprint(i), subject, nil, "no JSON")
			}
			d := h.deadLetters()
			read := 0
			for l, err := range d.All(t.Context(), DeadLetterFilter{}, true) {
				if err != nil {
					t.Fatal(err)
				}
				if l.Seq > number {
					t.Errorf("dead letter %d was stored after the read began", l.Seq)
				}
				if read++; read > 1 {
					continue
				}
				if err := d.stream.Purge(t.Context()); err != nil {
					t.Fatal(err)
				}
				if storesNew {
					h.storeDeadLetter(events.ReasonMalformed, "late", subject, nil, "no JSON")
				}
			}
			if read == 0 || read == number {
				t.Errorf("%d dead letters of %d were read", read, number)
			}
		})
	}
}

// TestDeadLetters_StallingConnection_AllAreRead delays the connection: the server has sent all dead
// letters and reports none left, while the reader has received some of them only.
func TestDeadLetters_StallingConnection_AllAreRead(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	const number = 300 // less than one fetch
	for i := range number {
		body := strings.Repeat("x", 1000)
		h.storeDeadLetter(events.ReasonMalformed, fmt.Sprint(i), h.ns.In(events.BookingRequested, "room"), nil, body)
	}
	stalling := &stacktest.StallingDialer{Pause: 1500 * time.Millisecond} // three times events.readStallAfter
	d := newHarnessWithoutStreams(t, stacktest.Shared().NATSURL, h.ns, nats.SetCustomDialer(stalling)).deadLetters()
	stalling.PauseAfter(number * 100)
	if got := len(seqsOf(t, d, DeadLetterFilter{}, true)); got != number {
		t.Errorf("%d dead letters of %d were read", got, number)
	}
}

// TestDeadLetters_Pages_AreTheListInEitherOrder reads a stream with many removed dead letters page
// by page, oldest and newest first, and compares the pages with All.
func TestDeadLetters_Pages_AreTheListInEitherOrder(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	d := h.deadLetters()
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
		t.Errorf("dead letters of an empty stream: %v", got)
	}
	const number = 8 * newestBlock
	for i := range number {
		m := nats.NewMsg(h.ns.DLQ(events.ReasonMalformed))
		if i < 3*newestBlock { // more than one block, below several without one of this reason
			m.Subject = h.ns.DLQ(events.ReasonPoison)
		}
		m.Data = []byte("x")
		m.Header.Set(events.HeaderDLQReason, m.Subject[len(h.ns.DLQ("")):])
		m.Header.Set(events.HeaderDLQSubject, onRequest)
		if _, err := h.js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	for seq := uint64(3 * newestBlock); seq < 7*newestBlock; seq++ {
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
		"all": {}, "a reason": {Reasons: []string{events.ReasonPoison}},
		"since": {Since: middle.StoredAt}, "until": {Until: middle.StoredAt},
		"none": {Since: time.Now().Add(time.Hour)}, "with bodies": {ResourceID: "room"},
	} {
		want := page(d.All(t.Context(), f, false), math.MaxInt)
		if name == "all" && len(want) != number-4*newestBlock+4*newestBlock/50 {
			t.Errorf("All returns %d dead letters", len(want))
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
	// A page can begin at a dead letter that was removed.
	got := page(d.Before(t.Context(), DeadLetterFilter{}, true, 3*newestBlock+1), 1)
	if !slices.Equal(got, []uint64{3 * newestBlock}) {
		t.Errorf("page before a removed dead letter: %v", got)
	}
	got = page(d.After(t.Context(), DeadLetterFilter{}, true, 3*newestBlock+1), 1)
	if !slices.Equal(got, []uint64{3*newestBlock + 50}) {
		t.Errorf("page after a removed dead letter: %v", got)
	}
	if got = page(d.After(t.Context(), DeadLetterFilter{}, true, math.MaxUint64), 1); got != nil {
		t.Errorf("page after the last dead letter: %v", got)
	}
}

// TestDeadLetter_EventTooLarge_StoresClaimCheck has a worker dead-letter events that, with the
// headers of a dead letter, exceed the limit of the server or of the stream. Each becomes a claim
// check, with its headers if those fit. Get and All read the event from the inbound stream. No
// event is delivered twice.
func TestDeadLetter_EventTooLarge_StoresClaimCheck(t *testing.T) {
	t.Parallel()
	const limit = 4096
	fill := strings.Repeat("x", limit-250)
	inbound := map[string]struct {
		header nats.Header
		body   string
		bare   bool // its headers do not fit either
	}{
		"large body": {
			header: nats.Header{"X-Name": {"large body"}, "traceparent": {"00-1-2-01"}}, body: "no JSON " + fill,
		},
		"large headers": {
			header: nats.Header{"X-Name": {"large headers"}, "X-Fill": {fill[30:]}}, body: "no JSON", bare: true,
		},
		"small": {header: nats.Header{"X-Name": {"small"}}, body: "no JSON"},
	}
	for name, newLimited := range map[string]func(*testing.T) *harness{
		"limit of the server": func(t *testing.T) *harness {
			return newHarnessAt(t, stacktest.NATSWithMaxPayload(t, limit))
		},
		"limit of the stream": func(t *testing.T) *harness {
			h := newHarness(t)
			h.updateStream(h.ns.DLQStream(), func(c *jetstream.StreamConfig) { c.MaxMsgSize = limit })
			return h
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newLimited(t)
			for _, e := range inbound {
				header := maps.Clone(e.header)
				header.Set(events.HeaderDLQReplays, "2") // as if it were replayed
				h.publish(h.ns.In(events.BookingRequested, "room"), header, e.body)
			}
			h.await("dead letters", func() bool { return len(h.dlq) == len(inbound) })
			if info := h.awaitIdle(events.ConsumerRequests); info.Delivered.Consumer != uint64(len(inbound)) {
				t.Errorf("%d deliveries of %d events", info.Delivered.Consumer, len(inbound))
			}
			d := h.deadLetters()
			for l, err := range d.All(t.Context(), DeadLetterFilter{}, true) {
				if err != nil {
					t.Fatal(err)
				}
				e := inbound[l.Header.Get("X-Name")]
				got := h.get(d, l.Seq)
				for _, l := range []*events.DeadLetter{l, got} {
					if l.Missing != nil || string(l.Body) != e.body || l.Reason != events.ReasonMalformed ||
						l.Detail == "" || l.StreamSeq == 0 || l.Size != len(e.body) || l.Replays != 2 {
						t.Errorf("dead letter %+v", l)
					}
				}
				m, err := l.Content()
				if err != nil || string(m.Data) != e.body || len(m.Header) != len(e.header) ||
					m.Subject != h.ns.In(events.BookingRequested, "room") {
					t.Errorf("%v: original %+v", err, m)
				}
				raw, err := d.stream.GetMsg(t.Context(), l.Seq)
				if err != nil {
					t.Fatal(err)
				}
				claimCheck := raw.Header.Get(events.HeaderClaimCheckSHA256) != ""
				bare := raw.Header.Get("X-Name") == ""
				if claimCheck != (e.body != "no JSON" || e.bare) || claimCheck && len(raw.Data) > 0 || bare != e.bare {
					t.Errorf("%s: claim check %v; headers %.300v", l.Header.Get("X-Name"), claimCheck, raw.Header)
				}
				if !claimCheck {
					continue
				}
				// Without its event, the rest of the dead letter can still be read.
				if err := h.inboundStream().DeleteMsg(t.Context(), l.StreamSeq); err != nil {
					t.Fatal(err)
				}
				l = h.get(d, l.Seq)
				if _, err := l.Content(); !errors.Is(err, events.ErrEventGone) ||
					!strings.Contains(err.Error(), "is gone") || l.Reason != events.ReasonMalformed {
					t.Errorf("after the removal of its event: error %v, dead letter %+v", err, l)
				}
			}
		})
	}
}

func sha256Of(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:])
}

// TestClaimCheck_WrongTarget_IsEventGone resolves claim checks of messages that are not their
// events. An event with the headers of a claim check does not become one.
func TestClaimCheck_WrongTarget_IsEventGone(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	forged := nats.Header{
		events.HeaderClaimCheckStream: {h.ns.OutStream()},
		events.HeaderClaimCheckSeq:    {"1"},
		events.HeaderClaimCheckSHA256: {sha256Of("")},
	}
	h.publish(h.ns.In(events.BookingRequested, "room"), forged, "no JSON")
	h.await("dead letter", func() bool { return len(h.dlq) == 1 })
	d := h.deadLetters()
	if l := h.get(d, 1); l.ClaimCheck != nil || string(l.Body) != "no JSON" {
		t.Errorf("an event became a claim check by its own headers: %+v", l)
	}
	check := func(stream string, seq uint64, body string) events.ClaimCheck {
		return events.ClaimCheck{Stream: stream, Seq: seq, SHA256: sha256Of(body)}
	}
	for name, c := range map[string]struct {
		claimCheck events.ClaimCheck
		want       string
	}{
		"another message": {check(h.ns.InStream(), 1, "another"), "another message now"},
		"another stream":  {check(h.ns.OutStream(), 1, "no JSON"), "not the inbound stream"},
		"no message":      {check(h.ns.InStream(), 77, "no JSON"), "is gone"},
		"no sequence":     {check(h.ns.InStream(), 0, "no JSON"), ""},
		"its event":       {check(h.ns.InStream(), 1, "no JSON"), ""},
	} {
		l := &events.DeadLetter{Subject: h.ns.In(events.BookingRequested, "room"), ClaimCheck: &c.claimCheck}
		d.resolveClaimCheck(t.Context(), l)
		_, err := l.Content()
		if name == "its event" {
			if err != nil || string(l.Body) != "no JSON" {
				t.Errorf("%s: error %v, body %q", name, err, l.Body)
			}
		} else if !errors.Is(err, events.ErrEventGone) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}
