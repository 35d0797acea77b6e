package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	lookEvery  = 3 * time.Second // at how far a consumer has come, and whether it is there
	lookWithin = 5 * time.Second
)

// tend makes the durable consumer again when somebody has deleted it, from where it was when it was
// last seen: what was answered since is delivered again and answered the same. Made from the
// beginning of the stream, it would deliver events again whose answers nobody remembers any
// more, and capacities of long ago.
func (c *Consumer) tend(ctx context.Context) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	var its time.Time // when the stream was made that the consumer was seen on
	for {
		switch floor, err := c.look(ctx); {
		case err == nil:
			if its.IsZero() {
				its, _ = c.streamMade(ctx) // asked again at the next look
			}
			c.floor.Store(max(floor, c.floor.Load()))
		case errors.Is(err, jetstream.ErrConsumerNotFound):
			if err := c.remake(ctx, its); err != nil && ctx.Err() == nil {
				c.log.Error().Err(err).Msg("the consumer was deleted and cannot be made again, `worker migrate` can")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// look returns up to where the consumer has acknowledged everything.
func (c *Consumer) look(ctx context.Context) (floor uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	consumer, err := c.js.Consumer(ctx, c.ns.InStream(), c.name)
	if err != nil {
		return 0, err
	}
	return consumer.CachedInfo().AckFloor.Stream, nil
}

// streamMade returns when the inbound stream was made.
func (c *Consumer) streamMade(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	stream, err := c.js.Stream(ctx, c.ns.InStream())
	if err != nil {
		return time.Time{}, err
	}
	return stream.CachedInfo().Created, nil
}

// errUnseen says that nobody here knows where a consumer was.
var errUnseen = errors.New("it was not seen before")

// remake makes the consumer again, from where it was, unless another worker was faster. On another
// stream than its own, made at another time, it begins with the first event.
func (c *Consumer) remake(ctx context.Context, its time.Time) error {
	if its.IsZero() {
		return errUnseen
	}
	made, err := c.streamMade(ctx)
	if err != nil {
		return err
	}
	from := c.floor.Load() + 1
	if !made.Equal(its) {
		from = 1
	}
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	for _, config := range c.ns.Consumers() {
		if config.Durable != c.name {
			continue
		}
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, from
		_, err := c.js.CreateConsumer(ctx, c.ns.InStream(), config)
		if errors.Is(err, jetstream.ErrConsumerExists) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("consumer %s: %w", c.name, err)
		}
		c.log.Error().Uint64("from_stream_seq", from).Msg("the consumer was deleted and is made again")
	}
	return nil
}
