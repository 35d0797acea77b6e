package holds

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

const watchPing = 10 * time.Second // time without a message after which the subscription is pinged

// ExpiredChannel is the pattern of the channels on which Redis publishes expired keys. The ACL
// rules of a Redis user must contain exactly this pattern, because Redis compares it as text.
const ExpiredChannel = "__keyevent@*__:expired"

// Watch listens for keyspace notifications until ctx is done. They are only hints: Redis sends one
// when it deletes the key, which may be late or never. After every new subscription Watch requests
// a sweep of all partitions, because it may have missed notifications before.
func (e *Expirer) Watch(ctx context.Context) error {
	if e.options.NoNotifications {
		e.setNotificationError(errors.New("disabled"))
		<-ctx.Done()
		return nil
	}
	for ctx.Err() == nil {
		if err := e.listen(ctx); err != nil && ctx.Err() == nil {
			e.setNotificationError(err)
			select {
			case <-ctx.Done():
			case <-time.After(sweepRetry):
			}
		}
	}
	return nil
}

// listen subscribes and listens until the connection fails or ctx is done. A connection that does
// not even answer a ping has failed.
func (e *Expirer) listen(ctx context.Context) error {
	pubsub := e.service.redis.PSubscribe(ctx, ExpiredChannel)
	stop := context.AfterFunc(ctx, func() { _ = pubsub.Close() })
	defer func() { stop(); _ = pubsub.Close() }() // an error of Close has no consequence here
	for silent := false; ; {
		message, err := pubsub.ReceiveTimeout(ctx, watchPing)
		var timeout interface{ Timeout() bool }
		switch {
		case errors.As(err, &timeout) && timeout.Timeout() && !silent && ctx.Err() == nil:
			silent = true
			if err := pubsub.Ping(ctx); err != nil {
				return err
			}
		case err != nil:
			return err
		default:
			silent = false
			e.handleMessage(ctx, message)
		}
	}
}

func (e *Expirer) handleMessage(ctx context.Context, message any) {
	switch m := message.(type) {
	case *redis.Subscription:
		err := e.enableNotifications(ctx)
		e.setNotificationError(err)
		if err != nil {
			e.log.Warn().Err(err).Msg("keyspace notifications unavailable, using timer only")
		}
		e.requestSweep(allPartitions)
	case *redis.Message:
		e.setNotificationError(nil) // they arrive, even if this worker may not enable them
		if p, ours := e.service.keys.PartitionOfHold(m.Payload); ours {
			e.requestSweep(p)
		}
	}
}

// enableNotifications adds the flags E and x to the server's notify-keyspace-events. A restart of
// the server resets the option. enableNotifications returns an error when it lacks the permission.
func (e *Expirer) enableNotifications(ctx context.Context) error {
	const option = "notify-keyspace-events"
	current, err := e.service.redis.ConfigGet(ctx, option).Result()
	if err != nil {
		return fmt.Errorf("read %s: %w", option, err)
	}
	flags := current[option]
	for _, need := range []string{"E", "x"} {
		if !containsFlag(flags, need) {
			flags += need
		}
	}
	if flags == current[option] {
		return nil
	}
	if err := e.service.redis.ConfigSet(ctx, option, flags).Err(); err != nil {
		return fmt.Errorf("set %s to %s: %w", option, flags, err)
	}
	return nil
}

// containsFlag reports whether flags include need. The flag "A" includes x.
func containsFlag(flags, need string) bool {
	for _, f := range flags {
		if string(f) == need || f == 'A' && need == "x" {
			return true
		}
	}
	return false
}
