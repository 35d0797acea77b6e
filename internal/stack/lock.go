package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"holdfast/internal/stack/endpoints"
)

// This file does not use gofrs/flock: a server inherits the descriptor of its lock, and that package
// does not expose it.

// ErrInUse reports that another living stack uses the directory.
var ErrInUse = errors.New("in use by another process")

// InUseError is an ErrInUse with details.
type InUseError struct {
	Dir       string
	Endpoints map[string]string // the endpoints file of the other stack there; nil without a file
}

func (e *InUseError) Error() string { return "directory " + e.Dir + ": " + ErrInUse.Error() }

// Unwrap returns ErrInUse.
func (*InUseError) Unwrap() error { return ErrInUse }

// lockDir locks a directory for one stack, without waiting. It returns an *InUseError when another
// stack has the lock. A holder of the lock may remove the lock file.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	for {
		lock, err := lockFile(path)
		if errors.Is(err, ErrInUse) {
			endpoints, _ := endpoints.Read(filepath.Join(dir, endpoints.FileName)) // nil on an error
			return nil, &InUseError{dir, endpoints}
		}
		if err != nil {
			return nil, err
		}
		locked, err := lock.Stat()
		if err != nil {
			return nil, errors.Join(err, lock.Close())
		}
		if current, err := os.Lstat(path); err == nil && os.SameFile(current, locked) {
			return lock, nil
		}
		_ = lock.Close() // the file was removed after it was opened, so this lock excludes no other process
	}
}

// lockName is the name of the lock file of a directory.
const lockName = "lock"

// lockPoll is the pause between two attempts to take a lock.
const lockPoll = 20 * time.Millisecond

// lockFile is AwaitLock, but does not wait: it returns ErrInUse when another process has the lock.
func lockFile(path string) (*os.File, error) {
	return openLocked(path, os.O_CREATE)
}

// AwaitLock opens path, which it creates if need be, and locks it exclusively. It waits for the lock until ctx
// is done. The lock lasts until the file and all inherited copies of it are closed.
func AwaitLock(ctx context.Context, path string) (*os.File, error) {
	var f *os.File
	var inUse error
	err := Poll(ctx, lockPoll, func() (done bool, err error) {
		if f, err = lockFile(path); errors.Is(err, ErrInUse) {
			inUse, err = err, nil
		}
		return f != nil, err
	})
	if inUse != nil && ctx.Err() != nil && f == nil {
		err = fmt.Errorf("%w: %w", inUse, err)
	}
	return f, err
}

// openLocked opens path and locks it, without waiting. A child inherits the lock only through
// exec.Cmd.ExtraFiles, because os.OpenFile sets close-on-exec.
func openLocked(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW|flag, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ErrInUse
	}
	return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
}
