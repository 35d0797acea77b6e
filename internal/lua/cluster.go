package lua

import (
	"context"
	"errors"
	"fmt"
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
		err = errNoPrimary
	}
	return primaries, err
}

var errNoPrimary = errors.New("the redis cluster has no primary with slots")

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
