package stack

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestSweepTemp_DeadAndLiving_RemovesOnlyDead(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	now := time.Now()
	want := map[string]bool{} // by name: kept

	living, err := newTemp(parent)
	must(t, err)
	want[filepath.Base(living.path)] = true

	dead, err := newTemp(parent)
	must(t, err)
	writeFile(t, filepath.Join(dead.path, "nats", "block"))
	closeFile(t, dead.lock)
	want[filepath.Base(dead.path)] = false

	// Its parent is dead, but one of its servers still runs.
	dying, err := newTemp(parent)
	must(t, err)
	server, err := dying.lockFor(t.Context(), "postgres")
	must(t, err)
	closeFile(t, dying.lock)
	want[filepath.Base(dying.path)] = true

	for name, c := range map[string]struct {
		age  time.Duration
		kept bool
	}{
		limboPrefix + "young": {0, true},
		limboPrefix + "old":   {2 * limboAge, false},
		tempPrefix + "alien":  {2 * limboAge, true}, // has no lock file
		"other-program":       {2 * limboAge, true},
	} {
		path := filepath.Join(parent, name)
		writeFile(t, filepath.Join(path, "file"))
		must(t, os.Chtimes(path, now.Add(-c.age), now.Add(-c.age)))
		want[name] = c.kept
	}
	must(t, os.Symlink(t.TempDir(), filepath.Join(parent, tempPrefix+"link")))
	want[tempPrefix+"link"] = true

	sweepTemp(parent, now)

	for name, kept := range want {
		_, err := os.Lstat(filepath.Join(parent, name))
		if removed := errors.Is(err, os.ErrNotExist); removed == kept {
			t.Errorf("%s: kept %v, want %v", name, !removed, kept)
		}
	}

	closeFile(t, server)
	sweepTemp(parent, now)
	if _, err := os.Lstat(dying.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory of the dying stack after its last server: %v, want ErrNotExist", err)
	}
	must(t, living.close())
	if left, err := filepath.Glob(filepath.Join(parent, tempPrefix+"*")); err != nil || len(left) != 2 {
		t.Errorf("left at the end: %v, %v; want the alien and the link", left, err)
	}
}

func TestSweepTemp_ManyDead_RemovesAtMostSweepMax(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	for range sweepMax + 3 {
		h, err := newTemp(parent)
		must(t, err)
		closeFile(t, h.lock)
	}
	sweepTemp(parent, time.Now())
	if left, err := os.ReadDir(parent); err != nil || len(left) != 3 {
		t.Errorf("left by one sweep: %d, %v; want 3", len(left), err)
	}
}

func TestLockFor_ServerLocked_Waits(t *testing.T) {
	t.Parallel()
	h, err := newTemp(t.TempDir())
	must(t, err)
	first, err := h.lockFor(t.Context(), "redis")
	must(t, err)
	if _, err := lockFile(first.Name()); !errors.Is(err, ErrInUse) {
		t.Errorf("lock while it is held: %v, want ErrInUse", err)
	}
	second := make(chan error, 1)
	go func() {
		lock, err := h.lockFor(t.Context(), "redis")
		if err == nil {
			err = lock.Close()
		}
		second <- err
	}()
	closeFile(t, first)
	must(t, <-second)
	must(t, h.close())
}

// TestLockFor_ServerRuns_KeepsLockUntilItEnds checks that the lock of a server's data is free only when
// the server has ended, even if its parent is dead.
func TestLockFor_ServerRuns_KeepsLockUntilItEnds(t *testing.T) {
	t.Parallel()
	s, err := Start(t.Context(), Options{Redis: true, Postgres: true, NoInstall: true})
	must(t, err)
	for name, c := range map[string]*Server{"redis": s.redis[0], "postgres": s.postgres} {
		path := filepath.Join(s.home.path, name+".lock")
		if lock, err := lockFile(path); !errors.Is(err, ErrInUse) {
			t.Errorf("lock of the running %s: %v, %v; want ErrInUse", name, lock, err)
		}
		must(t, c.stop(stopWithin))
		lock, err := AwaitLock(t.Context(), path) // a child process of the server may end a moment later
		must(t, err)
		closeFile(t, lock)
	}
	must(t, s.Close())
}

func writeFile(t *testing.T, path string) {
	t.Helper()
	must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("x"), 0o600)))
}

func closeFile(t *testing.T, f *os.File) {
	t.Helper()
	must(t, unlock(f))
}
