package events

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
)

// storeInBatches publishes the outcomes among messages that were not sent yet, as atomic batches. It
// waits until they are stored. What a server rejects as a batch, for example because it has one of
// the outcomes already, is sent one by one.
//
// It verifies the TermID of each outcome just before it sends it: a server may take seconds for an earlier batch.
func (l *lane) storeInBatches(ctx context.Context, waiting []pendingMsg, verified *termCheck) {
	c := l.consumer
	for rest := waiting; len(rest) > 0; {
		var batch []*pendingMsg
		for len(rest) > 0 && len(batch) < BatchMax {
			if !rest[0].dead && l.maySend(ctx, &rest[0], verified) {
				batch = append(batch, &rest[0])
			}
			rest = rest[1:]
		}
		stored, err := c.storeBatch(ctx, batch)
		for _, s := range batch {
			switch {
			case err != nil: // perhaps the batch is stored: the next delivery of each event shows it
				s.unsent = ofNATS(err)
			case !stored && l.maySend(ctx, s, verified):
				s.sending = c.js.Send(s.message)
			}
		}
	}
}

// maySend reports whether an outcome may be published at this moment. If not, it requests another delivery of
// the event.
func (l *lane) maySend(ctx context.Context, s *pendingMsg, verified *termCheck) bool {
	err := verified.check(ctx, s.termID)
	if err == nil {
		return true
	}
	s.refused, s.certain = true, true // nothing of it is stored
	if ctx.Err() == nil {             // else the consumer is stopping, see nakUnfinished
		l.redeliver(s.delivery, err)
	}
	return false
}

// storeBatch publishes outcomes as one atomic batch; see [StoreBatch].
func (c *Consumer) storeBatch(ctx context.Context, batch []*pendingMsg) (stored bool, err error) {
	if len(batch) < 2 {
		return false, nil
	}
	ctx, cancel := withStoreLimit(ctx, c.storeWithin)
	defer cancel()
	messages := make([]*nats.Msg, len(batch))
	for i, s := range batch {
		messages[i] = s.message
	}
	stored, err = StoreBatch(ctx, c.js, c.ns.OutStream(), messages)
	if errors.Is(err, ErrNoBatches) {
		err = nil // each is sent again, and those that are stored are dropped by their ids
	}
	return stored, err
}
