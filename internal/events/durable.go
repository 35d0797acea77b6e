package events

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	superviseEvery     = 3 * time.Second // between two checks of the durable consumers
	streamRequestLimit = 5 * time.Second
)

// floors are the ack floors of the durable consumers: for each, the inbound sequence up to which
// every event is answered. Each outcome carries, as a header, the floors that its worker has read
// last. With them a consumer that was deleted can resume.
type floors struct {
	created time.Time         // when the inbound stream was created
	of      map[string]uint64 // by consumer
	text    string            // the header
}

func newFloors(created time.Time, of map[string]uint64) *floors {
	f := &floors{created: created, of: of, text: strconv.FormatInt(created.UnixNano(), 36)}
	for _, name := range slices.Sorted(maps.Keys(of)) {
		f.text += " " + name + "=" + strconv.FormatUint(of[name], 10)
	}
	return f
}

// readFloors parses the header of an outcome. It ignores what newFloors would not write.
func readFloors(header string) *floors {
	first, rest, _ := strings.Cut(header, " ")
	created, err := strconv.ParseInt(first, 36, 64)
	if err != nil {
		return nil
	}
	of := make(map[string]uint64)
	for word := range strings.FieldsSeq(rest) {
		name, number, _ := strings.Cut(word, "=")
		if seq, err := strconv.ParseUint(number, 10, 64); err == nil {
			of[name] = seq
		}
	}
	return newFloors(time.Unix(0, created), of)
}

// on returns the floor of a consumer in the stream that was created at a time, 0 if it is not
// known.
func (f *floors) on(created time.Time, name string) uint64 {
	if f == nil || !f.created.Equal(created) {
		return 0
	}
	return f.of[name]
}

// supervise reads the ack floors of the durable consumers every superviseEvery, until ctx ends. If
// this durable consumer was deleted, or changed so that it loses events, it recreates it as Setup does.
func (c *Consumer) supervise(ctx context.Context) {
	ticker := time.NewTicker(superviseEvery)
	defer ticker.Stop()
	reported := ""
	for {
		switch broken, err := c.checkConsumers(ctx); {
		case err != nil:
		case !broken:
			reported = ""
		default:
			err := c.ns.ensureConsumer(ctx, c.js, c.name, c.floors.Load(), c.process.log)
			if err != nil && ctx.Err() == nil && err.Error() != reported {
				reported = err.Error()
				c.log.Error().Err(err).Msg("consumer deleted or changed, recreate failed (run worker migrate)")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// checkConsumers reads the floors of all durable consumers, all of the same inbound stream, and
// reports whether this one is missing, loses events or stops to deliver them. The floor of one that is missing or loses
// events stays as it was.
func (c *Consumer) checkConsumers(ctx context.Context) (broken bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, streamRequestLimit)
	defer cancel()
	created, err := c.refreshInboundCreated(ctx)
	if err != nil {
		return false, err
	}
	of := make(map[string]uint64)
	for _, config := range c.ns.Consumers() {
		consumer, err := c.js.Consumer(ctx, c.ns.InStream(), config.Durable)
		if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return false, err
		}
		if err == nil && config.Durable == c.name {
			c.keepDurable(consumer.CachedInfo())
		}
		if err == nil && !losesEvents(consumer.CachedInfo().Config, config) {
			of[config.Durable] = consumer.CachedInfo().AckFloor.Stream
			broken = broken || config.Durable == c.name && stopsEvents(consumer.CachedInfo().Config)
			continue
		}
		of[config.Durable] = c.floors.Load().on(created, config.Durable)
		broken = broken || config.Durable == c.name
	}
	again, err := c.refreshInboundCreated(ctx)
	if err != nil || !again.Equal(created) {
		return false, err // recreated meanwhile: the floors may be of two streams
	}
	c.floors.Store(newFloors(created, of))
	return broken, nil
}

// waiting returns how many events of the durable consumer wait for an answer, when it was last read.
func (c *Consumer) waiting() int { return c.durable.Load().NumAckPending }

// errLosesEvents pauses a consumer until it is repaired.
var errLosesEvents = errors.New("its configuration was changed and loses events (run worker migrate, which repairs it)")

// keepDurable keeps what was read of the durable consumer. When it was recreated since, the new one delivers again what is in
// work.
func (c *Consumer) keepDurable(info *jetstream.ConsumerInfo) {
	if before := c.durable.Swap(info); !before.Created.Equal(info.Created) {
		c.inFlight.markOverdue()
	}
}

// checkReplaced notices that the durable consumer was deleted and recreated between two fetches, neither of which has
// failed: the new one counts its deliveries from one. Until it is read, isFirstDelivery returns false.
func (c *Consumer) checkReplaced(meta *nats.MsgMetadata) {
	if meta.Sequence.Consumer <= c.sequence {
		unknown := *c.durable.Load()
		unknown.Created = time.Unix(0, math.MaxInt64)
		c.keepDurable(&unknown)
		c.replaced = true
	}
	c.sequence = meta.Sequence.Consumer
}

// readReplaced reads the durable consumer if it may have been deleted and recreated since it was last read: no fetch was
// under way for fetchGap, or one has failed. (A fetch that is under way fails when its consumer is deleted.)
func (c *Consumer) readReplaced(ctx context.Context) error {
	if !c.replaced && time.Since(c.fetchedAt) < fetchGap {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, streamRequestLimit)
	defer cancel()
	durable, err := c.js.Consumer(ctx, c.ns.InStream(), c.name)
	if err != nil {
		return err
	}
	c.keepDurable(durable.CachedInfo())
	c.replaced = false
	return nil
}
