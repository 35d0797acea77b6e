package stack

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
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
	// templatesMax is how many templates are kept, one per Postgres build.
	templatesMax = 3
	// initdbWithin bounds one run of initdb.
	initdbWithin = 2 * time.Minute
)

// initdbArgs make a template: one superuser without a password, UTF-8, the
// same order of text on every machine. Nothing is synced; see makeData. The
// first segment of the log is 4 MiB, not 16: it is a good part of what is copied.
var initdbArgs = []string{"--no-sync", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "--wal-segsize=4"}

// makeData makes a data directory that the account owns: a copy of a template,
// because initdb takes most of a second. The template is made by the first who
// needs it and kept in the user's cache directory. A durable data directory is
// synced to disk. data appears complete or not at all.
func (bin postgresBin) makeData(ctx context.Context, data string, owner *account, durable bool, progress func(string)) error {
	made := data + ".new"
	if err := os.RemoveAll(made); err != nil { // of a process that was killed here
		return fmt.Errorf("make data directory: %w", err)
	}
	if err := bin.fromTemplate(ctx, made, owner, progress); err != nil {
		return errors.Join(fmt.Errorf("make data directory: %w", err), os.RemoveAll(made))
	}
	if durable {
		if err := bin.runInitdb(ctx, owner, "--sync-only", "-D", made); err != nil {
			return fmt.Errorf("make data directory: %w", err)
		}
	}
	if err := os.Rename(made, data); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	return nil
}

// fromTemplate fills dst from the template of this Postgres build. Without one
// it runs initdb on dst and keeps a copy as the template.
func (bin postgresBin) fromTemplate(ctx context.Context, dst string, owner *account, progress func(string)) error {
	cache, err := cacheDir()
	if err != nil {
		return bin.initData(ctx, dst, owner)
	}
	name, err := bin.templateName()
	if err != nil {
		return err
	}
	template, lockPath := filepath.Join(cache, name), filepath.Join(cache, "template.lock")

	// Readers share the lock, so that none is removed under their hands.
	lock, err := awaitShared(ctx, lockPath)
	if err != nil {
		return err
	}
	_, err = os.Stat(template)
	if err == nil {
		return errors.Join(copyTree(dst, template, owner), lock.Close())
	}
	if err := lock.Close(); err != nil {
		return err
	}

	if lock, err = awaitLock(ctx, lockPath); err != nil {
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
		progress(fmt.Sprintf("the data directory could not be kept for the next start: %v", err))
	}
	return nil
}

// templateName names the template after the very program that made it.
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

// keepTemplate copies a data directory that nobody uses yet into the cache and
// removes the oldest templates. The caller holds the lock.
func keepTemplate(template, data string) error {
	made := template + ".new"
	if err := os.RemoveAll(made); err != nil {
		return err
	}
	if err := copyTree(made, data, nil); err != nil {
		return errors.Join(err, os.RemoveAll(made))
	}
	if err := os.Rename(made, template); err != nil {
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

// initData runs initdb on dst, as the account that will own it.
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

// copyTree copies the directories and regular files below src to dst, which it
// makes, readable by the account only and owned by it. It syncs nothing.
func copyTree(dst, src string, owner *account) error {
	if err := makeDir(dst, owner); err != nil {
		return err
	}
	entries, err := os.ReadDir(src)
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, to := filepath.Join(src, e.Name()), filepath.Join(dst, e.Name())
		switch {
		case e.IsDir():
			err = copyTree(to, from, owner)
		case e.Type().IsRegular():
			err = copyFile(to, from, owner)
		default:
			err = fmt.Errorf("%s is neither a file nor a directory", from)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func makeDir(path string, owner *account) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	if owner == nil {
		return nil
	}
	return os.Chown(path, int(owner.uid), int(owner.gid))
}

func copyFile(dst, src string, owner *account) (err error) {
	from, err := os.Open(src)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // only read
	to, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if err := owner.chown(to); err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return err
}
