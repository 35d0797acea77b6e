package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/postgres"
)

const (
	watchRetry    = time.Second
	watchProve    = 500 * time.Millisecond // between two notifications of the worker's own
	watchBatchMax = 1000                   // notifications that are handled together
	watchMore     = time.Millisecond       // wait for more of them
)

// watchSilence is how long a notification of the worker's own may take before the connection is given up. Tests are less
// patient.
var watchSilence = 10 * time.Second

// InventoryWatcher is what Watch reports to: *holds.Service.
type InventoryWatcher interface {
	// Now reads Redis' clock.
	Now(ctx context.Context) (holds.Time, error)
	// BumpRevisions is called with the resources whose capacities others have changed.
	BumpRevisions(ctx context.Context, resources ...string) error
	// InventorySynced is called when every change that was committed before a time by Redis' clock has been passed to
	// BumpRevisions.
	InventorySynced(at holds.Time)
	// InventorySyncLost is called when changes may have been missed until now.
	InventorySyncLost()
}

// Watch reports the changes of capacity that others have made, until ctx is over. It does not report changes that are
// made while Postgres cannot be reached: nothing is decided then, and what was read before is soon too old.
func (s *Store) Watch(ctx context.Context, w InventoryWatcher, log zerolog.Logger) error {
	for ctx.Err() == nil {
		if err := s.watch(ctx, w); ctx.Err() == nil {
			log.Warn().Err(err).Msg("postgres LISTEN failed, capacity changes detected with delay")
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchRetry):
		}
	}
	return nil
}

// watch listens on a connection of its own until it fails.
//
// Every watchProve it notifies itself, with the time by Redis' clock. Postgres delivers notifications in the order of
// commits: when it receives that, it has received those of all changes that were committed before.
func (s *Store) watch(ctx context.Context, w InventoryWatcher) (err error) {
	config := s.pool.Config().ConnConfig
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("listen to postgres: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // there is nothing to do about an error
	namespace := config.RuntimeParams["search_path"]
	changes, own := namespace+"_inventory", fmt.Sprintf("%s_own_%016x", namespace, rand.Uint64())
	for _, channel := range []string{changes, own} {
		if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
			return fmt.Errorf("listen to postgres: %w", err)
		}
	}
	w.InventorySyncLost() // before this
	defer w.InventorySyncLost()
	lastNotified := time.Now()
	for next := lastNotified; ; {
		if time.Since(lastNotified) > watchSilence {
			return fmt.Errorf("listen to postgres: no notification within %v", watchSilence)
		}
		if !time.Now().Before(next) {
			next = time.Now().Add(watchProve)
			if err := notify(ctx, conn, own, w); err != nil {
				return fmt.Errorf("listen to postgres: %w", err)
			}
		}
		resources, proofs, err := receive(ctx, conn, next, own)
		if err == nil && len(resources) > 0 {
			err = w.BumpRevisions(ctx, resources...)
		}
		if err != nil {
			return fmt.Errorf("listen to postgres: %w", err)
		}
		for _, proof := range proofs {
			lastNotified = time.Now()
			if ms, err := strconv.ParseInt(proof, 10, 64); err == nil {
				w.InventorySynced(holds.TimeFromMillis(ms))
			}
		}
	}
}

// notify sends the connection a notification with the time by Redis' clock, or without it when Redis does not answer.
// Without a limit, an answer over a connection that was cut silently is waited for until the system gives it up,
// minutes later.
func notify(ctx context.Context, conn *pgx.Conn, channel string, w InventoryWatcher) error {
	ctx, cancel := context.WithTimeout(ctx, watchSilence)
	defer cancel()
	payload := "unknown"
	if at, err := w.Now(ctx); err == nil {
		payload = strconv.FormatInt(at.UnixMilli(), 10)
	}
	if _, err := conn.Exec(ctx, "SELECT pg_notify($1, $2)", channel, payload); err != nil {
		return err
	}
	return postgres.MayWrite(conn) // changes are made, and notified, on another server otherwise
}

// receive waits for notifications until a time. It returns the resources that were changed, and the payloads on the
// connection's own channel. To report changes one by one takes a round trip each, and one statement may change
// many, so it returns those together that arrive together.
func receive(ctx context.Context, conn *pgx.Conn, until time.Time, own string) (resources, proofs []string, err error) {
	wait := time.Until(until)
	for len(resources)+len(proofs) < watchBatchMax {
		waiting, cancel := context.WithTimeout(ctx, wait)
		notification, err := conn.WaitForNotification(waiting)
		over := waiting.Err() != nil
		cancel()
		switch {
		case err != nil && over && ctx.Err() == nil:
			return resources, proofs, nil
		case err != nil:
			return nil, nil, err
		case notification.Channel == own:
			proofs = append(proofs, notification.Payload)
		default:
			resources = append(resources, notification.Payload)
		}
		wait = watchMore
	}
	return resources, proofs, nil
}
