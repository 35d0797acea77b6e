package stacktest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"holdfast/internal/stack"
)

// PostgresPair is a durable Postgres and a streaming standby of it.
type PostgresPair struct{ Primary, Standby *stack.Server }

// StartPostgresPair starts a pair. prepare is called with the primary before the standby exists.
// settings are those of the standby.
func StartPostgresPair(t testing.TB, prepare func(primary *stack.Server), settings ...string) *PostgresPair {
	t.Helper()
	dir := DataDir(t)
	p := &PostgresPair{Primary: startPostgres(t, dir)}
	prepare(p.Primary)
	// A standby starts with a copy of the data of a stopped server.
	if err := p.Primary.Stop(time.Minute); err != nil {
		t.Fatal(err)
	}
	copied := DataDir(t)
	if err := os.Mkdir(copied, 0o711); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(copied, "postgres")
	if out, err := exec.Command("cp", "-a", filepath.Join(dir, "postgres"), data).CombinedOutput(); err != nil {
		t.Fatalf("copy the data: %v: %s", err, out)
	}
	p.Primary = startPostgres(t, dir)
	writeAs(t, data, "standby.signal", "")
	// Not on the command line, so that Detach can change it.
	writeAs(t, data, "postgresql.auto.conf",
		fmt.Sprintf("primary_conninfo = 'host=127.0.0.1 port=%d user=postgres'\n", p.Primary.Port))
	p.Standby = startPostgres(t, copied, settings...)
	return p
}

// writeAs writes a file that belongs to the owner of its directory.
func writeAs(t testing.TB, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	owner, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if s := owner.Sys().(*syscall.Stat_t); os.Chown(path, int(s.Uid), int(s.Gid)) != nil {
		t.Fatal("the file does not belong to postgres")
	}
}

func startPostgres(t testing.TB, dir string, settings ...string) *stack.Server {
	t.Helper()
	server, err := stack.StartPostgresServer(t.Context(), dir, settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Kill() }) // fails when the test has ended it
	return server
}

// AwaitReplicated waits until the standby has all commits of the primary.
func (p *PostgresPair) AwaitReplicated(t testing.TB) {
	t.Helper()
	end := PostgresSQL(t, p.Primary, "SELECT pg_current_wal_lsn()")
	Eventually(t, "the standby to have all commits", func() bool {
		return PostgresSQL(t, p.Standby, "SELECT pg_last_wal_replay_lsn() >= '"+end+"'::pg_lsn") == "t"
	})
}

// Detach makes the standby receive nothing any more.
func (p *PostgresPair) Detach(t testing.TB) {
	t.Helper()
	PostgresSQL(t, p.Standby, "ALTER SYSTEM SET primary_conninfo = ''")
	PostgresSQL(t, p.Standby, "SELECT pg_reload_conf()")
	Eventually(t, "the standby to be detached", func() bool {
		return PostgresSQL(t, p.Primary, "SELECT count(*) FROM pg_stat_replication") == "0"
	})
}

// FailOver kills the primary and promotes the standby.
func (p *PostgresPair) FailOver(t testing.TB) {
	t.Helper()
	if err := p.Primary.Kill(); err != nil {
		t.Fatal(err)
	}
	PostgresSQL(t, p.Standby, "SELECT pg_promote()")
}

// PostgresURL returns a URL that names servers in the given order.
func PostgresURL(servers ...*stack.Server) string {
	hosts := make([]string, len(servers))
	for i, s := range servers {
		hosts[i] = fmt.Sprintf("127.0.0.1:%d", s.Port)
	}
	return "postgres://postgres@" + strings.Join(hosts, ",") + "/postgres?sslmode=disable"
}

// PostgresSQL runs a statement on one server, without any check of the server, and returns its
// value.
func PostgresSQL(t testing.TB, server *stack.Server, statement string) (value string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), PostgresURL(server))
	if err != nil {
		t.Fatal(err)
	}
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
