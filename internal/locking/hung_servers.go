package locking

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// hungFor is for how long a server that has not answered in time is not asked again.
const hungFor = time.Second

// errHung is the error of a command that is not sent.
var errHung = errors.New("the server has not answered shortly before")

// hungServers makes the commands to servers that hang, or answer too late, fail at once, except one now and then: else each
// key of each lock would wait for them. It does so only while a majority of the other servers answers, so that a busy moment
// of some of them keeps no lock from being taken.
type hungServers struct {
	skipFor time.Duration // hungFor, except in tests

	mu      sync.Mutex
	failing []bool      // by server: it has not answered the last command
	until   []time.Time // by server: it is not asked before
}

// newHungServers returns a hungServers of the servers that these clients lead to.
func newHungServers(clients []redis.UniversalClient) *hungServers {
	h := &hungServers{skipFor: hungFor, failing: make([]bool, len(clients)), until: make([]time.Time, len(clients))}
	for i, client := range clients {
		client.AddHook(hungHook{h, i})
	}
	return h
}

// isSkipped reports whether a server is not asked now.
func (h *hungServers) isSkipped(server int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Before(h.until[server])
}

// record records whether a server has answered, and if not, whether it was awaited in vain.
func (h *hungServers) record(server int, answered, hung bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failing[server] = !answered
	failing := 0
	for _, is := range h.failing {
		if is {
			failing++
		}
	}
	if hung && failing <= (len(h.failing)-1)/2 {
		h.until[server] = time.Now().Add(h.skipFor)
	}
}

// hungHook is the hook of the client of one server.
type hungHook struct {
	servers *hungServers
	server  int
}

func (hungHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (k hungHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if k.servers.isSkipped(k.server) {
			cmd.SetErr(errHung)
			return errHung
		}
		began := time.Now()
		err := next(ctx, cmd)
		if errors.Is(err, context.Canceled) { // by the caller
			return err
		}
		_, refused := errors.AsType[redis.Error](err)
		timeout, is := errors.AsType[net.Error](err) // context.DeadlineExceeded is one, too
		share, bounded := ctx.Value(shareOfLease{}).(time.Duration)
		late := bounded && time.Since(began) > share // many keys would exhaust the lease
		k.servers.record(k.server, (err == nil || refused) && !late, late || is && timeout.Timeout())
		return err
	}
}

func (hungHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next // redsync uses none
}

// shareOfLease is the key of a time in a context: a server that takes longer for a key of a set is late.
type shareOfLease struct{}
