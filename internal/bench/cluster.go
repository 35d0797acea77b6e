package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack"
)

const (
	publishing        = 4096        // maximum of publications without a PubAck
	stallWithin       = time.Minute // maximum time without an outcome
	closeWithin       = time.Minute // to remove a namespace
	pauseEnd          = time.Second // from now to the end of a pause; see resume
	pollInterval      = 20 * time.Millisecond
	calendar          = 35            // nights of each resource
	calendarFrom      = 30            // days from today to the first night
	unlimitedCapacity = 1_000_000_000 // never sold out
	scanBatch         = 10_000        // keys of Redis that one call scans
)

// cluster is a namespace and its workers.
type cluster struct {
	*runner
	ns      events.Namespace
	first   time.Time // the first night of the calendar
	workers []*worker

	answered int            // outcomes that awaitAnswers has waited for
	expected map[string]int // outcomes that tally has found, by event
}

// open creates a namespace, with more environment. The caller calls close.
func (b *runner) open(ctx context.Context, more ...string) (*cluster, error) {
	s := b.newCluster()
	cmd := exec.CommandContext(ctx, b.Worker, "migrate") //nolint:gosec // the user chooses the program
	cmd.Env = s.environ(more...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s migrate: %w: %s", b.Worker, err, strings.TrimSpace(string(out))), s.close(ctx))
	}
	return s, nil
}

// newCluster returns a cluster with a name of its own, and creates nothing.
func (b *runner) newCluster() *cluster {
	b.opened++
	return &cluster{
		runner: b, ns: events.Namespace(b.name + "_" + strconv.Itoa(b.opened)),
		first:    time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, calendarFrom),
		expected: make(map[string]int),
	}
}

// stocked returns a namespace with resources, and a function that the caller calls at the end. A namespace
// of allResources takes long to fill, so there is only one in a run: its workers are stopped at the end, its
// data stays until the end of the run.
func (b *runner) stocked(ctx context.Context, resources int) (s *cluster, done func() error, err error) {
	if resources == b.allResources && b.wide != nil {
		return b.wide, b.wide.stopAll, nil
	}
	if s, err = b.open(ctx); err != nil {
		return nil, nil, err
	}
	if err := s.setInventory(ctx, resources); err != nil {
		return nil, nil, errors.Join(err, s.close(ctx))
	}
	if resources == b.allResources {
		b.wide = s
		return s, s.stopAll, nil
	}
	return s, func() error { return s.close(ctx) }, nil
}

// environ returns the environment of a worker.
func (s *cluster) environ(more ...string) []string {
	return append(append([]string{
		"HOLDFAST_NATS_URL=" + s.NATSURL, "HOLDFAST_REDIS_URL=" + s.RedisURL, "HOLDFAST_POSTGRES_URL=" + s.PostgresURL,
	}, s.policies()...), more...)
}

// policies returns the environment of a worker without the servers. With HOLDFAST_PREFLIGHT=warn the worker
// also accepts servers that never sync.
func (s *cluster) policies() []string {
	return []string{
		"HOLDFAST_NAMESPACE=" + string(s.ns), "HOLDFAST_HTTP_ADDR=127.0.0.1:0", "HOLDFAST_HOLD_TTL=1h",
		"HOLDFAST_HOLDS_PER_USER=1000000", "HOLDFAST_LOG_LEVEL=info", "HOLDFAST_PREFLIGHT=warn",
	}
}

// close stops the workers and removes the namespace, even when ctx is done.
func (s *cluster) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
	defer cancel()
	errs := []error{s.stopAll()}
	for _, stream := range []string{s.ns.InStream(), s.ns.OutStream(), s.ns.DLQStream(), s.ns.RunsStream()} {
		if err := s.js.DeleteStream(ctx, stream); !errors.Is(err, jetstream.ErrStreamNotFound) {
			errs = append(errs, err)
		}
	}
	_, err := s.pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{string(s.ns)}.Sanitize()+" CASCADE")
	if err = errors.Join(append(errs, err, s.removeKeys(ctx, string(s.ns)))...); err != nil {
		return fmt.Errorf("remove namespace %s: %w", s.ns, err)
	}
	return nil
}

// removeKeys removes the keys of a namespace from Redis.
func (b *runner) removeKeys(ctx context.Context, namespace string) error {
	var cursor uint64
	for {
		keys, next, err := b.redis.Scan(ctx, cursor, namespace+":*", scanBatch).Result()
		if err != nil {
			return err
		}
		if len(keys) > 0 {
			if err := b.redis.Unlink(ctx, keys...).Err(); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// setInventory creates resources with a calendar of nights that are never sold out. It needs no triggers,
// because there are no workers yet and no reservations: without them it is several times as quick.
func (s *cluster) setInventory(ctx context.Context, resources int) error {
	table := pgx.Identifier{string(s.ns), "inventory"}.Sanitize()
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `SELECT tgname FROM pg_trigger WHERE tgrelid = $1::regclass AND tgenabled = 'A'`, table)
		always, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `ALTER TABLE `+table+` DISABLE TRIGGER USER`); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO `+table+` (resource_id, slot, capacity)
SELECT 'r' || lpad(r::text, 5, '0'), n, $4
FROM generate_series(0, $1 - 1) AS r,
    (SELECT to_char($2::timestamptz AT TIME ZONE 'UTC' + n * interval '1 day', 'YYYY-MM-DD') AS n
        FROM generate_series(0, $3 - 1) AS n) AS nights`, resources, s.first, calendar, unlimitedCapacity)
		if err != nil {
			return err
		}
		enable := `ALTER TABLE ` + table + ` ENABLE TRIGGER USER`
		for _, name := range always { // ENABLE TRIGGER USER has made them ordinary ones
			enable += `, ENABLE ALWAYS TRIGGER ` + pgx.Identifier{name}.Sanitize()
		}
		_, err = tx.Exec(ctx, enable)
		return err
	})
	if err == nil {
		_, err = s.pool.Exec(ctx, `ANALYZE `+table)
	}
	if err != nil {
		return fmt.Errorf("insert inventory of %d resources: %w", resources, err)
	}
	return nil
}

// resourceName returns the id of a resource. Its numbers have the same length, so that setInventory inserts
// in the order of the index.
func resourceName(n int) string { return fmt.Sprintf("r%05d", n) }

// request returns the n-th request of a sale, for random nights.
func (s *cluster) request(n int, what load, nights int) (*nats.Msg, error) {
	from := s.first.AddDate(0, 0, rand.IntN(calendar-nights+1))
	resource := resourceName(what.pick(n))
	user := "u" + strconv.Itoa(s.answered+n)
	return s.event(events.BookingRequested, resource, events.BookingRequestedData{
		RequestKey: user, UserID: user, ResourceID: resource, Quantity: 1,
		SlotSelection: holds.SlotSelection{
			CheckIn: from.Format(time.DateOnly), CheckOut: from.AddDate(0, 0, nights).Format(time.DateOnly),
		},
	})
}

// event returns an inbound event.
func (s *cluster) event(name, resource string, data any) (*nats.Msg, error) {
	m, _, err := client.NewEvent(s.ns, name, resource, "/bench", data)
	return m, err
}

// publish publishes a message without waiting for its PubAck; see published.
func (b *runner) publish(m *nats.Msg) error {
	if _, err := b.js.PublishMsgAsync(m, jetstream.WithStallWait(stallWithin)); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}

// published waits until all messages are stored, and returns the first error of their publications.
func (b *runner) published(ctx context.Context) error {
	select {
	case <-b.js.PublishAsyncComplete():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := b.unpublished.Load(); err != nil {
		return *err
	}
	return nil
}

// preload stores number events in the inbound stream.
func (s *cluster) preload(ctx context.Context, number int, event func(n int) (*nats.Msg, error)) error {
	for n := range number {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		m, err := event(n)
		if err == nil {
			err = s.publish(m)
		}
		if err != nil {
			return err
		}
	}
	return s.published(ctx)
}

// pause pauses consumers, so that the workers get no events from them.
func (s *cluster) pause(ctx context.Context, consumers ...string) error {
	for _, name := range consumers {
		if _, err := s.js.PauseConsumer(ctx, s.ns.InStream(), name, time.Now().Add(24*time.Hour)); err != nil {
			return fmt.Errorf("pause %s: %w", name, err)
		}
	}
	return nil
}

// resume ends the pause of consumers and waits for a number of further outcomes, one for each event. It
// returns the rate of the events, from the end of the pause until the last outcome was stored, both by
// the clock of the NATS server.
//
// It sets the end of the pause shortly in the future instead of resuming at once: a consumer that is
// resumed by request does not serve pending pulls (nats-server 2.15.2), and a worker pulls again only
// after a second. That second would count as the worker's time.
func (s *cluster) resume(ctx context.Context, number int, consumers ...string) (Rate, error) {
	from, err := s.endPause(ctx, consumers...)
	if err != nil {
		return Rate{}, err
	}
	before := s.processorTimes(s.workers)
	last, err := s.awaitAnswers(ctx, number)
	if err != nil {
		return Rate{}, err
	}
	return newRate(number, last.Sub(from), s.processorTimes(s.workers).since(before))
}

// endPause ends the pause of consumers after pauseEnd, and returns when, by the clock of the NATS server.
func (s *cluster) endPause(ctx context.Context, consumers ...string) (from time.Time, err error) {
	info, err := s.out(ctx)
	if err != nil {
		return time.Time{}, err
	}
	from = info.TimeStamp.Add(pauseEnd)
	for _, name := range consumers {
		pause, err := s.js.PauseConsumer(ctx, s.ns.InStream(), name, from)
		if err == nil && !pause.Paused {
			err = fmt.Errorf("NATS answered after more than %s", pauseEnd)
		}
		if err != nil {
			return time.Time{}, fmt.Errorf("resume %s: %w", name, err)
		}
	}
	return from, nil
}

// out returns the state of the outbound stream.
func (s *cluster) out(ctx context.Context) (*jetstream.StreamInfo, error) {
	out, err := s.js.Stream(ctx, s.ns.OutStream())
	if err != nil {
		return nil, fmt.Errorf("outbound stream: %w", err)
	}
	return out.CachedInfo(), nil
}

// awaitAnswers waits until number more outcomes are stored than at its last call, and returns the time when
// the last was stored. It returns an error when a worker ends or no outcome is stored for stallWithin.
func (s *cluster) awaitAnswers(ctx context.Context, number int) (last time.Time, err error) {
	var seen uint64
	moved := time.Now()
	s.answered += number
	return last, stack.Poll(ctx, pollInterval, func() (bool, error) {
		info, err := s.out(ctx)
		if err == nil {
			err = s.alive()
		}
		if err != nil {
			return false, err
		}
		last = info.State.LastTime
		if info.State.LastSeq > seen {
			seen, moved = info.State.LastSeq, time.Now()
		}
		if seen < uint64(s.answered) && time.Since(moved) > stallWithin {
			return false, s.stalled(ctx, seen, s.answered)
		}
		return seen >= uint64(s.answered), nil
	})
}

// stalled returns an error about missing outcomes, with the number of dead letters and the workers' logs.
func (s *cluster) stalled(ctx context.Context, seen uint64, number int) error {
	dead := "an unknown number of"
	if dlq, err := s.js.Stream(ctx, s.ns.DLQStream()); err == nil {
		dead = strconv.FormatUint(dlq.CachedInfo().State.Msgs, 10)
	}
	logs := ""
	for _, w := range s.workers {
		logs += "\n" + w.Log()
	}
	return fmt.Errorf("%d of %d outcomes, and no further one for %s; %s dead letters%s",
		seen, number, stallWithin, dead, logs)
}

// tally returns an error unless the outbound stream has exactly these numbers of outcomes, by event, more
// than at the last tally without an error.
func (s *cluster) tally(ctx context.Context, more map[string]int) error {
	out, err := s.js.Stream(ctx, s.ns.OutStream())
	if err != nil {
		return fmt.Errorf("outbound stream: %w", err)
	}
	info, err := out.Info(ctx, jetstream.WithSubjectFilter(s.ns.AllOut()))
	if err != nil {
		return fmt.Errorf("outbound stream: %w", err)
	}
	want := maps.Clone(s.expected)
	for event, n := range more {
		want[event] += n
	}
	found := make(map[string]int)
	for subject, n := range info.State.Subjects {
		event := strings.TrimPrefix(subject, s.ns.Out("", "")[:len(s.ns)+len(".out.")])
		found[event[:strings.LastIndexByte(event, '.')]] += int(n)
	}
	if !maps.Equal(found, want) {
		return fmt.Errorf("outcomes are %v, want %v", found, want)
	}
	s.expected = want
	return nil
}

// read calls each for the first number outcomes of an event.
func (s *cluster) read(ctx context.Context, event string, number int, each func(events.Envelope) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stallWithin,
		fmt.Errorf("%d %s not read within %s", number, event, stallWithin))
	defer cancel()
	config := jetstream.OrderedConsumerConfig{FilterSubjects: []string{s.ns.Out(event, "*")}}
	consumer, err := s.js.OrderedConsumer(ctx, s.ns.OutStream(), config)
	if err != nil {
		return err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	for range number {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		var e events.Envelope
		if err := json.Unmarshal(m.Data(), &e); err != nil {
			return err
		}
		if err := each(e); err != nil {
			return err
		}
	}
	return nil
}

// pace calls do(n) for n from 0 to number-1, each when it is due: never early, and late if earlier calls
// take long. It checks once per beat and then calls do for all that are due.
func pace(ctx context.Context, number int, due func(n int) time.Time, do func(n int) error) error {
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for n := 0; n < number; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
		for ; n < number && !due(n).After(time.Now()); n++ {
			if err := do(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// beat is the resolution of pace.
const beat = time.Millisecond

// evenly returns a function for pace: perSecond calls per second, the first at from.
func evenly(from time.Time, perSecond float64) func(n int) time.Time {
	return func(n int) time.Time { return from.Add(time.Duration(float64(n) / perSecond * float64(time.Second))) }
}

// plural returns a number and a noun in singular or plural.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return grouped(n) + " " + thing + "s"
}

// grouped formats a number with commas between groups of thousands.
func grouped(n int) string {
	text := strconv.Itoa(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}
