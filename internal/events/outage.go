package events

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The servers that can have an outage.
const (
	serverNATS     = "nats"
	serverPostgres = "postgres"
	serverRedis    = "redis"
)

// outageQuiet is the time without a failure after which an outage is over. A failed event is
// retried within it.
const outageQuiet = 3 * delayPause

// ofServer is an error whose server is known. *serverError and *postgres.Error implement it.
type ofServer interface {
	error
	Server() string
}

// deniedError is an error of a server that may have denied something. *postgres.Error and
// *lua.Error implement it.
type deniedError interface {
	error
	// Denied returns the server's message when its user lacks a permission, "" for other errors.
	Denied() string
}

// serverError is an error whose server is known because only that server was called.
type serverError struct {
	server string
	err    error
}

func (e *serverError) Error() string  { return e.err.Error() }
func (e *serverError) Unwrap() error  { return e.err }
func (e *serverError) Server() string { return e.server }

// errDisconnected replaces the error of a client that is disconnected: it speaks of a buffer that workers do not use.
var errDisconnected = errors.New("not connected")

// ofNATS returns err as an error of NATS, or nil if err is nil.
func ofNATS(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, nats.ErrReconnectBufExceeded):
		err = errDisconnected
	}
	return &serverError{serverNATS, err}
}

// serverOf returns the server that an error comes from, or both servers that it may come from.
func serverOf(err error) string {
	if known, found := errors.AsType[ofServer](err); found {
		return known.Server()
	}
	if isAny(context.DeadlineExceeded, context.Canceled)(err) {
		return serverRedis + " or " + serverPostgres
	}
	return serverRedis
}

// denialOf returns the message of a server whose user lacks a permission, "" for other errors. For
// NATS, the connection logs missing permissions (see Connect): a denied request gets no answer.
func denialOf(err error) string {
	if denied, found := errors.AsType[deniedError](err); found {
		return denied.Denied()
	}
	return ""
}

// denialsMax bounds how many missing permissions are logged in one outage.
const denialsMax = 16

// outage is a period in which a process cannot process events, for reasons outside the events.
type outage struct {
	server string
	began  time.Time
	failed time.Time       // of the last failure
	worked time.Time       // of the first success after it; zero before that
	denied map[string]bool // the missing permissions that were logged
}

// recordFailure records that an event could not be processed, and logs the first failure of an
// outage, and each missing permission once: when one is granted, the next one continues the outage.
func (p *Process) recordFailure(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, denial := time.Now(), denialOf(err)
	if p.outage == nil {
		p.outage = &outage{server: serverOf(err), began: now, denied: make(map[string]bool)}
		p.log.Error().Err(err).Str("server", p.outage.server).Msg("event processing paused")
	} else if denial != "" && !p.outage.denied[denial] && len(p.outage.denied) < denialsMax {
		p.log.Error().Err(err).Str("server", serverOf(err)).Msg("event processing still paused")
	}
	if denial != "" && len(p.outage.denied) < denialsMax {
		p.outage.denied[denial] = true
	}
	p.outage.failed, p.outage.worked = now, time.Time{}
}

// shardOutage is a period in which one server of a Redis Cluster does not serve its partitions. Only their
// events wait, so it is no outage of the process.
type shardOutage struct {
	shard         string
	began, failed time.Time // the first failure, and the last one
}

// shardQuiet is the time without a failure after which the next one begins another outage of a shard. While
// the shard fails, a deferred event is retried within it.
const shardQuiet = time.Minute

// probeQuiet is the time without a failure of a shard after which some of its events are retried.
const probeQuiet = time.Second

// isQuiet reports whether a shard has not failed for probeQuiet.
func (p *Process) isQuiet(of *shardOutage) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(of.failed) > probeQuiet
}

// recordShardFailure records an error for which one server of a Redis Cluster is to blame, and logs the first
// one of an outage. It returns the outage.
func (p *Process) recordShardFailure(err error) *shardOutage {
	shard := ""
	if known, is := errors.AsType[shardError](err); is {
		shard = known.Shard()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	of := p.shards[shard]
	if of == nil || now.Sub(of.failed) > shardQuiet {
		of = &shardOutage{shard: shard, began: now}
		p.shards[shard] = of
		p.log.Error().Err(err).Str("shard", shard).Msg("redis shard fails, its events deferred")
	}
	of.failed = now
	return of
}

// recordShardRecovery records that a server has answered for an event that was deferred in an outage, and logs
// the end of that outage.
func (p *Process) recordShardRecovery(over *shardOutage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shards[over.shard] != over {
		return // logged, or the shard has failed again
	}
	delete(p.shards, over.shard)
	p.log.Info().Str("shard", over.shard).Int64("duration_ms", time.Since(over.began).Milliseconds()).
		Msg("redis shard serves events again")
}

// recordRecovery records that a consumer processes events again.
func (p *Process) recordRecovery() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.outage != nil && p.outage.worked.IsZero() {
		p.outage.worked = time.Now()
	}
}

// checkOutage logs the end of an outage when it is over for all consumers.
func (p *Process) checkOutage() {
	p.mu.Lock()
	defer p.mu.Unlock()
	over := p.outage
	if over == nil || over.worked.IsZero() || time.Since(over.failed) < outageQuiet ||
		slices.ContainsFunc(p.consumers, (*Consumer).Paused) {
		return
	}
	p.outage = nil
	p.log.Info().Str("server", over.server).Int64("duration_ms", over.worked.Sub(over.began).Milliseconds()).
		Msg("event processing resumed")
}

// Paused reports whether the consumer waits for an outage to end: something has failed within
// pausedFor, and no event was answered since. A failed fetch counts until one has worked.
func (c *Consumer) Paused() bool {
	return c.failing.Load() && time.Since(c.failure.Load().at) < pausedFor
}

// Outage returns why the consumer is paused, nil when it is not.
func (c *Consumer) Outage() error {
	if !c.Paused() {
		return nil
	}
	cause := c.failure.Load().err
	return fmt.Errorf("%s: %w", serverOf(cause), cause)
}

// OperatorPause returns the pause of the durable consumer by an operator, nil when there is none. It is
// up to superviseEvery old.
func (c *Consumer) OperatorPause() *Pause { return PauseOf(c.durable.Load()) }

// failure is an error that is not an event's own.
type failure struct {
	err         error
	at          time.Time
	onlyFetches bool // it is that of a fetch, and nothing else had failed: a fetch that works ends the outage
}

// recordOutage records a failure that is not an event's own error.
func (c *Consumer) recordOutage(err error, onlyFetches bool) {
	c.failure.Store(&failure{err, time.Now(), onlyFetches})
	c.failing.Store(true)
	c.process.recordFailure(err)
}

// recordSuccess records that the servers work.
func (c *Consumer) recordSuccess() {
	if c.failing.Swap(false) {
		c.process.recordRecovery()
	}
}

const (
	leaveAfter = 30 * time.Second // see leaveServer
	leaveEvery = time.Minute      // the least time between two reconnects of a process for that
)

// leaveServer connects to another NATS server when all fetches of the process have failed for leaveAfter although the
// connection works: a server that is cut off from its cluster keeps its clients, and answers nothing. It takes the result of
// a fetch, and since when the fetches before it have failed, zero for not at all. It returns the same after this one.
func (c *Consumer) leaveServer(ctx context.Context, err error, failing time.Time) time.Time {
	now := time.Now()
	if !isUnavailable(err) || !c.nc.IsConnected() || ctx.Err() != nil {
		failing = time.Time{}
	} else if failing.IsZero() {
		failing = now
	}
	if c.process.leaves(now, err == nil, failing, c.leaveAfter) {
		c.reconnect(ctx, "nats server fails all fetches, connecting to another one")
	}
	return failing
}

// leaves records whether a fetch has worked, and reports whether to leave the server when the fetches of one consumer have
// failed for so long, since a time that is zero when they have not: those of the others must have failed too.
func (p *Process) leaves(now time.Time, worked bool, failing time.Time, after time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if worked {
		p.fetchedAt = now
	}
	if failing.IsZero() || now.Sub(failing) < after || p.fetchedAt.After(failing) || now.Sub(p.leftAt) < leaveEvery {
		return false
	}
	p.leftAt = now
	return true
}

// isUnavailable reports whether a server has not answered a request, or says that JetStream is not available.
func isUnavailable(err error) bool {
	refused, is := errors.AsType[*jetstream.APIError](err)
	return is && refused.Code == http.StatusServiceUnavailable ||
		isAny(context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders)(err)
}
