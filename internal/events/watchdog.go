package events

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	superviseEvery     = 3 * time.Second // at how far the consumers have come, and whether they exist
	streamRequestLimit = 5 * time.Second
)

// floors are, by consumer, the inbound sequences up to which everything is answered, in the stream that was
// created then. Each outcome carries those that its worker has seen last, for a consumer that is deleted.
type floors struct {
	created time.Time
	of      map[string]uint64
	text    string // as a header
}

func newFloors(created time.Time, of map[string]uint64) *floors {
	f := &floors{created: created, of: of, text: strconv.FormatInt(created.UnixNano(), 36)}
	for _, name := range slices.Sorted(maps.Keys(of)) {
		f.text += " " + name + "=" + strconv.FormatUint(of[name], 10)
	}
	return f
}

// readFloors reads the header of an outcome. What is not as newFloors writes it is left out.
func readFloors(header string) *floors {
	words := strings.Fields(header)
	if len(words) == 0 {
		return newFloors(time.Time{}, nil)
	}
	created, err := strconv.ParseInt(words[0], 36, 64)
	if err != nil {
		return newFloors(time.Time{}, nil)
	}
	of := make(map[string]uint64)
	for _, word := range words[1:] {
		name, number, _ := strings.Cut(word, "=")
		if seq, err := strconv.ParseUint(number, 10, 64); err == nil {
			of[name] = seq
		}
	}
	return newFloors(time.Unix(0, created), of)
}

// on returns the floor of a consumer in the stream that was created then, 0 when it is not known.
func (f *floors) on(created time.Time, name string) uint64 {
	if f == nil || !f.created.Equal(created) {
		return 0
	}
	return f.of[name]
}

// supervise reads how far the consumers of the inbound stream have come, and creates the consumer again when it
// was deleted, as Setup does, until ctx is over.
func (c *Consumer) supervise(ctx context.Context) {
	ticker := time.NewTicker(superviseEvery)
	defer ticker.Stop()
	reported := ""
	for {
		if missing, err := c.checkConsumers(ctx); err == nil && missing {
			err := c.ns.ensureConsumer(ctx, c.js, c.name, c.floors.Load(), c.log)
			if err != nil && ctx.Err() == nil && err.Error() != reported {
				reported = err.Error()
				c.log.Error().Err(err).Msg("the consumer was deleted and cannot be created again, `worker migrate` can")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// checkConsumers reads the floors of all consumers, of one stream, and reports whether this consumer is missing.
func (c *Consumer) checkConsumers(ctx context.Context) (missing bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, streamRequestLimit)
	defer cancel()
	created, err := c.readInboundCreated(ctx)
	if err != nil {
		return false, err
	}
	of := make(map[string]uint64)
	for _, config := range c.ns.Consumers() {
		consumer, err := c.js.Consumer(ctx, c.ns.InStream(), config.Durable)
		switch {
		case err == nil:
			of[config.Durable] = consumer.CachedInfo().AckFloor.Stream
		case !errors.Is(err, jetstream.ErrConsumerNotFound):
			return false, err
		default:
			of[config.Durable] = c.floors.Load().on(created, config.Durable)
			missing = missing || config.Durable == c.name
		}
	}
	again, err := c.readInboundCreated(ctx)
	if err != nil || !again.Equal(created) {
		return false, err // created again meanwhile: the floors may be of two streams
	}
	c.floors.Store(newFloors(created, of))
	return missing, nil
}
