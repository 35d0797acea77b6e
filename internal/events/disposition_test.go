package events

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/holds"
	"holdfast/internal/postgres"
)

// TestDispositionOf_EachError is the table of what is done with an event that has no outcome yet.
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
		"damaged":            {fmt.Errorf("place: %w", holds.ErrCorrupt), dispositionDefer},
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
		"unknown":            {errors.New("something new"), dispositionPause},
	} {
		if got := dispositionOf(c.err); got != c.want {
			t.Errorf("%s: fate %d, want %d", name, got, c.want)
		}
	}
}

// TestDispositionOf_EncodeError_IsRetryCounted has an outcome that cannot be written: a fault of that event, not an outage.
func TestDispositionOf_EncodeError_IsRetryCounted(t *testing.T) {
	t.Parallel()
	if got := dispositionOf(&encodeError{errors.New("x")}); got != dispositionRetryCounted {
		t.Errorf("fate %d, want %d", got, dispositionRetryCounted)
	}
	for deliveries, want := range map[uint64]time.Duration{1: delayRetrySoon, 2: 2 * delayRetrySoon, 100: delayMax} {
		if got := backoffDelay(delayRetrySoon, deliveries); got != want {
			t.Errorf("delay of delivery %d is %v, want %v", deliveries, got, want)
		}
	}
}
