package main

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

// TestGraph_PartFails_ErrorSaysOnlyWhy starts a worker without the inbound stream, which its consumers need.
func TestGraph_PartFails_ErrorSaysOnlyWhy(t *testing.T) {
	t.Parallel()
	shared, namespace := stacktest.Shared(), stacktest.Namespace(t)
	servers := []string{"--namespace", namespace, "--preflight", "warn",
		"--nats-url", shared.NATSURL, "--redis-url", shared.RedisURL, "--postgres-url", shared.PostgresURL}
	if code, out := execute(t.Context(), append([]string{"migrate"}, servers...)...); code != exitOK {
		t.Fatal(out)
	}
	js := stacktest.ConnectNATS(t, shared.NATSURL)
	stacktest.Must(t, js.DeleteStream(t.Context(), events.Namespace(namespace).InStream()))
	worker := launch(t, true, append([]string{"run", "--no-migrate", "--http-addr", "127.0.0.1:0"}, servers...))
	worker.awaitExit(t)
	if out := worker.log.String(); worker.err == nil || !strings.Contains(out, "worker: ") || strings.Contains(out, "build arguments") {
		t.Errorf("%v: %s", worker.err, out)
	}
}

// TestQueries_ConnectionsLost_OneFails loses all connections to a server without a trace, among them several for
// queries. New connections work. At most the first query fails, which may use one that was used just before.
func TestQueries_ConnectionsLost_OneFails(t *testing.T) {
	t.Parallel()
	const connections = 3
	for name, c := range map[string]struct {
		flag  string
		url   func(urls) string
		count func(s *harness, direct *pgx.Conn) int
	}{
		"redis": {"--redis-url", func(u urls) string { return u.redis }, func(s *harness, _ *pgx.Conn) int {
			return strings.Count(s.redis.ClientList(t.Context()).Val(), "name=holdfast-"+s.namespace+"-queries ")
		}},
		"postgres": {"--postgres-url", func(u urls) string { return u.postgres }, func(s *harness, direct *pgx.Conn) (n int) {
			err := direct.QueryRow(t.Context(),
				"SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", "holdfast queries "+s.namespace).Scan(&n)
			stacktest.Must(t, err)
			return n
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newHarness(t)
			address, proxy := stacktest.ProxyTo(t, c.url(s.urlsAs("worker")))
			worker := launch(t, true, append(s.runArgs(), c.flag, address))
			worker.awaitStarted(t)
			direct := stacktest.ConnectPostgres(t, s.urls.postgres)
			const query = "/v1/availability?resource_id=hall"
			stacktest.Eventually(t, "connections for queries", func() bool {
				var all sync.WaitGroup
				for range 4 * connections {
					all.Go(func() {
						if response, err := http.Get("http://" + worker.http + query); err == nil {
							_ = response.Body.Close()
						}
					})
				}
				all.Wait()
				return c.count(s, direct) >= connections
			})
			proxy.HalfOpen()
			failed := 0
			for range 2 * connections {
				if code, body := worker.get(t, query); code != http.StatusOK {
					t.Logf("%d %s", code, body)
					failed++
				}
			}
			if failed > 1 {
				t.Errorf("%d queries failed", failed)
			}
		})
	}
}
