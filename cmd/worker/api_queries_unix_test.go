//go:build unix

package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/micro"

	"holdfast/internal/holds"
	"holdfast/internal/queries"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// stopSessions stops the processes of Postgres that serve sessions with an application name, and
// those of later sessions too, until goOn is called. atLeast waits until n of them are stopped.
func (s *harness) stopSessions(t *testing.T, name string) (atLeast func(n int), goOn func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	conn, err := pgx.Connect(ctx, s.urls.postgres)
	stacktest.Must(t, err)
	var mu sync.Mutex
	var stopped []int
	var stopping sync.WaitGroup
	stopping.Go(func() {
		for ctx.Err() == nil {
			// CollectRows returns the error of Query.
			rows, _ := conn.Query(ctx, "SELECT pid FROM pg_stat_activity WHERE application_name = $1", name)
			pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
			if err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
			for _, pid := range pids {
				mu.Lock()
				if !slices.Contains(stopped, pid) && syscall.Kill(pid, syscall.SIGSTOP) == nil {
					stopped = append(stopped, pid)
				}
				mu.Unlock()
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	goOn = sync.OnceFunc(func() {
		cancel()
		stopping.Wait()
		for _, pid := range stopped {
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Errorf("continue process %d: %v", pid, err)
			}
		}
		_ = conn.Close(context.Background())
	})
	t.Cleanup(goOn)
	return func(n int) {
		stacktest.Eventually(t, "sessions of "+name, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(stopped) >= n
		})
	}, goOn
}

// await returns the first answer to a rejected query.
func await[T any](t *testing.T, refused <-chan T) (answer T) {
	t.Helper()
	select {
	case answer = <-refused:
	case <-time.After(stacktest.WaitBound):
		t.Fatal("no query was rejected")
	}
	return answer
}

// TestQueries_Hang_DecisionsGoOn floods a worker with queries while its Postgres sessions for
// queries are stopped, so none is answered. Beyond a limit queries are rejected at once, and events
// are decided as before.
func TestQueries_Hang_DecisionsGoOn(t *testing.T) {
	t.Parallel()
	own := stacktest.Start(t, stack.Options{Postgres: true}) // so that sessions can be stopped
	shared := stacktest.Shared()
	s := newHarnessOn(t, urls{shared.NATSURL, shared.RedisURL, own.PostgresURL})
	worker := s.startWorker()
	s.setInventory("hall", seat, 1)
	const path = "/v1/availability?resource_id=hall&slot=A-12"
	if status, body := worker.get(t, path); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	atLeast, goOn := s.stopSessions(t, "holdfast queries "+s.namespace)
	atLeast(1)

	flooding, enough := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	t.Cleanup(func() { enough(); flood.Wait(); http.DefaultClient.CloseIdleConnections() })
	var busy, busyByNATS sync.Once
	byHTTP, byNATS := make(chan *http.Response, 1), make(chan string, 1)
	for range queriesMax + 32 { // a rejected query is not repeated
		flood.Go(func() {
			for flooding.Err() == nil {
				r, err := http.NewRequestWithContext(flooding, http.MethodGet, "http://"+worker.http+path, nil)
				if err != nil {
					t.Error(err)
					return
				}
				response, err := http.DefaultClient.Do(r)
				if err != nil {
					continue // the flood has ended
				}
				text, _ := io.ReadAll(response.Body)
				_ = response.Body.Close()
				if strings.Contains(string(text), `"error":"busy"`) {
					busy.Do(func() { byHTTP <- response })
					return
				}
			}
		})
		flood.Go(func() {
			for flooding.Err() == nil {
				m, err := s.nc.RequestWithContext(flooding, s.subjects.Service(queries.EndpointAvailability),
					[]byte(`{"resource_id":"hall","slots":["A-12"]}`))
				if err == nil && strings.Contains(string(m.Data), `"error":"busy"`) {
					busyByNATS.Do(func() { byNATS <- m.Header.Get(micro.ErrorCodeHeader) })
					return
				}
			}
		})
	}
	//nolint:bodyclose // the sender has closed it
	if r := await(t, byHTTP); r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" {
		t.Errorf("a query beyond the limit was answered with %s, Retry-After %q", r.Status, r.Header.Get("Retry-After"))
	}
	if code := await(t, byNATS); code != "503" {
		t.Errorf("a NATS query beyond the limit was answered with %s", code)
	}
	o := s.wantAnswer(s.book("hall", "ana", "k", seat, hour), holds.EventHoldCreated)
	s.wantAnswer(s.pay(o.Subject, "p"), holds.EventHoldConfirmed)
	worker.awaitReady(t)

	enough()
	flood.Wait()
	goOn()
	stacktest.Eventually(t, "queries to be answered again",
		func() bool { status, _ := worker.get(t, path); return status == http.StatusOK })
	if list := s.redis.ClientList(t.Context()).Val(); !strings.Contains(list, " name=holdfast-"+s.namespace+"-queries ") {
		t.Errorf("queries have no separate connections to redis: %s", list)
	}
}
