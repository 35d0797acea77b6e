package bench

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed peer_postgres.sql
var peerPostgresSource string

// peerConnections is the number of connections to Postgres.
const peerConnections = 16

// postgresPlacer places a hold by a call of one function.
type postgresPlacer struct {
	pool         *pgxpool.Pool
	schema, call string
}

// openPostgres returns a function that opens Postgres alone, with synchronous_commit on or off.
func openPostgres(synchronous string) func(context.Context, *peers, int64) (placer, error) {
	return func(ctx context.Context, p *peers, capacity int64) (placer, error) {
		config, err := pgxpool.ParseConfig(p.durable.postgresURL)
		if err != nil {
			return nil, errors.New("the Postgres URL is invalid") // err may contain the password
		}
		config.MaxConns = peerConnections
		config.ConnConfig.RuntimeParams["synchronous_commit"] = synchronous
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return nil, err
		}
		schema := pgx.Identifier{p.name + "_peer_" + synchronous}.Sanitize()
		placing := &postgresPlacer{pool, schema, "SELECT " + schema + ".place($1, $2, $3, 1, interval '1 hour')"}
		if err := placing.create(ctx, capacity); err != nil {
			return nil, errors.Join(err, placing.close(ctx))
		}
		return placing, nil
	}
}

// create creates the tables, the function and the nights of all resources.
func (p *postgresPlacer) create(ctx context.Context, capacity int64) error {
	if _, err := p.pool.Exec(ctx, strings.ReplaceAll(peerPostgresSource, "$schema", p.schema)); err != nil {
		return fmt.Errorf("create the tables: %w", err)
	}
	first := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, calendarFrom)
	_, err := p.pool.Exec(ctx, `INSERT INTO `+p.schema+`.nights (resource_id, night, capacity)
SELECT 'r' || lpad(r::text, 5, '0'),
    to_char($2::timestamptz AT TIME ZONE 'UTC' + n * interval '1 day', 'YYYY-MM-DD'), $4
FROM generate_series(0, $1 - 1) AS r, generate_series(0, $3 - 1) AS n`, manyResources, first, calendar, capacity)
	if err == nil {
		_, err = p.pool.Exec(ctx, `ANALYZE `+p.schema+`.nights`)
	}
	return err
}

func (p *postgresPlacer) place(ctx context.Context, r peerRequest) (placed bool, err error) {
	return placed, p.pool.QueryRow(ctx, p.call, r.key, r.resource, r.nights).Scan(&placed)
}

func (p *postgresPlacer) close(ctx context.Context) error {
	defer p.pool.Close()
	_, err := p.pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+p.schema+" CASCADE")
	return err
}
