package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/endpoints"
	"holdfast/internal/stack/stacktest"
)

// attachTo follows what is answered by a worker that has started its servers itself.
func attachTo(t *testing.T, dir, namespace string) (s *harness) {
	t.Helper()
	stacktest.Eventually(t, "the servers", func() bool {
		found, err := endpoints.Read(filepath.Join(dir, "endpoints.env"))
		if err != nil {
			return false
		}
		s = attach(t, urls{found["HOLDFAST_NATS_URL"], found["HOLDFAST_REDIS_URL"], found["HOLDFAST_POSTGRES_URL"]}, namespace)
		return true
	})
	return s
}

// TestEmbedded_RedisDataRemoved_HoldsRebuilt starts a worker with its servers again after what its Redis kept was
// removed. The hold is there, from what the others kept.
func TestEmbedded_RedisDataRemoved_HoldsRebuilt(t *testing.T) {
	t.Parallel()
	dir := stacktest.DataDir(t)
	start := func() (*process, *harness) {
		t.Helper()
		p := launch(t, false, []string{"run", "--embedded", "--http-addr", "127.0.0.1:0", "--data-dir", dir, "--namespace", "kept"})
		p.awaitStarted(t)
		return p, attachTo(t, dir, "kept")
	}
	worker, s := start()
	s.setInventory("hall", seat, 1)
	hold := s.answer(s.publish(events.BookingRequested, "hall", bookingData("hall", "ana", "k1", seat, 3600))).Subject
	worker.end(t)
	if err := os.RemoveAll(filepath.Join(dir, "redis")); err != nil {
		t.Fatal(err)
	}
	worker, s = start()
	stacktest.Eventually(t, "the hold to be there again", func() bool {
		code, body := worker.get(t, "/v1/holds/"+hold)
		return code == 200 && strings.Contains(body, `"state":"held"`)
	})
	if o := s.answer(s.publish(events.BookingRequested, "hall", bookingData("hall", "ben", "k2", seat, 3600))); o.Type != events.Type(holds.EventHoldRejected) {
		t.Errorf("the seat that is held was given to somebody else: %s", o.Type)
	}
	worker.end(t)
}
