package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// ofServers are headers by which a NATS server talks to a client. A publisher may set them too.
var ofServers = []nats.Header{
	{"Status": {"100"}}, {"Status": {"404"}}, {"Status": {"408"}}, {"Status": {"409"}, "Description": {"Consumer Deleted"}},
	{"Status": {"503"}}, {"Status": {"paid"}}, {"Nats-Pin-Id": {"pinned"}},
}

// TestConsumer_HeadersOfServers_AreAnswered publishes events with each of these headers and without a body to each
// consumer, and valid ones with the headers and without. The first are dead-lettered, the others answered.
func TestConsumer_HeadersOfServers_AreAnswered(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	for i, header := range ofServers {
		for _, event := range []string{BookingRequested, BookingExtended, PaymentConfirmed} {
			b.publish(b.ns.In(event, "room"), header, "")
		}
		b.publish(b.ns.In(BookingRequested, "room"), header, keyed(fmt.Sprintf("with-%d", i)))
		b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(fmt.Sprintf("without-%d", i)))
	}
	for _, name := range ConsumerNames() {
		b.awaitIdle(name)
	}
	for name, want := range map[string]int{b.ns.DLQStream(): 3 * len(ofServers), b.ns.OutStream(): 2 * len(ofServers)} {
		if got := streamOf(t, b.js, name).CachedInfo().State.Msgs; got != uint64(want) {
			t.Errorf("stream %s has %d messages, want %d", name, got, want)
		}
	}
	for _, worker := range b.workers {
		if err := worker.Outage(); err != nil {
			t.Errorf("a header of an event looks like an outage: %v", err)
		}
	}
}

// TestReadStream_HeadersOfServers_AreRead reads messages with each of these headers, whole and without their bodies, and
// follows the stream.
func TestReadStream_HeadersOfServers_AreRead(t *testing.T) {
	t.Parallel()
	js := newJetStream(t)
	name := stacktest.Namespace(t)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}})
	if err != nil {
		t.Fatal(err)
	}
	number := 0
	for _, header := range ofServers {
		for _, body := range []string{"", "body"} {
			if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: name, Header: header, Data: []byte(body)}); err != nil {
				t.Fatal(err)
			}
			number++
		}
	}
	for _, headersOnly := range []bool{false, true} {
		read := 0
		for _, err := range ReadAll(t.Context(), js, stream, jetstream.OrderedConsumerConfig{HeadersOnly: headersOnly}) {
			if err != nil {
				t.Fatal(err)
			}
			read++
		}
		if read != number {
			t.Errorf("read %d messages, want %d", read, number)
		}
	}
	followed := 0
	for _, err := range FollowStream(t.Context(), js, stream, fromFirst, ignored) {
		if err != nil {
			t.Fatal(err)
		}
		if followed++; followed == number {
			if _, err := js.Publish(t.Context(), name, nil); err != nil {
				t.Fatal(err)
			}
		}
		if followed > number {
			break
		}
	}
}

// TestFollowStream_RequestExpires_OtherIsKept lets one of two requests of a follower expire. It counts what the server may
// still send for the other one, and requests nothing.
func TestFollowStream_RequestExpires_OtherIsKept(t *testing.T) {
	t.Parallel()
	js := newJetStream(t)
	name := stacktest.Namespace(t)
	r := newFollower(t, js, name)
	const expires, stays = readAhead * 2 / 5, readAhead * 3 / 5
	for number, limit := range map[int]time.Duration{expires: 100 * time.Millisecond, stays: time.Hour} {
		_, err := r.puller.request(number, readBytes, limit)
		stacktest.Must(t, err)
	}
	stacktest.Eventually(t, "one request expires", func() bool {
		return len(r.puller.received) > 0
	})
	if _, err := js.Publish(t.Context(), name, nil); err != nil {
		t.Fatal(err)
	}
	messages, err := r.next(t.Context())
	if left := r.puller.outstanding(); err != nil || len(messages) != 1 || left != stays-1 {
		t.Errorf("%d messages, %d outstanding (%v), want %d", len(messages), left, err, stays-1)
	}
}

// TestFollowStream_ConsumerDoesNotAnswer_Restarts asks for the consumer of a follower on a connection that works, and on
// one that is broken, where a follower waits for the connection. A read up to a sequence tries again.
func TestFollowStream_ConsumerDoesNotAnswer_Restarts(t *testing.T) {
	t.Parallel()
	s := stacktest.StartNATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	js := stacktest.ConnectNATS(t, s.ClientURL())
	r := newFollower(t, js, "S")
	stream, err := js.Stream(t.Context(), "S")
	stacktest.Must(t, err)
	check := func(upTo uint64, want error) {
		t.Helper()
		r.upTo, r.stalls = upTo, 0
		if none, err := r.checkStall(t.Context()); none || !errors.Is(err, want) {
			t.Errorf("up to %d: no messages %t, %v, want %v", upTo, none, err, want)
		}
	}
	check(forever, nil)
	stacktest.Must(t, s.DisableJetStream())
	check(forever, errReadStalled)
	check(1, nil)
	s.Shutdown()
	stacktest.Eventually(t, "the connection is broken", js.Conn().IsReconnecting)
	check(forever, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	for range FollowStream(ctx, js, stream, jetstream.OrderedConsumerConfig{}, ignored) {
		continue
	}
	if n, err := js.Conn().Buffered(); n > 0 || err != nil {
		t.Errorf("%d bytes wait for the connection (%v)", n, err)
	}
}

// newFollower returns a follower of a new stream without messages.
func newFollower(t *testing.T, js jetstream.JetStream, name string) *reading {
	t.Helper()
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}})
	stacktest.Must(t, err)
	consumer, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
	stacktest.Must(t, err)
	p := newPuller(js.Conn(), name, consumer.CachedInfo().Name, 2*readAhead)
	t.Cleanup(p.close)
	return &reading{stream: stream, consumer: consumer, upTo: forever, puller: p}
}

// TestFollowStream_ConsumerDeleted_ContinuesBehindLast deletes the consumer of a follower, which then continues behind the
// last message, and the stream, which ends it.
func TestFollowStream_ConsumerDeleted_ContinuesBehindLast(t *testing.T) {
	t.Parallel()
	js, stream, last := newReadableStream(t)
	want := uint64(0)
	var failed error
	for m, err := range FollowStream(t.Context(), js, stream, fromFirst, ignored) {
		if failed = err; err != nil {
			break
		}
		if want++; m.Meta.Sequence.Stream != want {
			t.Fatalf("message %d follows %d", m.Meta.Sequence.Stream, want-1)
		}
		switch want {
		case 1, last:
			if err := js.DeleteConsumer(t.Context(), m.Meta.Stream, m.Meta.Consumer); err != nil {
				t.Fatal(err)
			}
			if want == last {
				if _, err := js.Publish(t.Context(), m.Subject, nil); err != nil {
					t.Fatal(err)
				}
			}
		case last + 1:
			if err := js.DeleteStream(t.Context(), m.Meta.Stream); err != nil {
				t.Fatal(err)
			}
		}
	}
	if failed == nil || want != last+1 {
		t.Errorf("ended after %d messages with %v", want, failed)
	}
}

// TestUnacknowledged_HeadersOfServers_AreRead reads what a rebuild needs while there is a dead letter with such a header.
func TestUnacknowledged_HeadersOfServers_AreRead(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop()
	b.pay("p")
	for _, header := range ofServers {
		b.publish(b.ns.DLQ(ReasonMalformed), header, "{")
	}
	found, outcomeLog := 0, NewOutcomeLog(b.js, b.ns, zerolog.Nop())
	if oldest, err := outcomeLog.OldestPayment(t.Context()); err != nil || oldest.IsZero() {
		t.Errorf("the oldest payment is from %v: %v", oldest, err)
	}
	last, err := outcomeLog.Unacknowledged(t.Context(), 0,
		func(holds.ConfirmRequest, holds.Time) error { found++; return nil },
		func(holds.ReleaseRequest, holds.Time) error { return nil })
	if err != nil || found != 1 || last != 1 {
		t.Errorf("found %d payments up to %d: %v", found, last, err)
	}
	if _, err := NewTrimmer(b.js, b.ns, time.Millisecond, zerolog.Nop()).RunOnce(t.Context()); err != nil {
		t.Errorf("trim: %v", err)
	}
}

// TestPuller_WaitEndsWhileMessagesArrive_LosesNone takes messages after the wait for them has ended, as a worker does that
// was suspended. A worker closes its puller when nothing is said to have arrived: what has arrived would be lost.
func TestPuller_WaitEndsWhileMessagesArrive_LosesNone(t *testing.T) {
	t.Parallel()
	const number = 64
	for range number { // which of two ready channels is read is random
		p := &puller{received: make(chan *nats.Msg, number)}
		for range number {
			p.received <- &nats.Msg{Reply: "$JS.ACK.s.c.1.1.1.1.0"}
		}
		if batch, err := p.take(t.Context(), 0); err != nil || len(batch) != number {
			t.Fatalf("took %d of %d messages: %v", len(batch), number, err)
		}
	}
}

// TestFetch_EventsComeAfterIt_NextFetchReceivesThem lets nothing arrive from the server until a fetch has ended, as when the
// server is slow. The next fetches receive also what the server has sent for that one: it would deliver those events again
// after the ack wait, which is an hour here.
func TestFetch_EventsComeAfterIt_NextFetchReceivesThem(t *testing.T) {
	t.Parallel()
	url, proxy := stacktest.ProxyTo(t, stacktest.Shared().NATSURL)
	b := newHarnessAt(t, url, func(js JetStream) JetStream { return js })
	b.stop()
	b.ackWithin(ConsumerRequests, time.Hour)
	const number = 10
	for i := range number {
		b.publishRequest("room", i)
	}
	b.awaitPublished()
	c := b.workers[0]
	before := time.Now()
	proxy.Set(stacktest.Downstream, stacktest.Toxics{Stall: true})
	stacktest.Must(t, c.fetch(number/2, false, func(batch []*delivery) { t.Errorf("%d events have arrived", len(batch)) }))
	after := time.Now()
	proxy.Set(stacktest.Downstream, stacktest.Toxics{})
	late := 0
	for i, d := range b.fetchAllOf(c, number) {
		if d.meta.Sequence.Stream != uint64(i+1) || d.meta.NumDelivered != 1 {
			t.Errorf("event %d is event %d of the stream, at delivery %d", i+1, d.meta.Sequence.Stream, d.meta.NumDelivered)
		}
		if d.requested.Before(before) || !d.streamCreated.Equal(c.inboundCreated.Load().created) {
			t.Errorf("requested at %v, from the stream of %v", d.requested, d.streamCreated)
		}
		if d.requested.Before(after) {
			late++
		}
	}
	if late != number/2 {
		t.Errorf("%d events are of the first fetch, want %d", late, number/2)
	}
}

// TestFetch_NotPermitted_PausedUntilPermitted takes the permission to fetch requests from a worker, whose fetches then get no
// answer, and gives it back. The consumers that may fetch are idle: the server answers their fetches, one of them although an
// operator has paused it. A single fetch without an answer pauses none.
func TestFetch_NotPermitted_PausedUntilPermitted(t *testing.T) {
	t.Parallel()
	permissions := func(denied ...string) *server.Options {
		publish := &server.SubjectPermission{Allow: []string{">"}, Deny: denied}
		return &server.Options{JetStream: true, Users: []*server.User{{
			Username: "w", Password: "w", Permissions: &server.Permissions{Publish: publish},
		}}}
	}
	const subject = "$JS.API.CONSUMER.MSG.NEXT.*." + ConsumerRequests
	o := permissions()
	o.StoreDir = t.TempDir()
	s := stacktest.StartNATS(t, o)
	allow := func(denied ...string) {
		t.Helper()
		changed := o.Clone()
		changed.Users = permissions(denied...).Users
		stacktest.Must(t, s.ReloadOptions(changed))
	}
	b := newHarnessAt(t, strings.Replace(s.ClientURL(), "nats://", "nats://w:w@", 1), func(js JetStream) JetStream { return js })
	requests, others := b.workers[0], b.workers[1:]
	stacktest.Must(t, SetPause(t.Context(), b.js, b.ns, ConsumerChanges, time.Hour, &Pause{Reason: "new schema"}))
	allow(subject)
	stacktest.Eventually(t, "the consumer to be paused", requests.Paused)
	if err := requests.Outage(); !strings.Contains(err.Error(), "nats: ") || !strings.Contains(err.Error(), requests.puller.subject) {
		t.Errorf("the reason does not name the subject: %v", err)
	}
	for range silentMax { // it stays paused
		last := requests.failure.Load()
		stacktest.Eventually(t, "another failure", func() bool {
			if !requests.Paused() {
				t.Error("the consumer is not paused, although it may not fetch")
			}
			return requests.failure.Load() != last
		})
	}
	for _, c := range others {
		if c.failure.Load() != nil {
			t.Errorf("consumer %s, which may fetch: %v", c.name, c.failure.Load().err)
		}
	}
	allow()
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("k"))
	b.await("an outcome", func() bool { return len(b.out) == 1 })
	stacktest.Eventually(t, "the end of the outage", func() bool { return !requests.failing.Load() })
}

// TestPuller_LargeMessages_ComeInParts requests more bytes than a request may have: the server sends a part, and the rest for
// the next requests. A reader reads all of them. The server would disconnect a slower client for all at once.
func TestPuller_LargeMessages_ComeInParts(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop()
	const number, size = 100, 128 << 10
	for i := range number {
		m := &nats.Msg{Subject: b.ns.In(PaymentConfirmed, fmt.Sprint("r", i)), Data: bytes.Repeat([]byte("x"), size)}
		_, err := b.js.PublishMsg(t.Context(), m)
		stacktest.Must(t, err)
	}
	p := newPuller(b.js.Conn(), b.ns.InStream(), ConsumerPayments, number)
	defer p.close()
	most := (readBytes + int(b.js.Conn().MaxPayload())) / size
	for left := number; left > 0; {
		_, err := p.request(number, readBytes, 10*time.Second)
		stacktest.Must(t, err)
		part := 0
		for part < left {
			batch, err := p.take(t.Context(), 10*time.Second)
			if errors.Is(err, errPullEnded) {
				break
			}
			stacktest.Must(t, err)
			part += len(batch)
		}
		if part == 0 || part > most {
			t.Fatalf("a request got %d of %d messages, want 1 to %d", part, left, most)
		}
		left -= part
	}
	read := 0
	for _, err := range ReadStream(t.Context(), b.js, streamOf(t, b.js, b.ns.InStream()), jetstream.OrderedConsumerConfig{}, number) {
		stacktest.Must(t, err)
		read++
	}
	if read != number {
		t.Errorf("%d of %d were read", read, number)
	}
}

// TestPuller_LargeRedelivered_KeepOrder gives back as many bytes as a worker that is stopped may have fetched. They are
// delivered again in their order: a limit of bytes that ends a request lets all others overtake one of them.
func TestPuller_LargeRedelivered_KeepOrder(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop()
	const number, size = fetchMax, 16 << 10
	for range number {
		m := &nats.Msg{Subject: b.ns.In(PaymentConfirmed, "hot"), Data: bytes.Repeat([]byte("x"), size)}
		_, err := b.js.PublishMsg(t.Context(), m)
		stacktest.Must(t, err)
	}
	p := newPuller(b.js.Conn(), b.ns.InStream(), ConsumerPayments, number)
	defer p.close()
	request := func() {
		_, err := p.request(number, fetchBytes, time.Minute)
		stacktest.Must(t, err)
	}
	for delivery := range 2 {
		request()
		var all []pulledMsg
		for len(all) < number {
			batch, err := p.take(stacktest.WaitContext(t), time.Minute)
			if errors.Is(err, errPullEnded) {
				if len(all) > 0 { // else it is of the delivery before
					request()
				}
				continue
			}
			stacktest.Must(t, err)
			all = append(all, batch...)
		}
		for i, m := range all {
			meta, err := m.Metadata()
			stacktest.Must(t, err)
			if meta.Sequence.Stream != uint64(i+1) {
				t.Fatalf("delivery %d: sequence %d is the one with number %d", delivery+1, meta.Sequence.Stream, i+1)
			}
			stacktest.Must(t, m.NakWithDelay(0))
		}
		stacktest.Must(t, b.js.Conn().Flush())
	}
}

// TestPuller_NothingWaits_EndsAtOnce requests what waits at this moment, which is nothing: the request ends, and takes
// nothing that comes later.
func TestPuller_NothingWaits_EndsAtOnce(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop()
	p := newPuller(b.js.Conn(), b.ns.InStream(), ConsumerPayments, 10)
	defer p.close()
	_, err := p.request(10, readBytes, 0)
	stacktest.Must(t, err)
	if batch, err := p.take(t.Context(), 10*time.Second); len(batch) > 0 || !errors.Is(err, errPullEnded) {
		t.Errorf("%d messages, %v, want the end of the request", len(batch), err)
	}
}

// ignored is the handler of the failures of a follower that a test does not check.
func ignored(error) {}
