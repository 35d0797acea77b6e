package lua

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// checkSlot fails on a server from which the slot of a script's keys is being moved. It reads a key
// that does not exist, and such a server has no answer about keys that it does not have. All keys of a
// script have one hash tag. A script whose key has none uses no other key.
const checkSlot = `do
  local tagged = string.match(KEYS[1], '^[^{]*{[^}]+}')
  if tagged then redis.call('GET', tagged .. ':moving') end
end
`

// ClusterNode is a client of one server of a Redis Cluster. Calls of different hash slots do not share a run.
type ClusterNode struct{ *redis.Client }

// inCluster reports whether a client leads to one or all servers of a Redis Cluster.
func inCluster(client redis.UniversalClient) bool {
	switch client.(type) {
	case *redis.ClusterClient, ClusterNode:
		return true
	}
	return false
}

// reloadTimeout bounds a read of the slots of a cluster. A server that hangs must not delay longer what
// the others can answer.
const reloadTimeout = 500 * time.Millisecond

// Primaries returns a client of each primary of a Redis Cluster that has slots, in no particular order,
// or the client itself of a lone server. It reads the slots from the cluster. When no server answers in
// time, it returns the primaries that were known before.
func Primaries(ctx context.Context, client redis.UniversalClient) (primaries []*redis.Client, err error) {
	cluster, is := client.(*redis.ClusterClient)
	if !is {
		lone, is := client.(*redis.Client)
		if !is {
			return nil, fmt.Errorf("a %T is neither a client of one Redis nor of a cluster", client)
		}
		return []*redis.Client{lone}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	var mu sync.Mutex
	err = cluster.ForEachMaster(ctx, func(_ context.Context, primary *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		primaries = append(primaries, primary)
		return nil
	})
	if err == nil && len(primaries) == 0 {
		err = errors.New("the redis cluster has no primary with slots")
	}
	return primaries, err
}

// clockTimeout bounds a read of the clocks of Redis.
const clockTimeout = time.Second

// Time reads the clocks of the servers that have some of the keys, and returns the earliest, no later than
// what each of them will read. In a cluster it leaves out the servers that do not answer in time, and returns a
// *ShardError when none does.
func Time(ctx context.Context, client redis.UniversalClient, keys ...string) (earliest time.Time, err error) {
	bounded, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()
	servers, err := primariesOf(bounded, client, keys)
	if err != nil {
		return time.Time{}, err
	}
	clocks, errs := make([]time.Time, len(servers)), make([]error, len(servers))
	var reading sync.WaitGroup
	for i, server := range servers {
		reading.Go(func() { clocks[i], errs[i] = server.Time(bounded).Result() })
	}
	reading.Wait()
	for i, now := range clocks {
		if errs[i] == nil && (earliest.IsZero() || now.Before(earliest)) {
			earliest = now
		}
	}
	cluster, is := client.(*redis.ClusterClient)
	if is && errors.Join(errs...) != nil {
		cluster.ReloadState(ctx) // it does not wait
	}
	if !earliest.IsZero() {
		return earliest, nil
	}
	if err = errors.Join(errs...); is && ctx.Err() == nil {
		err = &ShardError{servers[0].Options().Addr, err}
	}
	return time.Time{}, err
}

// primariesOf returns a client of each primary that has some of the keys, at least one, as far as the client of
// a cluster knows them, or the client itself of a lone server.
func primariesOf(ctx context.Context, client redis.UniversalClient, keys []string) (some []*redis.Client, err error) {
	cluster, is := client.(*redis.ClusterClient)
	if !is {
		return Primaries(ctx, client)
	}
	for _, key := range keys {
		primary, err := cluster.MasterForKey(ctx, key)
		if err != nil {
			return nil, fmt.Errorf("find the redis server of %s: %w", key, err)
		}
		if !slices.Contains(some, primary) {
			some = append(some, primary)
		}
	}
	return some, nil
}

type timeoutsKey struct{}

// timeouts has the errors of the servers that have not answered in time, by address.
type timeouts struct {
	mu   sync.Mutex
	errs map[string]error
}

// onceLimit bounds a pipeline in a context of TimeOutOnce. It is longer than go-redis waits for a reply by default. To
// find no connection to a host that does not answer can take go-redis twice as long.
const onceLimit = 4 * time.Second

// TimeOutOnce returns a context in which each server of a Redis Cluster times out only once: when a call has found
// no connection or got no reply within onceLimit, Run sends no more calls to that server. They get the error of the
// first. So of decisions that follow one another, not every one waits for a server that hangs.
func TimeOutOnce(ctx context.Context) context.Context {
	return context.WithValue(ctx, timeoutsKey{}, &timeouts{errs: make(map[string]error)})
}

// take sets the error of each call whose server has timed out, and returns the others.
func (t *timeouts) take(ctx context.Context, cluster *redis.ClusterClient, calls []*Call) (left []*Call) {
	if t == nil {
		return calls
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.errs) == 0 {
		return calls
	}
	for _, c := range calls {
		primary, err := cluster.MasterForKey(ctx, c.Keys[0])
		if err != nil || t.errs[primary.Options().Addr] == nil {
			left = append(left, c)
			continue
		}
		c.Status, c.Reply, c.Err = "", nil, t.errs[primary.Options().Addr]
	}
	return left
}

// record records the error of a call if its server has not answered in time.
func (t *timeouts) record(err error) {
	shard, is := errors.AsType[*ShardError](err)
	if t == nil || !is || shard.addr == "" {
		return
	}
	var timeout interface{ Timeout() bool } // context.DeadlineExceeded has it too
	if errors.Is(err, redis.ErrPoolTimeout) || errors.As(err, &timeout) && timeout.Timeout() {
		t.mu.Lock()
		t.errs[shard.addr] = shard.err
		t.mu.Unlock()
	}
}

// reload reads the slots of the cluster when a call has failed for a reason that they may explain. It
// returns the calls to send again: those that have not run because their slot has another server.
func reload(ctx context.Context, cluster *redis.ClusterClient, calls []*Call) (moved []*Call) {
	failed := false
	for _, c := range calls {
		if c.Err != nil && redis.HasErrorPrefix(c.Err, "MOVED") {
			moved = append(moved, c)
		}
		failed = failed || c.Err != nil
	}
	switch {
	case len(moved) > 0:
		if _, err := Primaries(ctx, cluster); err != nil || ctx.Err() != nil {
			return nil
		}
	case failed:
		cluster.ReloadState(ctx) // it does not wait
	}
	return moved
}
