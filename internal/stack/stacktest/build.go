package stacktest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// BuildPrograms builds programs of this module, by the names of their directories under cmd, with a
// build tag ("" means none) into dir. Linking takes seconds, so it keeps them under bin, and links only
// those that have changed.
func BuildPrograms(dir, tag string, names ...string) (err error) {
	kept := filepath.Join(moduleRoot, "bin", "test", cmp.Or(tag, "plain"))
	if err := os.MkdirAll(kept, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(kept+".lock", os.O_CREATE|os.O_RDWR, 0o600) // other packages build at the same time
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	args := []string{"build", "-tags", tag, "-o", kept}
	for _, name := range names {
		args = append(args, "holdfast/cmd/"+name)
	}
	build := exec.Command("go", args...)
	build.Dir = moduleRoot
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	for _, name := range names {
		if err := copyProgram(filepath.Join(dir, name), filepath.Join(kept, name)); err != nil {
			return err
		}
	}
	return nil
}

// copyProgram copies an executable file.
func copyProgram(dst, src string) (err error) {
	from, err := os.Open(src)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := os.OpenFile(dst, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}
