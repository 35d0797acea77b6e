package events

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/holds"
	"holdfast/internal/lua"
	"holdfast/internal/postgres"
)

// TestDispositionOf_EachError is the table of errors and their dispositions.
func TestDispositionOf_EachError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want disposition
	}{
		"malformed":          {&UnprocessableError{ReasonMalformed, "x"}, dispositionDeadLetter},
		"locked":             {fmt.Errorf("wait: %w", holds.ErrBusy), dispositionRetrySoon},
		"being stored":       {fmt.Errorf("publish: %w", &jetstream.APIError{Code: 409, ErrorCode: 10158}), dispositionRetrySoon},
		"full":               {&jetstream.APIError{Code: 503, ErrorCode: 10077}, dispositionPause},
		"data lost":          {fmt.Errorf("place: %w", holds.ErrDataLost), dispositionPause},
		"corrupt":            {fmt.Errorf("place: %w", holds.ErrCorrupt), dispositionDefer},
		"timeout":            {context.DeadlineExceeded, dispositionPause},
		"stopping":           {context.Canceled, dispositionPause},
		"connection refused": {&net.OpError{Op: "dial", Err: errors.New("refused")}, dispositionPause},
		"postgres stops":     {postgres.WrapError(&pgconn.PgError{Code: "57P01"}), dispositionPause},
		"disk full":          {postgres.WrapError(&pgconn.PgError{Code: "53100"}), dispositionPause},
		"deadlock":           {postgres.WrapError(&pgconn.PgError{Code: "40P01"}), dispositionPause},
		"no such table":      {postgres.WrapError(&pgconn.PgError{Code: "42P01"}), dispositionPause},
		"null character":     {postgres.WrapError(&pgconn.PgError{Code: "22021"}), dispositionRetryCounted},
		"constraint":         {fmt.Errorf("x: %w", postgres.WrapError(&pgconn.PgError{Code: "23502"})), dispositionRetryCounted},
		"panic":              {&panicError{"x"}, dispositionRetryCounted},
		"encode":             {&encodeError{errors.New("x")}, dispositionRetryCounted},
		"oversized":          {&oversizedError{2, 1}, dispositionRetryCounted},
		"script error":       {lua.WrapError(redisError("user_script:1: attempt to index nil")), dispositionRetryCounted},
		"script error 7.0":   {fmt.Errorf("place.lua: %w", lua.WrapError(redisError("ERR Error running script (call to f)"))), dispositionRetryCounted},
		"out of memory":      {lua.WrapError(redisError("OOM command not allowed")), dispositionPause},
		"read-only":          {lua.WrapError(redisError("READONLY You can't write against a read only replica.")), dispositionPause},
		"shard down":         {fmt.Errorf("x: %w", &shardDownError{errors.New("EOF")}), dispositionDeferShard},
		"shard hangs":        {fmt.Errorf("x: %w", &shardDownError{context.DeadlineExceeded}), dispositionDeferShard},
		"shard not verified": {fmt.Errorf("x: %w", &shardDownError{&holds.RebuildingError{}}), dispositionPause},
		"denied":             {lua.WrapError(redisError("NOPERM this user has no permissions")), dispositionPause},
		"of a known server":  {&serverError{serverPostgres, postgres.WrapError(&pgconn.PgError{Code: "23502"})}, dispositionRetryCounted},
		"corrupt by type":    {fmt.Errorf("%w: %w", holds.ErrCorrupt, lua.WrapError(redisError("WRONGTYPE Operation"))), dispositionDefer},
		"retried too late":   {postgres.WrapError(errors.Join(&pgconn.PgError{Code: "40001"}, context.DeadlineExceeded)), dispositionPause},
		"unknown":            {errors.New("something new"), dispositionPause},
	} {
		if got := dispositionOf(c.err); got != c.want {
			t.Errorf("%s: disposition %d, want %d", name, got, c.want)
		}
	}
}

// shardDownError is an error of one server of a Redis Cluster, as package lua returns it.
type shardDownError struct{ error }

func (s *shardDownError) Unwrap() error { return s.error }
func (*shardDownError) Shard() string   { return "127.0.0.1:7001" }

// TestDisposition_DataLost_PausesWithoutAnyPartition decides what happens to an event whose partition
// was lost: it waits alone while other partitions have their data, else the consumer pauses.
func TestDisposition_DataLost_PausesWithoutAnyPartition(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		c := &Consumer{service: &echo{lost: lost}}
		want := dispositionDeferLost
		if lost {
			want = dispositionPause
		}
		for _, err := range []error{holds.ErrDataLost, fmt.Errorf("place: %w", &holds.RebuildingError{Progress: "half"})} {
			if got := c.disposition(err); got != want {
				t.Errorf("%v, all partitions lost: %v: disposition %d, want %d", err, lost, got, want)
			}
		}
		if got := c.disposition(context.DeadlineExceeded); got != dispositionPause {
			t.Errorf("timeout: disposition %d, want %d", got, dispositionPause)
		}
	}
}

// TestRedeliver_BusyForLong_LoggedOnce returns events that wait for other work: why is logged when one has waited for long,
// and not again at once.
func TestRedeliver_BusyForLong_LoggedOnce(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	c, d := b.fetchRequest("k")
	l := c.newLane(1)
	for i, deliveries := range []uint64{1, busyDeliveries - 1, busyDeliveries, busyDeliveries + 1} {
		d.meta.NumDelivered = deliveries
		l.redeliver(d, fmt.Errorf("%w: canceling statement due to lock timeout", holds.ErrBusy))
		lines := b.logged.with(t, "event waits for other work, will retry")
		if len(lines) != min(1, i/2) {
			t.Errorf("after delivery %d: %d lines", deliveries, len(lines))
		}
		if len(lines) > 0 && !strings.Contains(fmt.Sprint(lines[0]["error"]), "lock timeout") {
			t.Errorf("logged %v", lines[0])
		}
	}
}

// TestBackoffDelay_Deliveries_DoublesToMax doubles the delay with each delivery up to delayMax.
func TestBackoffDelay_Deliveries_DoublesToMax(t *testing.T) {
	t.Parallel()
	for deliveries, want := range map[uint64]time.Duration{1: delayRetrySoon, 2: 2 * delayRetrySoon, 100: delayMax} {
		if got := backoffDelay(delayRetrySoon, deliveries); got != want {
			t.Errorf("delay of delivery %d is %v, want %v", deliveries, got, want)
		}
	}
}
