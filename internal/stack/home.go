package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// tempPrefix begins the name of a temporary directory. Its stack holds its lock.
	tempPrefix = "holdfast-stack-"
	// limboPrefix begins the name of a temporary directory while it is created or removed. Its lock
	// has no meaning.
	limboPrefix = "holdfast-limbo-"
	// limboAge is the age at which a directory with limboPrefix counts as abandoned.
	limboAge = time.Hour
	// sweepMax bounds how many abandoned directories one start removes.
	sweepMax = 32
	// handoverWithin bounds the wait for the end of servers whose parent has just died.
	handoverWithin = 10 * time.Second
)

// home is the directory of one stack, locked until close.
type home struct {
	path    string
	durable bool // close keeps the directory
	lock    *os.File

	// waiting receives a line each time when a server has taken readyWithin longer to start, however long that takes. When
	// it is nil, the start fails then.
	waiting func(line string)
}

// openHome locks dir, which it creates if need be. When dir is empty it creates a temporary directory
// and removes those of dead processes.
func openHome(dir string) (*home, error) {
	if dir == "" {
		sweepTemp(os.TempDir(), time.Now())
		return newTemp(os.TempDir())
	}
	path, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := openForOthers(path); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	lock, err := lockDir(path)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	return &home{path: path, durable: true, lock: lock}, nil
}

// TempDir creates a temporary directory in parent, in which the user that runs postgres can enter
// directories of its own, and returns it with a function that removes it. It also removes the
// directories of dead processes from parent.
func TempDir(parent string) (path string, remove func() error, err error) {
	sweepTemp(parent, time.Now())
	h, err := newTemp(parent)
	if err != nil {
		return "", nil, err
	}
	return h.path, h.close, nil
}

// openForOthers lets the user that runs postgres enter a directory of root. It changes only an empty
// directory, or one that has a lock file and so belongs to a stack.
func openForOthers(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode()&0o011 == 0o011 {
		return err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(path, lockName)); err != nil && len(entries) > 0 {
		return nil
	}
	return os.Chmod(path, info.Mode().Perm()|0o011)
}

// newTemp creates a temporary directory. The directory gets its final name only after it is locked, so
// that the sweep of another process does not remove it.
func newTemp(parent string) (*home, error) {
	limbo, err := os.MkdirTemp(parent, limboPrefix)
	if err != nil {
		return nil, fmt.Errorf("temporary directory: %w", err)
	}
	h := &home{path: filepath.Join(parent, tempPrefix+strings.TrimPrefix(filepath.Base(limbo), limboPrefix))}
	h.lock, err = lockFile(filepath.Join(limbo, "lock"))
	if err == nil {
		err = errors.Join(openForOthers(limbo), os.Rename(limbo, h.path))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("temporary directory: %w", err), os.RemoveAll(limbo))
	}
	return h, nil
}

// lockFor locks the data of one server and returns the lock for the server to inherit. It waits up to
// handoverWithin for a server whose parent has just died.
func (h *home) lockFor(ctx context.Context, server string) (*os.File, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, handoverWithin,
		fmt.Errorf("the %s of an earlier run still uses it after %v", server, handoverWithin))
	defer cancel()
	return AwaitLock(ctx, filepath.Join(h.path, server+".lock"))
}

// close unlocks the directory, and removes it if it is temporary.
func (h *home) close() error {
	if h.durable {
		return unlock(h.lock)
	}
	return errors.Join(removeTemp(h.path), unlock(h.lock))
}

// unlock releases a lock at once and closes its file. Close alone is not enough: a process between
// fork and exec may have a copy of the descriptor, which would keep the file locked.
func unlock(f *os.File) error {
	return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
}

// removeTemp removes a locked temporary directory. It renames the directory first, so that no other
// process finds it half removed and without a lock.
func removeTemp(path string) error {
	limbo := filepath.Join(filepath.Dir(path), limboPrefix+strings.TrimPrefix(filepath.Base(path), tempPrefix))
	if err := os.Rename(path, limbo); err != nil {
		return fmt.Errorf("remove temporary directory: %w", err)
	}
	if err := os.RemoveAll(limbo); err != nil {
		return fmt.Errorf("remove temporary directory: %w", err)
	}
	return nil
}

// sweepTemp removes temporary directories of dead processes of this user from parent. It ignores
// errors, because a start must not fail when an old directory cannot be removed; the next sweep tries
// again.
func sweepTemp(parent string, now time.Time) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	removed := 0
	for _, e := range entries {
		temp, limbo := strings.HasPrefix(e.Name(), tempPrefix), strings.HasPrefix(e.Name(), limboPrefix)
		if !temp && !limbo || removed == sweepMax {
			continue
		}
		info, err := e.Info()
		if err != nil || !info.IsDir() || int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
			continue
		}
		path := filepath.Join(parent, e.Name())
		switch {
		case temp && sweepOne(path), limbo && now.Sub(info.ModTime()) > limboAge && os.RemoveAll(path) == nil:
			removed++
		}
	}
}

// sweepOne removes a temporary directory if neither its stack nor one of its servers lives, and reports
// whether it did. It keeps a directory without a lock file, which no stack has created.
func sweepOne(path string) bool {
	stack, err := openLocked(filepath.Join(path, "lock"), 0)
	if err != nil {
		return false
	}
	defer func() { _ = stack.Close() }() // nothing was written
	servers, _ := filepath.Glob(filepath.Join(path, "*.lock"))
	ofLocks, _ := filepath.Glob(filepath.Join(path, "*", "*.lock"))
	for _, name := range slices.Concat(servers, ofLocks) {
		server, err := openLocked(name, 0)
		if err != nil {
			return false
		}
		defer func() { _ = server.Close() }() // nothing was written
	}
	return removeTemp(path) == nil
}
