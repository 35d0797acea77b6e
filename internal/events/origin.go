package events

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// origin tells the events of one consumer apart. A sequence alone does not: the inbound stream may be deleted and
// created again under a worker, and its sequences begin at 1 again.
type origin struct {
	seq    uint64 // in the inbound stream
	stored int64  // when, in Unix nanoseconds
}

func (d *delivery) origin() origin {
	return origin{d.meta.Sequence.Stream, d.meta.Timestamp.UnixNano()}
}

// streamSnapshot is the inbound stream as it was found.
type streamSnapshot struct {
	readAt  time.Time // before it was asked for
	created time.Time // when the stream was
}

// deadLetterID returns the message id of the dead letter of an event: the inbound stream, when that was created, and
// the sequence. An event that is delivered again has the same; one that is published again and dies again
// has another, and so has an event of another stream of the same name. In place of a stream that does not
// exist any more stands when the event was stored.
func (c *Consumer) deadLetterID(ctx context.Context, d *delivery) (string, error) {
	seen := c.inboundSnapshot.Load()
	if seen == nil || seen.readAt.Before(d.fetched) {
		begun := time.Now()
		created, err := c.readStreamCreated(ctx)
		if err != nil {
			return "", fmt.Errorf("stream %s: %w", c.ns.InStream(), err)
		}
		seen = &streamSnapshot{begun, created}
		c.inboundSnapshot.Store(seen)
	}
	since := seen.created
	if d.meta.Timestamp.Before(since) {
		since = d.meta.Timestamp
	}
	return c.ns.deadLetterID(since, d.meta.Sequence.Stream), nil
}

func (ns Namespace) deadLetterID(created time.Time, seq uint64) string {
	return ns.InStream() + "-" + strconv.FormatInt(created.UnixMilli(), 36) + "-" + strconv.FormatUint(seq, 10)
}
