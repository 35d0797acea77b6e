package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// tempPrefix begins the name of a temporary directory whose lock is held
	// by its living stack.
	tempPrefix = "holdfast-stack-"
	// limboPrefix begins the name of one that is being made or removed, and
	// whose lock says nothing.
	limboPrefix = "holdfast-limbo-"
	// limboAge is after what time one in limbo is taken for abandoned.
	limboAge = time.Hour
	// sweepMax bounds how many stale directories one start removes.
	sweepMax = 32
	// handoverWithin bounds the wait for the servers of a parent that has
	// just died to follow it.
	handoverWithin = 10 * time.Second
)

// home is the directory of one stack, locked as long as the stack lives.
type home struct {
	path    string
	durable bool // kept by close
	lock    *os.File
}

// openHome takes dir, or a new temporary directory when dir is empty, and
// removes the temporary directories that dead processes left.
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

// openForOthers lets the user that runs postgres pass through a directory that
// is root's. It changes only those that are ours: empty, or used by us before.
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

// newTemp makes a temporary directory. It gets its final name only when its
// lock is held, so that no sweep of another process finds it without.
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

// lockFor takes the lock of one server's data, for the server to inherit. It
// waits for a server of a parent that died a moment ago.
func (h *home) lockFor(ctx context.Context, server string) (*os.File, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, handoverWithin,
		fmt.Errorf("a %s of an earlier run still uses it after %v", server, handoverWithin))
	defer cancel()
	return awaitLock(ctx, filepath.Join(h.path, server+".lock"))
}

// close gives the directory free, and removes it if it is temporary.
func (h *home) close() error {
	if h.durable {
		return unlock(h.lock)
	}
	return errors.Join(removeTemp(h.path), unlock(h.lock))
}

// unlock ends a lock at once. To close the file would leave it locked for as long as a process that is just
// being started, and does not run its program yet, has a copy of it.
func unlock(f *os.File) error {
	return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
}

// removeTemp removes a temporary directory whose lock is held. It takes its
// name away first: others would find it half removed, without a lock.
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

// sweepTemp removes what dead processes of this user left in parent. What
// cannot be removed is left for the next sweep: a start must not fail because
// of somebody else's leavings.
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

// sweepOne removes a directory when neither its stack nor one of its servers
// lives any more. One without a lock was not made by us.
func sweepOne(path string) bool {
	stack, err := openLocked(filepath.Join(path, "lock"), 0, syscall.LOCK_EX)
	if err != nil {
		return false
	}
	defer func() { _ = stack.Close() }() // nothing was written
	servers, _ := filepath.Glob(filepath.Join(path, "*.lock"))
	for _, name := range servers {
		server, err := openLocked(name, 0, syscall.LOCK_EX)
		if err != nil {
			return false
		}
		defer func() { _ = server.Close() }() // nothing was written
	}
	return removeTemp(path) == nil
}
