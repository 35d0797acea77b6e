package lua

import (
	"errors"

	"github.com/redis/go-redis/v9"
)

// Error is an error that Redis sends, not one of the connection. It has the text of the error that
// it wraps.
type Error struct{ err error }

// WrapError returns err as an *Error if Redis sends it. It returns all others unchanged, nil too.
func WrapError(err error) error {
	if _, found := errors.AsType[redis.Error](err); found {
		return &Error{err}
	}
	return err
}

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }

// Rejected reports whether a script failed: it has a bug that only some arguments reveal.
func (e *Error) Rejected() bool {
	return redis.HasErrorPrefix(e.err, "Error running script") || redis.HasErrorPrefix(e.err, "user_script")
}

// notServed begins the errors of a server of a Redis Cluster that does not answer for a hash slot now.
var notServed = []string{
	"MOVED", "ASK", // another server has the slot, or part of it
	"TRYAGAIN", "CLUSTERDOWN",
	"Script attempted to access a non local key", // as checkSlot does while the slot moves
	"Script attempted to execute a command while the cluster is down",
	"Script attempted to execute a write command while the cluster is down",
}

// NotServed reports whether the server has refused a call because it does not serve its hash slot now:
// the slot moves to another server, or a failover is in progress. The call has done nothing.
func (e *Error) NotServed() bool {
	for _, prefix := range notServed {
		if redis.HasErrorPrefix(e.err, prefix) {
			return true
		}
	}
	return false
}

// Denied returns the message of Redis when its user lacks a permission, "" for other errors.
func (e *Error) Denied() string {
	for _, prefix := range []string{
		"NOPERM",                              // of a command
		"The user executing the script can't", // of a command in a script, Redis 7.0
		"ACL failure in script",               // of a command in a script, Redis 7.2 and later
	} {
		if redis.HasErrorPrefix(e.err, prefix) {
			denied, _ := errors.AsType[redis.Error](e.err) // it is one
			return denied.Error()
		}
	}
	return ""
}
