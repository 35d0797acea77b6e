package stacktest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"holdfast/internal/stack"
)

// StartPgBouncer starts PgBouncer in front of the Postgres on a port of loopback, and returns its URL.
// mode is its pool_mode.
func StartPgBouncer(t testing.TB, postgres int, mode string) (url string) {
	t.Helper()
	path := "/usr/sbin/pgbouncer" // not on every user's PATH
	if found, err := exec.LookPath("pgbouncer"); err == nil {
		path = found
	} else if _, err := os.Stat(path); err != nil {
		SkipUnlessRequired(t, "pgbouncer is not installed")
	}
	ports := QuietPorts(t, 1)
	dir, err := os.MkdirTemp("", "holdfast-pgbouncer-")
	Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf("[databases]\npostgres = host=127.0.0.1 port=%d user=postgres\n[pgbouncer]\npool_mode = %s\n"+
		"listen_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\nauth_type = any\ndefault_pool_size = 50\n",
		postgres, mode, ports[0])
	Must(t, errors.Join(os.Chmod(dir, 0o711), os.WriteFile(config, []byte(text), 0o644)))
	args := []string{config}
	if os.Geteuid() == 0 { // which it refuses
		args = []string{"-u", "nobody", config}
	}
	url = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", ports[0])
	bouncer, err := stack.StartProgram(t.Context(), stack.Program{
		Path: path, Args: args,
		Ready: func(ctx context.Context) error {
			conn, err := pgx.Connect(ctx, url)
			if err != nil {
				return err
			}
			return conn.Close(ctx)
		},
	})
	killAfter(t, bouncer, err)
	return url
}
