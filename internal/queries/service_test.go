package queries

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

const holdID = "room.0192f5c4d0b07cc3a5d0f2f5a1b2c3d4"

var fakeNow = holds.Time{Time: time.Date(2027, 5, 1, 12, 0, 0, 0, time.UTC)}

// fakeDryRunner is a DryRunner and a Querier. Its clock stands still, and it rejects requests unless their
// key is outage.
type fakeDryRunner struct {
	events.DryRunner
	Querier
	down     bool          // Redis is down
	block    chan struct{} // availability queries wait until it is closed; nil: they do not wait
	received chan struct{} // gets one element for each query
}

func (d *fakeDryRunner) Now(context.Context) (holds.Time, error) {
	if d.down {
		return holds.Time{}, holds.ErrDataLost
	}
	return fakeNow, nil
}

func (d *fakeDryRunner) Place(_ context.Context, requests []holds.PlaceRequest) iter.Seq2[int, holds.Result] {
	return func(yield func(int, holds.Result) bool) {
		for i, r := range requests {
			result := holds.Result{Outcome: holds.Outcome{
				Event: holds.EventHoldRejected, Resource: r.Resource, Data: holds.HoldRejected{Reason: "echo", Message: r.RequestKey},
			}}
			if r.RequestKey == "outage" {
				result = holds.Result{Err: context.DeadlineExceeded}
			}
			yield(i, result)
		}
	}
}

func (d *fakeDryRunner) GetHold(_ context.Context, id holds.HoldID) (holds.HoldView, bool, error) {
	return holds.HoldView{HoldID: id, ExpiresAt: holds.Time{Time: fakeNow.Add(-3 * time.Hour)}}, id.Resource == "room", nil
}

func (d *fakeDryRunner) Availability(ctx context.Context, resource string, _ holds.SlotSelection) ([]holds.SlotAvailability, error) {
	switch {
	case resource == "panics":
		panic("a bug")
	case d.block != nil:
		d.received <- struct{}{}
		<-d.block
	}
	if err := ctx.Err(); !errors.Is(err, context.DeadlineExceeded) {
		return nil, err
	}
	return nil, nil // a test decides how long it takes
}

// serveQueries runs a Service in a namespace of its own until the test ends, or until stop is
// called.
func serveQueries(t *testing.T, reader Querier, dry events.DryRunner) (ns events.Namespace, nc *nats.Conn, stop func()) {
	t.Helper()
	nc, err := events.Connect(stacktest.Shared().NATSURL, t.Name(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	ns = events.Namespace(stacktest.Namespace(t))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := NewService(nc, ns, NewInquiry(nil, ns, reader, nil), dry, "w1", zerolog.Nop()).Run(ctx); err != nil {
			t.Error(err)
		}
	})
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	queries := 5
	if dry != nil {
		queries++
	}
	stacktest.Eventually(t, "the service to answer all queries", func() bool {
		var info micro.Info
		m, err := nc.Request("$SRV.INFO."+string(ns), nil, time.Minute)
		return err == nil && json.Unmarshal(m.Data, &info) == nil && len(info.Endpoints) == queries
	})
	return ns, nc, stop
}

// dryRun requests a dry run of a request with a key. It returns the error of the service.
func dryRun(t *testing.T, ns events.Namespace, nc *nats.Conn, key string) (result events.DryRunResult, err error) {
	t.Helper()
	m := events.NewStructuredMsg([]byte(`{"specversion":"1.0","id":"e1","source":"/s","type":"` +
		events.Type(events.BookingRequested) + `","data":{"request_key":"` + key +
		`","user_id":"u","resource_id":"room","quantity":1}}`))
	m.Subject = ns.Service(EndpointDryRun)
	m.Header.Set(events.HeaderDLQSubject, ns.In(events.BookingRequested, "room"))
	reply, err := nc.RequestMsg(m, time.Minute)
	if err != nil {
		return result, err
	}
	if reason := reply.Header.Get(micro.ErrorHeader); reason != "" {
		return result, errors.New(reply.Header.Get(micro.ErrorCodeHeader) + " " + reason)
	}
	if err := json.Unmarshal(reply.Data, &result); err != nil {
		t.Fatal(err)
	}
	return result, nil
}

// TestDryRun_AnyResult_IsAnsweredOrError requests dry runs: of an event that is decided, in an outage, and where
// they cannot be answered.
func TestDryRun_AnyResult_IsAnsweredOrError(t *testing.T) {
	t.Parallel()
	up := &fakeDryRunner{}
	ns, nc, _ := serveQueries(t, up, up)
	want := events.DryRunResult{Text: "would be refused: echo", Event: "hold.rejected", Reason: "echo", Detail: "k"}
	if got, err := dryRun(t, ns, nc, "k"); err != nil || got != want {
		t.Errorf("%v %+v, want %+v", err, got, want)
	}
	if got, err := dryRun(t, ns, nc, "outage"); err == nil || !strings.Contains(err.Error(), "503 unavailable") {
		t.Errorf("in an outage: %v %+v", err, got)
	}
	down := &fakeDryRunner{down: true}
	lost, nc, _ := serveQueries(t, down, down)
	if _, err := dryRun(t, lost, nc, "k"); err == nil || !strings.Contains(err.Error(), "503 rebuilding") {
		t.Errorf("after data loss: %v", err)
	}
	without, nc, _ := serveQueries(t, down, nil)
	if _, err := dryRun(t, without, nc, "k"); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("without a worker: %v", err)
	}
}

// TestService_EachQuery_IsAnswered sends queries like `nats service` does.
func TestService_EachQuery_IsAnswered(t *testing.T) {
	t.Parallel()
	dry := &fakeDryRunner{}
	ns, nc, _ := serveQueries(t, dry, dry)
	request := func(subject, body string) *nats.Msg {
		t.Helper()
		m, err := nc.Request(subject, []byte(body), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, c := range []struct{ subject, body, code, has string }{
		{EndpointHold, `{"hold_id":"` + holdID + `"}`, "", `"hold_id":"` + holdID},
		{EndpointHold, `{"hold_id":"hall` + holdID[4:] + `"}`, "404", "unknown_hold"},
		{EndpointHold, `{"hold_id":"room"}`, "400", "not a hold id"},
		{EndpointHold, `{"hold_id":"room","x":1}`, "400", "x: unknown parameter"},
		{EndpointHold, `[]`, "400", "must be a JSON object, found a list"},
		{EndpointHold, `null`, "400", "must be a JSON object, found null"},
		{EndpointHold, ``, "400", "must be a JSON object, found nothing"},
		{EndpointHold, "{\"\x1b\\n\":1}", "400", "query"},
		{EndpointHold, `{"a\nb":1}`, "400", "unknown parameter"},
		{EndpointAvailability, `{"resource_id":"panics"}`, "503", "unavailable"},
		{EndpointAvailability, `{"resource_id":"room","resource_id":"room"}`, "400", "repeated"},
	} {
		m := request(ns.Service(c.subject), c.body)
		if got := m.Header.Get(micro.ErrorCodeHeader); got != c.code || !strings.Contains(string(m.Data), c.has) || c.code != "" && !strings.Contains(m.Header.Get(micro.ErrorHeader), ": ") {
			t.Errorf("%s %s: %s %v, want %s with %s", c.subject, c.body, m.Data, m.Header, c.code, c.has)
		}
	}
	var info micro.Info
	if err := json.Unmarshal(request("$SRV.INFO."+string(ns), "").Data, &info); err != nil || len(info.Endpoints) != 6 || info.Metadata["worker"] != "w1" {
		t.Errorf("%v: info %+v", err, info)
	}
}

// manyHolds is a Querier with more holds than any page has, each with 4 KB of metadata.
type manyHolds struct{ Querier }

func (manyHolds) ListHolds(
	_ context.Context, resource string, _ holds.Place, _ string, limit int,
) (page []holds.HoldView, next *holds.Place, err error) {
	for n := range limit {
		page = append(page, holds.HoldView{
			HoldID:     holds.HoldID{Resource: resource, UUID: fmt.Sprintf("0192f5c4d0b07cc3a5d0f2f5a1b2%04x", n)},
			ResourceID: resource, State: holds.Held, RequestKey: "k", UserID: "u", Quantity: 1,
			Metadata: jsontext.Value(`{"m":"` + strings.Repeat("x", 4000) + `"}`),
		})
	}
	return page, nil, nil
}

// TestService_AnswerExceedsPayload_IsRefused asks for a page that exceeds the largest message of NATS by default.
func TestService_AnswerExceedsPayload_IsRefused(t *testing.T) {
	t.Parallel()
	js, ns := newStreams(t, stacktest.NATSWithMaxPayload(t, 1<<20))
	nc := js.Conn()
	s := NewService(nc, ns, NewInquiry(js, ns, manyHolds{}, nil), nil, "w1", zerolog.New(zerolog.NewTestWriter(t)))
	running, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(running) }()
	t.Cleanup(func() { stop(); <-ended })
	ask := func(limit int) (*nats.Msg, error) {
		body := fmt.Sprintf(`{"resource_id":"room","state":"held","reveal":true,"limit":%d}`, limit)
		return nc.Request(ns.Service(EndpointHolds), []byte(body), 20*time.Second)
	}
	stacktest.Eventually(t, "the service", func() bool { _, err := ask(1); return err == nil })
	for limit, want := range map[int]string{200: "", PageMax: "413"} {
		if m, err := ask(limit); err != nil || m.Header.Get(micro.ErrorCodeHeader) != want {
			t.Errorf("%d holds: %v %v, want %q", limit, err, m, want)
		}
	}
}

// fillQueryTurns sends as many queries as are answered at a time, which wait, and returns the
// channel of their answers.
func fillQueryTurns(t *testing.T, ns events.Namespace, nc *nats.Conn, reader *fakeDryRunner) chan *nats.Msg {
	t.Helper()
	answers := make(chan *nats.Msg, queriesMax)
	for range queriesMax {
		go func() {
			m, err := nc.Request(ns.Service(EndpointAvailability), []byte(`{"resource_id":"room"}`), time.Minute)
			if err != nil {
				t.Error(err)
				m = nats.NewMsg("")
			}
			answers <- m
		}()
		<-reader.received
	}
	return answers
}

// TestService_Full_RefusesAtOnce sends one more query while the maximum number of queries
// wait.
func TestService_Full_RefusesAtOnce(t *testing.T) {
	t.Parallel()
	dry := &fakeDryRunner{block: make(chan struct{}), received: make(chan struct{})}
	ns, nc, _ := serveQueries(t, dry, dry)
	goOn := sync.OnceFunc(func() { close(dry.block) })
	t.Cleanup(goOn)
	answers := fillQueryTurns(t, ns, nc, dry)
	m, err := nc.Request(ns.Service(EndpointAvailability), []byte(`{"resource_id":"room"}`), time.Minute)
	if err != nil || m.Header.Get(micro.ErrorCodeHeader) != "503" || !strings.Contains(string(m.Data), `"error":"busy"`) {
		t.Fatalf("the query without a turn: %v %+v", err, m)
	}
	goOn()
	for range queriesMax {
		if m := <-answers; string(m.Data) != `{"resource_id":"room","slots":[]}` {
			t.Errorf("a query with a turn: %s %v", m.Data, m.Header)
		}
	}
}

// TestService_Stop_AnswersBegunQueries stops the service while the maximum number of queries
// wait. They are answered.
func TestService_Stop_AnswersBegunQueries(t *testing.T) {
	t.Parallel()
	reader := &fakeDryRunner{block: make(chan struct{}), received: make(chan struct{})}
	ns, nc, stop := serveQueries(t, reader, nil)
	answers := fillQueryTurns(t, ns, nc, reader)
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	stacktest.Eventually(t, "the service to stop", func() bool {
		_, err := nc.Request("$SRV.INFO."+string(ns), nil, time.Minute)
		return errors.Is(err, nats.ErrNoResponders)
	})
	select {
	case <-stopped:
		t.Error("the service has stopped before its queries were answered")
	default:
	}
	close(reader.block)
	<-stopped
	for range queriesMax {
		if m := <-answers; string(m.Data) != `{"resource_id":"room","slots":[]}` {
			t.Errorf("a query that was begun: %s %v", m.Data, m.Header)
		}
	}
}
