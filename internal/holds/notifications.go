package holds

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

const watchPing = 10 * time.Second // silence after which the subscription is pinged

// ExpiredChannel is the pattern of the channels on which Redis tells of keys that have lapsed. A
// user who may subscribe to it has it in its rules letter by letter.
const ExpiredChannel = "__keyevent@*__:expired"

// Watch listens for keyspace notifications until ctx is over. They are hints: Redis sends one
// when it deletes the key, late or never. After every subscription, the first and each that
// follows a cut, everything is swept once, because what lapsed in between was not heard.
func (e *Expirer) Watch(ctx context.Context) error {
	if e.options.NoNotifications {
		e.setNotificationError(errors.New("switched off"))
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

// listen subscribes and listens until the connection fails or ctx is over. A connection that
// says nothing, not even that it got a ping, has failed.
func (e *Expirer) listen(ctx context.Context) error {
	pubsub := e.service.redis.PSubscribe(ctx, ExpiredChannel)
	stop := context.AfterFunc(ctx, func() { _ = pubsub.Close() })
	defer func() { stop(); _ = pubsub.Close() }() // nothing is left to be told
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
			e.log.Warn().Err(err).Msg("keyspace notifications cannot be switched on, without them lapsed holds are noticed by the timer alone")
		}
		e.requestSweep(allPartitions)
	case *redis.Message:
		e.setNotificationError(nil) // they come, whether or not we may ask for them
		if p, ours := e.service.keys.PartitionOfHold(m.Payload); ours {
			e.requestSweep(p)
		}
	}
}

// enableNotifications adds what we need to the server's notify-keyspace-events, which a restart
// forgets. It returns an error where that is forbidden.
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

// containsFlag reports whether flags include need; "A" stands for every class of events, x among them.
func containsFlag(flags, need string) bool {
	for _, f := range flags {
		if string(f) == need || f == 'A' && need == "x" {
			return true
		}
	}
	return false
}
