package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/stack"
	"holdfast/internal/stack/endpoints"
	"holdfast/internal/stack/stacktest"
)

// attachTo follows the outcomes of a worker that has started its own servers.
func attachTo(t *testing.T, dir, namespace string) (s *harness) {
	t.Helper()
	stacktest.Eventually(t, "the servers", func() bool {
		found, err := endpoints.Read(filepath.Join(dir, "endpoints.env"))
		if err != nil {
			return false
		}
		s = attach(t, urls{found["HOLDFAST_NATS_URL"], found["HOLDFAST_REDIS_URL"], found["HOLDFAST_POSTGRES_URL"]},
			namespace)
		return true
	})
	return s
}

// TestEmbedded_RedisDataRemoved_HoldsRebuilt removes the data of Redis while the worker and its
// servers are stopped. After a restart the hold exists again, rebuilt from the other servers.
func TestEmbedded_RedisDataRemoved_HoldsRebuilt(t *testing.T) {
	t.Parallel()
	dir := stacktest.DataDir(t)
	start := func() (*process, *harness) {
		t.Helper()
		p := launch(t, false, []string{"run", "--embedded", "--http-addr", "127.0.0.1:0", "--data-dir", dir, "--namespace",
			"kept"})
		p.awaitStarted(t)
		return p, attachTo(t, dir, "kept")
	}
	worker, s := start()
	s.setInventory("hall", seat, 1)
	hold := s.answer(s.book("hall", "ana", "k1", seat, 3600)).Subject
	worker.stop(t)
	stacktest.Must(t, os.RemoveAll(filepath.Join(dir, "redis")))
	worker, s = start()
	stacktest.Eventually(t, "the hold to be rebuilt", func() bool {
		code, body := worker.get(t, "/v1/holds/"+hold)
		return code == 200 && strings.Contains(body, `"state":"held"`)
	})
	s.wantAnswer(s.book("hall", "ben", "k2", seat, 3600), holds.EventHoldRejected)
	worker.stop(t)
}

// TestEmbedded_Redlock_StartsLockServers starts the lock servers of redlock, each with its own data
// directory, and kills one.
func TestEmbedded_Redlock_StartsLockServers(t *testing.T) {
	t.Parallel()
	dir := stacktest.DataDir(t)
	c := Config{
		Connections: Connections{NATSServers: NATSServers{NATSURL: "n"}, RedisURL: "r", PostgresURL: "p", Named: Named{"n"}},
		Operations:  Operations{HTTPAddr: "127.0.0.1:0"}, Locks: Locks{LockServers: LockServers{LockStrategy: redlockStrategy}},
	}
	started, all, err := startServers(t.Context(), &c, false, stack.Options{Dir: dir, EndpointsDir: dir})
	stacktest.Must(t, err)
	defer all.close()
	defer func() { stacktest.Must(t, started.Close()) }()
	found, err := endpoints.ReadIn(dir)
	if urls := strings.Split(found["HOLDFAST_LOCK_REDIS_URLS"], ","); err != nil || len(urls) != lockServersMin ||
		!slices.Equal(urls, c.LockRedisURLs) {
		t.Errorf("endpoints: %v, %v, want %v", found, err, c.LockRedisURLs)
	}
	stacktest.Must(t, c.LockServers.AfterApply())
	for i := range lockServersMin {
		if _, err := os.Stat(filepath.Join(dir, fmt.Sprintf("redis-lock-%d", i+1), "redis")); err != nil {
			t.Error(err)
		}
	}
	stacktest.KillRedis(t, stacktest.ConnectRedis(t, c.LockRedisURLs[1]))
	select {
	case err := <-started.Failed():
		if !strings.Contains(err.Error(), "lock server 2") {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the end of a lock server was not reported")
	}
}

// TestEmbedded_AddressInUse_StartsNoServer gives an address that another program has. No server has started
// when the worker refuses it.
func TestEmbedded_AddressInUse_StartsNoServer(t *testing.T) {
	t.Parallel()
	used, err := net.Listen("tcp", "127.0.0.1:0")
	stacktest.Must(t, err)
	defer func() { _ = used.Close() }()
	for _, verb := range []string{"run --embedded --http-addr", "dev --once --api-addr"} {
		dir := stacktest.DataDir(t)
		args := append(strings.Fields(verb), used.Addr().String(), "--data-dir", dir)
		if code, out := execute(t.Context(), args...); code != exitFailed ||
			!strings.Contains(out, "-addr: listen tcp") || !strings.Contains(out, "give another address") {
			t.Errorf("worker %s: %d %s", verb, code, out)
		}
		if left, err := os.ReadDir(dir); err != nil || slices.ContainsFunc(left, os.DirEntry.IsDir) {
			t.Errorf("worker %s has started servers in %v, %v", verb, left, err)
		}
	}
}
