package events

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestAsyncPublisher_AnyAnswer_IsReturned publishes messages that NATS stores, recognizes, refuses
// and has no stream for, and some whose connection ends. Each has the answer that a single Publish
// has.
func TestAsyncPublisher_AnyAnswer_IsReturned(t *testing.T) {
	t.Parallel()
	address, proxy := stacktest.ProxyTo(t, stacktest.Shared().NATSURL)
	nc, err := Connect(address, t.Name(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := NewJetStream(nc, Namespace(stacktest.Namespace(t)))
	if err != nil {
		t.Fatal(err)
	}
	name := stacktest.Namespace(t)
	config := jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, MaxMsgSize: 1000}
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = newJetStream(t).DeleteStream(t.Context(), name) })
	publish := func(subject, id string, size int) *Sending {
		m := &nats.Msg{Subject: subject, Header: nats.Header{headerMsgID: {id}}, Data: make([]byte, size)}
		return js.Send(m)
	}
	const number = 100
	sent := make([]*Sending, number)
	for i := range sent {
		sent[i] = publish(name+".a", string(rune('a'+i)), 1)
	}
	for i, sending := range sent {
		ack, err := sending.Stored(t.Context())
		if err != nil || *ack != (jetstream.PubAck{Stream: name, Sequence: uint64(i + 1)}) {
			t.Fatalf("message %d: %+v %v", i, ack, err)
		}
	}
	again, err := publish(name+".a", "c", 1).Stored(t.Context())
	if err != nil || *again != (jetstream.PubAck{Stream: name, Sequence: 3, Duplicate: true}) {
		t.Errorf("a repeat: %+v %v", again, err)
	}
	if ack, err := publish(name+".a", "large", 1001).Stored(t.Context()); !IsTooLarge(err) {
		t.Errorf("too large: %+v %v", ack, err)
	}
	if ack, err := publish("x"+name, "x", 1).Stored(t.Context()); !errors.Is(err, jetstream.ErrNoStreamResponse) {
		t.Errorf("without a stream: %+v %v", ack, err)
	}
	proxy.Set(stacktest.Downstream, stacktest.Toxics{Stall: true})
	lost, noticed := publish(name+".a", "lost", 1), publish(name+".a", "noticed", 1)
	proxy.Cut(true)
	for _, sending := range []*Sending{lost, noticed} {
		if ack, err := sending.Stored(t.Context()); !errors.Is(err, nats.ErrDisconnected) {
			t.Errorf("disconnected: %+v %v", ack, err)
		}
	}
	checkNoneWaits(t, js)
}

// checkNoneWaits checks that no message waits for its PubAck.
func checkNoneWaits(t *testing.T, js JetStream) {
	t.Helper()
	p := js.(*asyncPublisher)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) > 0 {
		t.Errorf("%d messages wait for their PubAcks", len(p.waiting))
	}
}

// TestAsyncPublisher_CallerGivesUp_ForgetsTheMessage publishes to a subscriber that does not answer, and stops waiting.
func TestAsyncPublisher_CallerGivesUp_ForgetsTheMessage(t *testing.T) {
	t.Parallel()
	nc := newJetStream(t).Conn()
	js, err := NewJetStream(nc, Namespace(stacktest.Namespace(t)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, giveUp := context.WithCancel(t.Context())
	subject := "x" + stacktest.Namespace(t)
	if _, err := nc.Subscribe(subject, func(*nats.Msg) { giveUp() }); err != nil {
		t.Fatal(err)
	}
	if ack, err := js.PublishMsg(ctx, nats.NewMsg(subject)); !errors.Is(err, context.Canceled) {
		t.Errorf("published: %+v %v", ack, err)
	}
	if ack, err := js.Send(nats.NewMsg(subject)).Stored(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("sent: %+v %v", ack, err)
	}
	checkNoneWaits(t, js)
}

// TestAsyncPublisher_StreamOfAnotherDomainAnswers_OwnStreamCounts publishes on a server with a leaf node whose JetStream
// domain has a stream with the subjects of the namespace, too: both streams answer. That one may also have the same name, where
// a worker was once connected to the leaf node.
func TestAsyncPublisher_StreamOfAnotherDomainAnswers_OwnStreamCounts(t *testing.T) {
	t.Parallel()
	ns := Namespace("twice")
	for _, theirs := range []string{"THEIRS", ns.OutStream()} {
		t.Run(theirs, func(t *testing.T) {
			t.Parallel()
			answersOfOwnStreamCount(t, ns, theirs)
		})
	}
}

// twoOutcomes returns messages of the outbound stream.
func twoOutcomes(ns Namespace) []*nats.Msg {
	outcome := func() *nats.Msg { return &nats.Msg{Subject: ns.Out("hold.created", "room"), Header: nats.Header{}} }
	return []*nats.Msg{outcome(), outcome()}
}

// publishSoon publishes an outcome, within a second.
func publishSoon(t *testing.T, js JetStream, ns Namespace) (*jetstream.PubAck, error) {
	t.Helper()
	limited, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return js.PublishMsg(limited, twoOutcomes(ns)[0])
}

// storeTwoSoon stores two outcomes as an atomic batch, within a second.
func storeTwoSoon(t *testing.T, js JetStream, ns Namespace) (stored bool, err error) {
	t.Helper()
	limited, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return StoreBatch(limited, js, ns.OutStream(), twoOutcomes(ns))
}

func answersOfOwnStreamCount(t *testing.T, ns Namespace, other string) {
	t.Helper()
	port := stacktest.QuietPorts(t, 1)[0]
	hub := stacktest.StartNATS(t, &server.Options{
		JetStream: true, StoreDir: t.TempDir(), JetStreamDomain: "hub", ServerName: "hub",
		LeafNode: server.LeafNodeOpts{Host: "127.0.0.1", Port: port},
	})
	remote := &url.URL{Scheme: "nats-leaf", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	leaf := stacktest.StartNATS(t, &server.Options{
		JetStream: true, StoreDir: t.TempDir(), JetStreamDomain: "leaf", ServerName: "leaf",
		LeafNode: server.LeafNodeOpts{Remotes: []*server.RemoteLeafOpts{{URLs: []*url.URL{remote}}}},
	})
	stacktest.Eventually(t, "the leaf node", func() bool { return hub.NumLeafNodes() == 1 && leaf.NumLeafNodes() == 1 })
	theirs, err := stacktest.ConnectNATS(t, leaf.ClientURL()).CreateStream(t.Context(), jetstream.StreamConfig{
		Name: other, Subjects: []string{ns.AllOut()}, AllowAtomicPublish: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	nc, err := Connect(hub.ClientURL(), t.Name(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	var domain *Domain
	if other == ns.OutStream() { // another name is enough to know it
		domain, err = ReadDomain(t.Context(), stacktest.ConnectNATS(t, hub.ClientURL()))
		stacktest.Must(t, err)
	}
	js, err := NewJetStreamIn(nc, ns, domain)
	if err != nil {
		t.Fatal(err)
	}
	stacktest.Eventually(t, "the interest of the leaf node", func() bool {
		_, err := publishSoon(t, js, ns)
		return errors.Is(err, context.DeadlineExceeded)
	})
	if info, err := theirs.Info(t.Context()); err != nil || info.State.Msgs == 0 {
		t.Errorf("the other stream has %+v %v, want the message", info, err)
	}
	if stored, err := storeTwoSoon(t, js, ns); stored || err == nil {
		t.Errorf("a batch that only the other stream has: %t %v, want an error", stored, err)
	}

	ours, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: ns.OutStream(), Subjects: []string{ns.AllOut()}, AllowAtomicPublish: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	const number = 100
	for i := range number {
		if ack, err := publishSoon(t, js, ns); err != nil || ack.Stream != ns.OutStream() || ack.Sequence != uint64(i+1) {
			t.Fatalf("message %d: %+v %v", i, ack, err)
		}
	}
	batch := twoOutcomes(ns)
	if stored, err := StoreBatch(t.Context(), js, ns.OutStream(), batch); err != nil || !stored {
		t.Errorf("a batch: %t %v", stored, err)
	}
	if info, err := ours.Info(t.Context()); err != nil || info.State.Msgs != number+uint64(len(batch)) {
		t.Errorf("the stream has %+v %v, want all", info, err)
	}
}

// TestAsyncPublisher_ServerGetsDomain_ItsAnswersCount restarts a server with a JetStream domain, as an operator does who adds
// leaf nodes, while a worker runs.
func TestAsyncPublisher_ServerGetsDomain_ItsAnswersCount(t *testing.T) {
	t.Parallel()
	ns, port, dir := Namespace("domain"), stacktest.QuietPorts(t, 1)[0], t.TempDir()
	start := func(domain string) *server.Server {
		return stacktest.StartNATS(t, &server.Options{
			JetStream: true, StoreDir: dir, Port: port, ServerName: "hub", JetStreamDomain: domain,
		})
	}
	s := start("")
	nc, err := Connect(s.ClientURL(), t.Name(), t.Logf)
	stacktest.Must(t, err)
	t.Cleanup(nc.Close)
	domain, err := ReadDomain(t.Context(), stacktest.ConnectNATS(t, s.ClientURL()))
	stacktest.Must(t, err)
	js, err := NewJetStreamIn(nc, ns, domain)
	stacktest.Must(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: ns.OutStream(), Subjects: []string{ns.AllOut()}, AllowAtomicPublish: true,
	})
	stacktest.Must(t, err)
	for _, domain := range []string{"", "hub", "other", ""} {
		s.Shutdown()
		s.WaitForShutdown()
		s = start(domain)
		stacktest.Eventually(t, "an answer of the server with domain "+domain, func() bool {
			ack, err := publishSoon(t, js, ns)
			return err == nil && ack.Domain == domain
		})
		stacktest.Eventually(t, "an answer to a batch", func() bool {
			stored, err := storeTwoSoon(t, js, ns)
			return err == nil && stored
		})
	}
}

// TestAsyncPublisher_OneServerHasDomain_AllAnswersCount publishes to two streams of a cluster, of which one is led by a server
// that was restarted with a JetStream domain already.
func TestAsyncPublisher_OneServerHasDomain_AllAnswersCount(t *testing.T) {
	t.Parallel()
	ns := Namespace("mixed")
	options := make([]*server.Options, 3)
	for i := range options {
		options[i] = &server.Options{Cluster: server.ClusterOpts{Name: "c"}, Tags: []string{fmt.Sprint("n:", i)}}
	}
	options[2].JetStreamDomain = "hub"
	cluster := stacktest.StartNATSServers(t, options...)
	admin := stacktest.ConnectNATS(t, cluster[0].ClientURL())
	for server, config := range map[int]jetstream.StreamConfig{
		0: {Name: ns.OutStream(), Subjects: []string{ns.AllOut()}}, 2: {Name: ns.DLQStream(), Subjects: []string{ns.AllDLQ()}},
	} {
		config.Placement = &jetstream.Placement{Tags: []string{fmt.Sprint("n:", server)}}
		stacktest.Eventually(t, "stream "+config.Name, func() bool {
			_, err := admin.CreateOrUpdateStream(t.Context(), config)
			return err == nil
		})
	}
	nc, err := Connect(cluster[0].ClientURL(), t.Name(), t.Logf)
	stacktest.Must(t, err)
	t.Cleanup(nc.Close)
	js, err := NewJetStreamIn(nc, ns, new(Domain))
	stacktest.Must(t, err)
	publish := func(subject string) error {
		limited, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := js.PublishMsg(limited, &nats.Msg{Subject: subject})
		return err
	}
	subjects := []string{ns.Out(holds.EventHoldCreated, "room"), ns.DLQ(ReasonMalformed)}
	for _, subject := range subjects {
		stacktest.Eventually(t, "an answer on "+subject, func() bool { return publish(subject) == nil })
	}
	for _, subject := range subjects { // what was read of one is not believed of the other
		limited, cancel := withStoreLimit(t.Context(), storeLimit)
		if _, err := js.PublishMsg(limited, &nats.Msg{Subject: subject}); err != nil {
			t.Errorf("%s: %v", subject, err)
		}
		cancel()
	}
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
