package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

const (
	expiringResources = 200
	expiryDelay       = 5 // seconds from the last placement to the first deadline
	keysBatch         = 1000
)

// expiries measures how late expired holds are restored, with keyspace notifications and without.
func (b *runner) expiries(ctx context.Context) error {
	b.progressf("expiry: %s expire within a second among %s with a TTL",
		plural(b.expiring, "hold"), plural(b.keys, "other key"))
	for _, notified := range b.notified {
		b.step("expiry, notifications %s", onOff(notified))
		figure, err := b.measureExpiry(ctx, notified)
		if err != nil {
			return fmt.Errorf("notifications %s: %w", onOff(notified), err)
		}
		b.report.Expiries = append(b.report.Expiries, figure)
	}
	return nil
}

func onOff(on bool) string { return map[bool]string{true: "on", false: "off"}[on] }

// measureExpiry measures holds that expire within a second among other keys with a TTL. The holds are
// placed during some seconds, later ones with a shorter TTL.
func (b *runner) measureExpiry(ctx context.Context, notified bool) (figure Expiry, err error) {
	s, done, err := b.stocked(ctx, expiringResources)
	if err != nil {
		return Expiry{}, err
	}
	defer func() { err = errors.Join(err, done()) }()
	if err := s.addKeys(ctx); err != nil {
		return Expiry{}, err
	}
	if b.stack != nil { // on a shared Redis other programs may need notifications
		if err := s.redis.ConfigSet(ctx, optionNotify, "").Err(); err != nil {
			return Expiry{}, fmt.Errorf("redis: %w", err)
		}
	}
	if err := s.start(ctx, 1, "HOLDFAST_NO_NOTIFICATIONS="+strconv.FormatBool(!notified)); err != nil {
		return Expiry{}, err
	}
	if err := s.expireHolds(ctx); err != nil {
		return Expiry{}, err
	}
	late := newHistogram()
	var first, last time.Time
	err = s.read(ctx, holds.EventHoldExpired, b.expiring, func(e events.Envelope) error {
		var data struct {
			ExpiresAt  time.Time `json:"expires_at"`
			RestoredAt time.Time `json:"restored_at"`
		}
		if err := json.Unmarshal(e.Data, &data); err != nil {
			return err
		}
		if first.IsZero() || data.ExpiresAt.Before(first) {
			first = data.ExpiresAt
		}
		if data.ExpiresAt.After(last) {
			last = data.ExpiresAt
		}
		record(late, data.RestoredAt.Sub(data.ExpiresAt))
		return nil
	})
	return Expiry{
		Notified: notified, RedisNotifies: s.notifyOption(ctx), Number: b.expiring, Keys: s.keys,
		Within: last.Sub(first).Seconds(), Late: newQuantiles(late),
	}, err
}

// expireHolds places holds, later ones with a shorter TTL, and waits until all have expired.
func (s *cluster) expireHolds(ctx context.Context) (err error) {
	number := s.expiring
	aSecond := max(number/s.placedIn, 1)
	requests := make([]*nats.Msg, number)
	for n := range requests {
		if requests[n], err = s.briefRequest(n, int64(max(s.placedIn-n/aSecond, 1)+expiryDelay)); err != nil {
			return err
		}
	}
	due := evenly(time.Now(), float64(aSecond))
	if err := pace(ctx, number, due, func(n int) error { return s.publish(requests[n]) }); err != nil {
		return err
	}
	if err := s.published(ctx); err != nil {
		return err
	}
	if _, err := s.awaitAnswers(ctx, 2*number); err != nil {
		return err
	}
	return s.tally(ctx, map[string]int{holds.EventHoldCreated: number, holds.EventHoldExpired: number})
}

// briefRequest returns the n-th request for a hold with a TTL of some seconds.
func (s *cluster) briefRequest(n int, ttl int64) (*nats.Msg, error) {
	resource, user := resourceName(n%expiringResources), "u"+strconv.Itoa(n)
	return s.event(events.BookingRequested, resource, events.BookingRequestedData{
		RequestKey: user, UserID: user, ResourceID: resource, Quantity: 1, TTLSeconds: &ttl,
		SlotSelection: holds.SlotSelection{
			CheckIn: s.first.Format(time.DateOnly), CheckOut: s.first.AddDate(0, 0, usualNights).Format(time.DateOnly),
		},
	})
}

// addKeys writes other keys with a TTL, among which Redis has to find the expired ones.
func (s *cluster) addKeys(ctx context.Context) error {
	for n := 0; n < s.keys; n += keysBatch {
		pipe := s.redis.Pipeline()
		for i := range min(keysBatch, s.keys-n) {
			pipe.Set(ctx, string(s.ns)+":{other}:"+strconv.Itoa(n+i), "", time.Hour)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return fmt.Errorf("write keys: %w", err)
		}
	}
	return nil
}
