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

// account is the user that runs a server when this process must not. A nil
// account is this process' own user.
type account struct {
	name     string
	uid, gid uint32
}

// postgresAccount returns who runs postgres, which refuses root: nil when this
// process is not root, else the owner of the data directory if there is one
// already, else the user postgres, else nobody.
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
	return nil, errors.New("postgres refuses to run as root, and there is neither a user postgres nor nobody to run it as")
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	// No supplementary groups: those of root are not the account's.
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

// chown gives an open file to the account.
func (a *account) chown(f *os.File) error {
	if a == nil {
		return nil
	}
	return f.Chown(int(a.uid), int(a.gid))
}

// DirPermissionError says that the user who runs postgres cannot enter the
// directory where its data should lie.
type DirPermissionError struct {
	User string // "user postgres"
	Data string // where the data should lie
	Dir  string // the directory on the way that refuses
}

func (e *DirPermissionError) Error() string {
	return fmt.Sprintf("postgres refuses root, so it runs as %s, who cannot enter %s on the way to %s: "+
		"choose a place elsewhere (--data-dir /var/lib/holdfast; TMPDIR=/tmp for temporary servers), or run as a normal user", e.User, e.Dir, e.Data)
}

// checkAccess returns an *DirPermissionError when the account cannot enter dir or one
// of the directories above it. It reads the permission bits, not ACLs.
func (a *account) checkAccess(dir string) error {
	if a == nil {
		return nil
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("find out who can enter %s: %w", dir, err)
	}
	for d := real; ; d = filepath.Dir(d) {
		info, err := os.Stat(d)
		if err != nil {
			return fmt.Errorf("find out who can enter %s: %w", dir, err)
		}
		if !a.mayEnter(info) {
			return &DirPermissionError{User: a.name, Data: dir, Dir: d}
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
