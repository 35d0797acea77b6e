package bench

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

//go:embed ceiling.lua
var ceilingSource string

const (
	ceilingConnections = 4
	ceilingBatch       = 64  // calls in one round trip
	ceilingRecord      = 150 // bytes of a hold
)

// ceiling measures how many holds per second Redis can place with the least script. It prepares all
// calls before it starts the clock.
func (b *runner) ceiling(ctx context.Context, nights int, what load) (rate Rate, err error) {
	script := redis.NewScript(ceilingSource)
	if err := script.Load(ctx, b.redis).Err(); err != nil {
		return Rate{}, fmt.Errorf("ceiling: load script: %w", err)
	}
	namespace := b.name + "_ceiling"
	defer func() { err = errors.Join(err, b.removeKeys(context.WithoutCancel(ctx), namespace)) }()
	var connections [ceilingConnections]*redis.Conn
	var calls [ceilingConnections][]ceilingCall
	for c := range connections {
		connections[c] = b.redis.Conn()
		defer func() { err = errors.Join(err, connections[c].Close()) }()
		if err := connections[c].Ping(ctx).Err(); err != nil {
			return Rate{}, fmt.Errorf("ceiling: %w", err)
		}
		calls[c] = ceilingCallsOf(namespace, c, b.ceilingCalls/ceilingConnections, nights, what)
	}
	var clients errgroup.Group
	before := b.processorTimes(nil)
	began := time.Now()
	for c := range connections {
		clients.Go(func() error { return ceilingOn(ctx, script, connections[c], calls[c]) })
	}
	err = clients.Wait()
	took := time.Since(began)
	if err != nil {
		return Rate{}, fmt.Errorf("ceiling: %w", err)
	}
	return newRate(b.ceilingCalls/ceilingConnections*ceilingConnections, took, b.processorTimes(nil).since(before))
}

// ceilingCall is one call of the least script.
type ceilingCall struct {
	keys []string
	args []any
}

// ceilingData is what a hold of the ceiling stores.
var ceilingData = strings.Repeat("x", ceilingRecord)

// newCeilingCall returns a call for a hold, without its nights. prefix is that of the resource's keys.
func newCeilingCall(prefix, id string, capacity, deadline int64) ceilingCall {
	return ceilingCall{
		keys: []string{prefix + "request:" + id, prefix + "hold:" + id, prefix + "counts", prefix + "due"},
		args: []any{id, 1, capacity, time.Hour.Milliseconds(), deadline, ceilingData},
	}
}

// ceilingCallsOf returns the calls for one connection.
func ceilingCallsOf(namespace string, connection, number, nights int, what load) []ceilingCall {
	first := time.Now().UTC()
	var names [calendar]any
	for n := range names {
		names[n] = first.AddDate(0, 0, n).Format(time.DateOnly)
	}
	deadline := time.Now().Add(time.Hour).UnixMilli()
	calls := make([]ceilingCall, number)
	for i := range calls {
		id := fmt.Sprintf("%08d%024d", connection, i)
		resource := namespace + ":" + resourceName(what.pick(connection*number+i)) + ":"
		from := rand.IntN(calendar - nights + 1)
		calls[i] = newCeilingCall(resource, id, unlimitedCapacity, deadline)
		calls[i].args = append(calls[i].args, names[from:from+nights]...)
	}
	return calls
}

// ceilingOn sends the calls over one connection. It returns an error if a call places no hold.
func ceilingOn(ctx context.Context, script *redis.Script, conn *redis.Conn, calls []ceilingCall) error {
	for batch := range slices.Chunk(calls, ceilingBatch) {
		pipe := conn.Pipeline()
		replies := make([]*redis.Cmd, len(batch))
		for i, call := range batch {
			replies[i] = script.EvalSha(ctx, pipe, call.keys, call.args...)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
		for _, reply := range replies {
			if n, err := reply.Int(); err != nil {
				return err
			} else if n != 1 {
				return fmt.Errorf("script returned %d, want 1", n)
			}
		}
	}
	return nil
}
