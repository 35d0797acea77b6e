package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"holdfast/internal/postgres"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// TestCheckSessions_EachMode_OnlySessionAccepted connects directly and through PgBouncer in each
// mode, with and without other clients of the same pool.
func TestCheckSessions_EachMode_OnlySessionAccepted(t *testing.T) {
	t.Parallel()
	server := stacktest.StartPostgres(t)
	check := func(url string) (bool, error) {
		t.Helper()
		config, err := postgres.Config(url, "holdfast", nil)
		if err != nil {
			t.Fatal(err)
		}
		return postgres.CheckSessions(t.Context(), config.ConnConfig)
	}
	if pooled, err := check(stacktest.PostgresURL(server)); pooled || err != nil {
		t.Errorf("without a pooler: %v, %v", pooled, err)
	}
	for mode, want := range map[string]error{"session": nil, "transaction": postgres.ErrPooled, "statement": postgres.ErrPooled} {
		address := stacktest.StartPgBouncer(t, server.Port, mode)
		for _, busy := range []bool{false, true} {
			stop := func() {}
			if busy {
				stop = useBusily(t, address)
			}
			for range 5 {
				if pooled, err := check(address); !pooled || !errors.Is(err, want) || want == nil && err != nil {
					t.Errorf("mode %s, other clients %v: %v, %v", mode, busy, pooled, err)
				}
			}
			stop()
		}
	}
}

// useBusily queries through a pooler on several connections until stop.
func useBusily(t *testing.T, url string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	const clients = 8
	done := make(chan error, clients)
	for range clients {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for ctx.Err() == nil {
				_, _ = conn.PgConn().Exec(ctx, "SELECT pg_sleep(0.001)").ReadAll()
			}
			done <- conn.Close(context.WithoutCancel(ctx))
		}()
	}
	return func() {
		cancel()
		for range clients {
			<-done
		}
	}
}

// TestPgBouncer_SessionMode_EverythingWorks migrates, sets and reads capacity, and receives the change
// of another session, all through PgBouncer.
func TestPgBouncer_SessionMode_EverythingWorks(t *testing.T) {
	t.Parallel()
	server := stacktest.StartPostgres(t)
	address := stacktest.StartPgBouncer(t, server.Port, "session")
	db, err := store.Open(t.Context(), address, "holdfast")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	for range 2 {
		if err := db.Migrate(t.Context(), "holdfast"); err != nil {
			t.Fatal(err)
		}
	}
	p := &pair{T: t}
	p.set(db, 2)
	if found, err := capacity(t.Context(), db); found != 2 || err != nil {
		t.Errorf("the capacity is %d (%v), want 2", found, err)
	}
	changed := make(watcher, 1)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = db.Watch(ctx, changed, zerolog.Nop()) }() // it returns no errors
	defer func() { stop(); <-ended }()
	stacktest.Eventually(t, "the change to be reported", func() bool { // it may not listen yet
		p.sql(server, "UPDATE holdfast.inventory SET capacity = capacity + 1")
		select {
		case <-changed:
			return true
		default:
			return false
		}
	})
	if path := p.sql(server, "SHOW search_path"); strings.Contains(path, "holdfast") {
		t.Errorf("another session has the search path %s", path)
	}
}
