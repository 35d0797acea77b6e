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

// ErrInUse says that another living stack uses the same directory.
var ErrInUse = errors.New("in use by another process")

// InUseError is an ErrInUse with the directory, and with what the other stack has written into its
// endpoints file there: nil when it has written nothing, or not yet.
type InUseError struct {
	Dir       string
	Endpoints map[string]string
}

func (e *InUseError) Error() string { return "directory " + e.Dir + ": " + ErrInUse.Error() }

// Unwrap returns ErrInUse.
func (*InUseError) Unwrap() error { return ErrInUse }

// lockDir takes the lock of a directory for one stack, without waiting. The file may be removed by who has its lock.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	for {
		lock, err := lockFile(path)
		if errors.Is(err, ErrInUse) {
			found, _ := endpoints.Read(filepath.Join(dir, endpoints.FileName)) // nothing, when it cannot be read
			return nil, &InUseError{dir, found}
		}
		if err != nil {
			return nil, err
		}
		taken, err := lock.Stat()
		if err != nil {
			return nil, errors.Join(err, lock.Close())
		}
		if now, err := os.Lstat(path); err == nil && os.SameFile(now, taken) {
			return lock, nil
		}
		_ = lock.Close() // it was removed after it was opened: nothing is locked by it
	}
}

// lockName is the file by which a stack locks a directory.
const lockName = "lock"

// lockPoll is the pause between two attempts to take a lock.
const lockPoll = 20 * time.Millisecond

// lockFile opens path, creating it if need be, and takes an exclusive lock on
// it, which lasts until the file and all inherited copies of it are closed. It
// does not wait: the error is ErrInUse when the lock is taken.
func lockFile(path string) (*os.File, error) {
	return openLocked(path, os.O_CREATE, syscall.LOCK_EX)
}

// awaitLock is lockFile, but waits for the lock until ctx is over.
func awaitLock(ctx context.Context, path string) (*os.File, error) {
	return awaitLocked(ctx, path, syscall.LOCK_EX)
}

// awaitShared is awaitLock for a lock that others may share.
func awaitShared(ctx context.Context, path string) (*os.File, error) {
	return awaitLocked(ctx, path, syscall.LOCK_SH)
}

func awaitLocked(ctx context.Context, path string, kind int) (*os.File, error) {
	poll := time.NewTicker(lockPoll)
	defer poll.Stop()
	for {
		f, err := openLocked(path, os.O_CREATE, kind)
		if !errors.Is(err, ErrInUse) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", err, context.Cause(ctx))
		case <-poll.C:
		}
	}
}

// openLocked opens path with a lock of the given kind, without waiting. os.Open
// closes it on exec, so that children get it only on purpose.
func openLocked(path string, flag, kind int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW|flag, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), kind|syscall.LOCK_NB)
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
