package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/telemetry"
)

// TestHTTPQueries_EveryEndpoint_Answers requests every endpoint of section 9 of the contract.
func TestHTTPQueries_EveryEndpoint_Answers(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	s.setInventory("double", holds.SlotSelection{CheckIn: "2027-01-01", CheckOut: "2027-01-03"}, 3)
	s.setInventory("hall", seat, 1)
	s.setInventory("shoes", holds.SlotSelection{}, 5)
	hold := s.answer(s.book("hall", "ana", "k1", seat, 3600))
	created := decoded[holds.HoldCreated](t, hold)

	for _, c := range []struct {
		path   string
		status int
		body   string // a part of the expected body
	}{
		{"/", 200, `<a href="/readyz">`},
		{"/", 200, "namespace " + s.namespace},
		{"/nothing", 404, `not found`},
		{"/healthz", 200, `alive`},
		{"/v1/availability?resource_id=double&check_in=2027-01-01&check_out=2027-01-04", 200,
			`{"resource_id":"double","slots":[{"slot":"2027-01-01","capacity":3,"reserved":0,"held":0,"available":3},{"slot":"2027-01-02","capacity":3,"reserved":0,"held":0,"available":3},{"slot":"2027-01-03","capacity":0,"reserved":0,"held":0,"available":0}]}`},
		{"/v1/availability?resource_id=hall&slot=A-12&slot=A-13", 200,
			`{"resource_id":"hall","slots":[{"slot":"A-12","capacity":1,"reserved":0,"held":1,"available":0},{"slot":"A-13","capacity":0,"reserved":0,"held":0,"available":0}]}`},
		{"/v1/availability?resource_id=shoes", 200, `"slots":[{"slot":"stock","capacity":5,`},
		{"/v1/availability", 400, `resource_id`},
		{"/v1/availability?resource_id=a.b", 400, `resource_id`},
		{"/v1/availability?resource_id=double&check_in=2027-01-01", 400, `check_out`},
		{"/v1/availability?resource_id=double&check_in=2027-01-02&check_out=2027-01-02", 400, `check_out`},
		{"/v1/availability?resource_id=double&check_in=2027-02-30&check_out=2027-03-02", 400, `calendar`},
		{"/v1/availability?resource_id=shoes&slot=%zz", 400, `percent-encoded`},
		{"/v1/availability?resource_id=double&colour=red", 400, `unknown parameter`},
		{"/v1/availability?resource_id=double&resource_id=hall", 400, `more than once`},
		{"/v1/holds/" + hold.Subject, 200, `"state":"held"`},
		{"/v1/holds/" + hold.Subject, 200, `"expires_at":"` + created.ExpiresAt.Format(holds.TimeFormat) + `"`},
		{"/v1/holds/hall.00000000000000000000000000000000", 404, `unknown_hold`},
		{"/v1/holds/nonsense", 400, `hold id`},
	} {
		if status, body := worker.get(t, c.path); status != c.status || !strings.Contains(body, c.body) {
			t.Errorf("GET %s: %d %s\nwant %d with %s", c.path, status, body, c.status, c.body)
		}
	}
	refused, body := newBrowser(t, worker).do(http.MethodGet, "/v1/holds/"+hold.Subject, nil, "Host", "evil.example")
	if refused.StatusCode != http.StatusMisdirectedRequest || !strings.Contains(body, `"error":"wrong_host"`) {
		t.Errorf("a page of another site whose name was changed to 127.0.0.1: %s %s", refused.Status, body)
	}
	s.answer(s.publish(events.BookingCancelled, "hall", events.BookingCancelledData{HoldID: hold.Subject}))
	if _, body := worker.get(t, "/v1/holds/"+hold.Subject); !strings.Contains(body, `"state":"released"`) {
		t.Errorf("after it was cancelled: %s", body)
	}
}

// TestReadiness_PartitionLost_ReportsRebuild loses one partition. The readiness, the metrics and the
// queries report the rebuild and its progress, and events wait; requests and queries for resources of
// other partitions are answered. The worker becomes ready again by itself.
func TestReadiness_PartitionLost_ReportsRebuild(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	worker.awaitReady(t)
	s.setInventory("hall", seat, 1)
	s.setInventory("room", seat, 1)
	s.epoch() // connects s.store
	const another = "a worker that is still publishing"
	if err := s.store.RegisterWorker(t.Context(), another); err != nil {
		t.Fatal(err)
	}
	stacktest.Must(t, s.redis.Del(t.Context(),
		fmt.Sprintf("%s:{%d}:epoch", s.namespace, record.Partition("hall"))).Err())
	if ready := worker.readiness(t); !slices.Contains(ready.Reasons, "rebuilding") {
		t.Errorf("a Redis that lost its data: %+v", ready)
	}
	if code, body := worker.get(t, "/v1/availability?resource_id=hall&slot=A-12"); code != 503 ||
		!strings.Contains(body, "rebuilding") {
		t.Errorf("availability from a Redis that lost its data: %d %s", code, body)
	}
	waiting := s.book("hall", "ana", "k1", seat, 600)
	const progress, why = "waiting for outcomes in flight", "epoch missing"
	partition := fmt.Sprintf("partition %d: ", record.Partition("hall"))
	stacktest.Eventually(t, "the worker to report its progress", func() bool {
		is := worker.readiness(t).Details["rebuilding"]
		return strings.Contains(is, progress) && strings.Contains(is, partition)
	})
	s.wantAnswer(s.book("room", "ana", "k1", seat, 600), holds.EventHoldCreated)
	if code, body := worker.get(t, "/v1/availability?resource_id=room&slot=A-12"); code != 200 {
		t.Errorf("availability of another partition: %d %s", code, body)
	}
	if _, body := worker.get(t, "/v1/availability?resource_id=hall&slot=A-12"); !strings.Contains(body, progress) {
		t.Errorf("availability does not report the progress: %s", body)
	}
	if e := s.epoch(); e.Complete || !strings.Contains(e.Why, why) {
		t.Errorf("the epoch is %+v", e)
	}
	stacktest.Must(t, s.store.RemoveWorker(t.Context(), another))
	s.wantAnswer(waiting, holds.EventHoldCreated)
	worker.awaitReady(t)
}

// TestReadiness_RedisEvicts_ReadyAndSaysSo starts a worker on a Redis that evicts keys, as --preflight warn permits. It is
// ready, and /readyz and the log name the policy until it is corrected.
func TestReadiness_RedisEvicts_ReadyAndSaysSo(t *testing.T) {
	t.Parallel()
	own, shared := stacktest.StartRedis(t), stacktest.Shared()
	s := newHarnessOn(t, urls{shared.NATSURL, own.RedisURL, shared.PostgresURL})
	setting := func(name, value string) {
		t.Helper()
		stacktest.Must(t, s.redis.ConfigSet(t.Context(), name, value).Err())
	}
	setting("maxmemory", "1gb")
	setting("maxmemory-policy", "volatile-lru")
	worker := s.startWorker("HOLDFAST_PREFLIGHT=warn")
	awaitReady := func(what string, is func(eviction string) bool) {
		t.Helper()
		stacktest.Eventually(t, what, func() bool {
			ready := worker.readiness(t)
			return ready.Ready && is(ready.Details["redis_eviction"])
		})
	}
	awaitReady("/readyz to be 200 and name the policy", func(eviction string) bool {
		return strings.Contains(eviction, "volatile-lru") && strings.Contains(eviction, "CONFIG SET maxmemory-policy noeviction")
	})
	worker.awaitLog(t, "redis evicts keys when its memory is full")
	worker.awaitMetrics(t, func(value func(string) float64) bool { return value("holdfast_redis_eviction") == 1 })
	setting("maxmemory-policy", "noeviction")
	awaitReady("/readyz to name no policy", func(eviction string) bool { return eviction == "" })
}

// TestWebLimits_RunningWorker_HasThem checks that the server of a worker limits each connection.
func TestWebLimits_RunningWorker_HasThem(t *testing.T) {
	t.Parallel()
	web := newWebServer(nil)
	for name, limit := range map[string]time.Duration{
		"headers": web.ReadHeaderTimeout, "read": web.ReadTimeout, "write": web.WriteTimeout, "idle": web.IdleTimeout,
	} {
		if limit <= 0 || limit > time.Minute {
			t.Errorf("the limit of %s is %v", name, limit)
		}
	}
	s := newHarness(t)
	worker := s.startWorker()
	response, _ := newBrowser(t, worker).do(http.MethodGet, "/healthz", nil, "X", strings.Repeat("x", 64<<10))
	if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("headers of 64 KiB: %s", response.Status)
	}
}

// TestHTTPQueries_ClientSendsNoMore_IsAnswered closes the sending half of its connections, as nc -N does.
func TestHTTPQueries_ClientSendsNoMore_IsAnswered(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	s.setInventory("cabin", holds.SlotSelection{}, 1)
	for range 10 {
		conn, err := net.Dial("tcp", worker.http)
		stacktest.Must(t, err)
		_, err = fmt.Fprintf(conn, "GET /v1/availability?resource_id=cabin HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", worker.http)
		if err == nil {
			err = conn.(*net.TCPConn).CloseWrite()
		}
		answer, readErr := io.ReadAll(conn)
		_ = conn.Close()
		if err != nil || readErr != nil || !strings.Contains(string(answer), "{") {
			t.Errorf("%q (%v, %v)", answer, err, readErr)
		}
	}
}

// oneConn is a listener that accepts one connection.
type oneConn chan net.Conn

func (l oneConn) Accept() (net.Conn, error) {
	if conn, open := <-l; open {
		return conn, nil
	}
	return nil, net.ErrClosed
}
func (l oneConn) Close() error { close(l); return nil }
func (oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// TestServe_StopDuringQuery_IsAnswered stops a worker while a query runs that takes long. It waits for the answer.
func TestServe_StopDuringQuery_IsAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		l, served := make(oneConn, 1), make(chan error, 1)
		go func() {
			served <- (&server{}).serve(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				stop()
				time.Sleep(2 * time.Second) // of the bubble: no real time passes
				_, _ = io.WriteString(w, "the answer")
			}))
		}()
		client, conn := net.Pipe()
		l <- conn
		_, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: room\r\nConnection: close\r\n\r\n")
		answer, readErr := io.ReadAll(client)
		if err != nil || readErr != nil || !strings.HasSuffix(string(answer), "the answer") {
			t.Errorf("%q (%v, %v)", answer, err, readErr)
		}
		if err := <-served; err != nil {
			t.Errorf("the worker has not waited: %v", err)
		}
	})
}

// TestQuery_ClientGone_IsNoError fails a query of a client that has gone, and one of a client that waits.
func TestQuery_ClientGone_IsNoError(t *testing.T) {
	t.Parallel()
	for gone, want := range map[bool]string{true: `"level":"debug"`, false: `"level":"error"`} {
		ctx, cancel := context.WithCancel(t.Context())
		if gone {
			cancel()
		}
		var log strings.Builder
		s := &server{log: zerolog.New(&log), queries: newQueryMetrics(telemetry.NewSet()), turns: make(chan struct{}, 1)}
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/stats", nil)
		s.query(func(context.Context, *http.Request) (any, error) {
			return nil, fmt.Errorf("read: %w", context.Canceled)
		})(httptest.NewRecorder(), r)
		if !strings.Contains(log.String(), want) || !strings.Contains(log.String(), "query failed") {
			t.Errorf("the client has gone: %t, logged %s", gone, &log)
		}
		cancel()
	}
}
