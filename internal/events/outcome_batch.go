package events

import (
	"context"

	"github.com/nats-io/nats.go"
)

// storeInBatches publishes the outcomes among messages that were not sent yet, as atomic batches. It
// waits until they are stored. What a server rejects as a batch, for example because it has one of
// the outcomes already, is sent one by one.
func (c *Consumer) storeInBatches(ctx context.Context, waiting []pendingMsg) {
	for rest := waiting; len(rest) > 0; {
		var batch []*pendingMsg
		for len(rest) > 0 && len(batch) < BatchMax {
			if !rest[0].dead {
				batch = append(batch, &rest[0])
			}
			rest = rest[1:]
		}
		stored, err := c.storeBatch(ctx, batch)
		for _, s := range batch {
			switch {
			case err != nil: // perhaps the batch is stored: the next delivery of each event shows it
				s.unsent = ofNATS(err)
			case stored:
				s.stored = true
			default:
				s.send(c)
			}
		}
	}
}

// send publishes a message on its own.
func (s *pendingMsg) send(c *Consumer) {
	future, err := c.js.PublishMsgAsync(s.message)
	s.ack, s.unsent = future, ofNATS(err)
}

// storeBatch publishes outcomes as one atomic batch; see [StoreBatch].
func (c *Consumer) storeBatch(ctx context.Context, batch []*pendingMsg) (stored bool, err error) {
	if len(batch) < 2 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	messages := make([]*nats.Msg, len(batch))
	for i, s := range batch {
		messages[i] = s.message
	}
	return StoreBatch(ctx, c.nc, messages)
}
