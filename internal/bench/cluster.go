package bench

import (
	"context"
	"errors"
	"fmt"
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
)

const (
	publishing   = 4096        // events on their way to a stream at a time
	stallWithin  = time.Minute // without any outcome
	closeWithin  = time.Minute // a namespace
	pauseEnd     = time.Second
	pollInterval = 20 * time.Millisecond // how many outcomes there are
	calendar     = 60                    // nights that there are of each resource
	calendarFrom = 30                    // days from now
	roomy        = 1_000_000_000         // a capacity that is never sold out
)

// cluster is a namespace of its own, and the workers on it.
type cluster struct {
	*runner
	ns      events.Namespace
	first   time.Time // night of the calendar
	workers []*worker
}

// open makes a namespace.
func (b *runner) open(ctx context.Context) (*cluster, error) {
	b.opened++
	s := &cluster{
		runner: b, ns: events.Namespace(b.name + "_" + strconv.Itoa(b.opened)),
		first: time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, calendarFrom),
	}
	cmd := exec.CommandContext(ctx, b.Worker, "migrate") //nolint:gosec // a program that the user names
	cmd.Env = s.environ()
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s migrate: %w: %s", b.Worker, err, strings.TrimSpace(string(out))), s.close(ctx))
	}
	return s, nil
}

// environ is what a worker of the site needs to know. It measures servers that would lose what they have, too.
func (s *cluster) environ(more ...string) []string {
	return append([]string{
		"HOLDFAST_NATS_URL=" + s.NATSURL, "HOLDFAST_REDIS_URL=" + s.RedisURL, "HOLDFAST_POSTGRES_URL=" + s.PostgresURL,
		"HOLDFAST_NAMESPACE=" + string(s.ns), "HOLDFAST_HTTP_ADDR=127.0.0.1:0", "HOLDFAST_HOLD_TTL=1h",
		"HOLDFAST_HOLDS_PER_USER=1000000", "HOLDFAST_LOG_LEVEL=info", "HOLDFAST_PREFLIGHT=warn",
	}, more...)
}

// close stops the workers and removes the namespace. It does so also when ctx is over.
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
	if b.stack != nil {
		return b.redis.FlushAllAsync(ctx).Err() // nobody else's; a million holds take longer than a client waits
	}
	var cursor uint64
	for {
		keys, next, err := b.redis.Scan(ctx, cursor, namespace+":*", 1000).Result()
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

// setInventory gives resources a calendar in which nothing is ever sold out.
func (s *cluster) setInventory(ctx context.Context, resources int) error {
	_, err := s.pool.Exec(ctx, `INSERT INTO `+pgx.Identifier{string(s.ns), "inventory"}.Sanitize()+` (resource_id, slot, capacity)
SELECT 'r' || r, to_char($2::timestamptz AT TIME ZONE 'UTC' + n * interval '1 day', 'YYYY-MM-DD'), $4
FROM generate_series(0, $1 - 1) AS r, generate_series(0, $3 - 1) AS n`, resources, s.first, calendar, roomy)
	if err != nil {
		return fmt.Errorf("stock %d resources: %w", resources, err)
	}
	return nil
}

// poll asks until it is done.
func poll(ctx context.Context, every time.Duration, done func() (bool, error)) error {
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(every):
		}
	}
}

// request returns the n-th request of a sale, for some nights of one of the resources.
func (s *cluster) request(n, resources, nights int) (*nats.Msg, error) {
	from := s.first.AddDate(0, 0, rand.IntN(calendar-nights+1))
	resource := "r" + strconv.Itoa(rand.IntN(resources))
	user := "u" + strconv.Itoa(n)
	return s.event(events.BookingRequested, resource, events.BookingRequestedData{
		RequestKey: user, UserID: user, ResourceID: resource, Quantity: 1,
		SlotSelection: holds.SlotSelection{CheckIn: from.Format(time.DateOnly), CheckOut: from.AddDate(0, 0, nights).Format(time.DateOnly)},
	})
}

// event returns an inbound event.
func (s *cluster) event(name, resource string, data any) (*nats.Msg, error) {
	r, err := client.NewEvent(s.ns, name, resource, "/bench", data)
	if err != nil {
		return nil, err
	}
	return r.Message()
}

// publish publishes an event without waiting until it is stored.
func (b *runner) publish(m *nats.Msg) error {
	if _, err := b.js.PublishMsgAsync(m, jetstream.WithStallWait(stallWithin)); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}

// published waits until all events are stored.
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

// preload stores events in the inbound stream.
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

// pause keeps the workers from taking events. consumers is what they take them from.
func (s *cluster) pause(ctx context.Context, consumers ...string) error {
	for _, name := range consumers {
		if _, err := s.js.PauseConsumer(ctx, s.ns.InStream(), name, time.Now().Add(24*time.Hour)); err != nil {
			return fmt.Errorf("pause %s: %w", name, err)
		}
	}
	return nil
}

// resume lets the workers take events again, and waits until so many outcomes are stored. It
// returns how fast they were: from the moment in which the first could be taken until the last
// outcome was stored, both by the clock of the NATS server.
//
// That moment is the end of a pause, set shortly before. A consumer that is resumed by request does
// not serve those that wait (nats-server 2.15.2), and a worker waits for a second before it asks
// again: as long as that it would seem to do nothing.
func (s *cluster) resume(ctx context.Context, events, outcomes int, consumers ...string) (Rate, error) {
	info, err := s.out(ctx)
	if err != nil {
		return Rate{}, err
	}
	from := info.TimeStamp.Add(pauseEnd)
	for _, name := range consumers {
		pause, err := s.js.PauseConsumer(ctx, s.ns.InStream(), name, from)
		if err == nil && !pause.Paused {
			err = fmt.Errorf("NATS took longer than %s to answer", pauseEnd)
		}
		if err != nil {
			return Rate{}, fmt.Errorf("resume %s: %w", name, err)
		}
	}
	before := s.processorTimes(s.workers)
	last, err := s.awaitAnswers(ctx, outcomes)
	if err != nil {
		return Rate{}, err
	}
	return newRate(events, last.Sub(from), s.processorTimes(s.workers).since(before))
}

// out is the state of the outbound stream.
func (s *cluster) out(ctx context.Context) (*jetstream.StreamInfo, error) {
	out, err := s.js.Stream(ctx, s.ns.OutStream())
	if err != nil {
		return nil, fmt.Errorf("the outcomes: %w", err)
	}
	return out.CachedInfo(), nil
}

// awaitAnswers waits until so many outcomes are stored, and returns when the last of them was.
func (s *cluster) awaitAnswers(ctx context.Context, number int) (last time.Time, err error) {
	var seen uint64
	moved := time.Now()
	return last, poll(ctx, pollInterval, func() (bool, error) {
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
		if seen < uint64(number) && time.Since(moved) > stallWithin {
			return false, s.stalled(ctx, seen, number)
		}
		return seen >= uint64(number), nil
	})
}

// stalled tells what is known of outcomes that do not come.
func (s *cluster) stalled(ctx context.Context, seen uint64, number int) error {
	dead := "an unknown number of"
	if dlq, err := s.js.Stream(ctx, s.ns.DLQStream()); err == nil {
		dead = strconv.FormatUint(dlq.CachedInfo().State.Msgs, 10)
	}
	logs := ""
	for _, w := range s.workers {
		logs += "\n" + w.log.String()
	}
	return fmt.Errorf("%d of %d outcomes came, and none within %s; there are %s dead letters%s", seen, number, stallWithin, dead, logs)
}

// tally checks that there are just these outcomes: so many of each event.
func (s *cluster) tally(ctx context.Context, want map[string]int) error {
	out, err := s.js.Stream(ctx, s.ns.OutStream())
	if err != nil {
		return fmt.Errorf("the outcomes: %w", err)
	}
	info, err := out.Info(ctx, jetstream.WithSubjectFilter(s.ns.AllOut()))
	if err != nil {
		return fmt.Errorf("the outcomes: %w", err)
	}
	found, all := make(map[string]int), true
	for subject, n := range info.State.Subjects {
		event := strings.TrimPrefix(subject, s.ns.Out("", "")[:len(s.ns)+len(".out.")])
		found[event[:strings.LastIndexByte(event, '.')]] += int(n)
	}
	for event, n := range want {
		all = all && found[event] == n
	}
	if !all || len(found) != len(want) {
		return fmt.Errorf("the outcomes are %v, and should be %v", found, want)
	}
	return nil
}

// read reads the first outcomes of a kind.
func (s *cluster) read(ctx context.Context, event string, number int, each func(events.Envelope) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stallWithin, fmt.Errorf("%d %s were not read within %s", number, event, stallWithin))
	defer cancel()
	consumer, err := s.js.OrderedConsumer(ctx, s.ns.OutStream(), jetstream.OrderedConsumerConfig{FilterSubjects: []string{s.ns.Out(event, "*")}})
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

// pace calls do for each of a number of things when it is due, late if those before it took long, and
// never early. Several may be called together, within a beat.
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

// beat is how exactly things are paced.
const beat = time.Millisecond

// evenly returns when each of many things is due, so many a second from a moment on.
func evenly(from time.Time, perSecond float64) func(n int) time.Time {
	return func(n int) time.Time { return from.Add(time.Duration(float64(n) / perSecond * float64(time.Second))) }
}

// plural is a number of things.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return grouped(n) + " " + thing + "s"
}

// grouped writes thousands apart.
func grouped(n int) string {
	text := strconv.Itoa(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}
