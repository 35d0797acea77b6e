package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// installWithin bounds one run of apt-get, including its wait for dpkg's lock (300 s).
const installWithin = 10 * time.Minute

// installLock is the lock between processes that install. They are root, and only root writes there.
const installLock = "/var/cache/holdfast-install.lock"

// MissingError reports which programs are missing and how to install them.
type MissingError struct {
	Packages []string // of Debian: "redis-server", "postgresql"
	Line     string   // the command that installs them
	Err      error    // why the installation failed; nil without an attempt
}

func (e *MissingError) Error() string {
	s := fmt.Sprintf("%s not found on PATH or in the usual places; install with: %s",
		strings.Join(e.Packages, " and "), e.Line)
	if e.Err != nil {
		s += fmt.Sprintf(" (tried: %v)", e.Err)
	}
	return s
}

func (e *MissingError) Unwrap() error { return e.Err }

// installer installs Debian packages.
type installer struct {
	root     bool
	brew     bool   // macOS: the message names brew
	apt      string // path of apt-get, "" without apt-get
	lock     string // path of the lock between processes that install
	progress func(string)
}

func thisInstaller(progress func(string)) installer {
	in := installer{root: os.Geteuid() == 0, brew: runtime.GOOS == "darwin", lock: installLock, progress: progress}
	if apt, err := exec.LookPath("apt-get"); err == nil {
		in.apt = apt
	}
	return in
}

// install installs the packages that missing returns. It returns a *MissingError when it may not or
// cannot install them, or when they are still missing afterwards. It calls missing again after waiting
// for another process that installs.
func (in installer) install(ctx context.Context, never bool, missing func() []string) error {
	packages := missing()
	if never || !in.root || in.apt == "" {
		return in.missing(packages, nil)
	}
	lock, err := AwaitLock(ctx, in.lock)
	if err != nil {
		return in.missing(packages, err)
	}
	defer func() { _ = lock.Close() }() // nothing was written
	if packages = missing(); len(packages) == 0 {
		return nil
	}
	in.progress("installing " + strings.Join(packages, " and ") + " with apt-get (only this time)")
	err = in.run(ctx, packages)
	if packages = missing(); len(packages) > 0 {
		return in.missing(packages, err)
	}
	return nil
}

// run installs the packages. When that fails it updates the package lists and tries once more: most
// container images lack the lists, and others have outdated ones.
func (in installer) run(ctx context.Context, packages []string) error {
	install := append([]string{"install", "-y", "--no-install-recommends"}, packages...)
	if err := in.aptGet(ctx, install...); err == nil {
		return nil
	}
	if err := in.aptGet(ctx, "update"); err != nil {
		return err
	}
	return in.aptGet(ctx, install...)
}

func (in installer) aptGet(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, installWithin, fmt.Errorf("apt-get took more than %v", installWithin))
	defer cancel()
	var log tail
	cmd := exec.CommandContext(ctx, in.apt, append([]string{"-o", "DPkg::Lock::Timeout=300"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C must not stop dpkg halfway
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	// A service that the package starts may keep the output open, and so may dpkg when apt-get is stopped: the
	// worker must still exit within 10 s.
	cmd.WaitDelay = 3 * time.Second
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("apt-get %s: %w; %s", strings.Join(args, " "), errors.Join(context.Cause(ctx), err), &log)
	}
	return nil
}

func (in installer) missing(packages []string, err error) error {
	line := "apt-get install -y " + strings.Join(packages, " ")
	switch {
	case in.brew:
		line = "brew install " + strings.NewReplacer("redis-server", "redis").Replace(strings.Join(packages, " "))
	case !in.root:
		line = "sudo " + line
	}
	return &MissingError{Packages: packages, Line: line, Err: err}
}
