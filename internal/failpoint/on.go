//go:build failpoint

package failpoint

import (
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
)

// armed is a place, at which the process is killed, or a place and ":stop".
var armed, stop = strings.CutSuffix(os.Getenv("HOLDFAST_FAILPOINT"), ":stop")

var stopped atomic.Bool

// Hit kills the process, as kill -9 would, when HOLDFAST_FAILPOINT names this place. When it
// names it with ":stop" the process is stopped, the first time, until SIGCONT.
func Hit(place string) {
	if place != armed || stopped.Load() {
		return
	}
	if !stop {
		send(syscall.SIGKILL)
		select {} // until it arrives
	}
	stopped.Store(true)
	// The signal may reach another thread first. This one must not take a step further before
	// the process was stopped and let go on.
	goOn := make(chan os.Signal, 1)
	signal.Notify(goOn, syscall.SIGCONT)
	defer signal.Stop(goOn)
	send(syscall.SIGSTOP)
	<-goOn
}

func send(s syscall.Signal) {
	if err := syscall.Kill(os.Getpid(), s); err != nil {
		panic(err)
	}
}
