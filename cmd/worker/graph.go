package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"go.uber.org/fx"

	"holdfast/internal/audit"
	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/postgres"
	"holdfast/internal/queries"
	"holdfast/internal/recovery"
	"holdfast/internal/store"
	"holdfast/internal/telemetry"
	"holdfast/internal/version"
)

// The time that a stop of the worker may take: less than the promised 10 s. The servers that the process has
// started stop after that, and one that hangs is killed after 4 s.
const (
	stopWithin           = 9 * time.Second
	stopWithinForServers = 4 * time.Second
)

// queryRedisConnections is the number of connections to a Redis for the queries of a worker, besides those for
// pipelines (pipelinesMax).
const queryRedisConnections = 8

// queryRedisIdle is how long an unused connection to a Redis for queries is kept. A network may have lost it without a
// trace: then the query that uses it fails after seconds, and the next query takes another one that is lost.
const queryRedisIdle = 3 * time.Second

// graph returns the worker as an fx app: its components, and one Invoke for each of its loops. ctx bounds the
// requests with which it constructs them.
func graph(ctx context.Context, c Config, l listeners, log zerolog.Logger) *fx.App {
	return fx.New(
		fx.NopLogger,
		fx.Supply(c, log, l, fx.Annotate(ctx, fx.As(new(context.Context)))),
		fx.Provide(
			recovery.NewEpochTerm, recovery.NewConnGuard, recovery.NewHistoryGuard, provideSupervisor,
			provideRedis, provideNATS, provideDomain, events.NewJetStreamIn, provideStore, provideMetrics,
			holds.NewMetrics, events.NewMetrics, recovery.NewMetrics, locking.NewMetrics, audit.NewMetrics,
			newQueryMetrics, newObserver, provideTracer,
			func(c Config) events.Namespace { return events.Namespace(c.Namespace) },
			func(js events.JetStream) jetstream.JetStream { return js },
			newLeaser, newTrimmer, provideLocker, provideService, provideExpirer, provideConsumers, provideReconciler,
			provideReader, provideInquiry, client.New, provideQueries, newServer, newLoops,
		),
		fx.Invoke(
			func(l *loops, k *recovery.Supervisor) { l.run("supervisor", k.Run) },
			func(l *loops, cs []*events.Consumer) {
				for i, consumer := range cs {
					l.run(consumerNames[i], consumer.Run)
				}
			},
			func(l *loops, x *holds.Expirer) { l.run("announce", x.Announce) },
			func(l *loops, x *holds.Expirer) { l.run("sweep", x.Sweep) },
			func(l *loops, x *holds.Expirer) { l.run("watch", x.Watch) },
			func(l *loops, db *store.Store, s *holds.Service, log zerolog.Logger) {
				l.run("inventory", func(ctx context.Context) error { return db.Watch(ctx, s, log) })
			},
			func(l *loops, s *server) { l.run("http", s.run) },
			func(l *loops, s *server) {
				if s.console != nil {
					l.run("console", s.console.Run)
				}
			},
			func(l *loops, q *queries.Service) { l.run("queries", q.Run) },
			func(l *loops, x *leaser) {
				if x.auto != nil {
					l.every("lease", leaseEvery, x.runOnce)
				}
			},
			func(l *loops, x *trimmer) { l.every("trim", x.each(), x.runOnce) },
			func(l *loops, x *observer) { l.run("observe", x.run) },
			func(l *loops, c Config, x *audit.Reconciler) {
				if c.Reconcile != reconcileOff {
					l.run("reconcile", x.Run)
				}
			},
			(*loops).attach,
		),
	)
}

func provideRedis(lc fx.Lifecycle, c Config, g *recovery.ConnGuard) (redis.UniversalClient, error) {
	client, err := c.redisClient(g.Attach)
	if err != nil {
		return nil, err
	}
	if c.tracesURL() != "" {
		client.AddHook(redisTrace{})
	}
	lc.Append(fx.StopHook(client.Close))
	return client, nil
}

// firstCheckWithin bounds the first check of the supervisor, which delays the start. It may compare all commits of Postgres.
const firstCheckWithin = 2 * time.Second

// provideSupervisor returns the supervisor, which detects data loss in Redis. It has its own
// connections, so it can check Redis while all others are busy, and a Postgres that the others may not
// use yet. No event is decided before a check has succeeded.
func provideSupervisor(
	lc fx.Lifecycle, c Config, t *recovery.EpochTerm, g *recovery.ConnGuard, h *recovery.HistoryGuard,
	js jetstream.JetStream, ns events.Namespace, m *recovery.Metrics, log zerolog.Logger,
) (*recovery.Supervisor, error) {
	db, err := newStore(context.Background(), c)
	if err != nil {
		return nil, err
	}
	k, closeAll, err := newSupervisor(c, t, g, db, js, ns, log)
	if err != nil {
		return nil, err
	}
	k.Metrics = m
	k.CheckHistory(&recovery.HistoryChecker{Store: db, Log: events.NewOutcomeLog(js, ns, log), Guard: h})
	lc.Append(fx.StartStopHook(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, firstCheckWithin)
		defer cancel()
		switch _, err := k.Check(ctx); {
		case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
			log.Warn().Err(err).Msg("first integrity check takes long, worker not ready until one has succeeded")
		case err != nil:
			log.Error().Err(err).Msg("first integrity check failed, will retry")
		}
	}, func(ctx context.Context) {
		if err := k.Leave(ctx); err != nil {
			log.Debug().Err(err).Msg("worker not removed from the register, a recovery of redis waits for it")
		}
		closeAll()
		db.Close()
	}))
	return k, nil
}

func provideNATS(
	ctx context.Context, lc fx.Lifecycle, s fx.Shutdowner, c Config, log zerolog.Logger,
) (*nats.Conn, *natsFailure, error) {
	failure := new(natsFailure)
	nc, err := newNATS(ctx, c, log, failure, func() {
		_ = s.Shutdown(fx.ExitCode(exitFailed))
	})
	if err == nil {
		lc.Append(fx.StopHook(func() {
			nc.SetClosedHandler(nil)
			defer nc.Close()
			if err := nc.FlushTimeout(time.Second); err != nil {
				// Nothing is lost: NATS redelivers each event whose acknowledgement it did not receive.
				log.Warn().Err(err).Msg("nats not flushed before the stop")
			}
		}))
	}
	return nc, failure, err
}

func provideStore(lc fx.Lifecycle, c Config, h *recovery.HistoryGuard) (*store.Store, error) {
	s, err := newStore(context.Background(), c, store.Guard(h))
	if err == nil {
		lc.Append(fx.StopHook(s.Close))
	}
	return s, err
}

func provideLocker(
	lc fx.Lifecycle, c Config, client redis.UniversalClient, db *store.Store, x *leaser, m *locking.Metrics,
) (*locking.Locker, error) {
	var strategy locking.Strategy
	switch c.LockStrategy {
	case "none":
		strategy = locking.NewNone(client)
	case "optimistic":
		strategy = locking.NewOptimistic(client.(*redis.Client)) // the preflight has refused a cluster
	case redlockStrategy:
		servers, err := c.lockServerOptions()
		if err != nil {
			return nil, err
		}
		clients := make([]redis.UniversalClient, len(servers))
		for i, options := range servers {
			clients[i] = redis.NewClient(options)
			lc.Append(fx.StopHook(clients[i].Close))
		}
		strategy = locking.NewRedlock(client, clients, x.lease)
	default:
		strategy = locking.NewRange(client, locking.RangeOptions{Lease: x.lease, FenceBase: db.FenceBase, Fair: c.LockFair})
	}
	l := locking.New(strategy, locking.Options{RenewMax: c.LockRenewMax, Metrics: m})
	lc.Append(fx.StopHook(l.Close))
	return l, nil
}

func provideService(
	c Config, t *recovery.EpochTerm, client redis.UniversalClient, l *locking.Locker, db *store.Store, m *holds.Metrics,
) *holds.Service {
	s := holds.NewService(c.Namespace, client, l, db, t, c.policy())
	s.Measure(m)
	return s
}

// provideDomain returns the JetStream domain of the outcomes' stream, or nil if it cannot be read.
func provideDomain(ctx context.Context, nc *nats.Conn, log zerolog.Logger) (*events.Domain, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ctx, restore := events.UntilRefused(ctx, nc)
	defer restore()
	domain, err := events.ReadDomain(ctx, js)
	if err != nil {
		log.Warn().Err(events.Refused(ctx, err)).Msg("a stream of the same name in another jetstream domain is not recognised")
	}
	return domain, nil
}

func provideExpirer(
	c Config, s *holds.Service, nc *nats.Conn, ns events.Namespace, domain *events.Domain, log zerolog.Logger,
) (*holds.Expirer, error) {
	own, err := events.NewJetStreamIn(nc, ns, domain) // see NewAnnouncer
	if err != nil {
		return nil, err
	}
	options := holds.ExpirerOptions{NoTimer: c.NoTimer, NoNotifications: c.NoNotifications}
	return holds.NewExpirer(s, events.NewAnnouncer(own, ns), options, log), nil
}

var consumerNames = events.ConsumerNames()

func provideConsumers(
	ctx context.Context, ns events.Namespace, s *holds.Service, db *store.Store, nc *nats.Conn, js events.JetStream, m *events.Metrics,
	tracer *telemetry.Tracer, log zerolog.Logger,
) ([]*events.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ctx, restore := events.UntilRefused(ctx, nc)
	defer restore()
	process := events.NewProcess(workerName(), db, log)
	process.Metrics, process.Tracer = m, tracer
	consumers := make([]*events.Consumer, len(consumerNames))
	for i, name := range consumerNames {
		var err error
		if consumers[i], err = events.NewConsumer(ctx, name, ns, s, nc, js, process); err != nil {
			return nil, events.Refused(ctx, err)
		}
	}
	return consumers, nil
}

// reader answers queries. It has its own connections, so queries take none from decisions.
type reader struct {
	*holds.Service
	dry  *holds.Service // decides dry runs
	rows *store.Store
}

func provideReader(
	lc fx.Lifecycle, c Config, t *recovery.EpochTerm, g *recovery.ConnGuard, h *recovery.HistoryGuard,
) (*reader, error) {
	client, err := c.redisClient(func(o *redis.Options) {
		o.ClientName += "-queries"
		o.PoolSize, o.ConnMaxIdleTime = queryRedisConnections, queryRedisIdle
		g.Attach(o)
	})
	if err != nil {
		return nil, err
	}
	lc.Append(fx.StopHook(client.Close))
	db, err := newStore(context.Background(), c, store.ForQueries(c.Namespace), store.Guard(h))
	if err != nil {
		return nil, err
	}
	lc.Append(fx.StopHook(db.Close))
	s := holds.NewService(c.Namespace, client, locking.New(locking.NewNone(client), locking.Options{}), db, t, c.policy())
	return &reader{s, s.Dry(db.Dry()), db}, nil
}

func provideQueries(
	nc *nats.Conn, ns events.Namespace, r *reader, i *queries.Inquiry, log zerolog.Logger,
) *queries.Service {
	q := queries.NewService(nc, ns, i, r.dry, workerName(), log)
	q.Revision, q.Database = version.Revision(), r.rows.ReadDatabase
	return q
}

// provideInquiry returns what answers the questions of operators. It has its own JetStream context,
// and the connections of the other queries.
func provideInquiry(nc *nats.Conn, ns events.Namespace, r *reader) (*queries.Inquiry, error) {
	js, err := events.NewJetStream(nc, ns)
	return queries.NewInquiry(js, ns, r, r.rows), err
}

func provideReconciler(
	lc fx.Lifecycle, c Config, t *recovery.EpochTerm, client redis.UniversalClient, s *holds.Service, db *store.Store,
	q *reader, h *recovery.HistoryGuard, m *audit.Metrics, log zerolog.Logger,
) (*audit.Reconciler, error) {
	pool, err := audit.OpenPostgres(context.Background(), c.PostgresURL, c.Namespace, store.Guard(h))
	if err != nil {
		return nil, err
	}
	lc.Append(fx.StopHook(func() { postgres.Close(pool) }))
	options := audit.ReconcilerOptions{Heal: c.Reconcile == reconcileHeal, Name: workerName()}
	servers := audit.Backends{Namespace: c.Namespace, Redis: client, Postgres: pool}
	r := audit.NewReconciler(servers, db, t, options, m, log)
	s.OnCorruption(r.RecheckSoon)
	q.OnCorruption(r.RecheckSoon)
	return r, nil
}

// workerName returns a name that differs from that of every other worker: host and process id.
func workerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid())
}
