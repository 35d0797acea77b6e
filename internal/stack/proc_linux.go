package stack

import "syscall"

// childAttr puts a child in a process group of its own, under another user if
// one is given, and has the kernel send it death when the thread that started
// it is gone.
func childAttr(user *account, death syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: user.credential(), Pdeathsig: death}
}
