//go:build !linux

package stack

import "syscall"

// childAttr puts a child in a process group of its own, under another user if
// one is given. There is no death signal here: a parent that is killed leaves
// its children behind, and their lock files keep the next start from their data.
func childAttr(user *account, _ syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: user.credential()}
}
