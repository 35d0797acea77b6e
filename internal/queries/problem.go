package queries

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/members"
)

// Problem is the answer to a query that failed, the same by HTTP and by NATS.
type Problem struct {
	Status int    `json:"-"` // of HTTP
	Reason string `json:"error"`
	Detail string `json:"detail"`
}

// unavailable is the reason of a problem that an operator has to solve.
const unavailable = "unavailable"

// Busy is the answer to a query that exceeds the number that a worker answers at a time.
var Busy = Problem{
	http.StatusServiceUnavailable, "busy",
	"this worker is answering as many queries as it may at a time; try again in a second",
}

// down is the answer while a server does not answer.
var down = Problem{http.StatusServiceUnavailable, unavailable, "a server that this answer needs is unavailable; see /readyz"}

// tooLarge is the answer to a query by NATS whose answer is larger than the server takes.
var tooLarge = Problem{
	http.StatusRequestEntityTooLarge, "too_large",
	"the answer is larger than max_payload of NATS; ask for fewer entries, without private data, or by HTTP",
}

// errTooSlow reports that a query took too long, although the servers that it needs answer.
var errTooSlow = errors.New("reading took too long")

// tooSlow is the answer to errTooSlow.
var tooSlow = Problem{
	http.StatusServiceUnavailable, "busy", "reading took too long for an answer; try again in a few seconds",
}

// rebuilding is the detail of a query while Redis is being rebuilt.
const rebuilding = "redis has lost its data; no hold is granted until it is rebuilt"

// LogProblem returns the answer to a query that failed with an error. It logs an error that the answer does
// not contain, with a message. ctx is that of the request: it is cancelled when the client has gone, which is
// no failure.
func LogProblem(ctx context.Context, log zerolog.Logger, err error, message string) Problem {
	problem := ProblemOf(err)
	if problem.Reason == unavailable {
		level := zerolog.ErrorLevel
		if errors.Is(ctx.Err(), context.Canceled) {
			level = zerolog.DebugLevel
		}
		log.WithLevel(level).Err(err).Msg(message)
	}
	return problem
}

// Readiness is the answer of /readyz.
type Readiness struct {
	Ready   bool              `json:"ready"`
	Reasons []string          `json:"reasons"` // why it is not ready
	Details map[string]string `json:"details"` // by reason, and what does not stop a worker
}

// NotReadyError is the error of a query that fails because the worker is not ready.
type NotReadyError struct {
	Readiness
	Err error // that of the query, which an answer does not contain
}

func (e *NotReadyError) Error() string { return e.Err.Error() }

func (e *NotReadyError) Unwrap() error { return e.Err }

func (e *NotReadyError) detail() string {
	all := make([]string, len(e.Reasons))
	for i, reason := range e.Reasons {
		all[i] = reason + ": " + e.Details[reason]
	}
	return "not ready: " + strings.Join(all, "; ")
}

// ProblemOf returns the answer to a query that failed with an error.
func ProblemOf(err error) Problem {
	var malformed *members.Error
	var invalid *holds.InvalidError
	var lost *holds.RebuildingError
	var unready *NotReadyError
	switch {
	case errors.As(err, &malformed), errors.Is(err, holds.ErrHoldID):
		return Problem{http.StatusBadRequest, "bad_query", err.Error()}
	case errors.As(err, &invalid):
		return Problem{http.StatusBadRequest, "invalid_request", invalid.Error()}
	case errors.Is(err, ErrUnknownHold):
		return Problem{http.StatusNotFound, "unknown_hold", err.Error()}
	case errors.As(err, &lost) && lost.Silent:
		return down
	case errors.As(err, &lost):
		return Problem{http.StatusServiceUnavailable, "rebuilding", rebuilding + ": " + lost.Progress}
	case errors.Is(err, holds.ErrDataLost):
		return Problem{http.StatusServiceUnavailable, "rebuilding", rebuilding}
	case errors.Is(err, errTooSlow):
		return tooSlow
	case errors.As(err, &unready):
		return Problem{http.StatusServiceUnavailable, unavailable, unready.detail()}
	default:
		return down
	}
}
