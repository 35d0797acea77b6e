package events

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"holdfast/internal/holds"
)

// origin identifies an event within one consumer. A sequence alone does not: if the inbound stream
// is deleted and recreated while a worker runs, its sequences start at 1 again.
type origin struct {
	seq    uint64 // in the inbound stream
	stored int64  // when, in Unix nanoseconds
}

func (d *delivery) origin() origin {
	return origin{d.meta.Sequence.Stream, d.meta.Timestamp.UnixNano()}
}

// streamCreation is when the inbound stream was created, as it was read at some time.
type streamCreation struct {
	readAt  time.Time // just before the request
	created time.Time
}

// inboundCreatedAfter returns when the inbound stream was created, as it was read after a time. It
// asks the server only if the value that was read last is older.
func (c *Consumer) inboundCreatedAfter(ctx context.Context, after time.Time) (time.Time, error) {
	if last := c.inboundCreated.Load(); !last.readAt.Before(after) {
		return last.created, nil
	}
	return c.refreshInboundCreated(ctx)
}

// refreshInboundCreated reads when the inbound stream was created, and keeps the answer.
func (c *Consumer) refreshInboundCreated(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, streamRequestLimit)
	defer cancel()
	readAt := time.Now()
	stream, err := c.js.Stream(ctx, c.ns.InStream())
	if err != nil {
		return time.Time{}, ofNATS(fmt.Errorf("read when stream %s was created: %w", c.ns.InStream(), err))
	}
	created := stream.CachedInfo().Created
	c.inboundCreated.Store(&streamCreation{readAt, created})
	return created, nil
}

// deadLetterID returns the message id of the dead letter of an event: the inbound stream, when that was
// created, and the sequence of the event. So it is the same at each delivery, and another one when the
// event is published again. If the stream of the event no longer exists, the time when the event was
// stored replaces that of the creation.
func (c *Consumer) deadLetterID(ctx context.Context, d *delivery) (string, error) {
	created, err := c.inboundCreatedAfter(ctx, d.fetched)
	if err != nil {
		return "", err
	}
	if d.meta.Timestamp.Before(created) {
		created = d.meta.Timestamp
	}
	return c.ns.deadLetterID(created, d.meta.Sequence.Stream), nil
}

func (ns Namespace) deadLetterID(created time.Time, seq uint64) string {
	return ns.InStream() + "-" + strconv.FormatInt(created.UnixMilli(), 36) + "-" + strconv.FormatUint(seq, 10)
}

// locate sets the stream position of the inventory.set events of a batch that have no error so far, or an error.
//
// A message carries its sequence, but not when its stream was created. The event is in the stream
// that exists now if that stream existed before the fetch too. Otherwise the stream was recreated:
// the server delivers the event again if it is in the new stream.
func (c *Consumer) locate(ctx context.Context, batch []*delivery) {
	var err error // of the first request that fails: the others of the batch would wait for nothing
	for _, d := range batch {
		if d.result.Err != nil {
			continue
		}
		set, is := d.in.Request.(*holds.InventoryRequest)
		if !is {
			continue
		}
		var created time.Time
		if err == nil {
			created, err = c.inboundCreatedAfter(ctx, d.fetched)
		}
		switch {
		case err != nil:
			d.result.Err = err
		case !created.Equal(d.streamCreated):
			d.result.Err = fmt.Errorf("stream %s was recreated: %w", c.ns.InStream(), holds.ErrBusy)
		default:
			set.Position.StreamCreatedAt, set.Position.Seq = created, d.meta.Sequence.Stream
		}
	}
}
