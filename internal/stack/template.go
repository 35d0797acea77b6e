package stack

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

const (
	// templatePrefix begins the name of a template in the cache.
	templatePrefix = "postgres-template-"
	// templatesMax bounds the templates in the cache, one per Postgres build.
	templatesMax = 3
	// initdbWithin bounds one run of initdb.
	initdbWithin = 2 * time.Minute
)

// initdbArgs are the arguments of initdb for a template: one superuser without a password, UTF-8, and
// the same collation on every machine. They sync nothing; see makeData. The first WAL segment has 4 MiB
// instead of 16, because each copy of the template has one.
var initdbArgs = []string{"--no-sync", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "--wal-segsize=4"}

// makeData creates a data directory that the account owns. It copies a template, because initdb takes
// most of a second. The first call creates the template in the user's cache directory. A durable data
// directory is synced to disk. After an error data does not exist.
func (bin postgresBin) makeData(ctx context.Context, data string, owner *account, durable bool,
	progress func(string),
) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("create data directory: %w", err)
		}
	}()
	incomplete := data + ".new"
	if err := os.RemoveAll(incomplete); err != nil { // a killed process may have left it
		return err
	}
	if err := bin.fromTemplate(ctx, incomplete, owner, progress); err != nil {
		return errors.Join(err, os.RemoveAll(incomplete))
	}
	if durable {
		if err := bin.runInitdb(ctx, owner, "--sync-only", "-D", incomplete); err != nil {
			return err
		}
	}
	return os.Rename(incomplete, data)
}

// fromTemplate copies the template of this Postgres build to dst. Without a template it runs initdb on
// dst and keeps a copy as the template.
func (bin postgresBin) fromTemplate(ctx context.Context, dst string, owner *account, progress func(string)) error {
	cache, err := cacheDir()
	if err != nil {
		return bin.initData(ctx, dst, owner)
	}
	name, err := bin.templateName()
	if err != nil {
		return err
	}
	template := filepath.Join(cache, name)
	// The lock keeps others from removing the template while it is copied.
	lock, err := awaitLock(ctx, filepath.Join(cache, "template.lock"))
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // nothing was written
	if _, err = os.Stat(template); err == nil {
		return copyTree(dst, template, owner)
	}
	progress("preparing a Postgres data directory with initdb (only this time)")
	if err := bin.initData(ctx, dst, owner); err != nil {
		return err
	}
	if err := keepTemplate(template, dst); err != nil {
		progress(fmt.Sprintf("data directory not cached for the next start: %v", err))
	}
	return nil
}

// templateName returns the name of the template of this Postgres program. The name changes with the
// program file and with initdbArgs.
func (bin postgresBin) templateName() (string, error) {
	path, err := filepath.EvalSymlinks(bin.postgres)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d %q", path, info.Size(), info.ModTime().UnixNano(), initdbArgs))
	return fmt.Sprintf("%s%x", templatePrefix, sum[:6]), nil
}

// keepTemplate copies an unused data directory into the cache and removes the oldest templates. The
// caller holds the lock.
func keepTemplate(template, data string) error {
	incomplete := template + ".new"
	if err := os.RemoveAll(incomplete); err != nil {
		return err
	}
	if err := copyTree(incomplete, data, nil); err != nil {
		return errors.Join(err, os.RemoveAll(incomplete))
	}
	if err := os.Rename(incomplete, template); err != nil {
		return err
	}
	kept, err := filepath.Glob(filepath.Join(filepath.Dir(template), templatePrefix+"*"))
	if err != nil || len(kept) <= templatesMax {
		return err
	}
	age := func(path string) int64 {
		info, err := os.Stat(path)
		if err != nil {
			return 0
		}
		return info.ModTime().UnixNano()
	}
	slices.SortStableFunc(kept, func(a, b string) int { return int(min(max(age(a)-age(b), -1), 1)) })
	for _, old := range kept[:len(kept)-templatesMax] {
		if err := os.RemoveAll(old); err != nil {
			return err
		}
	}
	return nil
}

// initData runs initdb on dst as the account, which will own dst.
func (bin postgresBin) initData(ctx context.Context, dst string, owner *account) error {
	if err := makeDir(dst, owner); err != nil {
		return err
	}
	return bin.runInitdb(ctx, owner, append(slices.Clone(initdbArgs), "-D", dst)...)
}

func (bin postgresBin) runInitdb(ctx context.Context, owner *account, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, initdbWithin, fmt.Errorf("initdb took more than %v", initdbWithin))
	defer cancel()
	var log tail
	cmd := exec.CommandContext(ctx, bin.initdb, args...)
	cmd.Dir = "/"
	cmd.Env = childEnv()
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: owner.credential()}
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("initdb: %w; %s", errors.Join(context.Cause(ctx), err), &log)
	}
	return nil
}

// copyTree copies the directories and regular files below src to dst, which it creates. The account
// owns the copy, and only it can enter dst. copyTree syncs nothing.
func copyTree(dst, src string, owner *account) error {
	if err := makeDir(dst, owner); err != nil {
		return err
	}
	if err := os.CopyFS(dst, os.DirFS(src)); err != nil {
		return err
	}
	return filepath.WalkDir(dst, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && !e.Type().IsRegular() {
			err = fmt.Errorf("%s is neither a file nor a directory", path)
		}
		if err != nil {
			return err
		}
		return owner.chown(path)
	})
}

func makeDir(path string, owner *account) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	return owner.chown(path)
}
