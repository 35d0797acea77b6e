package client

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/queries"
	"holdfast/internal/stack/stacktest"
)

// serveQuery answers the queries to one endpoint of a new namespace.
func serveQuery(t *testing.T, endpoint string, answer func(micro.Request) error) *harness {
	t.Helper()
	h := newHarnessWithoutStreams(t, stacktest.Shared().NATSURL, events.Namespace(stacktest.Namespace(t)))
	service, err := micro.AddService(h.nc, micro.Config{Name: string(h.ns), Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = service.Stop() }) // only fails when the connection is closed
	err = service.AddEndpoint(endpoint, micro.HandlerFunc(func(r micro.Request) {
		if err := answer(r); err != nil {
			t.Error(err)
		}
	}), micro.WithEndpointSubject(h.ns.Service(endpoint)))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return h
}

// TestDryRun_WorkerBusy_RetriesUntilAnswered has a worker refuse the first query. The query carries
// the event's subject, body and attributes, and no other header.
func TestDryRun_WorkerBusy_RetriesUntilAnswered(t *testing.T) {
	t.Parallel()
	var received atomic.Int32
	h := serveQuery(t, queries.EndpointDryRun, func(r micro.Request) error {
		if received.Add(1) == 1 {
			return r.Error("503", queries.Busy.Reason+": "+queries.Busy.Detail, nil)
		}
		want := nats.Header{events.HeaderDLQSubject: {onRequest}, "ce-id": {"e1"}}
		if got := nats.Header(r.Headers()); !maps.EqualFunc(got, want, slices.Equal) || string(r.Data()) != "{}" {
			t.Errorf("the worker received %s with %v, want {} with %v", r.Data(), got, want)
		}
		return r.Respond([]byte(`{"verdict":"would hold","event":"hold.created","reason":"","detail":"until then"}`))
	})
	m := nats.NewMsg(onRequest)
	m.Data = []byte("{}")
	m.Header = nats.Header{"ce-id": {"e1"}, "X-Other": {"x"}}
	got, err := h.client.DryRun(stacktest.WaitContext(t), m)
	want := events.DryRunResult{Text: "would hold", Event: "hold.created", Detail: "until then"}
	if err != nil || got != want {
		t.Errorf("%v: result %+v, want %+v", err, got, want)
	}
}

// TestDryRun_AlwaysBusy_ReportsBusyAtDeadline cancels a query that a worker refuses each time.
func TestDryRun_AlwaysBusy_ReportsBusyAtDeadline(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := serveQuery(t, queries.EndpointDryRun, func(r micro.Request) error {
		defer cancel()
		return r.Error("503", queries.Busy.Reason+": "+queries.Busy.Detail, nil)
	})
	_, err := h.client.DryRun(ctx, nats.NewMsg(onRequest))
	refused, is := errors.AsType[*RefusedQueryError](err)
	if !errors.Is(err, context.Canceled) && (!is || refused.Status != http.StatusServiceUnavailable) {
		t.Errorf("error %v, want the refusal or the cancellation", err)
	}
}

// TestAsk_Refused_IsRefusedQueryError has a worker refuse a query for good.
func TestAsk_Refused_IsRefusedQueryError(t *testing.T) {
	t.Parallel()
	h := serveQuery(t, queries.EndpointAvailability, func(r micro.Request) error {
		if string(r.Data()) != `{"resource_id":"room","slots":["A-1"]}` {
			t.Errorf("the worker received %s", r.Data())
		}
		return r.Error("400", "bad_query: slots", nil)
	})
	query := AvailabilityQuery{ResourceID: "room", SlotSelection: holds.SlotSelection{Slots: []string{"A-1"}}}
	_, _, err := Ask[queries.KnownAvailability](stacktest.WaitContext(t), h.client, queries.EndpointAvailability, query)
	refused, is := errors.AsType[*RefusedQueryError](err)
	if !is || refused.Status != http.StatusBadRequest || !strings.Contains(err.Error(), "400 bad_query: slots") {
		t.Errorf("error %v, want the refusal", err)
	}
}

// TestAsk_NoWorker_IsErrNoWorker queries a namespace without a worker.
func TestAsk_NoWorker_IsErrNoWorker(t *testing.T) {
	t.Parallel()
	h := newHarnessWithoutStreams(t, stacktest.Shared().NATSURL, events.Namespace(stacktest.Namespace(t)))
	query := AvailabilityQuery{ResourceID: "room"}
	_, _, err := Ask[queries.KnownAvailability](stacktest.WaitContext(t), h.client, queries.EndpointAvailability, query)
	if !errors.Is(err, ErrNoWorker) {
		t.Errorf("error %v, want ErrNoWorker", err)
	}
}
