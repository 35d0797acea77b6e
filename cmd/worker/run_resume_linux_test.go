package main

import (
	"os"
	"path/filepath"
	"testing"

	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// resumeSteps are all steps of a worker that detects that Redis has lost its last writes, and brings it up to
// date. From resume.unmarked on the next attempt rebuilds.
var resumeSteps = []string{
	"rebuild.noticed", "rebuild.told", "rebuild.condemned", "rebuild.begun", "rebuild.drained", "resume.marked", "resume.read",
	"resume.unmarked", "resume.writing", "resume.replayed", "rebuild.sealed", "rebuild.finished",
}

// newRestartedHarness returns a system whose Redis was restarted with an append-only file that lacks the last
// writes. It had two holds, of which Redis has lost the second, with a payment to answer, and a stock with
// three reservations. No worker runs.
func newRestartedHarness(t *testing.T) (s *harness, held, paid, payment string) {
	t.Helper()
	l := &lossTarget{Options: stack.Options{Redis: true, Dir: stacktest.DataDir(t)}}
	l.first = stacktest.Start(t, l.Options)
	l.redis = stacktest.ConnectRedis(t, l.first.RedisURL)
	url, proxy := stacktest.ProxyTo(t, l.first.RedisURL)
	s = newHarnessOn(t, urls{stacktest.Shared().NATSURL, url, stacktest.Shared().PostgresURL})
	older := stacktest.DataDir(t)
	held, paid, payment = s.bookTwo(t, func() {
		s.awaitMarker(l.redis, 0)
		stacktest.Must(t, os.CopyFS(filepath.Join(older, "redis"), os.DirFS(filepath.Join(l.Dir, "redis"))))
	})
	l.second = stacktest.Start(t, stack.Options{Redis: true, Dir: older})
	switchTo(t, proxy, l.second.RedisURL)
	_ = l.first.Close() // it can fail because it was in use
	return s, held, paid, payment
}

// TestResume_KilledAtEachStep_NextFinishes kills a worker that brings Redis up to date with SIGKILL at each of
// its steps. The next worker resumes, or rebuilds Redis.
func TestResume_KilledAtEachStep_NextFinishes(t *testing.T) {
	killAtEachStep(t, resumeSteps, newRestartedHarness)
}
