package bench

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed ceiling.lua
var ceilingSource string

// How the ceiling is asked for.
const (
	ceilingConnections = 4
	ceilingBatch       = 64  // calls in one round trip
	ceilingRecord      = 150 // bytes
)

// ceiling measures how many holds a second Redis can do by the least of all scripts. What is sent is
// made before the clock runs.
func (b *runner) ceiling(ctx context.Context, nights, resources int) (rate Rate, err error) {
	script := redis.NewScript(ceilingSource)
	if err := script.Load(ctx, b.redis).Err(); err != nil {
		return Rate{}, fmt.Errorf("load the ceiling's script: %w", err)
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
		calls[c] = ceilingCallsOf(namespace, c, b.ceilingCalls/ceilingConnections, nights, resources)
	}
	errs := make([]error, ceilingConnections)
	var clients sync.WaitGroup
	before := b.processorTimes(nil)
	began := time.Now()
	for c := range connections {
		clients.Go(func() { errs[c] = ceilingOn(ctx, script, connections[c], calls[c]) })
	}
	clients.Wait()
	took := time.Since(began)
	if err := errors.Join(errs...); err != nil {
		return Rate{}, fmt.Errorf("ceiling: %w", err)
	}
	return newRate(b.ceilingCalls/ceilingConnections*ceilingConnections, took, b.processorTimes(nil).since(before))
}

// ceilingCall is one hold of the ceiling.
type ceilingCall struct {
	keys []string
	args []any
}

// ceilingCallsOf makes the calls of one connection.
func ceilingCallsOf(namespace string, connection, number, nights, resources int) []ceilingCall {
	record := strings.Repeat("x", ceilingRecord)
	first := time.Now().UTC()
	var names [calendar]any
	for n := range names {
		names[n] = first.AddDate(0, 0, n).Format(time.DateOnly)
	}
	deadline := time.Now().Add(time.Hour).UnixMilli()
	calls := make([]ceilingCall, number)
	for i := range calls {
		id := fmt.Sprintf("%08d%024d", connection, i)
		resource := namespace + ":r" + strconv.Itoa(rand.IntN(resources)) + ":"
		from := rand.IntN(calendar - nights + 1)
		calls[i] = ceilingCall{
			keys: []string{resource + "request:" + id, resource + "hold:" + id, resource + "counts", resource + "due"},
			args: append([]any{id, 1, roomy, time.Hour.Milliseconds(), deadline, record}, names[from:from+nights]...),
		}
	}
	return calls
}

// ceilingOn makes calls on one connection.
func ceilingOn(ctx context.Context, script *redis.Script, conn *redis.Conn, calls []ceilingCall) error {
	for some := range slices.Chunk(calls, ceilingBatch) {
		pipe := conn.Pipeline()
		answers := make([]*redis.Cmd, len(some))
		for i, call := range some {
			answers[i] = script.EvalSha(ctx, pipe, call.keys, call.args...)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
		for _, answer := range answers {
			if n, err := answer.Int(); err != nil {
				return err
			} else if n != 1 {
				return fmt.Errorf("the script answered %d", n)
			}
		}
	}
	return nil
}
