package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"holdfast/internal/events"
	"holdfast/internal/stack"
	"holdfast/internal/version"
)

// part is one of the measurements that Options.Parts selects.
type part struct {
	name  string
	steps func(*runner) int // number of calls of Options.Step
	run   func(*runner, context.Context) error
}

// parts are all parts, in the order in which Run measures them.
var parts = []part{
	{"sales", (*runner).salesSteps, (*runner).sales},
	{"batches", func(*runner) int { return len(batchSizes) }, (*runner).batches},
	{"latency", func(b *runner) int { return b.rounds + len(strategies)*len(loads) }, (*runner).latencies},
	{"peers", (*runner).peerSteps, (*runner).comparePeers},
	{"payments", func(b *runner) int { return b.rounds }, (*runner).payAll},
	{"expiry", func(b *runner) int { return len(b.notified) }, (*runner).expiries},
	{"overload", (*runner).overloadSteps, (*runner).overload},
	{"scale", (*runner).scaleSteps, (*runner).scale},
	{"console", func(b *runner) int { return 2 * b.consolePairs }, (*runner).consoles},
	{"idle", func(*runner) int { return 1 }, (*runner).idle},
	{"growth", func(b *runner) int { return len(b.liveHolds) }, (*runner).growth},
}

// Options configure a run.
type Options struct {
	Worker string   // path of the worker program
	Parts  []string // the names of parts, all of them known; empty means all
	Size   Size

	// The URLs of the servers: all three, or none. Without them Run starts its own servers, which are
	// empty at the start, removed at the end, and never sync.
	NATSURL, RedisURL, PostgresURL string

	NATSCommand []string // command that calls ServeNATS; needed without URLs

	Progress func(line string)                  // called when a part begins, and with each warning
	Step     func(done, total int, what string) // called before each measurement
}

// runner is the state of one run.
type runner struct {
	Options
	sizes
	stack *stack.Stack  // Redis and Postgres; nil if Options has URLs
	nats  *stack.Server // likewise
	nc    *nats.Conn
	js    jetstream.JetStream
	redis *redis.Client
	pool  *pgxpool.Pool

	name        string                // prefix of the namespaces
	opened      int                   // number of namespaces so far
	wide        *cluster              // the namespace of allResources, nil before its first use
	notify      string                // notify-keyspace-events before the run
	unpublished atomic.Pointer[error] // the first error of an asynchronous publication
	done, total int                   // steps
	report      *Report
}

// Size determines how much is measured.
type Size int

// The sizes. Tiny is for tests of this package: its figures mean nothing.
const (
	Whole Size = iota
	Quick
	Tiny
)

// sizes are the numbers of a Size.
type sizes struct {
	rounds          int
	nights          []int // nights per request, one group of sales for each
	allResources    int   // of the largest inventory
	ceilingCalls    int
	scenarioEvents  int           // events of a sale; half as many for 30 nights
	batchFor        time.Duration // of each size of batches
	payments        int
	latencyFor      time.Duration
	warmFor         time.Duration // before latencyFor, at the same rate
	peerNights      []int         // nights per request in the comparison with peers
	peerTry         time.Duration // with each number of requests at once
	peerFor         time.Duration // with the best of them
	notified        []bool        // with keyspace notifications or without
	expiring        int           // holds that expire within a second
	placedIn        int           // seconds in which these holds are placed
	keys            int           // other keys with a TTL
	waiting         int           // requests in an overload
	overloadFor     time.Duration
	throttled       []string // processes
	overloadWorkers []int
	scaleWorkers    []int // and as many shards
	scaleWaiting    int   // requests for each worker, more than it decides in scaleFor
	scaleFor        time.Duration
	consolePairs    int // measurements without live pages, and as many with some; even, so that each is first as often
	consoleEvents   int // of one
	idleFor         time.Duration
	liveHolds       []int // live holds at which the cost of one more is measured
	moreHolds       int   // holds placed to measure that cost
}

var allSizes = map[Size]sizes{
	Whole: {
		rounds: 3, nights: []int{1, 3, 7, 30}, allResources: 100_000, ceilingCalls: 60_000, scenarioEvents: 60_000,
		batchFor: 10 * time.Second, payments: 20_000, latencyFor: 15 * time.Second, warmFor: 2 * time.Second,
		peerNights: []int{1, 3, 7, 30}, peerTry: time.Second, peerFor: 5 * time.Second,
		notified: []bool{false, true}, expiring: 20_000, placedIn: 5, keys: 500_000,
		waiting: 120_000, overloadFor: 15 * time.Second, throttled: []string{processRedis, processPostgres},
		overloadWorkers: []int{1, 2, 3}, consolePairs: 6, consoleEvents: 20_000, idleFor: 30 * time.Second,
		scaleWorkers: []int{1, 2, 3}, scaleWaiting: 120_000, scaleFor: 20 * time.Second,
		liveHolds: []int{10_000, 100_000, 1_000_000}, moreHolds: 20_000,
	},
	Quick: {
		rounds: 1, nights: []int{1, 3, 7, 30}, allResources: 100_000, ceilingCalls: 20_000, scenarioEvents: 12_000,
		batchFor: 2 * time.Second, payments: 8_000, latencyFor: 3 * time.Second, warmFor: time.Second,
		peerNights: []int{3}, peerTry: 300 * time.Millisecond, peerFor: 1500 * time.Millisecond,
		notified: []bool{false}, expiring: 20_000, placedIn: 4, keys: 100_000,
		waiting: 60_000, overloadFor: 5 * time.Second, throttled: []string{processRedis},
		overloadWorkers: []int{1, 2, 3}, consolePairs: 4, consoleEvents: 20_000, idleFor: 10 * time.Second,
		scaleWorkers: []int{1, 2, 3}, scaleWaiting: 60_000, scaleFor: 8 * time.Second,
		liveHolds: []int{10_000, 30_000}, moreHolds: 5_000,
	},
	Tiny: {
		rounds: 1, nights: []int{3}, allResources: 1200, ceilingCalls: 256, scenarioEvents: 200,
		batchFor: 100 * time.Millisecond, payments: 100, latencyFor: 300 * time.Millisecond, warmFor: 50 * time.Millisecond,
		peerNights: []int{3}, peerTry: 50 * time.Millisecond, peerFor: 100 * time.Millisecond,
		notified: []bool{false, true}, expiring: 100, placedIn: 1, keys: 500,
		waiting: 500, overloadFor: time.Second, throttled: []string{processRedis, processPostgres},
		overloadWorkers: []int{1, 2}, consolePairs: 1, consoleEvents: 100, idleFor: 100 * time.Millisecond,
		scaleWorkers: []int{1, 2}, scaleWaiting: 50_000, scaleFor: time.Second,
		liveHolds: []int{100, 300}, moreHolds: 100,
	},
}

// Run measures the selected parts and returns the report. Before it returns it stops its workers and
// its own servers, and removes its data from servers of Options. With an error the report has the parts
// measured so far; it is nil if the measurements did not begin.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	selected := slices.DeleteFunc(slices.Clone(parts), func(p part) bool {
		return len(o.Parts) > 0 && !slices.Contains(o.Parts, p.name)
	})
	b := &runner{Options: o, sizes: allSizes[o.Size], name: fmt.Sprintf("bench_%08x", rand.Uint32()), report: &Report{}}
	for _, p := range selected {
		b.total += p.steps(b)
	}
	idle := watchOthers()
	if err := pass(ctx, othersFor); err != nil {
		return nil, err
	}
	b.report.OthersBefore = idle.busy()
	during := watchOthers()
	if err := b.connect(ctx); err != nil {
		return nil, errors.Join(err, b.close())
	}
	defer func() {
		err = errors.Join(err, b.close())
		if b.report.OwnServers {
			b.report.Others = during.busy() // now the servers have ended, and count as children
			b.warnOfOthers("while it measured", b.report.Others)
		}
	}()
	if err := b.describe(ctx); err != nil {
		return nil, err
	}
	for _, p := range selected {
		err := p.run(b, ctx)
		why, skipped := errors.AsType[skipError](err)
		switch {
		case skipped:
			b.report.Skipped = append(b.report.Skipped, p.name+": "+string(why))
			b.progressf("  skipped: %s", string(why))
		case ctx.Err() != nil && err != nil:
			return b.report, fmt.Errorf("measure %s: interrupted", p.name)
		case err != nil:
			return b.report, fmt.Errorf("measure %s: %w", p.name, err)
		}
	}
	b.report.checkGoals()
	return b.report, nil
}

func (b *runner) progressf(format string, args ...any) { b.Progress(fmt.Sprintf(format, args...)) }

// step reports the next measurement.
func (b *runner) step(format string, args ...any) {
	b.Step(b.done, b.total, fmt.Sprintf(format, args...))
	b.done++
}

// ErrPartialURLs reports that Options has only some of the three URLs.
var ErrPartialURLs = errors.New("of NATS, Redis and Postgres only some are given: give all three, or none")

// quiet drops the log messages of go-redis, which would go to stderr. go-redis returns the same errors.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(quiet{}) }

// connect starts servers if Options has no URLs, and connects to the servers.
func (b *runner) connect(ctx context.Context) (err error) {
	given := 0
	for _, url := range []string{b.NATSURL, b.RedisURL, b.PostgresURL} {
		if url != "" {
			given++
		}
	}
	switch given {
	case 0:
		if err := b.startServers(ctx); err != nil {
			return err
		}
	case 3:
	default:
		return ErrPartialURLs
	}
	logf := func(format string, args ...any) { b.progressf("%s", fmt.Sprintf(format, args...)) }
	if b.nc, err = events.Connect(b.NATSURL, "holdfast bench", logf); err != nil {
		return err
	}
	b.js, err = jetstream.New(b.nc,
		jetstream.WithPublishAsyncMaxPending(publishing), jetstream.WithPublishAsyncTimeout(time.Minute),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, m *nats.Msg, err error) {
			err = fmt.Errorf("publish on %s: %w", m.Subject, err)
			b.unpublished.CompareAndSwap(nil, &err)
		}))
	if err != nil {
		return fmt.Errorf("jetstream: %w", err)
	}
	options, err := redis.ParseURL(b.RedisURL)
	if err != nil {
		// err may contain the password.
		return errors.New("the Redis URL is invalid: want redis://[user:password@]host:port[/database]")
	}
	options.MaxRetries = -1
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	b.redis = redis.NewClient(options)
	if err := b.redis.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	b.notify = b.notifyOption(ctx)
	if b.pool, err = pgxpool.New(ctx, b.PostgresURL); err != nil {
		return errors.New("the Postgres URL is invalid: want postgres://[user:password@]host:port/database") // likewise
	}
	if err := b.pool.Ping(ctx); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

// startServers starts the servers. NATS runs in its own process, so that its CPU time is separate from
// that of the load generator.
func (b *runner) startServers(ctx context.Context) (err error) {
	b.stack, err = stack.Start(ctx, stack.Options{Redis: true, Postgres: true, Progress: b.Progress})
	if err != nil {
		return err
	}
	b.RedisURL, b.PostgresURL = b.stack.RedisURL, b.stack.PostgresURL
	b.nats, b.NATSURL, err = startNATS(ctx, b.NATSCommand)
	return err
}

const optionNotify = "notify-keyspace-events"

// notifyOption returns the value of notify-keyspace-events, "" if the user may not read it.
func (b *runner) notifyOption(ctx context.Context) string {
	options, err := b.redis.ConfigGet(ctx, optionNotify).Result()
	if err != nil {
		return ""
	}
	return options[optionNotify]
}

func (b *runner) close() error {
	var errs []error
	if b.wide != nil {
		errs = append(errs, b.wide.close(context.Background()))
		b.wide = nil
	}
	if b.pool != nil {
		b.pool.Close()
		// Workers turn notifications on and never turn them off, because other workers need them.
		ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
		defer cancel()
		if b.stack == nil && b.notifyOption(ctx) != b.notify {
			errs = append(errs, b.redis.ConfigSet(ctx, optionNotify, b.notify).Err())
		}
	}
	if b.redis != nil {
		errs = append(errs, b.redis.Close())
	}
	if b.nc != nil {
		b.nc.Close()
	}
	if b.nats != nil {
		errs = append(errs, b.nats.Stop(stopWithin))
	}
	if b.stack != nil {
		errs = append(errs, b.stack.Close())
	}
	return errors.Join(errs...)
}

// describe records the machine and the versions in the report, and warns of other load.
func (b *runner) describe(ctx context.Context) error {
	r := b.report
	r.Machine = machine()
	r.At = time.Now().UTC().Truncate(time.Second)
	r.Size = map[Size]string{Whole: "whole", Quick: "quick", Tiny: "tiny"}[b.Size]
	r.OwnServers = b.stack != nil
	r.Versions.Holdfast = version.Revision()
	r.Versions.NATS = b.nc.ConnectedServerVersion()
	info, err := b.redis.InfoMap(ctx, "server").Result()
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	r.Versions.Redis = info["Server"]["redis_version"]
	var postgres string
	if err := b.pool.QueryRow(ctx, "SHOW server_version").Scan(&postgres); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	r.Versions.Postgres, _, _ = strings.Cut(postgres, " ")
	b.progressf("%s", r.Environment())
	b.warnOfOthers("before the start", r.OthersBefore)
	return nil
}

// othersFor is how long other programs are watched before the start.
const othersFor = 500 * time.Millisecond

// warnOfOthers warns when other programs keep an eighth of the processors busy.
func (b *runner) warnOfOthers(when string, busy float64) {
	if processors := b.report.Machine.Processors; busy > float64(processors)/8 {
		b.progressf("warning: %s other programs kept %.1f of %d processors busy; the figures are lower and less exact",
			when, busy, processors)
	}
}

// skipError is why a part cannot be measured here. The run goes on.
type skipError string

func (e skipError) Error() string { return string(e) }
