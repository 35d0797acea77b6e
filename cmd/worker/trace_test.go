package main

import (
	"encoding/hex"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// receiver is an OTLP receiver by HTTP that keeps the spans by id.
type receiver struct {
	*httptest.Server

	mu      sync.Mutex
	spans   map[string]*tracepb.Span
	changed chan struct{} // has one element after spans were added
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{spans: make(map[string]*tracepb.Span), changed: make(chan struct{}, 1)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		var exported collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &exported)
		}
		if err != nil || request.URL.Path != "/v1/traces" {
			t.Errorf("OTLP request on %s: %v", request.URL.Path, err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, of := range exported.GetResourceSpans() {
			for _, scope := range of.GetScopeSpans() {
				for _, span := range scope.GetSpans() {
					r.spans[hex.EncodeToString(span.GetSpanId())] = span
				}
			}
		}
		select {
		case r.changed <- struct{}{}:
		default:
		}
		w.WriteHeader(http.StatusOK)
	}))
	t.Cleanup(r.Close)
	return r
}

// await waits until so returns true for the spans so far, and returns them.
func (r *receiver) await(t *testing.T, so func(spans map[string]*tracepb.Span) bool) map[string]*tracepb.Span {
	t.Helper()
	for bound := time.After(time.Minute); ; {
		r.mu.Lock()
		spans := maps.Clone(r.spans)
		r.mu.Unlock()
		if so(spans) {
			return spans
		}
		select {
		case <-r.changed:
		case <-bound:
			t.Fatalf("timeout waiting for spans; these came: %v", spans)
		}
	}
}

// answerTraced publishes an event with a traceparent, and returns its outcome, which must have the same one.
func (s *harness) answerTraced(traceParent, event, resource string, data any) events.Envelope {
	s.t.Helper()
	o := s.answer(s.publish(event, resource, data, "traceparent", traceParent))
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := s.traces[o.ID]; got != traceParent {
		s.t.Errorf("%s has the traceparent %q, want that of its event", o.Type, got)
	}
	return o
}

// TestTraces_SampledEvent_JoinsPublisherServersAndOutcome publishes a payment whose trace is
// sampled, and a request whose trace is not, to a worker that sends its traces to a receiver.
func TestTraces_SampledEvent_JoinsPublisherServersAndOutcome(t *testing.T) {
	t.Parallel()
	const (
		traceID, publisher = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
		sampled            = "00-" + traceID + "-" + publisher + "-01"
		unsampled          = "00-11111111111111111111111111111111-" + publisher + "-00"
	)
	r := newReceiver(t)
	s := newHarness(t)
	s.startWorker("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+r.URL+"/v1/traces", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1",
		"OTEL_BSP_SCHEDULE_DELAY=50")
	s.setInventory("shoes", holds.SlotSelection{}, 3)
	created := s.answerTraced(unsampled, events.BookingRequested, "shoes",
		bookingData("shoes", "ana", "k", holds.SlotSelection{}, 600))
	confirmed := s.answerTraced(sampled, events.PaymentConfirmed, "shoes",
		events.PaymentConfirmedData{HoldID: created.Subject, PaymentID: "p"})
	if confirmed.Type != events.Type(holds.EventHoldConfirmed) {
		t.Errorf("the payment was answered with %s", confirmed.Type)
	}

	spans := r.await(t, func(spans map[string]*tracepb.Span) bool {
		return slices.ContainsFunc(slices.Collect(maps.Values(spans)), func(span *tracepb.Span) bool {
			return strings.HasPrefix(span.GetName(), "process ")
		})
	})
	names := make(map[string]int)
	for id, span := range spans {
		if got := hex.EncodeToString(span.GetTraceId()); got != traceID {
			t.Errorf("the span %s belongs to the trace %s", span.GetName(), got)
		}
		parent := hex.EncodeToString(span.GetParentSpanId())
		above := "publisher"
		if parent != publisher {
			above = spans[parent].GetName()
		}
		names[above+" > "+span.GetName()]++
		if span.GetEndTimeUnixNano() < span.GetStartTimeUnixNano() {
			t.Errorf("the span %s %s ends before it begins", id, span.GetName())
		}
	}
	for _, want := range []string{
		"publisher > process payment.confirmed", "process payment.confirmed > decide payments",
		"decide payments > redis", "decide payments > postgres",
	} {
		if names[want] == 0 {
			t.Errorf("there is no span %q in %v", want, names)
		}
	}
	if names["publisher > process payment.confirmed"] != 1 {
		t.Errorf("the payment has more than one span: %v", names)
	}
}

// TestTracesURL_Endpoint_GetsPath gives the endpoint of all signals, to which the path of traces is added.
func TestTracesURL_Endpoint_GetsPath(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []string{"http://c:4318/otlp", "http://c:4318/otlp/"} {
		o := Operations{OTLPEndpoint: endpoint}
		if got := o.tracesURL(); got != "http://c:4318/otlp/v1/traces" {
			t.Errorf("spans of %s go to %s", endpoint, got)
		}
	}
}

// TestTraces_UnusableSettings_AreUsageErrorsWithoutText starts workers with settings of traces that cannot be used. Each
// names the variable, without what it contains.
func TestTraces_UnusableSettings_AreUsageErrorsWithoutText(t *testing.T) {
	t.Parallel()
	binary, err := workerBinary()
	stacktest.Must(t, err)
	const (
		secret   = "s3cret"
		endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
		headers  = "OTEL_EXPORTER_OTLP_HEADERS"
		own      = "OTEL_EXPORTER_OTLP_TRACES_HEADERS"
		traces   = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
		receiver = endpoint + "=http://127.0.0.1:1"
	)
	for _, c := range []struct {
		names    string
		settings []string
	}{
		{endpoint, []string{endpoint + "=http://a:" + secret + "@h:bad"}},
		{endpoint, []string{endpoint + "=http://a:" + secret + "@[::1"}},
		{endpoint, []string{endpoint + "=grpc://a:" + secret + "@h:4317"}},
		{endpoint, []string{endpoint + "=http://a:" + secret + "@:4318"}},
		{endpoint, []string{endpoint + "=http:///" + secret}},
		{endpoint, []string{endpoint + "=" + secret + ":4318"}},
		{endpoint, []string{endpoint + "=http://a:" + secret + "@h:4318"}},
		{endpoint, []string{endpoint + "=http://h:4318/?key=" + secret}},
		{endpoint, []string{endpoint + "=http://h:4318/#" + secret, traces + "=http://h:4318/v1/traces"}},
		{endpoint, []string{endpoint + "=http://" + secret + "/x@h:4318"}},
		{traces, []string{traces + "=http://a:12/" + secret + "@h/v1/traces"}},
		{traces, []string{traces + "=http://a:" + secret + "@[::1"}},
		{traces, []string{receiver, traces + "=http://h:4318/v1/traces?key=" + secret}},
		{headers, []string{traces + "=http://h:4318/v1/traces", headers + "=" + secret}},
		{headers, []string{receiver, headers + "=authorization " + secret}},
		{headers, []string{receiver, headers + "=a=b,Bearer " + secret + "=c"}},
		{headers, []string{receiver, headers + "=a=%zz" + secret}},
		{own, []string{receiver, headers + "=a=b", own + "=" + secret}},
	} {
		cmd := exec.Command(binary, "run", "--http-addr", "127.0.0.1:0", "--nats-url", "nats://127.0.0.1:1",
			"--redis-url", "redis://127.0.0.1:1", "--postgres-url", "postgres://127.0.0.1:1/x")
		cmd.Env = append(cmd.Environ(), c.settings...)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != exitUsage || !strings.Contains(string(out), c.names) ||
			strings.Contains(string(out), secret) {
			t.Errorf("%v: exit code %d: %s", c.settings, code, out)
		}
	}
}

// TestTraces_SettingsOfLibrary_AreLoggedWithoutText starts a worker with variables that only the library of the exporter
// reads, and cannot parse.
func TestTraces_SettingsOfLibrary_AreLoggedWithoutText(t *testing.T) {
	t.Parallel()
	const secret = "s3cret"
	worker := newHarness(t).startWorker("OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1",
		"OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20"+secret, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT="+secret)
	worker.awaitLog(t, `"setting":"parse duration"`)
	if log := worker.log.String(); strings.Contains(log, secret) {
		t.Errorf("the log has the secret:\n%s", log)
	}
}
