package stack

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the user that runs a server instead of this process' own user. A nil account means
// this process' own user.
type account struct {
	name     string
	uid, gid uint32
}

// postgresAccount returns the account that runs postgres, which refuses root: nil when this process is
// not root, else the owner of an existing data directory, else the user postgres, else the user nobody.
func postgresAccount(data string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if info, err := os.Stat(data); err == nil {
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 0 {
			return &account{name: "uid " + strconv.Itoa(int(st.Uid)), uid: st.Uid, gid: st.Gid}, nil
		}
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		if uid != 0 {
			return &account{name: "user " + name, uid: uint32(uid), gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("postgres refuses to run as root, and neither the user postgres nor the user nobody exists")
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	// No supplementary groups: the account must not get those of root.
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

// chown makes the account the owner of a file or directory.
func (a *account) chown(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// checkAccess returns an error when the account cannot enter dir or one of the directories above it. It
// reads the permission bits, not ACLs.
func (a *account) checkAccess(dir string) error {
	if a == nil {
		return nil
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("check access to %s: %w", dir, err)
	}
	for d := real; ; d = filepath.Dir(d) {
		info, err := os.Stat(d)
		if err != nil {
			return fmt.Errorf("check access to %s: %w", dir, err)
		}
		if !a.mayEnter(info) {
			return fmt.Errorf("postgres refuses root, so it runs as %s, who cannot enter %s above %s: choose another place "+
				"(--data-dir /var/lib/holdfast; TMPDIR=/tmp for temporary servers), or run as a normal user", a.name, d, dir)
		}
		if d == filepath.Dir(d) {
			return nil
		}
	}
}

func (a *account) mayEnter(info os.FileInfo) bool {
	st := info.Sys().(*syscall.Stat_t)
	switch {
	case st.Uid == a.uid:
		return info.Mode()&0o100 != 0
	case st.Gid == a.gid:
		return info.Mode()&0o010 != 0
	default:
		return info.Mode()&0o001 != 0
	}
}
