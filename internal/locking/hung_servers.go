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

// hungServers makes the commands to servers that hang fail at once, except one now and then: else each key of each lock would
// wait for them. Commands go to a majority of the servers in any case, so that a busy moment of all of them keeps no lock
// from being taken.
type hungServers struct {
	skipFor time.Duration // hungFor, except in tests

	mu    sync.Mutex
	until []time.Time // by server: it is not asked before; zero when it has answered since
}

// newHungServers returns a hungServers of the servers that these clients lead to.
func newHungServers(clients []redis.UniversalClient) *hungServers {
	h := &hungServers{skipFor: hungFor, until: make([]time.Time, len(clients))}
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

// record records whether a server has answered in time.
func (h *hungServers) record(server int, inTime bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, skipped := time.Now(), 0
	for i, until := range h.until {
		if i != server && now.Before(until) {
			skipped++
		}
	}
	switch {
	case inTime:
		h.until[server] = time.Time{}
	case skipped < (len(h.until)-1)/2:
		h.until[server] = now.Add(h.skipFor)
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
		err := next(ctx, cmd)
		_, refused := errors.AsType[redis.Error](err)
		timeout, is := errors.AsType[net.Error](err) // context.DeadlineExceeded is one, too
		if inTime := err == nil || refused; inTime || is && timeout.Timeout() {
			k.servers.record(k.server, inTime)
		}
		return err
	}
}

func (hungHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next // redsync uses none
}
