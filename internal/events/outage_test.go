package events

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"holdfast/internal/holds"
	"holdfast/internal/lua"
	"holdfast/internal/postgres"
	"holdfast/internal/stack/stacktest"
)

// TestOutage_TwoConsumers_LoggedOnce makes an outage that two consumers see more than once. It is
// logged once when it begins, and once when it ends. In between Outage returns the cause. No event is
// dead-lettered, and all are answered later.
func TestOutage_TwoConsumers_LoggedOnce(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.setFault(func(string, int) error { return &net.OpError{Op: "dial", Err: errors.New("connection refused")} })
	for i := range 10 {
		b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(fmt.Sprintf("k%d", i)))
	}
	paid := envelopeOf(PaymentConfirmed, "p1", `{"hold_id":"`+holdID+`","payment_id":"p"}`)
	b.publish(b.ns.In(PaymentConfirmed, "room"), nil, paid)
	stacktest.Eventually(t, "another delivery of each", func() bool { return b.decidedCount("k0") > 1 && b.decidedCount("p") > 1 })
	for range 2 {
		before := b.decidedCount("k0")
		stacktest.Eventually(t, "one more delivery", func() bool { return b.decidedCount("k0") > before })
	}
	for _, i := range []int{0, 2} {
		if err := b.workers[i].Outage(); err == nil || err.Error() != "redis: dial: connection refused" {
			t.Errorf("consumer %s has the outage %v", b.workers[i].name, err)
		}
	}
	if err := b.workers[1].Outage(); err != nil {
		t.Errorf("a consumer without events has the outage %v", err)
	}
	const begin, end = "event processing paused", "event processing resumed"
	if n := len(b.logged.with(t, end)); n != 0 {
		t.Errorf("the end of the outage was logged %d times before it ended", n)
	}
	b.setFault(nil)
	b.await("all outcomes", func() bool { return len(b.out) == 11 })
	stacktest.Eventually(t, "the end to be logged", func() bool { return len(b.logged.with(t, end)) > 0 })
	began, ended := b.logged.with(t, begin), b.logged.with(t, end)
	if len(began) != 1 || len(ended) != 1 {
		t.Fatalf("logged the begin %d times and the end %d times", len(began), len(ended))
	}
	if began[0]["server"] != "redis" || began[0]["error"] == nil || began[0]["level"] != "error" {
		t.Errorf("logged %v", began[0])
	}
	if ended[0]["server"] != "redis" || ended[0]["level"] != "info" {
		t.Errorf("logged %v", ended[0])
	}
	if duration, _ := ended[0]["duration_ms"].(float64); duration <= 0 {
		t.Errorf("logged %v", ended[0])
	}
	for _, c := range b.workers {
		if err := c.Outage(); err != nil {
			t.Errorf("consumer %s has the outage %v", c.name, err)
		}
	}
	if len(b.dlq) != 0 {
		t.Errorf("%d events were dead-lettered in an outage", len(b.dlq))
	}
}

// TestShardOutage_OneShardDown_DefersOnlyItsEvents makes the decisions of some resources fail as on a Redis
// Cluster with one server down. Others are answered meanwhile, the consumer does not pause, and the failures
// are logged once, and once when they end.
func TestShardOutage_OneShardDown_DefersOnlyItsEvents(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.setFault(func(key string, _ int) error {
		if strings.HasPrefix(key, "down") {
			return fmt.Errorf("place: %w", &shardDownError{&net.OpError{Op: "dial", Err: context.DeadlineExceeded}})
		}
		return nil
	})
	const number = 10
	for i := range number {
		b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(fmt.Sprintf("down%d", i)))
	}
	stacktest.Eventually(t, "another delivery", func() bool { return b.decidedCount("down0") > 2 })
	for i := range number {
		b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(fmt.Sprintf("up%d", i)))
	}
	b.await("the answers of the others", func() bool { return len(b.out) == number })
	if b.workers[0].Paused() {
		t.Errorf("the consumer is paused: %v", b.workers[0].Outage())
	}
	b.setFault(nil)
	b.await("all answers", func() bool { return len(b.out) == 2*number })
	for message, want := range map[string]int{
		"redis shard fails, its events deferred": 1, "redis shard serves events again": 1, "event processing paused": 0,
	} {
		lines := b.logged.with(t, message)
		if len(lines) != want || want > 0 && lines[0]["shard"] != (&shardDownError{}).Shard() {
			t.Errorf("%q was logged %d times: %v", message, len(lines), lines)
		}
	}
	if len(b.dlq) != 0 {
		t.Errorf("%d events were dead-lettered", len(b.dlq))
	}
}

// TestOutage_ServerUnreachable_TriesOneEvent runs a consumer while the check of its servers gets no answer. It tries one
// event, and when that fails it leaves the events to other workers until the servers answer.
func TestOutage_ServerUnreachable_TriesOneEvent(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop()
	hung, end := newGate(t)
	b.setFault(func(string, int) error {
		<-hung
		return &net.OpError{Op: "read", Err: errors.New("i/o timeout")}
	})
	b.setUnreachable(errors.New("no answer"))
	const number = 5
	for i := range number {
		b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(fmt.Sprintf("k%d", i)))
	}
	c := b.runRequests()
	for _, when := range []string{"while the first one is tried", "after it has failed"} {
		b.setUnreachable(errors.New("no answer " + when))
		stacktest.Eventually(t, "more checks", func() bool { return b.checkedTimes() > 3 && c.inFlight.len() == 0 == c.Paused() })
		if info := consumerOf(t, b.js, b.ns, c.name).CachedInfo(); info.Delivered.Consumer != 1 {
			t.Errorf("%s %d events are fetched", when, info.Delivered.Consumer)
		}
		end()
		stacktest.Eventually(t, "the event to fail", c.Paused)
	}
	stacktest.Eventually(t, "the outage to go on", func() bool {
		err := c.Outage()
		return err != nil && strings.Contains(err.Error(), "no answer after")
	})
	b.setFault(nil)
	b.setUnreachable(nil)
	b.await("all outcomes", func() bool { return len(b.out) == number })
}

// TestOutage_PostgresUnreachable_PaymentsDecided runs the consumers of payments and of requests while Postgres does not
// answer. Requests are left to other workers, but each payment is passed on again and again: it claims its hold in Redis,
// which would expire otherwise.
func TestOutage_PostgresUnreachable_PaymentsDecided(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop()
	away := &holds.UnreachableError{Postgres: true, Err: errors.New("no answer")}
	b.setUnreachable(away)
	b.setFault(func(string, int) error { return away })
	const number = 5
	b.runAgain(0)
	payments := b.runAgain(2)
	for i := range number {
		name := fmt.Sprint("p", i)
		b.pay(name)
		b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(fmt.Sprint("k", i)))
		stacktest.Eventually(t, "another delivery of "+name, func() bool { return b.decidedCount(name) > 1 })
	}
	if err := payments.Outage(); err == nil || err.Error() != "postgres: no answer" {
		t.Errorf("the consumer of payments has the outage %v", err)
	}
	if n := consumerOf(t, b.js, b.ns, ConsumerRequests).CachedInfo().Delivered.Stream; n > 2 {
		t.Errorf("requests up to sequence %d are fetched", n)
	}
	if n := len(b.logged.with(t, "event processing resumed")); n > 0 {
		t.Errorf("the end of the outage was logged %d times before it ended", n)
	}
	b.setFault(nil)
	b.setUnreachable(nil)
	b.await("all outcomes", func() bool { return len(b.out) == 2*number })
}

// TestOutage_RedisUnreachable_PaymentsLeft runs the consumer of payments while Redis does not answer. No hold can be claimed
// then: when the payment that was tried has failed, the others are left to other workers.
func TestOutage_RedisUnreachable_PaymentsLeft(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop()
	away := &holds.UnreachableError{Err: errors.New("no answer")}
	b.setUnreachable(away)
	b.setFault(func(string, int) error { return away })
	for i := range 3 {
		b.pay(fmt.Sprint("p", i))
	}
	payments := b.runAgain(2)
	stacktest.Eventually(t, "a payment to fail", payments.Paused)
	b.setUnreachable(away)
	stacktest.Eventually(t, "more checks", func() bool { return b.checkedTimes() > 3 })
	if info := consumerOf(t, b.js, b.ns, ConsumerPayments).CachedInfo(); info.Delivered.Consumer != 1 {
		t.Errorf("%d payments are fetched", info.Delivered.Consumer)
	}
}

// runRequests runs the stopped consumer of the requests again, until the test ends.
func (b *harness) runRequests() *Consumer { return b.runAgain(0) }

// runAgain runs a stopped consumer again, until the test ends.
func (b *harness) runAgain(index int) *Consumer {
	c := b.workers[index]
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = c.Run(ctx) }()
	b.t.Cleanup(func() { stop(); <-ended })
	return c
}

// TestOutage_OnlyChecksFail_EventsAnswered runs a consumer whose decisions work while the check of its servers gets no
// answer, as when no Sentinel says where the server is.
func TestOutage_OnlyChecksFail_EventsAnswered(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop()
	b.setUnreachable(errors.New("no answer"))
	const number = 10
	for i := range number {
		b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(fmt.Sprintf("k%d", i)))
	}
	b.runRequests()
	b.await("all outcomes", func() bool { return len(b.out) == number })
}

// TestOutage_ServerUnreachable_FetchedEventsReturn has two events in a lane while Redis does not answer. The first one is
// tried: the server may only be slow. When it has failed, the other one is left to other workers.
func TestOutage_ServerUnreachable_FetchedEventsReturn(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop()
	for _, key := range []string{"k1", "k2"} {
		b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(key))
	}
	c := b.workers[0]
	batch := b.fetchAllOf(c, 2)
	c.decodeBatch(batch)
	failed := &net.OpError{Op: "read", Err: errors.New("i/o timeout")}
	b.setFault(func(string, int) error { return failed })
	unreachable := errors.New("no answer")
	b.setUnreachable(unreachable)
	l := c.newLane(1)
	l.batch.max = 1
	for _, d := range batch {
		l.queue.add(d)
	}
	l.queue.close()
	l.decideAll(t.Context())
	for i, want := range []error{failed, unreachable} {
		if err := (<-l.decided).result.Err; !errors.Is(err, want) {
			t.Errorf("event %d has failed with %v, want %v", i+1, err, want)
		}
	}
	if b.decidedCount("k1") != 1 || b.decidedCount("k2") != 0 {
		t.Errorf("the events were decided %d and %d times", b.decidedCount("k1"), b.decidedCount("k2"))
	}
}

// TestOutage_FetchWorksAgain_IsOver deletes the durable consumer, which is created again. No event comes that could show
// that the outage is over.
func TestOutage_FetchWorksAgain_IsOver(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	c := b.workers[0]
	if err := b.js.DeleteConsumer(t.Context(), b.ns.InStream(), c.name); err != nil {
		t.Fatal(err)
	}
	stacktest.Eventually(t, "the outage to begin", c.Paused)
	stacktest.Eventually(t, "its end", func() bool {
		last := *c.failure.Load()
		last.at = time.Now().Add(time.Hour) // so that time does not end it
		c.failure.Store(&last)
		return !c.Paused()
	})
}

// redisError is an error that Redis sends.
type redisError string

func (d redisError) Error() string { return string(d) }

func (redisError) RedisError() {}

// TestOutage_SeveralMissingPermissions_EachLoggedOnce removes one permission after the other in one
// outage. Each is logged once, however many events need it.
func TestOutage_SeveralMissingPermissions_EachLoggedOnce(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	b := newHarness(t)
	missing := []error{
		&net.OpError{Op: "dial", Err: errors.New("connection refused")},
		fmt.Errorf("place.lua: %w", lua.WrapError(redisError("ERR The user executing the script can't run this command or subcommand"))),
		lua.WrapError(redisError("NOPERM this user has no permissions to run the 'mget' command")),
		postgres.WrapError(&pgconn.PgError{Code: "42501", Message: "permission denied for table inventory"}),
		fmt.Errorf("place.lua: %w", lua.WrapError(redisError("ERR ACL failure in script: User 'w' has no permissions to run the 'zrange' command"))),
	}
	for i, err := range missing {
		b.setFault(func(string, int) error { return err })
		for j := range 3 {
			b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(fmt.Sprintf("k%d-%d", i, j)))
		}
		stacktest.Eventually(t, "another delivery of each", func() bool {
			return b.decidedCount(fmt.Sprintf("k%d-0", i)) > 1 && b.decidedCount(fmt.Sprintf("k%d-1", i)) > 1 && b.decidedCount(fmt.Sprintf("k%d-2", i)) > 1
		})
	}
	b.setFault(nil)
	b.await("all outcomes", func() bool { return len(b.out) == 3*len(missing) })
	var logged []string
	for _, line := range append(b.logged.with(t, "event processing paused"), b.logged.with(t, "event processing still paused")...) {
		logged = append(logged, fmt.Sprint(line["server"], " ", line["error"]))
	}
	want := make([]string, len(missing))
	for i, err := range missing {
		want[i] = serverOf(err) + " " + err.Error()
	}
	if !slices.Equal(logged, want) {
		t.Errorf("logged %q, want %q", logged, want)
	}
}

// TestServerOf_EachError_NamesServer is the table of errors and their servers.
func TestServerOf_EachError_NamesServer(t *testing.T) {
	t.Parallel()
	for want, errs := range map[string][]error{
		"nats": {ofNATS(nats.ErrTimeout), fmt.Errorf("x: %w", ofNATS(context.DeadlineExceeded))},
		"postgres": {fmt.Errorf("x: %w", postgres.WrapError(&pgconn.PgError{Code: "57P01"})), postgres.WrapError(&pgconn.NotPreferredError{}),
			postgres.WrapError(io.ErrUnexpectedEOF), postgres.WrapError(postgres.ErrReadOnly)},
		"redis": {&net.OpError{Op: "dial", Err: errors.New("refused")}, fmt.Errorf("x: %w", holds.ErrDataLost)},

		"redis or postgres": {fmt.Errorf("x: %w", context.DeadlineExceeded), postgres.WrapError(context.DeadlineExceeded)},
	} {
		for _, err := range errs {
			if got := serverOf(err); got != want {
				t.Errorf("%T %v comes from %s, want %s", err, err, got, want)
			}
		}
	}
	if ofNATS(nil) != nil {
		t.Error("ofNATS(nil) is not nil")
	}
}

// TestOutage_ManyWait_DeliveredLessOften lets the server say how many events wait for an answer. While there are few, each
// is delivered again soon. When there are many, one that was delivered often leaves time for others.
func TestOutage_ManyWait_DeliveredLessOften(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop()
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("k"))
	c := b.workers[0]
	d := b.fetchAllOf(c, 1)[0]
	d.meta.NumDelivered = 20
	requests, err := b.js.Conn().SubscribeSync(d.msg.Reply)
	stacktest.Must(t, err)
	for waiting, least := range map[int]time.Duration{deferredMany: delayPause, deferredMany + 1: delayDeferred} {
		info := *c.durable.Load()
		info.NumAckPending = waiting
		c.durable.Store(&info)
		c.newLane(1).redeliver(d, errors.New("no answer"))
		request, err := requests.NextMsgWithContext(stacktest.WaitContext(t))
		stacktest.Must(t, err)
		var delay time.Duration
		if _, err := fmt.Sscanf(string(request.Data), `-NAK {"delay":%d}`, &delay); err != nil || delay < least || delay > 2*least {
			t.Errorf("while %d events wait one is delivered after %v, want %v: %v", waiting, delay, least, err)
		}
	}
}

// TestLeaveServer_AnswersNothing_AnotherServerIsUsed ends JetStream on the server that a worker is connected to, as for one
// that is cut off from its cluster. The worker answers an event that another server has stored.
func TestLeaveServer_AnswersNothing_AnotherServerIsUsed(t *testing.T) {
	t.Parallel()
	servers := make(map[string]*server.Server)
	var urls []string
	for range 2 {
		s := stacktest.StartNATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
		urls = append(urls, s.ClientURL())
		servers[s.ClientURL()] = s
	}
	b := newHarnessAt(t, strings.Join(urls, ","), func(js JetStream) JetStream { return js })
	left := b.nc.ConnectedUrl()
	urls = slices.DeleteFunc(urls, func(url string) bool { return url == left })
	nc, err := Connect(urls[0], t.Name(), t.Logf)
	stacktest.Must(t, err)
	t.Cleanup(nc.Close)
	js, err := NewJetStream(nc, b.ns)
	stacktest.Must(t, err)
	setup(t, js, b.ns)
	_, err = js.Publish(t.Context(), b.ns.In(BookingRequested, "room"), []byte(keyed("k")))
	stacktest.Must(t, err)

	stacktest.Must(t, servers[left].DisableJetStream())
	stacktest.Eventually(t, "an outcome in the other server", func() bool {
		return streamOf(t, js, b.ns.OutStream()).CachedInfo().State.Msgs == 1
	})
	const message = "nats server fails all fetches, connecting to another one"
	if lines := b.logged.with(t, message); len(lines) == 0 || !strings.Contains(left, fmt.Sprint(lines[0]["server"])) {
		t.Errorf("logged %v, want that %s is left", lines, left)
	}
}
