package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
)

const (
	watchRetry = time.Second
	watchPing  = 10 * time.Second // silence after which the connection is tried
)

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
			err = changed(ctx, notification.Payload)
		case silent:
			err = conn.Ping(ctx)
		}
		if err != nil {
			return fmt.Errorf("listen to postgres: %w", err)
		}
	}
}
