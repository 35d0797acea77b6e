package events

import (
	"errors"
	"net/url"
	"reflect"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/stack/stacktest"
)

// TestAsyncPublisher_AnyAnswer_IsReturned publishes messages that NATS stores, recognizes, refuses
// and has no stream for, and some whose connection ends. Each has the answer that a single Publish
// has.
func TestAsyncPublisher_AnyAnswer_IsReturned(t *testing.T) {
	t.Parallel()
	server, err := url.Parse(stacktest.Shared().NATSURL)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := stacktest.NewProxy(server.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	server.Host = proxy.Addr()
	nc, err := Connect(server.String(), t.Name(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := NewJetStream(nc)
	if err != nil {
		t.Fatal(err)
	}
	name := stacktest.Namespace(t)
	config := jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, MaxMsgSize: 1000}
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = newJetStream(t).DeleteStream(t.Context(), name) })
	publish := func(subject, id string, size int) jetstream.PubAckFuture {
		m := &nats.Msg{Subject: subject, Header: nats.Header{headerMsgID: {id}}, Data: make([]byte, size)}
		future, err := js.PublishMsgAsync(m)
		if err != nil {
			t.Fatal(err)
		}
		return future
	}
	const number = 100
	futures := make([]jetstream.PubAckFuture, number)
	for i := range futures {
		futures[i] = publish(name+".a", string(rune('a'+i)), 1)
	}
	for i, future := range futures {
		ack, err := awaitStored(t.Context(), future)
		if err != nil || *ack != (jetstream.PubAck{Stream: name, Sequence: uint64(i + 1)}) {
			t.Fatalf("message %d: %+v %v", i, ack, err)
		}
	}
	<-js.PublishAsyncComplete()
	again, err := awaitStored(t.Context(), publish(name+".a", "c", 1))
	if err != nil || *again != (jetstream.PubAck{Stream: name, Sequence: 3, Duplicate: true}) {
		t.Errorf("a repeat: %+v %v", again, err)
	}
	if ack, err := awaitStored(t.Context(), publish(name+".a", "large", 1001)); !IsTooLarge(err) {
		t.Errorf("too large: %+v %v", ack, err)
	}
	if ack, err := awaitStored(t.Context(), publish("x"+name, "x", 1)); !errors.Is(err, jetstream.ErrNoStreamResponse) {
		t.Errorf("without a stream: %+v %v", ack, err)
	}
	proxy.Set(stacktest.Downstream, stacktest.Toxics{Stall: true})
	lost, noticed := publish(name+".a", "lost", 1), publish(name+".a", "noticed", 1)
	idle := js.PublishAsyncComplete()
	proxy.Cut(true)
	for _, future := range []jetstream.PubAckFuture{lost, noticed} {
		if ack, err := awaitStored(t.Context(), future); !errors.Is(err, nats.ErrDisconnected) {
			t.Errorf("disconnected: %+v %v", ack, err)
		}
	}
	<-idle
}

// TestParsePubAck_AnyForm_IsRead parses what servers answer.
func TestParsePubAck_AnyForm_IsRead(t *testing.T) {
	t.Parallel()
	p := &asyncPublisher{}
	for text, want := range map[string]jetstream.PubAck{
		`{"stream":"OUT", "seq":17}`:                           {Stream: "OUT", Sequence: 17},
		`{"stream":"OUT", "seq":17,"duplicate": true}`:         {Stream: "OUT", Sequence: 17, Duplicate: true},
		`{"stream":"OUT","domain":"hub","seq":1}`:              {Stream: "OUT", Domain: "hub", Sequence: 1},
		`{"type":"x","stream":"OUT","seq":1,"batch":"b"}`:      {Stream: "OUT", Sequence: 1},
		`{"stream":"O\u0055T", "seq":18446744073709551615}`:    {Stream: "OUT", Sequence: 1<<64 - 1},
		`{"stream":"OUT", "seq":0,"duplicate":true,"val":"v"}`: {Stream: "OUT", Duplicate: true, Value: "v"},
	} {
		if ack, err := p.parsePubAck([]byte(text)); err != nil || !reflect.DeepEqual(*ack, want) {
			t.Errorf("%s: %+v %v", text, ack, err)
		}
	}
	for _, text := range []string{"", "x", "{}", `{"stream":"", "seq":1}`, `{"stream":"OUT", "seq":-1}`, `{"stream":"OUT", "seq":1`} {
		if ack, err := p.parsePubAck([]byte(text)); err == nil {
			t.Errorf("%s: %+v", text, ack)
		}
	}
	refused := `{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"OUT","seq":0}`
	_, err := p.parsePubAck([]byte(refused))
	if e, is := errors.AsType[*jetstream.APIError](err); !is || e.ErrorCode != 10077 || e.Code != 503 {
		t.Errorf("refused: %#v", err)
	}
}
