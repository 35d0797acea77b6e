package stacktest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"holdfast/internal/stack"
)

// BuildPrograms builds programs of this module, by the names of their directories under cmd, with a
// build tag ("" means none) into dir. Linking takes seconds, so it keeps them under bin, and links only
// those that have changed.
func BuildPrograms(dir, tag string, names ...string) (err error) {
	kept := filepath.Join(moduleRoot, "bin", "test", cmp.Or(tag, "plain"))
	if err := os.MkdirAll(kept, 0o755); err != nil {
		return err
	}
	lock, err := stack.AwaitLock(context.Background(), kept+".lock") // other packages build at the same time
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	args := []string{"build", "-tags", tag, "-o", kept}
	for _, name := range names {
		args = append(args, "holdfast/cmd/"+name)
	}
	build := exec.Command("go", args...)
	build.Dir = moduleRoot
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	// Not by this process: a child between fork and exec could have the copy open too, and then it cannot be
	// executed (golang.org/issue/22315).
	var copies []string
	for _, name := range names {
		copies = append(copies, filepath.Join(kept, name))
	}
	if out, err := exec.Command("cp", append(copies, dir)...).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w\n%s", err, out)
	}
	return nil
}
