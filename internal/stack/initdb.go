package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// initdbWithin bounds one run of initdb.
const initdbWithin = 2 * time.Minute

// InitdbBy, if not empty, is a program that runs in place of initdb, with its path before the arguments. Tests set it before
// they start servers.
var InitdbBy string

// makeData creates a data directory that the account owns, with one superuser without a password, UTF-8,
// and the same collation on every machine. A durable one is synced to disk. After an error data does not
// exist. initdb inherits the lock of the data: it goes on when this process is killed.
func (bin postgresBin) makeData(ctx context.Context, data string, owner *account, lock *os.File, durable bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, initdbWithin, fmt.Errorf("initdb took more than %v", initdbWithin))
	defer cancel()
	incomplete := data + ".new"
	if err := os.RemoveAll(incomplete); err != nil { // an earlier initdb may have failed or been killed
		return err
	}
	if err := errors.Join(os.Mkdir(incomplete, 0o700), owner.chown(incomplete)); err != nil {
		return err
	}
	// A WAL segment of 4 MiB instead of 16, so that a new server writes less.
	args := []string{"-D", incomplete, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "--wal-segsize=4"}
	if !durable {
		args = append(args, "--no-sync")
	}
	program := bin.initdb
	if InitdbBy != "" {
		program, args = InitdbBy, append([]string{program}, args...)
	}
	var log tail
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = "/", childEnv()
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &log, &log, []*os.File{lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: owner.credential()}
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) { // which says that it succeeded, and that this process was slow to read
		return fmt.Errorf("initdb: %w; %s", errors.Join(context.Cause(ctx), err), &log)
	}
	return os.Rename(incomplete, data)
}
