package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/holds"
)

// disposition is what happens to an event that has an error instead of an outcome.
type disposition int

const (
	// dispositionRetrySoon: other work is in the way. The event is delivered again soon.
	dispositionRetrySoon disposition = iota
	// dispositionPause: the error is not the event's own. The event is delivered again, and the
	// consumer pauses.
	dispositionPause
	// dispositionDefer: the data of its resource is corrupt. The event waits until that is repaired,
	// other events do not.
	dispositionDefer
	// dispositionDeferLost: Redis has lost the data of its partition. The event waits until that is
	// rebuilt, events of other partitions do not.
	dispositionDeferLost
	// dispositionDeferShard: the server of a Redis Cluster that has its partition does not serve it now. The
	// event waits, events of other servers do not.
	dispositionDeferShard
	// dispositionRetryCounted: the error may be the event's own. The event is decided alone, then
	// again, and after failuresMax failures it is poison.
	dispositionRetryCounted
	// dispositionDeadLetter: the event can never be processed. It gets a dead letter.
	dispositionDeadLetter
)

// dispositions lists which errors lead to which disposition. The first match counts. An error that
// is not listed leads to dispositionPause: it is better that an event waits than that it is lost.
var dispositions = []struct {
	matches func(error) bool
	disposition
}{
	{is[*UnprocessableError], dispositionDeadLetter},
	{is[*holds.UnreachableError], dispositionPause}, // whatever the check has found
	{isAny(holds.ErrBusy), dispositionRetrySoon},
	{isBeingStored, dispositionRetrySoon},
	{isAny(holds.ErrDataLost), dispositionPause},
	{is[shardError], dispositionDeferShard}, // also when the server has exceeded a timeout
	{isAny(context.Canceled, context.DeadlineExceeded), dispositionPause},
	{isAny(holds.ErrCorrupt), dispositionDefer},
	{is[*panicError], dispositionRetryCounted},
	{is[*encodeError], dispositionRetryCounted},
	{is[*oversizedError], dispositionRetryCounted},
	{isRejected, dispositionRetryCounted},
}

// dispositionOf returns what happens to an event that has this error.
func dispositionOf(err error) disposition {
	for _, row := range dispositions {
		if row.matches(err) {
			return row.disposition
		}
	}
	return dispositionPause
}

// disposition returns what happens to an event of the consumer that has this error. The consumer pauses
// for lost data only while all partitions are lost.
func (c *Consumer) disposition(err error) disposition {
	of := dispositionOf(err)
	if of == dispositionPause && errors.Is(err, holds.ErrDataLost) && c.service.Ready() {
		return dispositionDeferLost
	}
	return of
}

// is reports whether an error is or wraps one of type E.
func is[E error](err error) bool { _, found := errors.AsType[E](err); return found }

// isAny returns a function that reports whether an error is or wraps one of the targets.
func isAny(targets ...error) func(error) bool {
	return func(err error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
}

// rejectedError is an error of a server that may have rejected the data of the event: Postgres an
// invalid value or a violated constraint, Redis an error within a script. *postgres.Error and
// *lua.Error implement it.
type rejectedError interface {
	error
	Rejected() bool
}

func isRejected(err error) bool {
	refused, found := errors.AsType[rejectedError](err)
	return found && refused.Rejected()
}

// shardError is an error for which one server of a Redis Cluster is to blame. *lua.ShardError implements it.
type shardError interface {
	error
	Shard() string // the address of the server, "" when it is unknown
}

// encodeError is the error of an outcome that cannot be encoded.
type encodeError struct{ error }

// panicError is the error of an event whose processing panicked.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// The delays until an event is delivered again.
const (
	delayRetrySoon    = 150 * time.Millisecond
	delayPause        = 2 * time.Second
	delayCorrupt      = 300 * time.Millisecond
	delayRetryCounted = 200 * time.Millisecond
	delayMax          = 5 * time.Second
	delayDeadLetter   = time.Minute // the most while the stream refuses the dead letter of an event
	failuresMax       = 5           // an event that has failed alone so often is poison
)

// backoffDelay returns delay, doubled with each delivery after the first, but at most delayMax.
func backoffDelay(delay time.Duration, deliveries uint64) time.Duration {
	return backoffDelayTo(delay, deliveries, delayMax)
}

func backoffDelayTo(delay time.Duration, deliveries uint64, limit time.Duration) time.Duration {
	for ; deliveries > 1 && delay < limit; deliveries-- {
		delay *= 2
	}
	return min(delay, limit)
}
