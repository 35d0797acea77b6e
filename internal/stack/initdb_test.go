package stack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestMakeData_ParentDies_InitdbKeepsLock checks that the data of a Postgres is locked while initdb creates it, also
// when the program that has started initdb is dead: the next one must not remove the files beneath it.
func TestMakeData_ParentDies_InitdbKeepsLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	initdb, started, finish := filepath.Join(dir, "initdb"), filepath.Join(dir, "started"), filepath.Join(dir, "finish")
	writeScript(t, initdb, fmt.Sprintf("touch %s\nuntil [ -e %s ]; do sleep 0.02; done\n", started, finish))
	lock, err := lockFile(filepath.Join(dir, "postgres.lock"))
	must(t, err)
	made := make(chan error, 1)
	go func() {
		made <- postgresBin{initdb: initdb}.makeData(t.Context(), filepath.Join(dir, "postgres"), nil, lock, false)
	}()
	err = Poll(t.Context(), lockPoll, func() (done bool, err error) {
		_, err = os.Stat(started)
		return err == nil || len(made) > 0, nil
	})
	must(t, errors.Join(err, lock.Close())) // as when the program dies
	other, err := lockFile(lock.Name())
	if !errors.Is(err, ErrInUse) {
		t.Errorf("lock while initdb runs: %v, %v; want ErrInUse", other, err)
	}
	writeFile(t, finish)
	must(t, <-made)
	if lock, err = lockFile(lock.Name()); err != nil {
		t.Fatal(err)
	}
	closeFile(t, lock)
}
