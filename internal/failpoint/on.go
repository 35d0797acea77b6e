//go:build failpoint

package failpoint

import (
	"os"
	"syscall"
)

var armed = os.Getenv("HOLDFAST_FAILPOINT")

// Hit kills the process, as kill -9 would, when HOLDFAST_FAILPOINT names this place.
func Hit(place string) {
	if place != armed {
		return
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		panic(err)
	}
	select {} // until the signal arrives
}
