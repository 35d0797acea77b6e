package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// get asks the operations address of a worker.
func (p *process) get(t *testing.T, path string) (status int, body string) {
	t.Helper()
	response, err := http.Get("http://" + p.http + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	defer http.DefaultClient.CloseIdleConnections()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// TestHTTPQueries_EveryEndpoint_Answers asks everything that section 9 of the contract names.
func TestHTTPQueries_EveryEndpoint_Answers(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	s.setInventory("double", holds.SlotSelection{CheckIn: "2027-01-01", CheckOut: "2027-01-03"}, 3)
	s.setInventory("hall", seat, 1)
	s.setInventory("shoes", holds.SlotSelection{}, 5)
	hold := s.answer(s.publish(events.BookingRequested, "hall", bookingData("hall", "ana", "k1", seat, 3600)))
	created := decoded[holds.HoldCreated](t, hold)

	for _, c := range []struct {
		path   string
		status int
		body   string // what it must have in it
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
	s.answer(s.publish(events.BookingCancelled, "hall", events.BookingCancelledData{HoldID: hold.Subject}))
	if _, body := worker.get(t, "/v1/holds/"+hold.Subject); !strings.Contains(body, `"state":"released"`) {
		t.Errorf("after it was cancelled: %s", body)
	}
}

// TestWebLimits_ClientIsTooSlowOrTooLarge_IsDropped has clients that take more than one connection may.
func TestWebLimits_ClientIsTooSlowOrTooLarge_IsDropped(t *testing.T) {
	t.Parallel()
	const short, long = 100 * time.Millisecond, time.Hour
	unlimited := webLimits{headers: long, read: long, write: long, idle: long, headerBytes: 1 << 20}
	serve := func(t *testing.T, l webLimits, h http.HandlerFunc) (client net.Conn) {
		t.Helper()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		web := l.serverOf(h)
		served := make(chan struct{})
		go func() { defer close(served); _ = web.Serve(listener) }() // ends by Close
		t.Cleanup(func() { _ = web.Close(); <-served })
		if client, err = net.Dial("tcp", listener.Addr().String()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		if err := client.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil { // the test fails then
			t.Fatal(err)
		}
		return client
	}
	hello := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }
	// dropped reads all that the server says until it closes the connection.
	dropped := func(t *testing.T, client net.Conn, sent string) (reply string) {
		t.Helper()
		if _, err := io.WriteString(client, sent); err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(client)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the connection stays open after %q", text)
		}
		return string(text)
	}
	t.Run("a header that does not end", func(t *testing.T) {
		t.Parallel()
		l := unlimited
		l.headers = short
		dropped(t, serve(t, l, hello), "GET / HTTP/1.1\r\nHost: x\r\n")
	})
	t.Run("a header that is too large", func(t *testing.T) {
		t.Parallel()
		l := unlimited
		l.headerBytes = 1 << 10
		reply := dropped(t, serve(t, l, hello), "GET / HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 8<<10)+"\r\n\r\n")
		if !strings.HasPrefix(reply, "HTTP/1.1 431 ") {
			t.Errorf("it is answered with %q", reply)
		}
	})
	t.Run("a body that does not come", func(t *testing.T) {
		t.Parallel()
		l := unlimited
		l.read = short
		reply := dropped(t, serve(t, l, func(w http.ResponseWriter, r *http.Request) {
			_, err := io.ReadAll(r.Body)
			fmt.Fprintln(w, err)
		}), "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
		if !strings.Contains(reply, "timeout") {
			t.Errorf("it is answered with %q", reply)
		}
	})
	t.Run("an answer that is not read", func(t *testing.T) {
		t.Parallel()
		l := unlimited
		l.write = short
		ended := make(chan error, 1)
		client := serve(t, l, func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					ended <- err
					return
				}
			}
		})
		if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ended:
		case <-time.After(2 * time.Minute):
			t.Error("the answer is written for ever")
		}
	})
	t.Run("nothing after an answer", func(t *testing.T) {
		t.Parallel()
		l := unlimited
		l.idle = short
		if reply := dropped(t, serve(t, l, hello), "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.HasSuffix(reply, "hello\n") {
			t.Errorf("it is answered with %q", reply)
		}
	})
}

// TestReadiness_RedisEmptied_ReportsRebuild loses the data of Redis. The worker says so, on all its ways, and how far it is; what is
// asked meanwhile waits. After a while it is ready again, by itself.
func TestReadiness_RedisEmptied_ReportsRebuild(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	status := func() (code int, ready readiness) {
		code, body := worker.get(t, "/readyz")
		if err := json.Unmarshal([]byte(body), &ready); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		return code, ready
	}
	stacktest.Eventually(t, "the worker to be ready", func() bool {
		code, ready := status()
		return code == 200 && ready.Ready && len(ready.Reasons) == 0
	})
	s.setInventory("hall", seat, 1)
	if err := s.redis.Del(t.Context(), fmt.Sprintf("%s:{%d}:epoch", s.namespace, record.Partition("hall"))).Err(); err != nil {
		t.Fatal(err)
	}
	code, ready := status()
	if code != 503 || ready.Ready || !slices.Contains(ready.Reasons, "rebuilding") {
		t.Errorf("a Redis that lost its data: %d %+v", code, ready)
	}
	if code, body := worker.get(t, "/v1/availability?resource_id=hall&slot=A-12"); code != 503 || !strings.Contains(body, "rebuilding") {
		t.Errorf("availability from a Redis that lost its data: %d %s", code, body)
	}
	waiting := s.publish(events.BookingRequested, "hall", bookingData("hall", "ana", "k1", seat, 600))
	const progress, why = "waiting for outcomes in flight", "epoch missing"
	stacktest.Eventually(t, "the worker to say how far it is", func() bool {
		code, ready := status()
		return code == 503 && strings.Contains(ready.Details["rebuilding"], progress)
	})
	if _, body := worker.get(t, "/v1/availability?resource_id=hall&slot=A-12"); !strings.Contains(body, progress) {
		t.Errorf("availability does not say how far it is: %s", body)
	}
	if e := s.epoch(); e.Complete || !strings.Contains(e.Why, why) {
		t.Errorf("the epoch is %+v", e)
	}
	if o := s.answer(waiting); o.Type != events.Type(holds.EventHoldCreated) {
		t.Errorf("the event that waited was answered with %s", o.Type)
	}
	stacktest.Eventually(t, "the worker to be ready", func() bool { code, _ := status(); return code == 200 })
}

// TestDev_Once_PlaysStoryAndEnds runs what a newcomer runs first, as a program of its own, also with lock servers.
func TestDev_Once_PlaysStoryAndEnds(t *testing.T) {
	t.Parallel()
	binary, err := workerBinary()
	if err != nil {
		t.Fatal(err)
	}
	for name, more := range map[string][]string{"plain": nil, "redlock": {"--lock-strategy", "redlock"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(binary, append([]string{"dev", "--once", "--http-addr", "127.0.0.1:0", "--data-dir", t.TempDir()}, more...)...)
			out, err := cmd.CombinedOutput()
			for _, want := range []string{"Not checked here: what outlives a crash", "Ana pays", "came back by itself", "One of them has it, 199", "dead letter", "malformed"} {
				if !strings.Contains(string(out), want) {
					t.Errorf("it does not tell %q", want)
				}
			}
			if n := strings.Count(string(out), "locks     redis://"); more != nil && n != lockServersMin {
				t.Errorf("it tells of %d lock servers", n)
			}
			if err != nil || t.Failed() {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestUsage_Mistakes_ExplainedWithExit2 is what a user sees who makes a mistake.
func TestUsage_Mistakes_ExplainedWithExit2(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"":                         {exitUsage, "Start everything"},
		"--version":                {exitOK, runtime.Version()},
		"fly":                      {exitUsage, "fly"},
		"--help":                   {exitOK, "worker dev --once"},
		"run --help":               {exitOK, "--lock-strategy"},
		"run":                      {exitUsage, "HOLDFAST_NATS_URL"},
		"run --namespace Bad":      {exitUsage, "--namespace"},
		"run --hold-ttl 2h":        {exitUsage, "--hold-ttl-max"},
		"run --hold-ttl-max 3h":    {exitUsage, "--hold-lifetime-max"},
		"run --request-key-ttl 1h": {exitUsage, "--request-key-ttl"},
		"run --lock-lease 1ms":     {exitUsage, "--lock-lease"},
		"run --lock-strategy hope": {exitUsage, "--lock-strategy"},
		"run --lock-lease soon":    {exitUsage, "auto"},
		"run --lock-lease 0s":      {exitUsage, "--lock-lease"},
		"run --lock-renew-max 11m": {exitUsage, "--lock-renew-max"},

		"run --nats-url x --redis-url y --postgres-url z --lock-strategy redlock":                       {exitUsage, "HOLDFAST_LOCK_REDIS_URLS"},
		"run --lock-strategy redlock --lock-redis-urls redis://a":                                       {exitUsage, "odd number"},
		"run --lock-strategy redlock --lock-redis-urls redis://a,redis://b,redis://c,redis://d":         {exitUsage, "odd number"},
		"run --lock-strategy redlock --lock-redis-urls redis://a,redis://b,redis://a":                   {exitUsage, "twice"},
		"run --lock-strategy redlock --lock-redis-urls redis://a,redis://:s3cret@b:bad/0,redis://c":     {exitUsage, "number 2"},
		"run --lock-strategy redlock --lock-redis-urls redis://a,redis://:s3cret@b/0,redis://:s3cret@b": {exitUsage, "b:6379"},
		"run --lock-strategy range --lock-redis-urls redis://:s3cret@a":                                 {exitUsage, "redlock only"},
		"run --lock-strategy redlock --lock-fair":                                                       {exitUsage, "--lock-fair"},
		"run --lock-strategy none --lock-lease auto":                                                    {exitUsage, "--lock-lease"},
		"run --lock-strategy optimistic --lock-renew-max 1m":                                            {exitUsage, "--lock-renew-max"},

		"preflight --help":                   {exitOK, "worker preflight --no-migrate"},
		"preflight":                          {exitUsage, "HOLDFAST_NATS_URL"},
		"preflight -o xml":                   {exitUsage, "--output"},
		"run --preflight perhaps":            {exitUsage, "--preflight"},
		"rebuild --help":                     {exitOK, "worker rebuild --yes"},
		"rebuild -o xml":                     {exitUsage, "--output"},
		"rebuild --yes":                      {exitUsage, "HOLDFAST_NATS_URL"},
		"rebuild --log-level debug --yes":    {exitUsage, "unknown flag --log-level"},
		"migrate --lock-strategy none":       {exitUsage, "unknown flag --lock-strategy"},
		"healthcheck --help":                 {exitOK, "worker healthcheck --http-addr"},
		"healthcheck --http-addr here":       {exitUsage, "host:port"},
		"healthcheck --http-addr a:1 x":      {exitUsage, "unexpected argument x"},
		"healthcheck --timeout 0s":           {exitUsage, "--timeout"},
		"healthcheck --http-addr :1":         {exitFailed, "127.0.0.1:1"},
		"completion fish":                    {exitOK, "function __complete_worker"},
		"completion tcsh":                    {exitUsage, "tcsh"},
		"locks --help":                       {exitOK, "-o json"},
		"locks -o xml":                       {exitUsage, "--output"},
		"locks --http-addr here":             {exitUsage, "host:port"},
		"locks --http-addr a:1,a:1":          {exitUsage, "twice"},
		"locks --http-addr 127.0.0.1:1":      {exitFailed, "worker dev"},
		"migrate --nats-url x --redis-url y": {exitUsage, "HOLDFAST_POSTGRES_URL"},
		"migrate --nats-url x --redis-url redis://:s3cret@h:bad/0 --postgres-url z":                                                    {exitUsage, "--redis-url"},
		"migrate --nats-url x --redis-url redis://127.0.0.1:1 --postgres-url postgres://a:s3cret@h:bad/0":                              {exitUsage, "--postgres-url"},
		"preflight --lock-strategy range --nats-url x --redis-url redis://127.0.0.1:1 --postgres-url postgres://a:s3%zzs3cret@h/0":     {exitUsage, "--postgres-url"},
		"preflight --lock-strategy range --nats-url nats://a:s3cret@h:bad --redis-url redis://127.0.0.1:1 --postgres-url postgres://h": {exitFailed, "nats.reachable"},
	} {
		var out strings.Builder
		if code := run(t.Context(), strings.Fields(args), streams{&out, &out}); code != want.code || !strings.Contains(out.String(), want.text) {
			t.Errorf("worker %s: %d, %s\nwant %d with %s", args, code, out.String(), want.code, want.text)
		}
		if strings.Contains(out.String(), "s3cret") {
			t.Errorf("worker %s shows a password: %s", args, out.String())
		}
	}
}
