package holds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/lua"
	"holdfast/internal/record"
)

const watchPing = 10 * time.Second // time without a message after which the subscription is pinged

// ExpiredChannel is the pattern of the channels on which Redis publishes expired keys. The ACL
// rules of a Redis user must contain exactly this pattern, because Redis compares it as text.
const ExpiredChannel = "__keyevent@*__:expired"

// Watch listens for keyspace notifications until ctx is done. They are only hints: Redis sends one
// when it deletes the key, which may be late or never. After every new subscription Watch requests
// a sweep of all partitions, because it may have missed notifications before.
//
// In a cluster each server sends the notifications of its own keys, so Watch listens to every
// primary, also to those that become one.
func (e *Expirer) Watch(ctx context.Context) error {
	if e.options.NoNotifications {
		e.setNotificationError("", errors.New("disabled"))
		<-ctx.Done()
		return nil
	}
	listeners := make(map[*redis.Client]context.CancelFunc)
	var listening sync.WaitGroup
	defer listening.Wait()
	check := time.NewTicker(primariesCheck)
	defer check.Stop()
	for {
		if primaries, err := lua.Primaries(ctx, e.service.redis); err == nil {
			for client, stop := range listeners {
				if !slices.Contains(primaries, client) {
					stop()
					delete(listeners, client)
				}
			}
			for _, client := range primaries {
				if listeners[client] == nil {
					its, stop := context.WithCancel(ctx)
					listeners[client] = stop
					listening.Go(func() { e.watchServer(its, client) })
				}
			}
		}
		select {
		case <-ctx.Done():
			for _, stop := range listeners {
				stop()
			}
			return nil
		case <-check.C:
		}
	}
}

// primariesCheck is the time between two reads of the primaries to listen to.
const primariesCheck = 2 * time.Second

// watchServer listens to one server until ctx is done. Then NotificationError does not count the server.
func (e *Expirer) watchServer(ctx context.Context, client *redis.Client) {
	name := client.Options().Addr
	for ctx.Err() == nil {
		if err := e.listen(ctx, client); err != nil && ctx.Err() == nil {
			e.setNotificationError(name, err)
			select {
			case <-ctx.Done():
			case <-time.After(sweepRetry):
			}
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.notificationErrs, name)
}

// listen subscribes and listens until the connection fails or ctx is done. A connection that does
// not even answer a ping has failed.
func (e *Expirer) listen(ctx context.Context, client *redis.Client) error {
	pubsub := client.PSubscribe(ctx, ExpiredChannel)
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
			e.handleMessage(ctx, message, client)
		}
	}
}

func (e *Expirer) handleMessage(ctx context.Context, message any, client *redis.Client) {
	name := client.Options().Addr
	switch m := message.(type) {
	case *redis.Subscription:
		err := enableNotifications(ctx, client)
		e.setNotificationError(name, err)
		if err != nil {
			e.log.Warn().Err(err).Msg("keyspace notifications unavailable, using timer only")
		}
		e.requestSweep(record.AllPartitions)
	case *redis.Message:
		e.setNotificationError(name, nil) // they arrive, even if this worker may not enable them
		if p, ours := e.service.keys.PartitionOfHold(m.Payload); ours {
			e.requestSweep(record.PartitionSetOf(p))
		}
	}
}

// enableNotifications adds the flags E and x to a server's notify-keyspace-events. A restart of
// the server resets the option. enableNotifications returns an error when it lacks the permission.
func enableNotifications(ctx context.Context, client *redis.Client) error {
	const option = "notify-keyspace-events"
	current, err := client.ConfigGet(ctx, option).Result()
	if err != nil {
		return fmt.Errorf("read %s: %w", option, err)
	}
	flags := current[option]
	if strings.Contains(flags, "E") && strings.ContainsAny(flags, "xA") { // A includes x
		return nil
	}
	flags += "Ex"
	if err := client.ConfigSet(ctx, option, flags).Err(); err != nil {
		return fmt.Errorf("set %s to %s: %w", option, flags, err)
	}
	return nil
}

// NotificationError returns why keyspace notifications are unavailable, or nil. Without them the
// timer alone starts the sweep.
func (e *Expirer) NotificationError() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.notificationErrs) == 0 {
		return errors.New("not subscribed yet")
	}
	for _, server := range slices.Sorted(maps.Keys(e.notificationErrs)) {
		if err := e.notificationErrs[server]; err != nil {
			return err
		}
	}
	return nil
}

func (e *Expirer) setNotificationError(server string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notificationErrs[server] = err
}
