package client

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

// TestRequest_OutcomeOrDeadLetter_ReturnsReply publishes a good and a malformed event, and waits
// for both replies.
func TestRequest_OutcomeOrDeadLetter_ReturnsReply(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	subject := h.ns.In(events.BookingRequested, "room")
	good, bad := nats.NewMsg(subject), nats.NewMsg(subject)
	good.Data, bad.Data = []byte(keyed("good")), []byte("{")
	reply, err := h.client.Request(stacktest.WaitContext(t), good)
	if err != nil || reply.DeadLetter != nil || reply.Envelope.CausationID != "good" {
		t.Errorf("%v: reply %+v, want an outcome of the event", err, reply)
	}
	reply, err = h.client.Request(stacktest.WaitContext(t), bad)
	if err != nil || reply.DeadLetter == nil || reply.DeadLetter.Detail == "" ||
		reply.DeadLetter.Error != events.ReasonMalformed {
		t.Errorf("%v: reply %+v, want a dead letter", err, reply)
	}
}

// TestRequest_NoWorker_IsErrReplyTimeout publishes an event that no worker reads.
func TestRequest_NoWorker_IsErrReplyTimeout(t *testing.T) {
	t.Parallel()
	h := newStreams(t)
	m := nats.NewMsg(h.ns.In(events.BookingRequested, "room"))
	m.Data = []byte(keyed("k"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := h.client.Request(ctx, m); !errors.Is(err, ErrReplyTimeout) {
		t.Errorf("error %v, want ErrReplyTimeout", err)
	}
}

// TestPublish_ServerIsCutOff_UsesAnother publishes on a server that is cut off from its cluster. A client that knows other
// servers uses one of them. Another one names what may be the matter.
func TestPublish_ServerIsCutOff_UsesAnother(t *testing.T) {
	t.Parallel()
	h, urls, cutOff := newCutOff(t)
	many := newHarnessWithoutStreams(t, strings.Join(urls, ","), h.ns, nats.DontRandomize())
	one := newHarnessWithoutStreams(t, urls[0], h.ns)
	cutOff()
	publish := func(client *Client, key string) error {
		m := nats.NewMsg(h.ns.In(events.BookingRequested, "room"))
		m.Data = []byte(keyed(key))
		return client.HintMigrate(client.Publish(stacktest.WaitContext(t), m))
	}
	if err := publish(one.client, "refused"); !errors.Is(err, jetstream.ErrNoStreamResponse) ||
		!strings.Contains(err.Error(), "the server "+one.nc.ConnectedAddr()+" is cut off from its cluster") {
		t.Errorf("with one server: %v", err)
	}
	stacktest.Must(t, publish(many.client, "stored"))
	if stored := h.inboundStream().CachedInfo().State.Msgs; stored != 1 {
		t.Errorf("%d messages are stored, want 1", stored)
	}
}

// TestPublish_MayNotLeave_KeepsConnection publishes on a server without streams, with a client that knows another server, which
// has them, and does not own its connection, as in a worker. The connection stays as it is.
func TestPublish_MayNotLeave_KeepsConnection(t *testing.T) {
	t.Parallel()
	s := stacktest.StartNATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	streams := newStreams(t)
	h := newHarnessWithoutStreams(t, s.ClientURL()+","+streams.nc.ConnectedUrl(), streams.ns, nats.DontRandomize())
	h.client.MayLeave = false
	m := &nats.Msg{Subject: h.ns.In(events.BookingRequested, "room"), Data: []byte(keyed("k"))}
	if err := h.client.Publish(stacktest.WaitContext(t), m); !errors.Is(err, jetstream.ErrNoStreamResponse) {
		t.Errorf("error %v, want ErrNoStreamResponse", err)
	}
	if url := h.nc.ConnectedUrl(); url != s.ClientURL() || h.nc.Stats().Reconnects > 0 {
		t.Errorf("connected to %s after %d reconnections", url, h.nc.Stats().Reconnects)
	}
}

// TestPublish_OtherServerHangs_IsErrNoStreamResponse publishes on a server without streams, with a client that knows another
// server, which accepts connections and sends nothing. Its context ends meanwhile. The error says what is known, and nothing
// waits for the other server.
func TestPublish_OtherServerHangs_IsErrNoStreamResponse(t *testing.T) {
	t.Parallel()
	s := stacktest.StartNATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	hung, err := net.Listen("tcp4", "127.0.0.1:0")
	stacktest.Must(t, err)
	h := newHarnessWithoutStreams(t, s.ClientURL()+",nats://"+hung.Addr().String(), "holdfast",
		nats.DontRandomize(), nats.Timeout(10*generous))
	ctx, cancel := context.WithCancel(t.Context())
	accepted, published := make(chan net.Conn, 1), make(chan error, 1)
	go func() {
		conn, _ := hung.Accept()
		cancel()
		accepted <- conn
	}()
	t.Cleanup(func() { // before the end of the client, which waits for its connection
		_ = hung.Close()
		if conn := <-accepted; conn != nil {
			_ = conn.Close()
		}
	})
	go func() { published <- h.client.Publish(ctx, &nats.Msg{Subject: onRequest, Data: []byte(keyed("k"))}) }()
	select {
	case err := <-published:
		if !errors.Is(err, jetstream.ErrNoStreamResponse) {
			t.Errorf("error %v, want ErrNoStreamResponse", err)
		}
	case <-time.After(generous):
		t.Error("Publish waits for the other server")
	}
}

// TestFollow_ServerIsCutOff_ReportsOnce follows the streams on a server that is then cut off from its cluster. The failure of
// each is reported once, however often it is tried again.
func TestFollow_ServerIsCutOff_ReportsOnce(t *testing.T) {
	t.Parallel()
	h, urls, cutOff := newCutOff(t)
	one := newHarnessWithoutStreams(t, urls[0], h.ns)
	attempts, err := one.nc.SubscribeSync("$JS.API.CONSUMER.CREATE." + h.ns.OutStream() + ".>")
	stacktest.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended, failures := make(chan struct{}), make(chan error, 1), make(chan error, 64)
	go func() {
		ended <- one.client.Follow(ctx, time.Time{}, func() { close(ready) }, func(events.StoredMsg) {},
			func(err error) { failures <- err })
	}()
	<-ready
	cutOff()
	reported := (<-failures).Error() + "\n" + (<-failures).Error()
	for _, name := range []string{h.ns.OutStream(), h.ns.DLQStream()} {
		if strings.Count(reported, "follow stream "+name) != 1 {
			t.Errorf("reported %s, want a failure of %s", reported, name)
		}
	}
	for range 3 {
		_, err := attempts.NextMsgWithContext(stacktest.WaitContext(t))
		stacktest.Must(t, err)
	}
	cancel()
	stacktest.Must(t, <-ended)
	if len(failures) > 0 {
		t.Errorf("reported again: %v", <-failures)
	}
	unavailable := &jetstream.APIError{Code: 503, ErrorCode: 10008} // of some requests; others have no answer
	if err := one.client.HintMigrate(unavailable); !strings.Contains(err.Error(), "is cut off from its cluster") {
		t.Errorf("the advice is %v", err)
	}
}
