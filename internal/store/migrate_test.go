package store_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"holdfast/internal/postgres"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// TestMigrate_SeveralAtOnce_MigratedOnce migrates by several processes at once, each twice.
func TestMigrate_SeveralAtOnce_MigratedOnce(t *testing.T) {
	t.Parallel()
	namespace := stacktest.Namespace(t)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			s, err := store.Open(context.Background(), stacktest.Shared().PostgresURL, namespace)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			for range 2 {
				if err := s.Migrate(context.Background(), namespace); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
}

// TestMigrate_SchemaOfTheBuildBefore_KeepsItsEpochs migrates a schema at version 16, with the first epoch of its workers or
// before they have started. Afterwards the table of the builds before changes no epoch, and those builds decide nothing.
func TestMigrate_SchemaOfTheBuildBefore_KeepsItsEpochs(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	before, err := s.Epochs(t.Context())
	stacktest.Must(t, err)
	s.undoLastMigrations(t)
	migrate := func() recovery.Epochs {
		t.Helper()
		stacktest.Must(t, s.Migrate(t.Context(), s.namespace))
		epochs, err := s.Epochs(t.Context())
		stacktest.Must(t, err)
		return epochs
	}
	if after := migrate(); after != before {
		t.Errorf("the epochs are %+v, were %+v", after, before)
	}
	if row := s.column(t, `SELECT concat_ws(' ', written, leased_until, works_from) FROM redis_epoch, schema_compatibility`); row[0] != "f infinity 16" {
		t.Errorf("redis_epoch and schema_compatibility have %s", row)
	}
	s.execute(t, `UPDATE redis_epoch SET leased_until = NULL`)
	if after, err := s.Epochs(t.Context()); err != nil || after != before {
		t.Errorf("after a change of redis_epoch the epochs are %+v, were %+v, %v", after, before, err)
	}
	s.undoLastMigrations(t)
	s.execute(t, `DELETE FROM redis_epoch; DELETE FROM partition_epochs`)
	if first := common(t, migrate()); first.Complete || first.Name == "" {
		t.Errorf("the first epoch is %+v", first)
	}
}

// undoLastMigrations makes the schema one at version 16, as the build before left it.
func (s harness) undoLastMigrations(t *testing.T) {
	t.Helper()
	s.execute(t, `DELETE FROM goose_db_version WHERE version_id > 16; DELETE FROM redis_epoch;
		UPDATE schema_compatibility SET works_from = 4;
		INSERT INTO redis_epoch (epoch, partitions, written) SELECT epoch, 64, true FROM partition_epochs LIMIT 1;
		CREATE FUNCTION follow_redis_epoch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			UPDATE partition_epochs SET written = NEW.written;
			RETURN NULL;
		END $$;
		CREATE TRIGGER partitions_follow AFTER UPDATE ON redis_epoch FOR EACH ROW EXECUTE FUNCTION follow_redis_epoch()`)
}

// TestMigrate_SchemaTooOld_IsRefused migrates a schema of a version whose migrations this program does not have.
func TestMigrate_SchemaTooOld_IsRefused(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.execute(t, `DELETE FROM goose_db_version WHERE version_id > 15`)
	if err := s.Migrate(t.Context(), s.namespace); err == nil || !strings.Contains(err.Error(), "version 15: "+store.FixTooOld) {
		t.Errorf("migrate: %v", err)
	}
	if last := s.column(t, `SELECT max(version_id)::text FROM goose_db_version`); last[0] != "15" {
		t.Errorf("the version is %s", last)
	}
}

// TestMigrate_TableInUse_OthersPass migrates while a transaction is open that has written a table. Other statements do not
// wait behind the migration, which goes on when the transaction has ended.
func TestMigrate_TableInUse_OthersPass(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	open := s.useTable(t)
	migrated := make(chan error, 1)
	go func() { migrated <- s.Migrate(t.Context(), s.namespace) }()
	other := stacktest.ConnectPostgres(t, stacktest.Shared().PostgresURL)
	s.awaitMigration(t, other)
	if _, err := other.Exec(stacktest.WaitContext(t), `UPDATE `+s.namespace+`.redis_epoch SET written = true WHERE false`); err != nil {
		t.Errorf("a statement behind the migration: %v", err)
	}
	stacktest.Must(t, open.Rollback(t.Context()))
	if err := <-migrated; err != nil {
		t.Errorf("the migration: %v", err)
	}
}

// useTable undoes a migration of redis_epoch and begins a transaction that has written the table.
func (s harness) useTable(t *testing.T) pgx.Tx {
	t.Helper()
	s.undoLastMigrations(t)
	open, err := s.conn.Begin(t.Context())
	stacktest.Must(t, err)
	stacktest.Exec(t, open, `UPDATE redis_epoch SET written = true WHERE false`)
	return open
}

// awaitMigration waits until a migration waits for a lock of redis_epoch.
func (s harness) awaitMigration(t *testing.T, other *pgx.Conn) {
	t.Helper()
	stacktest.Eventually(t, "the migration to wait for a lock", func() bool {
		var waiting bool
		err := other.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = $1::regclass)`,
			s.namespace+".redis_epoch").Scan(&waiting)
		return err == nil && waiting
	})
}

// TestMigrate_AnswerLost_ReturnsError migrates while Postgres stops to answer: at all, or on the connections that it had.
func TestMigrate_AnswerLost_ReturnsError(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*stacktest.Proxy){
		"all connections":     func(p *stacktest.Proxy) { p.Set(stacktest.Upstream, stacktest.Toxics{Stall: true}) },
		"present connections": (*stacktest.Proxy).HalfOpen,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newHarness(t)
			address, proxy := stacktest.ProxyTo(t, stacktest.Shared().PostgresURL)
			behind, err := store.Open(t.Context(), address, s.namespace)
			stacktest.Must(t, err)
			t.Cleanup(behind.Close)
			open := s.useTable(t)
			migrated := make(chan error, 1)
			go func() { migrated <- behind.Migrate(t.Context(), s.namespace) }()
			s.awaitMigration(t, stacktest.ConnectPostgres(t, stacktest.Shared().PostgresURL))
			fail(proxy)
			select {
			case err := <-migrated:
				if !errors.Is(err, store.ErrMigrationSilent) {
					t.Errorf("the migration: %v", err)
				}
			case <-stacktest.WaitContext(t).Done():
				t.Fatal("the migration has not ended")
			}
			stacktest.Must(t, open.Rollback(t.Context()))
		})
	}
}

// TestMigrate_LongStatement_HasNoLimit migrates while a statement of it takes longer than Postgres may send nothing to others.
func TestMigrate_LongStatement_HasNoLimit(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	db, err := store.Open(t.Context(), stacktest.Shared().PostgresURL, s.namespace, postgres.EndSilent(time.Second))
	stacktest.Must(t, err)
	t.Cleanup(db.Close)
	s.execute(t, `SELECT pg_advisory_lock(hashtext('holdfast schema ' || current_schema))`)
	migrated := make(chan error, 1)
	go func() { migrated <- db.Migrate(t.Context(), s.namespace) }()
	stacktest.Eventually(t, "the statement to take long", func() bool {
		select {
		case err := <-migrated:
			t.Fatalf("the migration has ended: %v", err)
		default:
		}
		return len(s.column(t, `SELECT pid::text FROM pg_stat_activity WHERE wait_event = 'advisory'
			AND application_name = 'holdfast worker ' || current_schema
			AND clock_timestamp() - query_start > interval '2 seconds'`)) > 0
	})
	s.execute(t, `SELECT pg_advisory_unlock(hashtext('holdfast schema ' || current_schema))`)
	if err := <-migrated; err != nil {
		t.Errorf("the migration: %v", err)
	}
}

// TestMigrate_StandbyGone_LogsTheWait migrates a Postgres whose commits wait for a standby that does not follow. It logs for
// what it waits, and ends when commits wait no longer.
func TestMigrate_StandbyGone_LogsTheWait(t *testing.T) {
	t.Parallel()
	url := stacktest.PostgresURL(stacktest.StartPostgres(t))
	names := func(value string) {
		t.Helper()
		stacktest.PostgresSQL(t, url, "ALTER SYSTEM SET synchronous_standby_names = '"+value+"'")
		stacktest.PostgresSQL(t, url, "SELECT pg_reload_conf()")
	}
	stacktest.PostgresSQL(t, url, "CREATE TABLE written (n int)")
	writer := stacktest.ConnectPostgres(t, url)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	names("gone")
	go func() {
		for err := error(nil); err == nil; {
			_, err = writer.Exec(ctx, "INSERT INTO written VALUES (1)")
		}
	}()
	stacktest.Eventually(t, "a commit to wait", func() bool {
		return stacktest.PostgresSQL(t, url, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "1"
	})
	s, err := store.Open(t.Context(), url, "room")
	stacktest.Must(t, err)
	t.Cleanup(s.Close)
	lines, migrated := make(logLines, 100), make(chan error, 1)
	go func() { migrated <- s.Migrate(zerolog.New(lines).WithContext(t.Context()), "room") }()
	select {
	case line := <-lines:
		if !strings.Contains(line, `"wait_event":"SyncRep"`) {
			t.Errorf("the log has %s", line)
		}
	case <-stacktest.WaitContext(t).Done():
		t.Fatal("nothing is logged")
	}
	stop()
	names("")
	stacktest.Must(t, <-migrated)
}

// TestMigrate_StatementRuns_IsWork asks whether sessions work: one that waits in its statement does, however long it takes,
// and one without a statement does not.
func TestMigrate_StatementRuns_IsWork(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	busy := stacktest.ConnectPostgres(t, stacktest.Shared().PostgresURL)
	s.execute(t, `SELECT pg_advisory_lock(hashtext(current_schema))`)
	waited := make(chan error, 1)
	go func() {
		_, err := busy.Exec(t.Context(), `SELECT pg_advisory_lock(hashtext($1))`, s.namespace)
		waited <- err
	}()
	if s.MigrationWorks(t.Context(), s.conn.PgConn().PID()) {
		t.Error("a session without a statement counts as work")
	}
	stacktest.Eventually(t, "the statement to count as work", func() bool {
		return s.MigrationWorks(t.Context(), s.conn.PgConn().PID(), busy.PgConn().PID())
	})
	s.execute(t, `SELECT pg_advisory_unlock(hashtext(current_schema))`)
	stacktest.Must(t, <-waited)
}
