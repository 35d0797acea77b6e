package lua

import (
	"context"
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

// ShardError is the error of a call for which one server of a Redis Cluster is to blame, while the others may
// answer: it is down, or it refuses its hash slots, writes or memory now. After an error of the connection
// the call may have run.
type ShardError struct {
	addr string
	err  error
}

func (e *ShardError) Error() string { return e.err.Error() }
func (e *ShardError) Unwrap() error { return e.err }

// Shard returns the address of the server, "" when it is unknown.
func (e *ShardError) Shard() string { return e.addr }

// OfShard returns an error of a command on a key, as a *ShardError if the client is that of a Redis Cluster and
// only the server of the key is to blame: not when the caller's context has ended, or when every server would
// refuse the command.
func OfShard(ctx context.Context, client redis.UniversalClient, key string, err error) error {
	cluster, is := client.(*redis.ClusterClient)
	if err == nil || !is || ctx.Err() != nil {
		return err
	}
	if refused, is := errors.AsType[*Error](WrapError(err)); is {
		wrongType := redis.HasErrorPrefix(refused.err, "WRONGTYPE")
		if refused.Rejected() || wrongType || refused.Denied() != "" {
			return err
		}
	}
	addr := ""
	if primary, err := cluster.MasterForKey(ctx, key); err == nil {
		addr = primary.Options().Addr
	}
	return &ShardError{addr, err}
}

// Denied returns the message of Redis when its user lacks a permission, "" for other errors.
func (e *Error) Denied() string {
	if !redis.HasErrorPrefix(e.err, "NOPERM") && !deniedInScript(e.err) {
		return ""
	}
	denied, _ := errors.AsType[redis.Error](e.err) // it is one
	return denied.Error()
}

// deniedInScript reports whether the user lacks a permission for a command in a script.
func deniedInScript(err error) bool {
	return redis.HasErrorPrefix(err, "The user executing the script can't") || // Redis 7.0
		redis.HasErrorPrefix(err, "ACL failure in script") // Redis 7.2 and later
}
