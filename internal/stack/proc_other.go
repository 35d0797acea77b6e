//go:build !linux

package stack

import "syscall"

// childAttr returns the attributes of a child: its own process group, and the user if not nil. These
// systems have no death signal, so the children of a killed parent survive; their locks keep a later
// start from using their data.
func childAttr(user *account, _ syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: user.credential()}
}
