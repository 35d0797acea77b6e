package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// StartPostgresStandby starts a durable streaming standby of the postgres at a port of 127.0.0.1, and
// returns when it answers queries. Its data is in the directory postgres of dir; without data there it
// copies that of the primary. settings override the usual ones.
func StartPostgresStandby(ctx context.Context, dir string, primary int, settings ...string) (*Server, error) {
	bins, err := Options{Postgres: true}.programs(ctx)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "postgres")
	if _, err := os.Stat(data); errors.Is(err, os.ErrNotExist) {
		if err := bins.postgres.copyPrimary(ctx, data, primary); err != nil {
			return nil, errors.Join(fmt.Errorf("copy the primary: %w", err), os.RemoveAll(data))
		}
	}
	return StartPostgresServer(ctx, dir, settings...)
}

// copyPrimary creates the data directory of a standby of the postgres at a port.
func (bin postgresBin) copyPrimary(ctx context.Context, data string, primary int) error {
	owner, err := postgresAccount(data)
	if err != nil {
		return err
	}
	program, err := filepath.EvalSymlinks(bin.postgres) // pg_basebackup is beside it
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(data), 0o755), os.Mkdir(data, 0o700), owner.chown(data)); err != nil {
		return err
	}
	backup := exec.CommandContext(ctx, filepath.Join(filepath.Dir(program), "pg_basebackup"),
		"-D", data, "--write-recovery-conf", "--checkpoint=fast", "--no-sync",
		"-d", fmt.Sprintf("host=127.0.0.1 port=%d user=postgres", primary))
	backup.Dir, backup.Env, backup.SysProcAttr = "/", childEnv(), childAttr(owner, syscall.SIGKILL)
	if out, err := backup.CombinedOutput(); err != nil {
		return fmt.Errorf("pg_basebackup: %w: %s", err, out)
	}
	return nil
}
