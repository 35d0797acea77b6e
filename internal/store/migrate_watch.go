package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"holdfast/internal/postgres"
)

// A migration ends with an error after migrationSilentMax checks in a row without a sign of life. A statement may take
// any time, so no deadline distinguishes a large table from a connection that loses all bytes.
const (
	migrationSilentMax = 4
	// migrationEndWithin bounds the end of a migration that was cancelled.
	migrationEndWithin = time.Second
	// migrationWarnEach is the number of checks in a row that find it waiting, for each warning.
	migrationWarnEach = 6
)

// migrationCheckEvery is the time between two checks, and of each.
var migrationCheckEvery = 5 * time.Second

// errMigrationSilent is the error of a migration that was ended because there was no sign of life.
var errMigrationSilent = errors.New("postgres does not answer, or its answers do not arrive; start again")

// migrationSessions are the connections of a migration, and the process ids of its sessions.
type migrationSessions struct {
	mu    sync.Mutex
	conns []net.Conn
	pids  []int32
}

// attach makes the pool with a configuration record its connections and sessions. Their statements wait for a lock for
// half a second: others that need it wait as long. Sessions whose client is cut off end, because the next migration
// waits for their locks.
func (m *migrationSessions) attach(config *pgxpool.Config) {
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err == nil {
			conn = postgres.Unlimited(conn) // a statement may take any time
			m.mu.Lock()
			defer m.mu.Unlock()
			m.conns = append(m.conns, conn)
		}
		return conn, err
	}
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		var pid int32
		if err := conn.QueryRow(ctx, query("migration_session")).Scan(&pid); err != nil {
			return err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.pids = append(m.pids, pid)
		return nil
	}
}

func (m *migrationSessions) hangUp() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, conn := range m.conns {
		_ = conn.Close() // most are closed already
	}
}

// watched runs a migration. It returns errMigrationSilent when it has ended it.
func (s *Store) watched(ctx context.Context, migrate func(context.Context, *migrationSessions) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	sessions, finished := new(migrationSessions), make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { s.watchMigration(ctx, sessions, finished, stop) })
	err := migrate(ctx, sessions)
	close(finished)
	stop(nil)
	watching.Wait()
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errMigrationSilent) {
		return cause // instead of that of a closed connection
	}
	return err
}

// watchMigration watches a migration until it has finished. It ends it when Postgres does not answer new connections, or
// has no work of it: then an answer or a statement was lost. It logs for what a migration waits long. ctx is that of the
// migration, and stop cancels it.
func (s *Store) watchMigration(
	ctx context.Context, m *migrationSessions, finished <-chan struct{}, stop context.CancelCauseFunc,
) {
	ticker := time.NewTicker(migrationCheckEvery)
	defer ticker.Stop()
	for silent, waiting := 0, 0; silent < migrationSilentMax; {
		select {
		case <-finished:
			return
		case <-ctx.Done():
			select {
			case <-finished:
			case <-time.After(migrationEndWithin): // it waits for the end of a lock
				m.hangUp()
			}
			return
		case <-ticker.C:
		}
		silent++
		works, waitsFor := s.migrationWorks(ctx, m, 2*migrationCheckEvery)
		if works {
			silent = 0
		}
		if waiting++; waitsFor == "" {
			waiting = 0
		} else if waiting%migrationWarnEach == 0 {
			zerolog.Ctx(ctx).Warn().Str("wait_event", waitsFor).Msg("migration waiting in Postgres")
		}
	}
	stop(fmt.Errorf("%w (no sign of life for %s)", errMigrationSilent, migrationSilentMax*migrationCheckEvery))
	m.hangUp() // also those that wait without a context
}

// migrationWorks reports whether a session of a migration works now, or has within a time, and the wait event of a
// statement that waits for others, or "". It connects each time, as an existing connection may be dead too.
func (s *Store) migrationWorks(
	ctx context.Context, m *migrationSessions, within time.Duration,
) (works bool, waitsFor string) {
	ctx, cancel := context.WithTimeout(ctx, migrationCheckEvery)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig)
	if err != nil {
		_, answers := errors.AsType[*pgconn.PgError](err) // such as too many connections
		return answers, ""
	}
	defer func() { _ = conn.Close(ctx) }() // its result is known
	m.mu.Lock()
	pids := slices.Clone(m.pids)
	m.mu.Unlock()
	err = conn.QueryRow(ctx, query("migration_works"), pids, within).Scan(&works, &waitsFor)
	return err == nil && works, waitsFor
}
