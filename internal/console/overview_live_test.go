package console

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/queries"
	"holdfast/internal/stack/stacktest"
)

// TestStream_ServerHangs_SaysSo lets the status take all of its time, as a server that does not answer does.
func TestStream_ServerHangs_SaysSo(t *testing.T) {
	t.Parallel()
	var shown atomic.Int64
	c, handler := newTestConsole(t, Options{
		Mode: Read, Log: zerolog.New(zerolog.NewTestWriter(t)),
		Status: func(ctx context.Context) (Status, error) {
			if shown.Add(1) == 1 {
				return Status{Readiness: queries.Readiness{Ready: true}}, nil
			}
			<-ctx.Done()
			return Status{}, ctx.Err()
		}})
	nc, err := events.Connect(stacktest.NATSWithMaxPayload(t, 1<<20), t.Name(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if c.Client, err = client.New(nc, events.Namespace(stacktest.Namespace(t))); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+Prefix+"live", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.AddCookie(cookieOf(t, c, newSession("ana")))
	response, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	lines, ready := bufio.NewScanner(response.Body), false
	for lines.Scan() {
		ready = ready || strings.Contains(lines.Text(), "Ready.")
		if strings.Contains(lines.Text(), "is unavailable") {
			if !ready {
				t.Error("it was never ready")
			}
			return
		}
	}
	t.Errorf("the page ends without saying that a server is unavailable (%v); it was ready: %v", lines.Err(), ready)
}
