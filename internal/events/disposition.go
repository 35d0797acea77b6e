package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
)

// disposition is what is done with an event that has no outcome yet.
type disposition int

const (
	dispositionRetrySoon    disposition = iota // other work is in the way: deliver it again soon
	dispositionPause                           // nobody's fault: deliver it again, and fetch no more for a while
	dispositionDefer                           // what there is of its resource is damaged: it waits until that is mended, others do not
	dispositionRetryCounted                    // perhaps its own fault: try it alone, then again, then it is poison
	dispositionDeadLetter                      // it can never be processed: dead letter
)

// The delays until an event is delivered again.
const (
	delayRetrySoon    = 150 * time.Millisecond
	delayPause        = 2 * time.Second
	delayCorrupt      = 300 * time.Millisecond
	delayRetryCounted = 200 * time.Millisecond
	delayMax          = 5 * time.Second
	failuresMax       = 5 // times that an event may fail alone before it is poison
)

// backoffDelay doubles a delay with each delivery after the first, up to delayMax.
func backoffDelay(delay time.Duration, deliveries uint64) time.Duration {
	return backoffDelayTo(delay, deliveries, delayMax)
}

func backoffDelayTo(delay time.Duration, deliveries uint64, limit time.Duration) time.Duration {
	for ; deliveries > 1 && delay < limit; deliveries-- {
		delay *= 2
	}
	return min(delay, limit)
}

// encodeError says that an outcome could not be written.
type encodeError struct{ error }

// panicError is a panic while events were being decided.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// dispositionOf turns an error into what is done with its event. What is not known to be an event's
// own fault is an outage: an event waits rather than dies.
func dispositionOf(err error) disposition {
	var dead *UnprocessableError
	var panicked *panicError
	var unwritten *encodeError
	var oversized *oversizedError
	var postgres *pgconn.PgError
	switch {
	case errors.As(err, &dead):
		return dispositionDeadLetter
	case errors.Is(err, holds.ErrBusy), isBeingStored(err):
		return dispositionRetrySoon
	case errors.Is(err, holds.ErrDataLost), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return dispositionPause
	case errors.Is(err, holds.ErrCorrupt):
		return dispositionDefer
	case errors.As(err, &panicked), errors.As(err, &unwritten), errors.As(err, &oversized):
		return dispositionRetryCounted
	case errors.As(err, &postgres) && (postgres.Code[:2] == "22" || postgres.Code[:2] == "23"):
		return dispositionRetryCounted // data exception, constraint violation
	case redis.HasErrorPrefix(err, "Error running script"), redis.HasErrorPrefix(err, "user_script"):
		return dispositionRetryCounted // a mistake in a script that only some events meet
	default:
		return dispositionPause
	}
}
