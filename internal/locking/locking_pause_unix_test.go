//go:build unix

package locking_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/locking"
	"holdfast/internal/stack/stacktest"
)

// The environment of the holder, which is this program as a second process.
const (
	holderStrategy = "LOCK_HOLDER_STRATEGY"
	holderRedis    = "LOCK_HOLDER_REDIS"
	holderServers  = "LOCK_HOLDER_SERVERS"
	holderPrefix   = "LOCK_HOLDER_PREFIX"
	pausedLease    = time.Second
)

// holder locks, reads the counter, and works when it reads a line from its standard input. It
// prints the result of its work.
func holder() int {
	k := harness{client: redis.NewClient(stacktest.RedisOptions(os.Getenv(holderRedis))), prefix: os.Getenv(holderPrefix)}
	for _, url := range strings.Fields(os.Getenv(holderServers)) {
		k.servers = append(k.servers, redis.NewClient(stacktest.RedisOptions(url)))
	}
	ctx := context.Background()
	for _, s := range subjects {
		if s.name != os.Getenv(holderStrategy) {
			continue
		}
		l := locking.New(s.make(k, pausedLease), locking.Options{})
		lock, err := lockEventually(ctx, l, k.keySet("a"))
		if err != nil {
			fmt.Println("lock:", err)
			return 1
		}
		_, status, err := k.increment(ctx, l, lock, func() {
			fmt.Println("locked")
			_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // an error also ends the wait
		})
		fmt.Println(status, err)
	}
	return 0
}

// TestStrategy_HolderPausedPastLease_WorkIsRefused stops a process that holds a lock, with SIGSTOP,
// until its lease expires and another owner has worked under the lock. Then the process continues
// without noticing, and its work is refused. Without locks it is not refused, and the other work is
// lost.
func TestStrategy_HolderPausedPastLease_WorkIsRefused(t *testing.T) {
	t.Parallel()
	for _, s := range subjects {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			k := newHarness(t, s)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), holderStrategy+"="+s.name, holderRedis+"="+stacktest.Shared().RedisURL,
				holderPrefix+"="+k.prefix)
			if s.servers > 0 {
				cmd.Env = append(cmd.Env, holderServers+"="+strings.Join(stacktest.LockServers(t, s.servers), " "))
			}
			in, err := cmd.StdinPipe()
			out, err2 := cmd.StdoutPipe()
			stacktest.Must(t, errors.Join(err, err2, cmd.Start()))
			t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has already exited unless the test failed
			said := bufio.NewReader(out)
			if line, err := said.ReadString('\n'); line != "locked\n" {
				t.Fatalf("the holder prints %q: %v", line, err)
			}
			var status syscall.WaitStatus
			stacktest.Must(t, cmd.Process.Signal(syscall.SIGSTOP))
			if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
				t.Fatalf("the holder is not stopped: %v %v", status, err)
			}
			if _, err := in.Write([]byte("work\n")); err != nil { // it reads this as soon as it continues
				t.Fatal(err)
			}

			// This lock can be taken only after the lease has expired.
			l := k.locker(t, s, long)
			if _, err := k.contend(t.Context(), l, k.keySet("a"), func() func() { return func() {} }); err != nil {
				t.Fatal(err)
			}
			stacktest.Must(t, k.client.Set(t.Context(), k.counter(), 100, 0).Err()) // work of another owner
			stacktest.Must(t, cmd.Process.Signal(syscall.SIGCONT))
			answer, err := said.ReadString('\n')
			stacktest.Must(t, errors.Join(err, cmd.Wait()))
			refused := strings.HasPrefix(answer, locking.StatusLockLost) || strings.HasPrefix(answer, locking.StatusConflict)
			if n := k.client.Get(t.Context(), k.counter()).Val(); refused != s.refusesLateWork || s.refusesLateWork &&
				n != "100" {
				t.Errorf("the paused holder's work returned %q, and the counter is %s", answer, n)
			}
		})
	}
}
