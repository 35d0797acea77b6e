package stacktest

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// CopyKeys copies all keys that match a pattern, at one moment. The function that it returns replaces the keys
// that match by the copies, as if the server had lost all later writes.
func CopyKeys(ctx context.Context, client *redis.Client, pattern string) (restore func(context.Context) error, err error) {
	names, err := client.Keys(ctx, pattern).Result()
	if err != nil {
		return nil, err
	}
	pipe := client.TxPipeline()
	copies, expiries := make([]*redis.StringCmd, len(names)), make([]*redis.DurationCmd, len(names))
	for i, name := range names {
		copies[i], expiries[i] = pipe.Dump(ctx, name), pipe.PExpireTime(ctx, name)
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) { // a key may have expired
		return nil, err
	}
	return func(ctx context.Context) error {
		now, err := client.Keys(ctx, pattern).Result()
		if err != nil {
			return err
		}
		pipe := client.TxPipeline()
		if len(now) > 0 {
			pipe.Del(ctx, now...)
		}
		for i, name := range names {
			if copies[i].Err() == nil {
				pipe.Do(ctx, "restore", name, max(expiries[i].Val()/time.Millisecond, 0), copies[i].Val(), "absttl")
			}
		}
		_, err = pipe.Exec(ctx)
		return err
	}, nil
}
