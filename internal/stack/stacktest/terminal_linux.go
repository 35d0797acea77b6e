package stacktest

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Terminal returns both ends of a pseudo-terminal: near is the keyboard and screen of a person, far the
// terminal of a program. The caller closes both.
func Terminal(t testing.TB) (near, far *os.File) {
	t.Helper()
	near, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	Must(t, err)
	number, err := unix.IoctlGetInt(int(near.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(near.Fd()), unix.TIOCSPTLCK, 0)
	}
	Must(t, err)
	far, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	Must(t, err)
	// Else Ctrl-C discards what was written and is not shown yet, and even what the program writes just after it.
	modes, err := unix.IoctlGetTermios(int(far.Fd()), unix.TCGETS)
	Must(t, err)
	modes.Lflag |= unix.NOFLSH
	Must(t, unix.IoctlSetTermios(int(far.Fd()), unix.TCSETS, modes))
	return near, far
}
