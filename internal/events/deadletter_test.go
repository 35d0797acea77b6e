package events

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/stack/stacktest"
)

// TestContent_DeadLetterHeaders_AreRemoved checks which headers of a dead letter belong to the
// original event.
func TestContent_DeadLetterHeaders_AreRemoved(t *testing.T) {
	t.Parallel()
	l := &DeadLetter{Subject: "holdfast.in.booking.requested.room", Body: []byte("b"), Header: nats.Header{
		"Content-Type": {"application/json"}, "ce-id": {"1"}, "X-Two": {"a", "b"}, "traceparent": {"t"},
		"Nats-Msg-Id": {"m"}, "nats-expected-stream": {"s"}, "Holdfast-Reply-To": {"_INBOX.gone"}, HeaderDLQReason: {"r"}, HeaderClaimCheckSeq: {"1"},
		HeaderDLQReplays: {"2"},
	}, Replays: 2}
	m, err := l.Content()
	if err != nil || m.Subject != l.Subject || string(m.Data) != "b" || len(m.Header) != 4 || len(m.Header["X-Two"]) != 2 || m.Header.Get("traceparent") != "t" {
		t.Errorf("%v: %+v", err, m)
	}
	if m, err := l.Again(ns); err != nil || len(m.Header) != 6 || m.Header.Get(HeaderDLQReplays) != "3" {
		t.Errorf("a replay: %v: %+v", err, m)
	}
	for _, subject := range []string{"", "holdfast.out.hold.created.room", "other.in.booking.requested.room", "$JS.API.STREAM.DELETE.X", "holdfast.in.a b", "holdfast.in.>", "holdfast.in.*.room", "holdfast.in.a..b"} {
		l.Subject = subject
		if _, err := l.Again(ns); !errors.Is(err, ErrSubject) {
			t.Errorf("subject %q: %v", subject, err)
		}
		if m, err := l.Content(); err != nil || m.Subject != subject {
			t.Errorf("the content with the subject %q: %v", subject, err)
		}
	}
	l.Subject = "holdfast.in.booking.requested.lo*ft>" // JetStream accepts it
	if m, err := l.Again(ns); err != nil || m.Subject != l.Subject {
		t.Errorf("subject %q: %v", l.Subject, err)
	}
}

// TestReadDeadLetter_HostileHeaders_ReadSafely reads a dead letter that no worker has written.
func TestReadDeadLetter_HostileHeaders_ReadSafely(t *testing.T) {
	t.Parallel()
	header := nats.Header{
		HeaderDLQDetail: {"\x1b[2J\xff"}, HeaderDLQSubject: {"\x07"}, HeaderDLQStreamSeq: {"-1"}, HeaderDLQDeliveries: {"18446744073709551616"},
		HeaderDLQTime: {"never"}, HeaderDLQReason: {"kind"},
	}
	l := ns.ParseDeadLetter(&jetstream.RawStreamMsg{Subject: "holdfast.dlq.a.b", Header: header, Data: []byte("{"), Sequence: 7, Time: time.Now()})
	if l.Reason != "a.b" || l.StreamSeq != 0 || l.Deliveries != 0 || l.Detail != "\x1b[2J\xff" || l.EventID != "" {
		t.Errorf("%+v", l)
	}
	text, err := json.Marshal(l, jsontext.AllowInvalidUTF8(true))
	if want := `{"seq":7,"reason":"a.b","detail":"\u001b[2J` + "\uFFFD" + `","subject":"\u0007","event_id":"","stream_seq":0,"deliveries":0,"time":"never"}`; err != nil || string(text) != want {
		t.Errorf("%v: %s, want %s", err, text, want)
	}
}

// TestDeadLetter_StreamFull_OthersAnswered publishes malformed events while the stream of dead letters is full. The
// consumer does not pause: other events are answered, and the dead letters are stored when there is room.
func TestDeadLetter_StreamFull_OthersAnswered(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	limit := func(messages int64) {
		updateStream(t, b.js, b.ns.DLQStream(), func(c *jetstream.StreamConfig) { c.MaxMsgs = messages })
	}
	limit(1)
	const number = 20
	for range number {
		b.publish(b.ns.In(BookingRequested, "room"), nil, `{"bad`)
	}
	const refused = "dead letter refused, its event waits"
	stacktest.Eventually(t, "dead letters to be refused", func() bool { return len(b.logged.with(t, refused)) >= number-1 })
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("k"))
	b.await("the outcome of another event", func() bool { return len(b.out) == 1 })
	if err := b.workers[0].Outage(); err != nil {
		t.Errorf("the consumer is paused: %v", err)
	}
	if line := b.logged.with(t, refused)[0]; line["stream"] != b.ns.DLQStream() {
		t.Errorf("logged %v", line)
	}
	limit(-1)
	b.await("all dead letters", func() bool { return len(b.dlq) == number })
}

// TestDeadLetter_StreamFullForOversizedOutcome_OthersAnswered decides an event whose outcome is then refused as too
// large, while the stream of dead letters is full. The consumer does not pause.
func TestDeadLetter_StreamFullForOversizedOutcome_OthersAnswered(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	updateStream(t, b.js, b.ns.OutStream(), func(c *jetstream.StreamConfig) { c.MaxMsgSize = 8 << 10 })
	updateStream(t, b.js, b.ns.DLQStream(), func(c *jetstream.StreamConfig) { c.MaxBytes = 1 })
	b.publish(b.ns.In(BookingRequested, "room"), nil, filled(BookingRequested, requestData("large"), 9<<10))
	const refused = "dead letter refused, its event waits"
	stacktest.Eventually(t, "the dead letter to be refused", func() bool { return len(b.logged.with(t, refused)) > 0 })
	if b.workers[0].failure.Load() != nil {
		t.Error("the consumer has paused")
	}
	updateStream(t, b.js, b.ns.DLQStream(), func(c *jetstream.StreamConfig) { c.MaxBytes = -1 })
	b.await("the dead letter", func() bool { return len(b.dlq) == 1 })
}

// TestDeadLetter_HeaderThatCannotBeSent_LeftOut publishes malformed events with a header whose name the server accepts
// and nats.go does not send. Their dead letters have all the rest, and say so. Of headers with a line that nats.go cannot
// parse they have none, and say so.
func TestDeadLetter_HeaderThatCannotBeSent_LeftOut(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.nc.ConnectedUrl(), "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	const header, body = "NATS/1.0\r\nApp/Version: 2\r\nApp: cart\r\n\r\n", `{"bad`
	send := func(format string, args ...any) {
		if _, err := fmt.Fprintf(conn, format, args...); err != nil {
			t.Fatal(err)
		}
	}
	send("CONNECT {\"verbose\":false,\"headers\":true}\r\n")
	for _, event := range []string{BookingRequested, PaymentConfirmed} {
		send("HPUB %s %d %d\r\n%s%s\r\n", b.ns.In(event, "room"), len(header), len(header)+len(body), header, body)
	}
	b.await("two dead letters", func() bool { return len(b.dlq) == 2 })
	b.awaitIdle(ConsumerRequests)
	b.awaitIdle(ConsumerPayments)
	for _, l := range b.dlq {
		if h := l.Headers(); h.Get("App") != "cart" || string(l.Data()) != body || !strings.Contains(h.Get(HeaderDLQDetail), "App/Version") {
			t.Errorf("a dead letter has %v and the body %s", h, l.Data())
		}
	}
	const unparsed = "NATS/1.0\r\nApp: cart\r\nno colon\r\n\r\n"
	send("HPUB %s %d %d\r\n%s%s\r\n", b.ns.In(BookingRequested, "room"), len(unparsed), len(unparsed)+len(body), unparsed, body)
	b.await("another dead letter", func() bool { return len(b.dlq) == 3 })
	if detail := b.dlq[2].Headers().Get(HeaderDLQDetail); !strings.Contains(detail, "(headers left out: one of their lines") {
		t.Errorf("the dead letter of an event with headers that cannot be parsed has the detail %s", detail)
	}
	l := &DeadLetter{Subject: b.ns.In(BookingRequested, "room"), Header: nats.Header{"App/Version": {"2"}, "App": {"cart"}}}
	if m, err := l.Content(); err != nil || len(m.Header) != 1 {
		t.Errorf("a claim check leads to %v %v", m, err)
	}
}
