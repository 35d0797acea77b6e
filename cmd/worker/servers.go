package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/locking"
	"holdfast/internal/postgres"
	"holdfast/internal/recovery"
	"holdfast/internal/store"
)

// newRedis returns a client of the Redis that holds the holds. It connects to whichever answers.
func newRedis(c Config) (*redis.Client, error) {
	options, err := c.redisOptions("--redis-url", c.RedisURL)
	if err != nil {
		return nil, err
	}
	return redis.NewClient(options), nil
}

// newSupervisor returns a Keeper that works with a database and a JetStream.
func newSupervisor(c Config, t *recovery.EpochTerm, g *recovery.ConnGuard, db *store.Store, js jetstream.JetStream, ns events.Namespace, log zerolog.Logger) (*recovery.Supervisor, error) {
	if _, err := c.redisOptions("--redis-url", c.RedisURL); err != nil {
		return nil, err
	}
	return recovery.NewSupervisor(recovery.SupervisorOptions{
		Namespace: c.Namespace, Name: workerName(), Policy: c.policy(), Term: t, Guard: g,
		Redis: func() *redis.Options {
			options, _ := c.redisOptions("--redis-url", c.RedisURL) // as above
			return options
		},
		EpochStore: db, Inventory: db, OutcomeLog: events.NewOutcomeLog(js, ns, log), Log: log,
		Fence: locking.FenceBase(db.FenceBase).Next,
	}), nil
}

// redisOptions are those of a client that never sends a command again by itself: a reply that
// was lost means that nobody knows, and the code that asked decides.
func (c *Connections) redisOptions(flag, address string) (*redis.Options, error) {
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

// newNATS connects to NATS. A connection that is closed for good ends the process by way of
// closed; one that is cut off comes back.
func newNATS(c Config, log zerolog.Logger, closed func()) (*nats.Conn, error) {
	logf := func(format string, args ...any) { log.Warn().Msgf(format, args...) }
	// What cannot be sent now is not sent later by itself: by then it may not be true any more.
	nc, err := events.Connect(c.NATSURL, "holdfast worker "+c.Namespace, logf,
		nats.ClosedHandler(func(*nats.Conn) { closed() }), nats.ReconnectBufSize(-1))
	if errors.Is(err, events.ErrURL) {
		return nil, misused("--nats-url: %v", err)
	}
	return nc, err
}

// preparation is what is done to the servers before a worker works on them.
type preparation struct {
	migrate bool     // create what is missing
	skip    []string // checks of the preflight that are left out
}

// prepare checks the servers and, if it is to migrate, creates what is missing on them.
func prepare(ctx context.Context, c Config, log zerolog.Logger, p preparation) (err error) {
	client, err := newRedis(c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	db, err := newStore(ctx, c)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := c.runPreflight(ctx, db, log, p); err != nil {
		return err
	}
	if p.migrate {
		if err := db.Migrate(ctx, c.Namespace); err != nil {
			return err
		}
		if err := storePolicy(ctx, c, db, log); err != nil {
			return err
		}
	}
	if err := firstEpoch(ctx, c, client, db, log); err != nil {
		return err
	}
	if p.migrate {
		return setupStreams(ctx, c, log)
	}
	return nil
}

// storePolicy stores the policy of the settings for all workers and waits until it is in force.
func storePolicy(ctx context.Context, c Config, db *store.Store, log zerolog.Logger) error {
	inForceIn, err := db.StorePolicy(ctx, c.policy())
	if err != nil || inForceIn == 0 {
		return err
	}
	log.Info().Dur("in_force_in_ms", inForceIn).Msg("another policy is stored, all workers decide by it")
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(inForceIn):
		return nil
	}
}

// firstEpoch has Redis and Postgres belong together. When they have before, it is the Keeper's
// business whether they still do.
func firstEpoch(ctx context.Context, c Config, client redis.UniversalClient, db *store.Store, log zerolog.Logger) error {
	epoch, err := db.Epoch(ctx)
	if err != nil {
		return err
	}
	raised, err := recovery.WriteFormat(ctx, c.Namespace, client)
	if err != nil {
		return err
	}
	if raised {
		log.Warn().Dur("wait_ms", recovery.FormatDrain).Msg("the format in redis was raised, workers of older versions stop")
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(recovery.FormatDrain):
		}
	}
	if epoch.Complete || epoch.Why != "" {
		return nil
	}
	server, err := recovery.Initialise(ctx, c.Namespace, client, epoch.Name)
	if err != nil {
		return fmt.Errorf("namespace %s: %w", c.Namespace, err)
	}
	if err := db.CompleteEpoch(ctx, epoch.Name, server, ""); err != nil && !errors.Is(err, recovery.ErrEpochChanged) {
		return err
	}
	return nil // written, by this process or by another that has started with it
}

// newStore returns the namespace's schema.
func newStore(ctx context.Context, c Config) (*store.Store, error) {
	db, err := store.Open(ctx, c.PostgresURL, c.Namespace)
	return db, misusedPostgres(err)
}

// misusedPostgres turns the error about a URL of Postgres that cannot be used into one about the flag.
func misusedPostgres(err error) error {
	if errors.Is(err, postgres.ErrURL) || errors.Is(err, postgres.ErrTarget) {
		return misused("--postgres-url: %v", err)
	}
	return err
}

func setupStreams(ctx context.Context, c Config, log zerolog.Logger) error {
	nc, err := newNATS(c, log, func() {})
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := events.NewJetStream(nc)
	if err != nil {
		return fmt.Errorf("jetstream: %w", err)
	}
	ctx, restore := events.UntilRefused(ctx, nc)
	defer restore()
	return events.Refused(ctx, events.Setup(ctx, js, events.Namespace(c.Namespace), c.retention(), log))
}
