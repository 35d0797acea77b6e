package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/rs/zerolog"

	"holdfast/internal/connect"
	"holdfast/internal/events"
	"holdfast/internal/locking"
	"holdfast/internal/postgres"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/store"
)

// redisClient returns a client of the Redis that stores the holds. It calls changes with the options of
// the clients of each server.
func (c *Connections) redisClient(changes ...func(*redis.Options)) (redis.UniversalClient, error) {
	node, err := c.redisNodes()
	if err != nil {
		return nil, err
	}
	changed := func(addr string) *redis.Options {
		options := node(addr)
		for _, change := range changes {
			change(options)
		}
		return options
	}
	if connect.IsCluster(c.RedisURL) {
		return redis.NewClusterClient(connect.ClusterOptions(c.RedisURL, changed)), nil
	}
	return redis.NewClient(changed("")), nil
}

// redisNodes returns a function that returns the options of a client of one server of a Redis Cluster, or of the
// lone Redis when addr is "". It reads the files of the settings once: later they may be missing.
func (c *Connections) redisNodes() (func(addr string) *redis.Options, error) {
	base, err := c.redisOptions("--redis-url", c.RedisURL)
	if err != nil {
		return nil, err
	}
	return func(addr string) *redis.Options {
		options := *base
		options.Addr = cmp.Or(addr, base.Addr)
		return &options
	}, nil
}

// redisServers returns a function that finds the Redis servers for a supervisor, and one that closes its
// connections.
func (c *Connections) redisServers() (
	find func(context.Context) ([]recovery.Server, error), closeAll func(), err error,
) {
	node, err := c.redisNodes()
	if err != nil {
		return nil, nil, err
	}
	if !connect.IsCluster(c.RedisURL) {
		return recovery.LoneServer(func() *redis.Options { return node("") }), func() {}, nil
	}
	cluster := recovery.NewCluster(c.Namespace, connect.ClusterAddrs(c.RedisURL), node)
	return cluster.Servers, cluster.Close, nil
}

// redisPrimaries finds the Redis servers once.
func (c *Connections) redisPrimaries(ctx context.Context) ([]recovery.Server, error) {
	find, closeAll, err := c.redisServers()
	if err != nil {
		return nil, err
	}
	defer closeAll()
	return find(ctx)
}

// newSupervisor returns a supervisor that detects data loss in Redis. closeAll closes the connections
// that it does not close itself.
func newSupervisor(
	c Config, t *recovery.EpochTerm, g *recovery.ConnGuard, db *store.Store, js jetstream.JetStream, ns events.Namespace,
	log zerolog.Logger,
) (k *recovery.Supervisor, closeAll func(), err error) {
	find, closeAll, err := c.redisServers()
	if err != nil {
		return nil, nil, err
	}
	return recovery.NewSupervisor(recovery.SupervisorOptions{
		Namespace: c.Namespace, Name: workerName(), Policy: c.policy(), Term: t, Guard: g, Servers: find,
		EpochStore: db, Inventory: db, OutcomeLog: events.NewOutcomeLog(js, ns, log), Log: log,
		Fence: locking.FenceBase(db.FenceBase).Next,
	}), closeAll, nil
}

// redisOptions returns the options of a client for address. The client never retries a command:
// when a reply is lost, the command may have been executed, and the caller decides what to do. flag
// names the setting in the error for an address that cannot be used.
func (c *Connections) redisOptions(flag, address string) (*redis.Options, error) {
	files := connect.TLSFiles{CA: c.RedisFiles.CAFile, Cert: c.RedisFiles.CertFile, Key: c.RedisFiles.KeyFile}
	options, err := connect.RedisOptions(address, files)
	if err != nil {
		return nil, misused("%s: %v", flag, err)
	}
	options.MaxRetries = -1
	options.DialerRetries = 1 // else a host that is down would take 25 s to fail
	options.ContextTimeoutEnabled = true
	options.DisableIdentity = true // CLIENT SETINFO is refused under an ACL
	// Only Redis Enterprise has these notifications, and connections of optimistic locks would
	// write this setting concurrently.
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	options.ClientName = "holdfast-" + c.Namespace
	return options, nil
}

// lockServerWithin bounds dialing, reading and writing of a lock server. The majority suffices for
// a lock, so one server that hangs must not delay it.
const lockServerWithin = 250 * time.Millisecond

// lockServerOptions returns the options of the clients of Redlock's servers, in their order.
func (c *Config) lockServerOptions() ([]*redis.Options, error) {
	all := make([]*redis.Options, len(c.LockRedisURLs))
	seen := make(map[string]bool)
	for i, address := range c.LockRedisURLs {
		if scheme, _, _ := strings.Cut(address, "://"); strings.HasSuffix(scheme, "+cluster") {
			return nil, misused("URL %d of --lock-redis-urls: the servers of a cluster replicate: give servers without one", i+1)
		} else if strings.HasSuffix(scheme, "+sentinel") {
			return nil, misused("URL %d of --lock-redis-urls: a failover loses locks, so give servers without Sentinels", i+1)
		}
		options, err := c.redisOptions(fmt.Sprintf("URL %d of --lock-redis-urls", i+1), address)
		if err != nil {
			return nil, err
		}
		if seen[options.Addr] {
			return nil, misused("--lock-redis-urls contains %s twice: a majority needs different servers", options.Addr)
		}
		seen[options.Addr] = true
		options.DialTimeout, options.ReadTimeout, options.WriteTimeout = lockServerWithin, lockServerWithin, lockServerWithin
		all[i] = options
	}
	return all, nil
}

// go-redis must not log to stderr. Commands return the same problems as errors, and the code that handles an error logs it.
func init() { logging.Disable() }

// notBuffered makes publishing fail while disconnected: after the reconnect the message may no longer be
// true.
var notBuffered = nats.ReconnectBufSize(-1)

// natsFailure is why a client cannot reconnect to NATS. The zero value is ready.
type natsFailure struct {
	mu     sync.Mutex
	last   []error         // of the last attempts in this outage, one for each server
	logged map[string]bool // the reasons in this outage; nil when there is none
}

// natsReasonsMax bounds the reasons that are logged in one outage.
const natsReasonsMax = 16

// record records why an attempt to reconnect has failed, and logs each reason once in an outage. It reports whether there is one.
func (f *natsFailure) record(nc *nats.Conn, err error, log zerolog.Logger) (outage bool) {
	servers := len(nc.Servers())
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.logged == nil {
		return false
	}
	f.last = append(f.last, err)
	f.last = f.last[max(len(f.last)-servers, 0):]
	if reason := reasonOf(err); !f.logged[reason] && len(f.logged) < natsReasonsMax {
		f.logged[reason] = true
		log.Warn().Err(err).Msg("nats: not reconnected")
	}
	return true
}

// reasonOf returns the text of an error without the port of the client, which is another one in each attempt.
func reasonOf(err error) string {
	if broken, is := errors.AsType[*net.OpError](err); is {
		same := *broken
		same.Source = nil
		err = &same
	}
	return strings.ToLower(err.Error()) // nats.go has some errors twice: as sent by the server and in lower case
}

// follow begins and ends the outages. It records the attempts that fail after the server has accepted the connection: nats.go
// calls no handler for them.
func (f *natsFailure) follow(nc *nats.Conn, statuses <-chan nats.Status, log zerolog.Logger) {
	for status := range statuses {
		switch status {
		case nats.RECONNECTING: // also after each attempt
			f.set(true)
		case nats.CONNECTING:
			if err := nc.LastError(); err != nil { // it waits until the attempt has ended
				f.record(nc, err, log)
			}
		case nats.CONNECTED:
			f.set(false)
		case nats.CLOSED:
			return
		case nats.DISCONNECTED, nats.DRAINING_SUBS, nats.DRAINING_PUBS: // statuses has none of them
		}
	}
}

// set says whether there is an outage.
func (f *natsFailure) set(outage bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !outage:
		f.last, f.logged = nil, nil
	case f.logged == nil:
		f.logged = make(map[string]bool)
	}
}

// why returns why the last attempts in an outage that goes on have failed, nil when none has.
func (f *natsFailure) why() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var reasons []string
	for _, err := range f.last {
		if reason := err.Error(); !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	if reasons == nil {
		return nil
	}
	return fmt.Errorf("not connected; the last attempts failed: %s", strings.Join(reasons, "; "))
}

// newNATS connects to NATS. The client reconnects after a disconnect, and records in failure why that fails, which it logs. When
// the connection is closed permanently, it logs what the server has sent last, which is why, and calls closed. ctx bounds the
// first connection only.
func newNATS(ctx context.Context, c Config, log zerolog.Logger, failure *natsFailure, closed func()) (*nats.Conn, error) {
	nc, err := c.connectNATS(ctx, "holdfast worker "+c.Namespace, warnings(log),
		nats.ReconnectErrHandler(func(nc *nats.Conn, err error) { failure.record(nc, err, log) }),
		nats.ErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
			if sub != nil || !failure.record(nc, err, log) {
				log.Warn().Msgf("nats: %v", err)
			}
		}),
		nats.ClosedHandler(func(nc *nats.Conn) {
			log.Error().Err(nc.LastError()).Msg("nats connection closed, worker stops")
			closed()
		}), notBuffered)
	if err == nil {
		go failure.follow(nc, nc.StatusChanged(nats.RECONNECTING, nats.CONNECTING, nats.CONNECTED, nats.CLOSED), log)
	}
	return nc, err
}

// warnings returns a function that logs what happens to a connection.
func warnings(log zerolog.Logger) func(format string, args ...any) {
	return func(format string, args ...any) { log.Warn().Msgf(format, args...) }
}

// connectNATS connects to NATS with the login and the certificates of the settings. name is shown to
// the server's operators. ctx bounds the first connection only.
func (c *NATSServers) connectNATS(
	ctx context.Context, name string, logf func(format string, args ...any), options ...nats.Option,
) (*nats.Conn, error) {
	files, err := c.NATSFiles.Options(c.NATSURL)
	if err != nil {
		return nil, misused("%v", err)
	}
	nc, err := events.ConnectUntil(ctx, c.NATSURL, name, logf, append(options, files...)...)
	if errors.Is(err, events.ErrURL) {
		return nil, misused("--nats-url: %v", err)
	}
	return nc, err
}

// openNATS connects to NATS for a command. The context until is cancelled when NATS refuses a permission;
// events.Refused returns which. The caller calls disconnect.
func (c *NATSServers) openNATS(
	ctx context.Context, name string, logf func(format string, args ...any), options ...nats.Option,
) (until context.Context, js jetstream.JetStream, disconnect func(), err error) {
	nc, err := c.connectNATS(ctx, name, logf, options...)
	if err != nil {
		return nil, nil, nil, err
	}
	if js, err = jetstream.New(nc); err != nil {
		nc.Close()
		return nil, nil, nil, fmt.Errorf("jetstream: %w", err)
	}
	until, restore := events.UntilRefused(ctx, nc)
	return until, js, func() { restore(); nc.Close() }, nil
}

// preparation says how to prepare the servers for a worker.
type preparation struct {
	migrate bool     // create what is missing
	skip    []string // names of preflight checks to skip
	creates func()   // unless nil, it is called before anything is created
}

// prepareWithin bounds each step of prepare that takes no time while the servers answer.
const prepareWithin = 30 * time.Second

// prepare checks the servers and, with p.migrate, creates what is missing on them.
func prepare(ctx context.Context, c Config, log zerolog.Logger, p preparation) (err error) {
	client, err := c.redisClient()
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
	if p.creates != nil {
		p.creates()
	}
	if p.migrate {
		if err := db.Migrate(log.WithContext(ctx), c.Namespace); err != nil {
			return err
		}
	}
	if err := firstEpoch(ctx, c, client, db); err != nil {
		return err
	}
	if !p.migrate {
		return nil
	}
	// setupStreams may be refused: then the policy of all workers must not have changed.
	if err := setupStreams(ctx, c, log); err != nil {
		return err
	}
	return storePolicy(ctx, c, db, log)
}

// storePolicy stores the policy for all workers and waits until it is in force.
func storePolicy(ctx context.Context, c Config, db *store.Store, log zerolog.Logger) error {
	storing, cancel := context.WithTimeout(ctx, prepareWithin)
	defer cancel()
	inForceIn, err := db.StorePolicy(storing, c.policy())
	if err != nil || inForceIn == 0 {
		return err
	}
	log.Info().Dur("in_force_in_ms", inForceIn).Msg("policy changed for all workers")
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(inForceIn):
		return nil
	}
}

// firstEpoch writes the first epoch to all partitions in Redis and Postgres, which links the two. Where
// there is an epoch already, it does nothing: the supervisor checks whether both servers still have it.
func firstEpoch(ctx context.Context, c Config, client redis.UniversalClient, db *store.Store) error {
	ctx, cancel := context.WithTimeout(ctx, prepareWithin)
	defer cancel()
	epochs, err := db.Epochs(ctx)
	if err != nil {
		return err
	}
	if err := recovery.WriteFormat(ctx, c.Namespace, client); err != nil {
		return c.explainFormat(ctx, err)
	}
	first := epochs.Uninitialised()
	if first == 0 {
		return nil
	}
	servers, err := c.redisPrimaries(ctx)
	for _, server := range servers {
		if its := server.Partitions & first; err == nil && its != 0 {
			err = initialise(ctx, c, server, its, epochs[its.Sorted()[0]].Name, db)
		}
	}
	return err
}

// explainFormat adds to the error of a write of the format, which only one shard of a cluster has, what to do. A
// worker that does not know the format could misread what a newer one has written to the other shards.
func (c *Config) explainFormat(ctx context.Context, err error) error {
	if !connect.IsCluster(c.RedisURL) || errors.Is(err, recovery.ErrUnknownFormat) {
		return err
	}
	servers, _ := c.redisPrimaries(ctx) // without them the error names no address
	for _, server := range servers {
		if server.Partitions.Has(recovery.FormatPartition) {
			err = fmt.Errorf("%s: %w", server.Addr, err)
		}
	}
	return fmt.Errorf("no worker can start while the redis shard of partition %d, which has the format of the data, does "+
		"not answer: start this shard or promote a replica of it, and start the worker again; workers that run "+
		"go on with the other shards: %w", recovery.FormatPartition, err)
}

// initialise writes the first epoch of partitions, which has the same name for all of them, to their
// server and to Postgres.
func initialise(
	ctx context.Context, c Config, server recovery.Server, of record.PartitionSet, epoch string, db *store.Store,
) error {
	client := redis.NewClient(server.Options())
	defer func() { _ = client.Close() }() // all commands have ended
	err := db.CompleteFirstEpoch(ctx, of, epoch, func() (string, error) {
		server, err := recovery.Initialise(ctx, c.Namespace, client, of, epoch)
		if err != nil {
			err = fmt.Errorf("namespace %s: %w", c.Namespace, err)
		}
		return server, err
	})
	if errors.Is(err, recovery.ErrEpochChanged) { // another process has written it meanwhile
		return nil
	}
	return err
}

// newStore opens the namespace's schema in Postgres.
func newStore(ctx context.Context, c Config, options ...postgres.Option) (*store.Store, error) {
	db, err := store.Open(ctx, c.PostgresURL, c.Namespace, options...)
	return db, misusedPostgres(err)
}

// misusedPostgres turns an error about the Postgres URL into a usage error about --postgres-url.
func misusedPostgres(err error) error {
	for _, of := range []error{postgres.ErrURL, postgres.ErrTLS, postgres.ErrTarget, postgres.ErrParameter} {
		if errors.Is(err, of) {
			return misused("--postgres-url: %v", err)
		}
	}
	return err
}

func setupStreams(ctx context.Context, c Config, log zerolog.Logger) error {
	ctx, js, disconnect, err := c.openNATS(ctx, "holdfast worker "+c.Namespace, warnings(log), notBuffered)
	if err != nil {
		return err
	}
	defer disconnect()
	return events.Refused(ctx, events.Setup(ctx, js, events.Namespace(c.Namespace), c.retention(), log))
}
