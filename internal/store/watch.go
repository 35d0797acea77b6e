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
	watchProve    = 500 * time.Millisecond // between two notifications to itself
	watchBatchMax = 1000                   // notifications in a batch
	watchMore     = time.Millisecond       // wait for the next notification of a batch
)

// watchSilence is how long the connection may deliver no notification to itself before it is
// replaced. Tests set a shorter time.
var watchSilence = 10 * time.Second

// InventoryWatcher receives what Watch reports. *holds.Service implements it.
type InventoryWatcher interface {
	// Now reads Redis' clock.
	Now(ctx context.Context) (holds.Time, error)
	// BumpRevisions is called with the resources whose capacities other sessions have changed.
	BumpRevisions(ctx context.Context, resources ...string) error
	// InventorySynced is called when BumpRevisions has received every change that was committed
	// before a time by Redis' clock. It is not called while a trigger is off that notifies of changes.
	InventorySynced(at holds.Time)
	// InventorySyncLost is called when changes may have been missed until now.
	InventorySyncLost()
}

// Watch reports the changes of capacity that other sessions make, until ctx is done. It misses
// changes while Postgres is unreachable: nothing is decided then, and data that was read before
// soon becomes too old. It logs an outage when it begins and when it ends, and also that triggers of
// inventory are off.
func (s *Store) Watch(ctx context.Context, w InventoryWatcher, log zerolog.Logger) error {
	failing := false
	synced := func() {
		if failing {
			failing = false
			log.Info().Msg("postgres LISTEN recovered")
		}
	}
	missing := "" // what enables the triggers
	checked := func(t *Triggers) {
		fix := t.Fix(s.namespace)
		switch {
		case fix != "" && fix != missing:
			message := "inventory triggers disabled"
			if t.off(notifyTriggers) {
				message += ", capacity read for each decision"
			}
			log.Warn().Str("risk", t.Risk()).Str("fix", fix).Msg(message)
		case fix == "" && missing != "":
			log.Info().Msg("inventory triggers enabled again")
		}
		missing = fix
	}
	for ctx.Err() == nil {
		if err := s.watch(ctx, w, synced, checked); ctx.Err() == nil && !failing {
			failing = true
			log.Warn().Err(err).Msg("postgres LISTEN failed, capacity changes detected with delay")
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchRetry):
		}
	}
	return nil
}

// watch listens on a connection of its own until it fails. It calls synced whenever it has received
// its own notification and Redis has answered, and checked with the triggers whenever it has read them.
//
// Every watchProve it notifies itself with the time by Redis' clock. Postgres delivers
// notifications in the order of commits, so when it receives its own it has received those of all
// earlier changes, if the triggers of inventory were as they are now at each of them. So it reads their
// state after that time. To change a trigger waits for all transactions that change inventory.
func (s *Store) watch(ctx context.Context, w InventoryWatcher, synced func(), checked func(*Triggers)) (err error) {
	conn, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig)
	if err != nil {
		return fmt.Errorf("listen to postgres: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // the error does not matter
	changes, own := s.namespace+"_inventory", fmt.Sprintf("%s_own_%016x", s.namespace, rand.Uint64())
	for _, channel := range []string{changes, own} {
		if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
			return fmt.Errorf("listen to postgres: %w", err)
		}
	}
	defer w.InventorySyncLost()
	var triggers Triggers
	lastNotified := time.Now()
	for next := lastNotified; ; {
		if time.Since(lastNotified) > watchSilence {
			return fmt.Errorf("listen to postgres: no notification within %v", watchSilence)
		}
		if !time.Now().Before(next) {
			next = time.Now().Add(watchProve)
			found, err := notify(ctx, conn, own, w)
			if err != nil {
				return fmt.Errorf("listen to postgres: %w", err)
			}
			if found.text != triggers.text {
				w.InventorySyncLost() // changes before LISTEN, or before this state, are missed
			}
			triggers = found
			checked(&triggers)
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
				synced()
				if !triggers.off(notifyTriggers) {
					w.InventorySynced(holds.TimeFromMillis(ms))
				}
			}
		}
	}
}

// notify sends the connection's own notification with the time by Redis' clock, or "unknown" if
// Redis does not answer, and returns the state of the triggers after that time. It has a limit, because
// a reply over a silently cut connection would be awaited for minutes.
func notify(ctx context.Context, conn *pgx.Conn, channel string, w InventoryWatcher) (t Triggers, err error) {
	ctx, cancel := context.WithTimeout(ctx, watchSilence)
	defer cancel()
	payload := "unknown"
	if at, err := w.Now(ctx); err == nil {
		payload = strconv.FormatInt(at.UnixMilli(), 10)
	}
	var both pgx.Batch // in one round trip
	t.queue(&both, inventoryTriggers)
	both.Queue("SELECT pg_notify($1, $2)", channel, payload)
	if err := conn.SendBatch(ctx, &both).Close(); err != nil {
		return t, err
	}
	if err := checkHistory(conn); err != nil {
		return t, err
	}
	return t, postgres.MayWrite(conn) // else changes are made and notified on another server
}

// receive waits for notifications until a time. It returns the changed resources and the payloads
// on the connection's own channel. One statement may change many resources, and each report takes a
// round trip, so it returns notifications that arrive together in one batch.
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
