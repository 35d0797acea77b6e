package events

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// smallServer starts a NATS server whose messages have at most so many bytes.
func smallServer(t *testing.T, payloadMax int32) (url string) {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), MaxPayload: payloadMax, NoSigs: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server is not ready")
	}
	return s.ClientURL()
}

// deadLetters are the dead letters of a bench.
func (b *harness) deadLetters() *DeadLetters {
	b.t.Helper()
	client, err := NewClient(b.nc, b.ns)
	if err != nil {
		b.t.Fatal(err)
	}
	d, err := client.DeadLetters(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

func (d *DeadLetters) must(t *testing.T, seq uint64) *DeadLetter {
	t.Helper()
	l, err := d.Get(t.Context(), seq)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestDeadLetter_EventTooLarge_StoresClaimCheck has events die that fill a message, so that no letter could have them and
// say why: because of what the server takes, and of what the stream takes. Each is parked as a
// pointer, with its headers if those fit, and read from where it is. None is lost, and none is
// delivered again.
func TestDeadLetter_EventTooLarge_StoresClaimCheck(t *testing.T) {
	t.Parallel()
	const limit = 4096
	fill := strings.Repeat("x", limit-250)
	events := map[string]struct {
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
			return newHarnessAt(t, smallServer(t, limit), func(js jetstream.JetStream) jetstream.JetStream { return js })
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
			for _, e := range events {
				b.publish(b.ns.In(BookingRequested, "room"), e.header, e.body)
			}
			b.await("the letters", func() bool { return len(b.dlq) == len(events) })
			if info := b.awaitIdle(ConsumerRequests); info.Delivered.Consumer != uint64(len(events)) {
				t.Errorf("%d deliveries of %d events", info.Delivered.Consumer, len(events))
			}
			d := b.deadLetters()
			for l, err := range d.All(t.Context(), DeadLetterFilter{}, true) {
				if err != nil {
					t.Fatal(err)
				}
				e := events[l.Header.Get("X-Name")]
				same := d.must(t, l.Seq)
				for _, l := range []*DeadLetter{l, same} {
					if l.Missing != nil || string(l.Body) != e.body || l.Reason != ReasonMalformed || l.Detail == "" || l.StreamSeq == 0 || l.Size != len(e.body) {
						t.Errorf("letter %+v", l)
					}
				}
				m, err := l.Original(b.ns)
				if err != nil || string(m.Data) != e.body || m.Subject != b.ns.In(BookingRequested, "room") || len(m.Header) != len(e.header) {
					t.Errorf("%v: original %+v", err, m)
				}
				raw, err := d.stream.GetMsg(t.Context(), l.Seq)
				if err != nil {
					t.Fatal(err)
				}
				claimCheck := raw.Header.Get(HeaderClaimCheckSHA256) != ""
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
				lost := d.must(t, l.Seq)
				if _, err := lost.Original(b.ns); !errors.Is(err, ErrEventGone) || !strings.Contains(err.Error(), "is gone") || lost.Reason != ReasonMalformed {
					t.Errorf("%v: %+v", err, lost)
				}
			}
		})
	}
}

// TestReplay_MessageAtSizeLimit_DropsReplayHeaders replays events that leave no room for the headers of a replay.
func TestReplay_MessageAtSizeLimit_DropsReplayHeaders(t *testing.T) {
	t.Parallel()
	const limit = 4096
	b := newHarnessAt(t, smallServer(t, limit), func(js jetstream.JetStream) jetstream.JetStream { return js })
	subject := b.ns.In(BookingRequested, "room")
	for i, size := range []int{limit, limit - 120, limit - 400} {
		b.publish(subject, nil, strings.Repeat("x", size))
		b.await("the letter", func() bool { return len(b.dlq) == i+1 }) // they need not be parked in their order
	}
	d := b.deadLetters()
	r, err := d.Replayer(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i, want := range []string{ReplayNoOutcome, ReplayNoOutcome, ReplayDeadLettered} {
		if got := b.replay(r, uint64(i+1), "", false); got.Result != want {
			t.Errorf("letter %d: %+v, want %s", i+1, got, want)
		}
	}
	b.await("the letters of the replays", func() bool { return len(b.dlq) == 6 })
	for i, id := range []bool{false, true, true} {
		m, err := d.inbound.GetMsg(t.Context(), uint64(i+4))
		if err != nil || m.Header.Get(headerReplyTo) != "" != (i == 2) || m.Header.Get(headerMsgID) != "" != id {
			t.Errorf("%v: event %d was stored with %v", err, i+4, m.Header)
		}
	}
}

// TestClaimCheck_WrongTarget_IsEventGone has letters point to what is not their event, and an event that wants to pass for
// a pointer.
func TestClaimCheck_WrongTarget_IsEventGone(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	forged := nats.Header{HeaderClaimCheckStream: {b.ns.OutStream()}, HeaderClaimCheckSeq: {"1"}, HeaderClaimCheckSHA256: {bodySum(nil)}}
	b.publish(b.ns.In(BookingRequested, "room"), forged, "no JSON")
	b.await("the letter", func() bool { return len(b.dlq) == 1 })
	d := b.deadLetters()
	if l := d.must(t, 1); l.ClaimCheck != nil || string(l.Body) != "no JSON" {
		t.Errorf("an event passes for a pointer: %+v", l)
	}
	for name, c := range map[string]struct {
		claimCheck ClaimCheck
		want       string
	}{
		"another message": {ClaimCheck{b.ns.InStream(), 1, bodySum([]byte("another"))}, "another message now"},
		"another stream":  {ClaimCheck{b.ns.OutStream(), 1, bodySum([]byte("no JSON"))}, "not the inbound stream"},
		"nothing":         {ClaimCheck{b.ns.InStream(), 77, bodySum([]byte("no JSON"))}, "is gone"},
		"no sequence":     {ClaimCheck{b.ns.InStream(), 0, bodySum([]byte("no JSON"))}, ""},
		"right":           {ClaimCheck{b.ns.InStream(), 1, bodySum([]byte("no JSON"))}, "fine"},
	} {
		l := &DeadLetter{Subject: b.ns.In(BookingRequested, "room"), ClaimCheck: &c.claimCheck}
		d.resolveClaimCheck(t.Context(), l)
		_, err := l.Original(b.ns)
		if c.want == "fine" {
			if err != nil || string(l.Body) != "no JSON" {
				t.Errorf("%s: %v", name, err)
			}
		} else if !errors.Is(err, ErrEventGone) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestOriginal_DeadLetterHeaders_AreRemoved takes from a letter what is of the letter, and what was for one publication only.
func TestOriginal_DeadLetterHeaders_AreRemoved(t *testing.T) {
	t.Parallel()
	l := &DeadLetter{Subject: "holdfast.in.booking.requested.room", Body: []byte("b"), Header: nats.Header{
		"Content-Type": {"application/json"}, "ce-id": {"1"}, "X-Two": {"a", "b"}, "traceparent": {"t"},
		"Nats-Msg-Id": {"m"}, "nats-expected-stream": {"s"}, "Holdfast-Reply-To": {"_INBOX.gone"}, HeaderDLQReason: {"r"}, HeaderClaimCheckSeq: {"1"},
	}}
	m, err := l.Original(ns)
	if err != nil || m.Subject != l.Subject || string(m.Data) != "b" || len(m.Header) != 4 || len(m.Header["X-Two"]) != 2 || m.Header.Get("traceparent") != "t" {
		t.Errorf("%v: %+v", err, m)
	}
	for _, subject := range []string{"", "holdfast.out.hold.created.room", "other.in.booking.requested.room", "$JS.API.STREAM.DELETE.X", "holdfast.in.a b", "holdfast.in.>"} {
		l.Subject = subject
		if _, err := l.Original(ns); !errors.Is(err, ErrEventGone) {
			t.Errorf("subject %q: %v", subject, err)
		}
	}
}

// TestReadDeadLetter_HostileHeaders_ReadSafely reads a letter that nobody of ours has written.
func TestReadDeadLetter_HostileHeaders_ReadSafely(t *testing.T) {
	t.Parallel()
	header := nats.Header{
		HeaderDLQDetail: {"\x1b[2J\xff"}, HeaderDLQSubject: {"\x07"}, HeaderDLQStreamSeq: {"-1"}, HeaderDLQDeliveries: {"18446744073709551616"},
		HeaderDLQTime: {"never"}, HeaderDLQReason: {"kind"},
	}
	l := ns.readDeadLetter("holdfast.dlq.a.b", header, []byte("{"), 7, time.Now())
	if l.Reason != "a.b" || l.StreamSeq != 0 || l.Deliveries != 0 || l.Detail != "\x1b[2J\xff" || l.EventID != "" {
		t.Errorf("%+v", l)
	}
	text, err := l.JSON()
	if want := `{"seq":7,"reason":"a.b","detail":"\u001b[2J` + "\uFFFD" + `","subject":"\u0007","event_id":"","stream_seq":0,"deliveries":0,"time":"never"}`; err != nil || string(text) != want {
		t.Errorf("%v: %s, want %s", err, text, want)
	}
}
