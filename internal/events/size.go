package events

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/holds"
)

// outcomeSlotBytes bounds the bytes of one slot in inventory.updated.
const outcomeSlotBytes = 192

// oversizedError is the error of an outcome that is too large to be published. Sizes are in bytes.
type oversizedError struct{ size, limit int64 }

func (e *oversizedError) Error() string {
	return fmt.Sprintf("the outcome has %d bytes, the limit is %d", e.size, e.limit)
}

// outcomeLimit returns the largest size of an outcome with its headers, in bytes: the limit of the
// server, or that of the outbound stream as last read.
func (c *Consumer) outcomeLimit() int64 {
	limit := c.nc.MaxPayload()
	if ofStream := int64(c.outbound.Load().MaxMsgSize); ofStream > 0 {
		limit = min(limit, ofStream)
	}
	return limit
}

const (
	payloadEvery = 10 * time.Second // the least time between two readings of the server's limit
	payloadLimit = time.Second      // for the connection to one server, and for the reconnect
)

// acceptsNow reports whether NATS accepts so many bytes now, which the connection refused before. The client keeps
// the max_payload that the server had when it connected, so acceptsNow reads that on another connection, at most
// once in payloadEvery, and reconnects if it was raised.
func (c *Consumer) acceptsNow(ctx context.Context, size int64) bool {
	if size <= c.nc.MaxPayload() {
		return false // another limit was exceeded
	}
	p := c.process
	p.payloadMu.Lock()
	defer p.payloadMu.Unlock()
	if size > c.nc.MaxPayload() && time.Since(p.payloadRead) >= payloadEvery {
		p.payloadRead = time.Now()
		if limit, err := c.readPayload(); err != nil {
			c.log.Debug().Err(err).Msg("nats max_payload not read")
		} else if size <= limit {
			c.reconnect(ctx, "nats max_payload raised, reconnecting")
		}
	}
	return size <= c.nc.MaxPayload()
}

// readPayload returns the max_payload of the server in bytes, as read on a connection of its own.
func (c *Consumer) readPayload() (int64, error) {
	options := c.nc.Opts
	options.AllowReconnect, options.Timeout = false, payloadLimit
	options.ClosedCB, options.DisconnectedErrCB, options.AsyncErrorCB = nil, nil, nil
	other, err := options.Connect()
	if err != nil {
		return 0, err
	}
	defer other.Close()
	err = other.FlushTimeout(payloadLimit) // with it comes the limit of the account
	return other.MaxPayload(), err
}

// reconnect connects to NATS again, to another server if there is one. What is being sent fails, and is sent again as after an
// outage. It logs a message with the server that it leaves.
func (c *Consumer) reconnect(ctx context.Context, message string) {
	ctx, cancel := context.WithTimeout(ctx, payloadLimit)
	defer cancel()
	c.log.Info().Str("server", c.nc.ConnectedAddr()).Msg(message)
	Reconnect(ctx, c.nc)
}

// readOutbound reads what the outbound stream accepts. After an error it keeps what it has.
func (c *Consumer) readOutbound(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, streamRequestLimit)
	defer cancel()
	if out, err := c.js.Stream(ctx, c.ns.OutStream()); err == nil {
		c.outbound.Store(&out.CachedInfo().Config)
	}
}

// checkSize returns an *oversizedError if the outcome of an event could be too large to be
// published. It is called before the event is decided, so that no hold is granted that cannot be
// announced. It accepts every payment, because a payment must be decided. limit is a recent
// outcomeLimit.
func (c *Consumer) checkSize(ctx context.Context, d *delivery, limit int64) error {
	if d.in.Event == PaymentConfirmed || roughSize(d) <= limit {
		return nil
	}
	c.readOutbound(ctx)
	m, err := c.message(d, largestOutcome(d.in))
	if err != nil {
		return nil //nolint:nilerr // the same error occurs when the event is decided
	}
	size := messageSize(m)
	c.acceptsNow(ctx, size)
	if limit := c.outcomeLimit(); size > limit {
		return &oversizedError{size, limit}
	}
	return nil
}

// roughSize returns an upper bound for the size of an event's outcome, in bytes. JSON escaping at
// most doubles the parts of the event that the outcome repeats.
func roughSize(d *delivery) int64 {
	size := 2048 + 2*d.bytes
	if r, is := d.in.Request.(*holds.InventoryRequest); is {
		names, _ := r.Selection.ReservedSlots() // none when it is invalid
		size += outcomeSlotBytes * len(names)
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

// largestOutcome returns an outcome that grants an event, with the data that the event contains.
// For booking.requested and inventory.set, which contain all data of their outcome, it is the
// largest possible one.
func largestOutcome(in *Inbound) holds.Outcome {
	at := holds.Time{Time: time.Now().UTC()}
	o := holds.Outcome{Resource: in.Resource, At: at}
	switch r := in.Request.(type) {
	case *holds.PlaceRequest:
		o.Event, o.Hold = holds.EventHoldCreated, holds.HoldID{Resource: r.Resource, UUID: strings.Repeat("0", 32)}
		o.RebuildMetadata.Fingerprint = strings.Repeat("0", 32)
		o.Data = holds.HoldCreated{CreatedAt: at, ExpiresAt: at, HoldData: holds.HoldData{
			ResourceID: r.Resource, HoldID: o.Hold, RequestKey: r.RequestKey, UserID: r.User,
			SlotSelection: r.Selection, Quantity: &r.Quantity, Metadata: r.Metadata,
		}}
	case *holds.InventoryRequest:
		names, _ := r.Selection.ReservedSlots() // none when it is invalid
		slots := make([]holds.SlotCounts, len(names))
		for i, name := range names {
			slots[i] = holds.SlotCounts{Slot: name, Capacity: r.Capacity, Reserved: r.Capacity, Held: r.Capacity}
		}
		o.Event, o.At = holds.EventInventoryUpdated, holds.Time{}
		o.Data = holds.InventoryUpdated{ResourceID: r.Resource, Slots: slots}
		o.RebuildMetadata.Position = holds.StreamPosition{At: at.Time, StreamCreatedAt: at.Time, Seq: math.MaxInt64}
	case *holds.ExtendRequest:
		o.Event, o.Hold = holds.EventHoldExtended, r.Hold
		data := holds.HoldData{ResourceID: in.Resource, HoldID: o.Hold}
		o.Data = holds.HoldExtended{HoldData: data, ExtendedAt: at, ExpiresAt: at}
	case *holds.CancelRequest:
		o.Event, o.Hold = holds.EventReservationCancelled, r.Hold
		data := holds.HoldData{ResourceID: in.Resource, HoldID: o.Hold}
		o.Data = holds.ReservationCancelled{HoldData: data, CancelledAt: at}
	case *holds.ReleaseRequest:
		o.Event = holds.EventBookingCancelled
		o.Data = holds.BookingCancelled{ResourceID: in.Resource, RequestKey: r.RequestKey}
	}
	return o
}

// handleOversized handles an outcome that NATS has refused as too large after its event was decided: the
// limit has shrunk, or the data of the hold makes it so large. It withdraws the hold that was granted, and
// returns the dead letter, or nil for a payment, which is retried, for an event whose outcome was
// stored at an earlier delivery, and when NATS accepts the outcome by now: then the event is delivered again.
func (l *lane) handleOversized(ctx context.Context, s *pendingMsg) (dead *nats.Msg, err error) {
	c := l.consumer
	c.readOutbound(ctx)
	if c.acceptsNow(ctx, messageSize(s.message)) {
		c.nakDelayed(s.delivery, delayRetrySoon)
		return nil, nil
	}
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
	dead, _ = l.finalMessage(ctx, s.delivery)
	return dead, nil
}

// withdraw withdraws a hold that was granted to an event and cannot be announced, or was not announced when the event had
// another outcome already. It keeps a hold that was granted to another event.
func (c *Consumer) withdraw(ctx context.Context, d *delivery) error {
	created, granted := d.result.Outcome.Data.(holds.HoldCreated)
	if !granted || created.Replayed {
		return nil
	}
	release := holds.ReleaseRequest{
		EventID: d.in.OutcomeID, Hold: d.result.Outcome.Hold, Resource: d.in.Resource, Withdraw: true,
	}
	return c.service.Release(ctx, []holds.ReleaseRequest{release})[0].Err
}
