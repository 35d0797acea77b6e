package stack

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// TestStartChild_ThreadEnds_ChildLives starts a child from a thread that ends. The kernel ties a child
// to the thread that forked it, so startChild must not fork on the thread of its caller.
func TestStartChild_ThreadEnds_ChildLives(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var c *Server
	var err error
	tid := onDyingThread(func() {
		c, err = onFreePort(ctx, func(port int) command { return redisOn(t, port) }, probeRedis)
	})
	must(t, err)
	t.Cleanup(func() { must(t, c.stop(stopWithin)) })
	for {
		if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid)); os.IsNotExist(err) {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the thread does not end")
		}
		runtime.Gosched()
	}
	must(t, c.awaitReady(ctx, readyWithin, func(ctx context.Context) error { return probeRedis(ctx, c) }))
}

// onDyingThread runs f on a thread that ends afterwards, and returns the id of the thread.
func onDyingThread(f func()) (tid int) {
	release := make(chan struct{})
	defer close(release)
	for {
		ran := make(chan int)
		go func() {
			runtime.LockOSThread()
			if syscall.Gettid() == os.Getpid() {
				// The main thread never ends. Keep it busy, so that the next goroutine gets another
				// thread.
				ran <- 0
				<-release
				runtime.UnlockOSThread()
				return
			}
			f()
			ran <- syscall.Gettid() // never unlocked: the thread ends with the goroutine
		}()
		if tid := <-ran; tid != 0 {
			return tid
		}
	}
}
