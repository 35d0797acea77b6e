package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
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
)

// part is one of what can be measured.
type part struct {
	name  string
	steps func(*runner) int // how many measurements it is made of
	run   func(*runner, context.Context) error
}

// parts are in the order in which they are measured.
var parts = []part{
	{"sales", (*runner).throughputSteps, (*runner).throughput},
	{"payments", func(b *runner) int { return b.rounds }, (*runner).payAll},
	{"latency", func(b *runner) int { return b.rounds + len(loads) }, (*runner).latencies},
	{"expiry", func(*runner) int { return 2 }, (*runner).expiries},
	{"growth", func(b *runner) int { return len(b.liveHolds) }, (*runner).scaling},
}

// Options say what to measure, and on what.
type Options struct {
	Worker string   // the worker program
	Parts  []string // sales, payments, latency, expiry, growth; empty = all
	Size   Size

	// Where the servers are; all three, or none: then they are started for it, keep nothing, and
	// never sync.
	NATSURL, RedisURL, PostgresURL string

	NATSCommand []string // runs ServeNATS, for servers of its own
	Install     stack.InstallPolicy

	Progress func(line string)                  // told each figure, and what should be known; nil = nobody
	Step     func(done, total int, what string) // told what is measured next; nil = nobody
}

// runner is one run.
type runner struct {
	Options
	sizes
	stack *stack.Stack // Redis and Postgres, when they are its own
	nats  *natsServer  // likewise
	nc    *nats.Conn
	js    jetstream.JetStream
	redis *redis.Client
	pool  *pgxpool.Pool

	name        string                // begins the namespaces
	opened      int                   // how many namespaces there were
	notify      string                // notify-keyspace-events of a Redis that was given
	unpublished atomic.Pointer[error] // why an event was not stored
	done, total int                   // steps
	report      *Report
}

// Size is how much is measured.
type Size int

// The sizes. Figures of Tiny say nothing: it is for tests of the bench itself.
const (
	Whole Size = iota
	Quick
	Tiny
)

// sizes are what is measured how often.
type sizes struct {
	rounds         int
	nights         []int // of the sales
	ceilingCalls   int
	scenarioEvents int // of a sale; half as many when they are of 30 nights
	baseline       int // events of the baseline
	payments       int
	latencyFor     time.Duration
	warmFor        time.Duration // before that
	expiring       int           // holds that lapse within a second
	placedIn       int           // seconds in which they are placed
	keys           int           // others that have a TTL
	liveHolds      []int         // how many there are when it is measured what one more costs
	moreHolds      int           // placed to measure that
}

var allSizes = map[Size]sizes{
	Whole: {
		rounds: 5, nights: []int{1, 3, 7, 30}, ceilingCalls: 60_000, scenarioEvents: 60_000, baseline: 2_000, payments: 20_000,
		latencyFor: 15 * time.Second, warmFor: 2 * time.Second, expiring: 20_000, placedIn: 5, keys: 500_000,
		liveHolds: []int{10_000, 100_000, 1_000_000}, moreHolds: 20_000,
	},
	Quick: {
		rounds: 3, nights: []int{1, 3, 7, 30}, ceilingCalls: 30_000, scenarioEvents: 20_000, baseline: 600, payments: 8_000,
		latencyFor: 5 * time.Second, warmFor: time.Second, expiring: 20_000, placedIn: 5, keys: 100_000,
		liveHolds: []int{10_000, 50_000}, moreHolds: 10_000,
	},
	Tiny: {
		rounds: 1, nights: []int{3}, ceilingCalls: 256, scenarioEvents: 200, baseline: 40, payments: 100,
		latencyFor: 300 * time.Millisecond, warmFor: 50 * time.Millisecond, expiring: 100, placedIn: 1, keys: 500,
		liveHolds: []int{100, 300}, moreHolds: 100,
	},
}

// Run measures and returns what it found. It stops its workers and servers before it returns, and
// removes what it made on servers that were given. With an error, the report tells what was
// measured until then; it is nil when that is nothing.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Step == nil {
		o.Step = func(int, int, string) {}
	}
	wanted, err := wantedParts(o.Parts)
	if err != nil {
		return nil, err
	}
	b := &runner{Options: o, sizes: allSizes[o.Size], name: fmt.Sprintf("bench_%08x", rand.Uint32()), report: &Report{}}
	for _, p := range wanted {
		b.total += p.steps(b)
	}
	if err := b.connect(ctx); err != nil {
		return nil, errors.Join(err, b.close())
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.describe(ctx); err != nil {
		return nil, err
	}
	for _, p := range wanted {
		if err := p.run(b, ctx); err != nil {
			if ctx.Err() != nil {
				err = errors.New("it was stopped")
			}
			return b.report, fmt.Errorf("measure %s: %w", p.name, err)
		}
	}
	b.report.checkGoals()
	return b.report, nil
}

// wantedParts returns the parts of these names, all when there are none.
func wantedParts(names []string) (wanted []part, err error) {
	for _, name := range names {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return nil, fmt.Errorf("there is no part %q", name)
		}
	}
	for _, p := range parts {
		if len(names) == 0 || slices.Contains(names, p.name) {
			wanted = append(wanted, p)
		}
	}
	return wanted, nil
}

func (b *runner) progressf(format string, args ...any) { b.Progress(fmt.Sprintf(format, args...)) }

// step says what is measured next.
func (b *runner) step(format string, args ...any) {
	b.Step(b.done, b.total, fmt.Sprintf(format, args...))
	b.done++
}

// ErrPartialURLs says that of the three servers only some were given.
var ErrPartialURLs = errors.New("of NATS, Redis and Postgres only some are given: give all three, or none")

// quiet keeps go-redis from writing lines of its own to stderr: what it would say comes back as an
// error too.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(quiet{}) }

// connect starts servers, unless some are given, and connects to them.
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
	b.js, err = jetstream.New(b.nc, jetstream.WithPublishAsyncMaxPending(publishing), jetstream.WithPublishAsyncTimeout(time.Minute),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, m *nats.Msg, err error) {
			err = fmt.Errorf("publish on %s: %w", m.Subject, err)
			b.unpublished.CompareAndSwap(nil, &err)
		}))
	if err != nil {
		return fmt.Errorf("jetstream: %w", err)
	}
	options, err := redis.ParseURL(b.RedisURL)
	if err != nil {
		return errors.New("the Redis URL is none: want redis://[user:password@]host:port[/database]") // err may tell the password
	}
	options.MaxRetries = -1
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	b.redis = redis.NewClient(options)
	if err := b.redis.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	if b.pool, err = pgxpool.New(ctx, b.PostgresURL); err != nil {
		return errors.New("the Postgres URL is none: want postgres://[user:password@]host:port/database") // likewise
	}
	if err := b.pool.Ping(ctx); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	b.notify = b.notified(ctx)
	return nil
}

// startServers starts servers of its own, NATS in a process for itself, so that its use of the
// processor can be told from that of the load.
func (b *runner) startServers(ctx context.Context) (err error) {
	b.stack, err = stack.Start(ctx, stack.Options{Redis: true, Postgres: true, Install: b.Install, Progress: b.Progress})
	if err != nil {
		return err
	}
	if b.nats, err = startNATS(ctx, b.NATSCommand); err != nil {
		return err
	}
	b.NATSURL, b.RedisURL, b.PostgresURL = b.nats.url, b.stack.RedisURL, b.stack.PostgresURL
	return nil
}

const optionNotify = "notify-keyspace-events"

// notified is of what Redis notifies, "" when nobody may know.
func (b *runner) notified(ctx context.Context) string {
	options, err := b.redis.ConfigGet(ctx, optionNotify).Result()
	if err != nil {
		return ""
	}
	return options[optionNotify]
}

func (b *runner) close() error {
	var errs []error
	if b.pool != nil {
		b.pool.Close()
		// Workers switch notifications on, and leave them for each other.
		ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
		defer cancel()
		if b.stack == nil && b.notified(ctx) != b.notify {
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
		errs = append(errs, b.nats.stop())
	}
	if b.stack != nil {
		errs = append(errs, b.stack.Close())
	}
	return errors.Join(errs...)
}

// describe notes on what is measured.
func (b *runner) describe(ctx context.Context) error {
	r := b.report
	r.Machine = machine()
	r.At = time.Now().UTC().Truncate(time.Second)
	r.Size = map[Size]string{Whole: "whole", Quick: "quick", Tiny: "tiny"}[b.Size]
	r.OwnServers = b.stack != nil
	r.Versions.Holdfast = revision()
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
	if r.Machine.Load > float64(r.Machine.Processors)/4 {
		b.progressf("something else keeps %s of the processors busy: the figures will be worse, and rougher, than they need be",
			strconv.FormatFloat(r.Machine.Load, 'f', 1, 64))
	}
	return nil
}
