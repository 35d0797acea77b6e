package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/go-redis/v9"
)

// The servers that an outage may be of.
const (
	serverNATS     = "nats"
	serverPostgres = "postgres"
	serverRedis    = "redis"
)

// An outage is over when nothing has failed for so long: what has failed is retried within it.
const outageQuiet = 3 * delayPause

// serverError is an error of a server that is known by where the error came from.
type serverError struct {
	server string
	err    error
}

func (e *serverError) Error() string { return e.err.Error() }
func (e *serverError) Unwrap() error { return e.err }

// ofNATS says of an error, unless it is nil, that it is one of NATS.
func ofNATS(err error) error {
	if err == nil {
		return nil
	}
	return &serverError{serverNATS, err}
}

// serverOf names the server, or the two, that an error is of.
func serverOf(err error) string {
	var known *serverError
	var refused *pgconn.PgError
	var unconnected *pgconn.ConnectError
	var postgres interface {
		error
		SafeToRetry() bool
	}
	switch {
	case errors.As(err, &known):
		return known.server
	case errors.As(err, &refused), errors.As(err, &unconnected), errors.As(err, &postgres):
		return serverPostgres
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return serverRedis + " or " + serverPostgres
	default:
		return serverRedis
	}
}

// denialsMax bounds how many missing permissions are logged in one outage.
const denialsMax = 16

// outage is a time in which a process cannot process events for no fault of theirs.
type outage struct {
	server string
	began  time.Time
	failed time.Time       // when something failed last
	worked time.Time       // when something worked again after that, zero = not yet
	denied map[string]bool // the missing permissions that are logged
}

// recordFailure notes that an event could not be processed, and logs when that begins an outage. It also logs each permission
// that is missing, once in an outage: when an operator grants one, the next that is missing continues the same outage.
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

// denialOf returns what a server answers when it denies something for lack of a permission, "" for other errors. What
// NATS denies is logged by its connection (see Connect): a request that is denied there has no answer.
func denialOf(err error) string {
	const insufficientPrivilege = "42501"
	if refused, is := errors.AsType[*pgconn.PgError](err); is && refused.Code == insufficientPrivilege {
		return refused.Message
	}
	for _, prefix := range []string{
		"NOPERM",                              // of a command
		"The user executing the script can't", // of a command in a script, Redis 7.0
		"ACL failure in script",               // later versions
	} {
		if redis.HasErrorPrefix(err, prefix) {
			refused, _ := errors.AsType[redis.Error](err) // it is one
			return refused.Error()
		}
	}
	return ""
}

// recordRecovery notes that a consumer that could not process events does so again.
func (p *Process) recordRecovery() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.outage != nil && p.outage.worked.IsZero() {
		p.outage.worked = time.Now()
	}
}

// checkOutage logs the end of an outage when it is over for all consumers.
func (p *Process) checkOutage(ctx context.Context) {
	p.mu.Lock()
	over := p.outage
	if over == nil || over.worked.IsZero() || time.Since(over.failed) < outageQuiet {
		p.mu.Unlock()
		return
	}
	for _, c := range p.consumers {
		if c.Paused() {
			p.mu.Unlock()
			return
		}
	}
	p.outage = nil
	consumers := p.consumers
	p.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, streamRequestLimit)
	defer cancel()
	waiting := uint64(0)
	for _, c := range consumers {
		number, err := c.backlog(ctx)
		if err != nil {
			p.log.Debug().Err(err).Str("consumer", c.name).Msg("events that wait were not counted")
		}
		waiting += number
	}
	p.log.Info().Str("server", over.server).Int64("duration_ms", over.worked.Sub(over.began).Milliseconds()).
		Uint64("events_waiting", waiting).Msg("event processing resumed")
}

// backlog returns how many events of the durable consumer have no outcome yet. That of requests counts those of the
// other two only until it has passed over them.
func (c *Consumer) backlog(ctx context.Context) (uint64, error) {
	consumer, err := c.js.Consumer(ctx, c.ns.InStream(), c.name)
	if err != nil {
		return 0, err
	}
	info := consumer.CachedInfo()
	return info.NumPending + uint64(info.NumAckPending), nil
}

// Paused reports whether the consumer waits for an outage to end: something has failed lately
// and nothing was settled since.
func (c *Consumer) Paused() bool {
	return c.failing.Load() && time.Since(time.Unix(0, c.failedAt.Load())) < pausedFor
}

// Outage returns why the consumer is paused, nil when it is not.
func (c *Consumer) Outage() error {
	cause := c.outageErr.Load()
	if cause == nil || !c.Paused() {
		return nil
	}
	return fmt.Errorf("%s: %w", serverOf(*cause), *cause)
}

// recordOutage notes that something failed for no fault of an event.
func (c *Consumer) recordOutage(err error) {
	c.outageErr.Store(&err)
	c.failedAt.Store(time.Now().UnixNano())
	c.failing.Store(true)
	c.process.recordFailure(err)
}

// recordSuccess notes that things work.
func (c *Consumer) recordSuccess() {
	if c.failing.Swap(false) {
		c.process.recordRecovery()
	}
}
