package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

func init() { watchSilence = 2 * time.Second }

// Read exports read.
func (s *Store) Read(ctx context.Context, work func(conn *pgxpool.Conn) error) error {
	return s.read(ctx, work)
}
