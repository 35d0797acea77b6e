package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/store"
)

// newRedis returns a client of the Redis that holds the holds.
func newRedis(c Config) (*redis.Client, error) {
	options, err := c.redisOptions("--redis-url", c.RedisURL)
	if err != nil {
		return nil, err
	}
	return redis.NewClient(options), nil
}

// redisOptions are those of a client that never sends a command again by itself: a reply that
// was lost means that nobody knows, and the code that asked decides.
func (c *Config) redisOptions(flag, address string) (*redis.Options, error) {
	options, err := redis.ParseURL(address)
	if err != nil {
		// err may repeat the URL, and with it the password.
		return nil, misused("%s is not a Redis URL: want redis://[user:password@]host:port[/database]", flag)
	}
	options.MaxRetries = -1
	options.ContextTimeoutEnabled = true
	options.DisableIdentity = true // CLIENT SETINFO is refused under an ACL
	// Not for us, and connections of optimistic locks would write this setting at the same time.
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	options.ClientName = "holdfast-" + c.Namespace
	return options, nil
}

// lockServerWithin bounds each step of talking to a lock server: the majority can do without
// one that hangs, and should not wait for it.
const lockServerWithin = 250 * time.Millisecond

// lockServerOptions are those of a client of each of Redlock's servers.
func (c *Config) lockServerOptions() ([]*redis.Options, error) {
	all := make([]*redis.Options, len(c.LockRedisURLs))
	seen := make(map[string]bool)
	for i, address := range c.LockRedisURLs {
		options, err := c.redisOptions(fmt.Sprintf("number %d of --lock-redis-urls", i+1), address)
		if err != nil {
			return nil, err
		}
		if seen[options.Addr] {
			return nil, misused("--lock-redis-urls names %s twice: a majority must be of different servers", options.Addr)
		}
		seen[options.Addr] = true
		options.DialTimeout, options.ReadTimeout, options.WriteTimeout = lockServerWithin, lockServerWithin, lockServerWithin
		options.DialerRetries = 1
		all[i] = options
	}
	return all, nil
}

// quiet keeps go-redis from writing lines of its own to stderr: what it would say comes back as
// an error, and is logged where something is decided about it.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(quiet{}) }

// redacted is a URL without its password.
func redacted(address string) string {
	parsed, err := url.Parse(address)
	if err != nil {
		return "(not a URL)"
	}
	return parsed.Redacted()
}

// newNATS connects to NATS. A connection that is closed for good ends the process by way of
// closed; one that is cut off comes back.
func newNATS(c Config, log zerolog.Logger, closed func()) (*nats.Conn, error) {
	logf := func(format string, args ...any) { log.Warn().Msgf(format, args...) }
	return events.Connect(c.NATSURL, "holdfast worker "+c.Namespace, logf, nats.ClosedHandler(func(*nats.Conn) { closed() }))
}

// outcomesMax is how many outcomes of all consumers may be on their way to be stored.
const outcomesMax = 16384

// newJetStream returns a JetStream context with a bounded number of outcomes on their way.
func newJetStream(nc *nats.Conn) (jetstream.JetStream, error) {
	return jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(outcomesMax), jetstream.WithPublishAsyncTimeout(5*time.Second))
}

// prepare checks the servers and, unless migrate is false, creates what is missing on them. It
// returns the epoch that Redis must have.
func prepare(ctx context.Context, c Config, log zerolog.Logger, migrate bool) (epoch string, err error) {
	client, err := newRedis(c)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	if err := checkRedis(ctx, client); err != nil {
		return "", err
	}
	db, err := store.Open(ctx, c.PostgresURL, c.Namespace)
	if err != nil {
		return "", err
	}
	defer db.Close()
	if migrate {
		if err := db.Migrate(ctx, c.Namespace); err != nil {
			return "", err
		}
	}
	epoch, written, err := db.Epoch(ctx)
	if err != nil {
		return "", fmt.Errorf("%w (was `worker migrate` run?)", err)
	}
	if !written {
		if err := holds.Initialise(ctx, c.Namespace, client, epoch); err != nil {
			return "", fmt.Errorf("this Redis has the namespace %s of another database: %w", c.Namespace, err)
		}
		if err := db.EpochWritten(ctx); err != nil {
			return "", err
		}
	}
	if migrate {
		if err := setupStreams(ctx, c, log); err != nil {
			return "", err
		}
	}
	return epoch, nil
}

func setupStreams(ctx context.Context, c Config, log zerolog.Logger) error {
	nc, err := newNATS(c, log, func() {})
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := newJetStream(nc)
	if err != nil {
		return fmt.Errorf("jetstream: %w", err)
	}
	return events.Setup(ctx, js, events.Subjects(c.Namespace), c.HoldLifetimeMax)
}

// checkRedis refuses a Redis that would drop holds when its memory is full.
func checkRedis(ctx context.Context, client redis.UniversalClient) error {
	info, err := client.Info(ctx, "memory").Result()
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	for line := range strings.Lines(info) {
		policy, found := strings.CutPrefix(strings.TrimSpace(line), "maxmemory_policy:")
		if found && policy != "noeviction" {
			return fmt.Errorf("redis has maxmemory-policy %s and would drop holds when its memory is full: "+
				"run `redis-cli config set maxmemory-policy noeviction`", policy)
		}
	}
	return nil
}
