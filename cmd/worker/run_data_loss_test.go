package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// lossKind is a way to lose data that was written to Redis.
type lossKind struct {
	name string
	// prepare is called before the load starts. older and then lose are called under load: the
	// writes between the two calls are lost.
	prepare func(t *testing.T, l *lossTarget)
	older   func(t *testing.T, l *lossTarget)
	destroy func(t *testing.T, l *lossTarget)
	resumes bool // what is left is brought up to date, not rebuilt
}

// lossTarget has the servers of which a loss takes data.
type lossTarget struct {
	proxy *stacktest.Proxy
	stack.Options
	first, second *stack.Stack
	redis         *redis.Client // client of first
	url           string        // of the workers; "" for that of proxy
}

// switchTo directs new connections of a proxy to another Redis and cuts the present ones, as after a failover.
func switchTo(t testing.TB, proxy *stacktest.Proxy, redisURL string) {
	t.Helper()
	server, err := redis.ParseURL(redisURL)
	stacktest.Must(t, err)
	proxy.Target(server.Addr)
	proxy.Cut(false)
}

var losses = []lossKind{
	{
		name: "flushed",
		destroy: func(t *testing.T, l *lossTarget) {
			stacktest.Must(t, l.redis.FlushAll(t.Context()).Err())
		},
	},
	{
		name: "restarted without persistence",
		destroy: func(t *testing.T, l *lossTarget) {
			l.second = stacktest.StartRedis(t)
			switchTo(t, l.proxy, l.second.RedisURL)
			_ = l.first.Close() // it can fail because it was in use
		},
	},
	{
		name: "restarted with an older append-only file", resumes: true,
		prepare: func(t *testing.T, l *lossTarget) {
			l.Dir = stacktest.DataDir(t)
		},
		older: func(t *testing.T, l *lossTarget) {
			to := stacktest.DataDir(t)
			stacktest.Must(t, os.CopyFS(filepath.Join(to, "redis"), os.DirFS(filepath.Join(l.Dir, "redis"))))
			l.Dir = to
		},
		destroy: func(t *testing.T, l *lossTarget) {
			l.second = stacktest.Start(t, l.Options)
			switchTo(t, l.proxy, l.second.RedisURL)
			_ = l.first.Close() // as above
		},
	},
	{
		name: "failed over to a replica that lags behind", resumes: true,
		prepare: func(t *testing.T, l *lossTarget) {
			l.second = stacktest.StartRedis(t)
			stacktest.ReplicaOf(t, stacktest.ConnectRedis(t, l.second.RedisURL), stacktest.ConnectRedis(t, l.first.RedisURL))
		},
		older: func(t *testing.T, l *lossTarget) { // writes from now on are not replicated
			stacktest.Promote(t, stacktest.ConnectRedis(t, l.second.RedisURL))
		},
		destroy: func(t *testing.T, l *lossTarget) { switchTo(t, l.proxy, l.second.RedisURL) }, // the first server keeps running
	},
	{
		name: "made a replica of older data, and a master again", resumes: true,
		prepare: func(t *testing.T, l *lossTarget) {
			l.second = stacktest.StartRedis(t)
		},
		older: func(t *testing.T, l *lossTarget) {
			other := stacktest.ConnectRedis(t, l.second.RedisURL)
			stacktest.ReplicaOf(t, other, l.redis)
			stacktest.Promote(t, other)
		},
		destroy: func(t *testing.T, l *lossTarget) {
			stacktest.ReplicaOf(t, l.redis, stacktest.ConnectRedis(t, l.second.RedisURL))
			stacktest.Promote(t, l.redis)
		},
	},
	{
		name: "failed over by Sentinel", resumes: true,
		prepare: func(t *testing.T, l *lossTarget) {
			l.second = stacktest.StartRedis(t)
			first := stacktest.ConnectRedis(t, l.first.RedisURL)
			stacktest.ReplicaOf(t, stacktest.ConnectRedis(t, l.second.RedisURL), first)
			sentinel := stacktest.StartSentinel(t, "main", first.Options().Addr, nil)
			stacktest.AwaitReplica(t, sentinel)
			l.url = "redis+sentinel://" + sentinel + "/main"
		},
		destroy: func(t *testing.T, l *lossTarget) { stacktest.KillRedis(t, l.redis) },
	},
}

// TestRedisLost_UnderLoad_NothingSoldTwice loses the data of Redis in each way while three workers
// answer events of every kind and reconcile. Nothing is sold twice, every event has one outcome, no
// event is dead-lettered, every hold ends once, holds are granted again afterwards, and an audit
// finds nothing.
func TestRedisLost_UnderLoad_NothingSoldTwice(t *testing.T) {
	t.Parallel()
	for _, kind := range stacktest.Sample(t, losses) {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			kind.underLoad(t)
		})
	}
}

func (kind lossKind) underLoad(t *testing.T) {
	l := &lossTarget{Options: stack.Options{Redis: true}}
	if kind.name == "restarted with an older append-only file" {
		kind.prepare(t, l)
	}
	l.first = stacktest.Start(t, l.Options)
	if l.Dir == "" && kind.prepare != nil {
		kind.prepare(t, l)
	}
	l.redis = stacktest.ConnectRedis(t, l.first.RedisURL)
	url, proxy := stacktest.ProxyTo(t, l.first.RedisURL)
	l.proxy, url = proxy, cmp.Or(l.url, url)
	s := newHarnessOn(t, urls{stacktest.Shared().NATSURL, url, stacktest.Shared().PostgresURL})
	var workers []*process
	for range 3 {
		workers = append(workers, s.startWorker("HOLDFAST_LATE_PAYMENT=accept_if_free", "HOLDFAST_HOLDS_PER_USER=3"))
	}
	sold := newSale(s, "double")
	end := sold.start(24)
	outcomes := func(more int) {
		t.Helper()
		s.mu.Lock()
		now := len(s.outcomes)
		s.mu.Unlock()
		s.await("outcomes", func(all []events.Envelope, _ []nats.Header) bool { return len(all) >= now+more })
	}
	outcomes(500)
	stacktest.Eventually(t, "a marker", func() bool {
		return l.redis.Exists(t.Context(), record.Keyspace(s.namespace).Applied(0)).Val() == 1
	})
	if kind.older != nil {
		kind.older(t, l)
		outcomes(300)
	}
	before, fence := s.epoch(), s.fence(t, l.redis, "double")
	kind.destroy(t, l)
	s.awaitRebuilt(before)
	kind.checkCounted(t, workers)
	grants := len(s.ofType(holds.EventHoldCreated))
	outcomes(500)
	s.wantNoFindings() // while the workers run
	end()
	if more := len(s.ofType(holds.EventHoldCreated)) - grants; more < 10 {
		t.Errorf("only %d holds were granted after the loss", more)
	}
	if now := s.fence(t, s.redis, "double"); fence > 0 && now < fence+fencesMax {
		t.Errorf("the last fencing token is %d, before the loss %d: tokens must not start again", now, fence)
	}
	sold.check()
	if got := s.counts("double"); len(got) != 0 {
		t.Errorf("all holds have ended and counts are %v", got)
	}
}

// checkCounted checks whether the workers have rebuilt Redis, or only added its last writes.
func (kind lossKind) checkCounted(t *testing.T, workers []*process) {
	t.Helper()
	counted := func(kind string) bool {
		metric := regexp.MustCompile(`(?m)^holdfast_rebuilds_total\{[^}]*kind="` + kind + `"[^}]*\} [1-9]`)
		return slices.ContainsFunc(workers, func(p *process) bool {
			_, metrics := p.get(t, "/metrics")
			return metric.MatchString(metrics)
		})
	}
	stacktest.Eventually(t, "the rebuild to be counted", func() bool { return counted("resumed") || counted("rebuilt") })
	if counted("resumed") != kind.resumes {
		t.Errorf("only the last writes were added: %v, want %v", !kind.resumes, kind.resumes)
	}
}

// fencesMax exceeds the number of fencing tokens in a test, and is less than the number per base.
const fencesMax = 1 << 30

// fence returns the last fencing token of a resource's partition, or 0: not every strategy has
// tokens.
func (s *harness) fence(t *testing.T, client *redis.Client, resource string) int64 {
	t.Helper()
	text, err := client.Get(t.Context(), fmt.Sprintf("%s:{%d}:fence", s.namespace, record.Partition(resource))).Result()
	if errors.Is(err, redis.Nil) {
		return 0
	}
	n, parseErr := strconv.ParseInt(text, 10, 64)
	stacktest.Must(t, errors.Join(err, parseErr))
	return n
}
