//go:build failpoint

package failpoint

import (
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// armed is a place, at which the process is killed, or a place and ":stop".
var armed, stop = strings.CutSuffix(os.Getenv("HOLDFAST_FAILPOINT"), ":stop")

var stopped atomic.Bool

// Hit kills the process, as kill -9 would, when HOLDFAST_FAILPOINT names this place. When it
// names it with ":stop" the process is stopped, the first time, until somebody lets it go on.
func Hit(place string) {
	if place != armed || stopped.Load() {
		return
	}
	signal := syscall.SIGKILL
	if stop {
		stopped.Store(true)
		signal = syscall.SIGSTOP
	}
	if err := syscall.Kill(os.Getpid(), signal); err != nil {
		panic(err)
	}
	if !stop {
		select {} // until the signal arrives
	}
	// The signal may reach another thread first. This one must not take a step further before it
	// has stopped as well.
	time.Sleep(100 * time.Millisecond)
}
