package stack

import "syscall"

// childAttr returns the attributes of a child: its own process group, the user if not nil, and the
// signal death, which the kernel sends to the child when the thread that started it ends.
func childAttr(user *account, death syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: user.credential(), Pdeathsig: death}
}
