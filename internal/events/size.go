package events

import (
	"context"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"

	"holdfast/internal/holds"
)

// outcomeBytesMax bounds the bytes of an outcome and its headers, without metadata, the id of its
// event, and the slots of inventory.updated.
const outcomeBytesMax = 4 << 10

// oversizedError is the error of an outcome that is too large to be published. Sizes are in bytes.
type oversizedError struct{ size, limit int64 }

func (e *oversizedError) Error() string {
	return fmt.Sprintf("the outcome has up to %d bytes, the limit is %d", e.size, e.limit)
}

// outcomeLimit returns the largest size of an outcome with its headers, in bytes: the limit of the
// server, or that of the outbound stream as last read.
func (c *Consumer) outcomeLimit() int64 {
	limit := c.nc.MaxPayload()
	if ofStream := c.outcomeMax.Load(); ofStream > 0 {
		limit = min(limit, ofStream)
	}
	return limit
}

// readOutbound reads what the outbound stream accepts. After an error it keeps what it has.
func (c *Consumer) readOutbound(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, streamRequestLimit)
	defer cancel()
	if out, err := c.js.Stream(ctx, c.ns.OutStream()); err == nil {
		config := out.CachedInfo().Config
		c.outcomeMax.Store(int64(config.MaxMsgSize))
		c.batchesAllowed.Store(config.AllowAtomicPublish)
	}
}

// checkSize returns an *oversizedError if the outcome of an event could be too large to be
// published. It is called before the event is decided, so that no hold is granted that cannot be
// announced. It accepts every payment, because a payment must be decided. limit is a recent
// outcomeLimit.
func (c *Consumer) checkSize(ctx context.Context, d *delivery, limit int64) error {
	bound := outcomeBound(d.in)
	if d.in.Event == PaymentConfirmed || bound <= limit {
		return nil
	}
	c.readOutbound(ctx)
	if limit := c.outcomeLimit(); bound > limit {
		return &oversizedError{bound, limit}
	}
	return nil
}

// outcomeBound returns an upper bound for the size of an event's outcome with its headers, in bytes.
// JSON escaping at most doubles the id of the event, and the names that the outcome repeats.
func outcomeBound(in *Inbound) int64 {
	size := outcomeBytesMax + 2*len(in.ID)
	switch r := in.Request.(type) {
	case *holds.PlaceRequest:
		size += len(r.Metadata)
	case *holds.InventoryRequest:
		names, _ := r.Selection.ReservedSlots() // none when it is invalid
		for _, name := range names {
			size += len(`{"slot":"","capacity":,"reserved":,"held":},`) + len(name) + 3*len(strconv.FormatInt(r.Capacity, 10))
		}
	}
	return int64(size)
}

// messageSize returns the size of a message as the server counts it, in bytes.
func messageSize(m *nats.Msg) int64 {
	size := len("NATS/1.0\r\n\r\n") + len(m.Data)
	for name, values := range m.Header {
		for _, value := range values {
			size += len(name) + len(": \r\n") + len(value)
		}
	}
	return int64(size)
}

// handleOversized handles an outcome that NATS has refused as too large after its event was decided: the
// limit has shrunk, or the data of the hold makes it so large. It withdraws the hold that was granted, and
// stores and returns the dead letter, or nil for a payment, which is retried, and for an event whose outcome
// was stored at an earlier delivery.
func (l *lane) handleOversized(ctx context.Context, s pendingMsg) (dead *nats.Msg, err error) {
	c := l.consumer
	c.readOutbound(ctx)
	if answered, err := c.hasOutcome(ctx, s.delivery); answered || err != nil {
		if answered {
			c.ack(s.delivery)
		}
		return nil, err
	}
	if err := c.withdraw(ctx, s.delivery); err != nil {
		return nil, err
	}
	s.result.Err = &oversizedError{messageSize(s.message), c.outcomeLimit()}
	message, _ := l.finalMessage(ctx, s.delivery)
	if message == nil {
		return nil, nil // the event is delivered again
	}
	id, err := c.deadLetterID(ctx, s.delivery)
	if err != nil {
		return nil, err
	}
	message.Header.Set(headerMsgID, id)
	_, err = c.js.PublishMsg(ctx, message)
	if IsTooLarge(err) {
		message, err = c.storeClaimCheck(ctx, pendingMsg{delivery: s.delivery, message: message})
	}
	return message, ofNATS(err)
}

// withdraw releases a hold that was granted to an event and cannot be announced. It keeps a hold
// that was granted to another event.
func (c *Consumer) withdraw(ctx context.Context, d *delivery) error {
	created, granted := d.result.Outcome.Data.(holds.HoldCreated)
	if !granted || created.Replayed {
		return nil
	}
	release := holds.ReleaseRequest{EventID: d.in.OutcomeID, Hold: d.result.Outcome.Hold, Resource: d.in.Resource}
	return c.service.Release(ctx, []holds.ReleaseRequest{release})[0].Err
}
