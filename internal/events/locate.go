package events

import (
	"context"
	"fmt"
	"time"

	"holdfast/internal/holds"
)

// locate notes where in the inbound streams the inventory.set events of a batch are, and returns the
// events that can be decided. A message says its sequence, not when its stream was created. It is
// of the stream that exists now if that one existed before the fetch already. Else the stream was
// deleted and created again: the event is delivered again if it is of the new one.
func (l *lane) locate(ctx context.Context, batch []*delivery) (ready []*delivery) {
	var created time.Time
	var err error
	ready = batch[:0]
	for _, d := range batch {
		if d.in.Inventory == nil {
			ready = append(ready, d)
			continue
		}
		if created.IsZero() && err == nil {
			if created, err = l.readStreamCreated(ctx); err == nil {
				l.streamCreated.Store(&created)
			}
		}
		switch {
		case err != nil:
			d.result.Err = fmt.Errorf("read when stream %s was created: %w", l.ns.InStream(), err)
		case !created.Equal(d.created):
			d.result.Err = fmt.Errorf("stream %s was created again: %w", l.ns.InStream(), holds.ErrBusy)
		default:
			d.in.Inventory.Position.StreamCreatedAt, d.in.Inventory.Position.Seq = created, d.meta.Sequence.Stream
			ready = append(ready, d)
			continue
		}
		l.decided <- d
	}
	return ready
}
