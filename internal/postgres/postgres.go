// Package postgres opens sessions of Postgres that may write, and no others.
//
// A URL may name several hosts. A standby among them lags behind its primary, and so does a primary that was made
// read-only because another server took its place: a decision by what they have could sell what is sold. So each new
// session asks its server first, whatever the URL says (ErrStandby, ErrReadOnly), and the next host is tried. A
// session that becomes read-only later is closed before it is used again, and what it has read meanwhile is refused
// by MayWrite. The server reports both by itself, with each answer (Postgres 14 or newer), so neither costs a query.
package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"holdfast/internal/record"
)

// connectWithin bounds a connection to one host.
const connectWithin = 5 * time.Second

// Why a session is not used.
var (
	// ErrURL says that a URL cannot be read. It does not say what is wrong with it: the URL may contain a password.
	ErrURL = errors.New("not a Postgres URL: want postgres://user[:password]@host:port/database; " +
		"what is special in a password is percent-encoded")
	// ErrTarget says that a URL demands sessions that may not write.
	ErrTarget = errors.New("target_session_attrs demands sessions that may not write: leave it out, or give read-write")
	// ErrStandby says that a server is a standby.
	ErrStandby = errors.New("the server is a standby")
	// ErrReadOnly says that a session may not write although its server is a primary.
	ErrReadOnly = errors.New("the session may not write: default_transaction_read_only is on")
)

// Config returns the configuration of a pool of sessions that may write, with a namespace's schema as their search
// path. It returns ErrURL or ErrTarget for a URL that cannot be used.
func Config(url, namespace string) (*pgxpool.Config, error) {
	if !record.NamespacePattern.MatchString(namespace) {
		return nil, fmt.Errorf("namespace %q does not match %s", namespace, record.NamespacePattern)
	}
	config, err := pgxpool.ParseConfig(url)
	switch {
	case err != nil:
		return nil, ErrURL
	case demandsOthers(config.ConnConfig.ValidateConnect):
		return nil, ErrTarget
	}
	config.ConnConfig.RuntimeParams["search_path"] = namespace
	config.ConnConfig.ConnectTimeout = connectWithin
	config.ConnConfig.ValidateConnect = validate
	config.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) { return MayWrite(conn) == nil, nil }
	return config, nil
}

// AllowReadOnlyRole lets a pool have sessions of a primary that may not write, like those of a role for audits.
func AllowReadOnlyRole(config *pgxpool.Config) {
	config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	config.PrepareConn = nil
}

// demandsOthers reports whether a URL, or the environment, demands sessions that may not write. pgx keeps what was
// demanded as a function only.
func demandsOthers(demanded pgconn.ValidateConnectFunc) bool {
	for _, other := range []pgconn.ValidateConnectFunc{
		pgconn.ValidateConnectTargetSessionAttrsReadOnly,
		pgconn.ValidateConnectTargetSessionAttrsStandby,
		pgconn.ValidateConnectTargetSessionAttrsPreferStandby,
	} {
		if reflect.ValueOf(demanded).Pointer() == reflect.ValueOf(other).Pointer() {
			return true
		}
	}
	return false
}

// validate refuses a new session that may not write.
func validate(ctx context.Context, conn *pgconn.PgConn) error {
	err := pgconn.ValidateConnectTargetSessionAttrsReadWrite(ctx, conn)
	if errors.Is(err, pgconn.ErrReadOnlyConnection) {
		return cmp.Or(mayWrite(conn), ErrReadOnly)
	}
	return err
}

// MayWrite returns ErrStandby or ErrReadOnly when a session could not write while it answered its last query: what
// it has read may be old. It sends nothing.
func MayWrite(conn *pgx.Conn) error { return mayWrite(conn.PgConn()) }

func mayWrite(conn *pgconn.PgConn) error {
	switch {
	case conn.ParameterStatus("in_hot_standby") == "on":
		return ErrStandby
	case conn.ParameterStatus("default_transaction_read_only") == "on":
		return ErrReadOnly
	}
	return nil
}
