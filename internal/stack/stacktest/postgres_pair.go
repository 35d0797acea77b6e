package stacktest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"holdfast/internal/stack"
)

// StartPostgres starts a durable Postgres for this test only. settings override the usual ones.
func StartPostgres(t testing.TB, settings ...string) *stack.Server {
	t.Helper()
	server, err := stack.StartPostgresServer(t.Context(), DataDir(t), settings...)
	return killAfter(t, server, err)
}

// killAfter ends a server when the test ends. err is the error of its start.
func killAfter(t testing.TB, server *stack.Server, err error) *stack.Server {
	t.Helper()
	Must(t, err)
	t.Cleanup(func() { _ = server.Kill() }) // fails when the test has ended it
	return server
}

// PostgresPair is a durable Postgres and a streaming standby of it.
type PostgresPair struct{ Primary, Standby *stack.Server }

// StartPostgresPair starts a standby of a Postgres. settings are those of the standby.
func StartPostgresPair(t testing.TB, primary *stack.Server, settings ...string) *PostgresPair {
	t.Helper()
	standby, err := StartPostgresStandby(t.Context(), DataDir(t), primary.Port, settings...)
	return &PostgresPair{primary, killAfter(t, standby, err)}
}

// StartPostgresStandby starts a durable streaming standby of the postgres at a port of 127.0.0.1, and
// returns when it answers queries. Its data is in the directory postgres of dir; without data there it
// copies that of the primary. settings override the usual ones.
func StartPostgresStandby(ctx context.Context, dir string, primary int, settings ...string) (*stack.Server, error) {
	data := filepath.Join(dir, "postgres")
	if _, err := os.Stat(data); errors.Is(err, os.ErrNotExist) {
		if err := copyPrimary(ctx, data, primary); err != nil {
			return nil, errors.Join(fmt.Errorf("copy the primary: %w", err), os.RemoveAll(data))
		}
	}
	return stack.StartPostgresServer(ctx, dir, settings...)
}

// copyPrimary creates the data directory of a standby of the postgres at a port, with the program and as the user of that
// postgres.
func copyPrimary(ctx context.Context, data string, primary int) error {
	conn, err := pgx.Connect(ctx, fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", primary))
	if err != nil {
		return err
	}
	var original, programs string
	err = conn.QueryRow(ctx, "SELECT current_setting('data_directory'), setting FROM pg_config WHERE name = 'BINDIR'").
		Scan(&original, &programs)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return err
	}
	owner, err := os.Stat(original)
	if err != nil {
		return err
	}
	id := owner.Sys().(*syscall.Stat_t)
	if err := errors.Join(os.MkdirAll(filepath.Dir(data), 0o755), os.Mkdir(data, 0o700),
		os.Chown(data, int(id.Uid), int(id.Gid))); err != nil {
		return err
	}
	backup := exec.CommandContext(ctx, filepath.Join(programs, "pg_basebackup"),
		"-D", data, "--write-recovery-conf", "--checkpoint=fast", "--no-sync",
		"-d", fmt.Sprintf("host=127.0.0.1 port=%d user=postgres", primary))
	backup.Dir = "/"
	if os.Geteuid() == 0 {
		backup.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id.Uid, Gid: id.Gid}}
	}
	if out, err := backup.CombinedOutput(); err != nil {
		return fmt.Errorf("pg_basebackup: %w: %s", err, out)
	}
	return nil
}

// AwaitReplicated waits until the standby has all commits of the primary.
func (p *PostgresPair) AwaitReplicated(t testing.TB) {
	t.Helper()
	end := PostgresSQL(t, PostgresURL(p.Primary), "SELECT pg_current_wal_lsn()")
	Eventually(t, "the standby to have all commits", func() bool {
		return PostgresSQL(t, PostgresURL(p.Standby), "SELECT pg_last_wal_replay_lsn() >= '"+end+"'::pg_lsn") == "t"
	})
}

// Detach makes the standby receive nothing any more.
func (p *PostgresPair) Detach(t testing.TB) {
	t.Helper()
	PostgresSQL(t, PostgresURL(p.Standby), "ALTER SYSTEM SET primary_conninfo = ''")
	PostgresSQL(t, PostgresURL(p.Standby), "SELECT pg_reload_conf()")
	Eventually(t, "the standby to be detached", func() bool {
		return PostgresSQL(t, PostgresURL(p.Primary), "SELECT count(*) FROM pg_stat_replication") == "0"
	})
}

// FailOver kills the primary and promotes the standby.
func (p *PostgresPair) FailOver(t testing.TB) {
	t.Helper()
	Must(t, p.Primary.Kill())
	PostgresSQL(t, PostgresURL(p.Standby), "SELECT pg_promote()")
}

// PostgresURL returns a URL that names servers in the given order.
func PostgresURL(servers ...*stack.Server) string {
	hosts := make([]string, len(servers))
	for i, s := range servers {
		hosts[i] = fmt.Sprintf("127.0.0.1:%d", s.Port)
	}
	return "postgres://postgres@" + strings.Join(hosts, ",") + "/postgres?sslmode=disable"
}

// PostgresSQL runs a statement, without any check of the server, and returns its value.
func PostgresSQL(t testing.TB, url, statement string) (value string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	Must(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	results, err := conn.PgConn().Exec(t.Context(), statement).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	if len(results[0].Rows) == 1 {
		value = string(results[0].Rows[0][0])
	}
	return value
}
