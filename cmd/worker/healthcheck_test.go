package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// TestHealthcheck_LiveEndedAndForeign_ExitCodes checks a running worker, a stopped one, and a
// server that is not a worker.
func TestHealthcheck_LiveEndedAndForeign_ExitCodes(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it accepts connections and never answers
	stacktest.Must(t, err)
	defer func() { _ = silent.Close() }()
	check := func(want int, text string, args ...string) {
		t.Helper()
		if code, out := execute(t.Context(), append([]string{"healthcheck"}, args...)...); code != want ||
			!strings.Contains(out, text) {
			t.Errorf("worker healthcheck %v: %d, %s\nwant %d with %s", args, code, out, want, text)
		}
	}
	worker := newHarness(t).startWorker()
	_, port, err := net.SplitHostPort(worker.http)
	stacktest.Must(t, err)
	dir := filepath.Dir(fileOf(t, "endpoints.env", "HOLDFAST_HTTP_ADDR="+worker.http+"\n"))
	check(exitOK, "alive: http://"+worker.http, "--http-addr", worker.http, "--timeout", "1m")
	check(exitOK, "alive: http://"+worker.http, "--http-addr", "0.0.0.0:"+port, "--timeout", "1m")
	check(exitOK, "alive: http://"+worker.http, "--data-dir", dir, "--timeout", "1m")
	check(exitFailed, "404", "--http-addr", other.Listener.Addr().String(), "--timeout", "1m")
	check(exitFailed, "no answer from worker", "--http-addr", silent.Addr().String(), "--timeout", "50ms")
	worker.stop(t)
	check(exitFailed, "no answer from worker", "--data-dir", dir, "--timeout", "1m")
}
