package stacktest

import (
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// RedisOptions returns the options of a client that is configured as the worker's: it never sends
// a command again by itself, and keeps to its caller's time.
func RedisOptions(url string) *redis.Options {
	options, err := redis.ParseURL(url)
	if err != nil {
		panic(err) // a stack made it
	}
	options.MaxRetries = -1
	options.ContextTimeoutEnabled = true
	// Connections of Client.Conn write the mode that they share without a common lock (v9.23.0).
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return options
}
