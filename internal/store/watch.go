package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"holdfast/internal/postgres"
)

const (
	watchRetry    = time.Second
	watchBatchMax = 1000             // changes that are told together
	watchMore     = time.Millisecond // wait for more of them
)

// watchPing is the silence after which the connection is tried, and how long it has to answer. Tests
// are less patient.
var watchPing = 10 * time.Second

// Watch tells changed of each resource whose capacities somebody has changed, until ctx is over.
// What is changed while Postgres cannot be reached is not told: nobody decides then, and
// what was read before is too old soon after.
func (s *Store) Watch(ctx context.Context, changed func(ctx context.Context, resources ...string) error, log zerolog.Logger) error {
	for ctx.Err() == nil {
		if err := s.watch(ctx, changed); ctx.Err() == nil {
			log.Warn().Err(err).Msg("changes of capacity by SQL are noticed later, until postgres can be listened to again")
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchRetry):
		}
	}
	return nil
}

// watch listens on a connection of its own until it fails.
func (s *Store) watch(ctx context.Context, changed func(ctx context.Context, resources ...string) error) (err error) {
	config := s.pool.Config().ConnConfig
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("listen to postgres: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // nothing is left to be told
	channel := config.RuntimeParams["search_path"] + "_inventory"
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return fmt.Errorf("listen to postgres: %w", err)
	}
	for {
		waiting, cancel := context.WithTimeout(ctx, watchPing)
		notification, err := conn.WaitForNotification(waiting)
		silent := waiting.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			err = changed(ctx, append(more(ctx, conn), notification.Payload)...)
		case silent:
			err = ping(ctx, conn)
		}
		if err != nil {
			return fmt.Errorf("listen to postgres: %w", err)
		}
	}
}

// more returns the resources of notifications that are there too: one statement may change the
// capacity of many, and to tell them one by one takes a round trip each.
func more(ctx context.Context, conn *pgx.Conn) (resources []string) {
	for len(resources) < watchBatchMax-1 {
		waiting, cancel := context.WithTimeout(ctx, watchMore)
		notification, err := conn.WaitForNotification(waiting)
		cancel()
		if err != nil {
			break // there are no more, or the next wait fails too
		}
		resources = append(resources, notification.Payload)
	}
	return resources
}

// ping returns an error when the other side does not answer: without a limit, what is sent into a
// connection that was cut without a word is waited for until the system gives it up, minutes later.
func ping(ctx context.Context, conn *pgx.Conn) error {
	limited, cancel := context.WithTimeout(ctx, watchPing)
	defer cancel()
	if err := conn.Ping(limited); err != nil {
		return err
	}
	return postgres.MayWrite(conn) // changes are made, and notified, on another server otherwise
}
