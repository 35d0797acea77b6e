package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// fakeApt returns an installer with an apt-get that runs a script, and a function that returns the
// arguments of each call of apt-get.
func fakeApt(t *testing.T, script string) (in installer, calls func() []string) {
	t.Helper()
	dir := t.TempDir()
	apt := filepath.Join(dir, "apt-get")
	writeScript(t, apt, fmt.Sprintf("cd %q\necho \"$DEBIAN_FRONTEND $*\" >>calls\n%s\n", dir, script))
	in = installer{root: true, apt: apt, lock: filepath.Join(dir, "lock"), progress: func(string) {}}
	return in, func() []string {
		b, err := os.ReadFile(filepath.Join(dir, "calls"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.FieldsFunc(string(b), func(r rune) bool { return r == '\n' })
	}
}

// writeScript writes a program with commands of the shell.
func writeScript(t *testing.T, path, commands string) {
	t.Helper()
	// No fork while the file is open for writing: a child between fork and exec would have it open too,
	// and then the file cannot be executed (golang.org/issue/22315).
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, []byte("#!/bin/sh\n"+commands), 0o755)
	syscall.ForkLock.RUnlock()
	must(t, err)
}

// until returns a function that returns redis-server until apt-get has created a file of that name.
func (in installer) until() func() []string {
	return func() []string {
		if _, err := os.Stat(filepath.Join(filepath.Dir(in.apt), "redis-server")); err == nil {
			return nil
		}
		return []string{"redis-server"}
	}
}

const (
	aptInstall = "noninteractive -o DPkg::Lock::Timeout=300 install -y --no-install-recommends redis-server"
	aptUpdate  = "noninteractive -o DPkg::Lock::Timeout=300 update"
)

func TestInstall_FirstTryFails_UpdatesLists(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script string
		want   []string
	}{
		"lists are good": {"touch redis-server", []string{aptInstall}},
		"lists are empty": {
			`case "$*" in *update) touch lists;; *) [ -e lists ] && touch redis-server;; esac`,
			[]string{aptInstall, aptUpdate, aptInstall},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in, calls := fakeApt(t, c.script)
			must(t, in.install(t.Context(), false, in.until()))
			if got := calls(); strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("calls %q, want %q", got, c.want)
			}
		})
	}
}

func TestInstall_SeveralAtOnce_InstallsOnce(t *testing.T) {
	t.Parallel()
	in, calls := fakeApt(t, "touch redis-server")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := in.install(t.Context(), false, in.until()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := calls(); len(got) != 1 {
		t.Errorf("calls %q, want one", got)
	}
}

// TestInstall_Stopped_ReturnsInTime stops an installation whose dpkg does not end with apt-get. A worker must exit within
// 10 s of the same signal.
func TestInstall_Stopped_ReturnsInTime(t *testing.T) {
	t.Parallel()
	in, calls := fakeApt(t, "sleep 20 &\nwait")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- in.install(ctx, false, in.until()) }()
	must(t, Poll(t.Context(), readyPoll, func() (bool, error) { return len(calls()) > 0, nil }))
	stop()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a stopped installation returned %v", err)
		}
	case <-time.After(8 * time.Second):
		t.Error("the installation goes on 8 s after it was stopped")
	}
}

func TestMissing_NotInstalled_NamesTheLine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*installer)
		never  bool
		line   string
		tried  bool
	}{
		"never":     {func(*installer) {}, true, "apt-get install -y redis-server", false},
		"not root":  {func(in *installer) { in.root = false }, false, "sudo apt-get install -y redis-server", false},
		"no apt":    {func(in *installer) { in.apt = "" }, false, "apt-get install -y redis-server", false},
		"macOS":     {func(in *installer) { in.apt, in.brew = "", true }, false, "brew install redis", false},
		"apt fails": {func(*installer) {}, false, "apt-get install -y redis-server", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in, calls := fakeApt(t, "echo no network >&2; exit 100")
			c.change(&in)
			err := in.install(t.Context(), c.never, in.until())
			missing, ok := errors.AsType[*MissingError](err)
			if !ok || missing.Line != c.line || !strings.Contains(err.Error(), "install with: "+c.line) {
				t.Errorf("error %v, want the line %q", err, c.line)
			}
			if tried := len(calls()) > 0; tried != c.tried || tried != strings.Contains(err.Error(), "no network") {
				t.Errorf("tried %v, want %v; %v", tried, c.tried, err)
			}
		})
	}
}
