//go:build failpoint

package failpoint

import (
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
)

// armed is the place at which the process is killed or, if stop is true, stopped.
var armed, stop = strings.CutSuffix(os.Getenv("HOLDFAST_FAILPOINT"), ":stop")

var stopped atomic.Bool

// Hit kills the process like kill -9 if HOLDFAST_FAILPOINT names this place. If HOLDFAST_FAILPOINT is
// the place and ":stop", the first Hit stops the process until SIGCONT.
func Hit(place string) {
	if place != armed || stopped.Load() {
		return
	}
	if !stop {
		send(syscall.SIGKILL)
		select {} // until the signal arrives
	}
	stopped.Store(true)
	// Another thread may get the signal first. This thread must wait until the process has stopped and
	// continued.
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	send(syscall.SIGSTOP)
	<-continued
}

func send(s syscall.Signal) {
	if err := syscall.Kill(os.Getpid(), s); err != nil {
		panic(err)
	}
}
