package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrPooled is the error of a pooler that shares sessions between connections.
var ErrPooled = errors.New("a pooler between this program and Postgres gives each transaction another session")

// probeRounds is how often CheckSessions compares the sessions of two connections. One round
// suffices unless other clients use the pooler at the same time.
const probeRounds = 10

// CheckSessions reports whether a pooler such as PgBouncer is between this program and Postgres. It
// returns ErrPooled when the pooler does not keep a session for each connection, as in the modes
// transaction and statement of PgBouncer. It changes nothing.
//
// A pooler shows itself by the process id that it gives a connection, which is not that of the
// session. Then two connections use sessions in turns. With a session for each connection, each
// always sees its own. Otherwise the pooler gives a free session to the next transaction, so within
// a few turns the second connection gets the session of the first, or the first another than
// before.
func CheckSessions(ctx context.Context, config *pgx.ConnConfig) (pooled bool, err error) {
	config = config.Copy()
	// Settings of this program must not stay in a session of others.
	config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	first, err := pgconn.ConnectConfig(ctx, &config.Config)
	if err != nil {
		return false, err
	}
	defer func() { _ = first.Close(context.WithoutCancel(ctx)) }() // its result is known
	own, err := sessionOf(ctx, first, "")
	if err != nil || own == fmt.Sprint(first.PID()) {
		return false, err
	}
	second, err := pgconn.ConnectConfig(ctx, &config.Config)
	if err != nil {
		return true, fmt.Errorf("second connection through a pooler: %w", err)
	}
	defer func() { _ = second.Close(context.WithoutCancel(ctx)) }() // its result is known
	other := ""
	for range probeRounds {
		its, err := sessionOf(ctx, second, "BEGIN;") // holds its session until the end of the transaction
		if refused, is := errors.AsType[*pgconn.PgError](err); is {
			return true, fmt.Errorf("%w: %s", ErrPooled, refused.Message) // of the mode statement
		}
		if err != nil {
			return true, err
		}
		again, err := sessionOf(ctx, first, "")
		if err != nil {
			return true, err
		}
		if _, err := second.Exec(ctx, "ROLLBACK").ReadAll(); err != nil {
			return true, err
		}
		if its == own || again != own || other != "" && its != other {
			return true, ErrPooled
		}
		other = its
	}
	return true, nil
}

// sessionOf returns the process id of the session that executes a statement, after before.
func sessionOf(ctx context.Context, conn *pgconn.PgConn, before string) (string, error) {
	results, err := conn.Exec(ctx, before+"SELECT pg_backend_pid()").ReadAll()
	if err != nil {
		return "", err
	}
	return string(results[len(results)-1].Rows[0][0]), nil
}
