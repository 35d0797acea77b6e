// Package postgres opens only Postgres sessions that may write.
//
// A URL may name several hosts. A standby lags behind its primary, and so does a primary that was
// made read-only because another server replaced it: a decision on its data could sell a slot
// twice. So each new session is checked, whatever the URL says, and when its server is a standby or
// read-only (ErrStandby, ErrReadOnly) the next host is tried. A session that becomes read-only
// later is closed before its next use, and MayWrite rejects what it has read in the meantime. The
// server reports both states with each answer (Postgres 14 or newer), so the checks need no query.
package postgres

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"holdfast/internal/connect"
	"holdfast/internal/record"
)

// connectWithin bounds the time to connect to one host. pingWithin bounds the ping before the use of a connection that was
// not used for a second. When a network has lost it, the operating system gives it up after a quarter of an hour only.
const (
	connectWithin = 5 * time.Second
	pingWithin    = 2 * time.Second
)

// closeWithin bounds Close.
const closeWithin = time.Second

// Close closes the connections of a pool. It leaves those whose server does not answer within closeWithin to the
// driver, which waits for such a server up to 15 s after a query was cancelled: more than a worker's stop may take.
func Close(pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(closeWithin):
	}
}

// The reasons why a session is not used.
var (
	// ErrURL is the error for a URL that cannot be parsed, or in which pgx would take a part of the password for a host
	// or a database. It has no details, because the URL may contain a password.
	ErrURL = errors.New("not a Postgres URL: want postgres://user[:password]@host:port/database; " +
		"percent-encode special characters in the password")
	// ErrTLS is the error for a URL whose files for TLS cannot be used.
	ErrTLS = errors.New("the files for TLS in the Postgres URL cannot be used")
	// ErrTarget is the error for a URL that requests sessions that may not write.
	ErrTarget = errors.New("target_session_attrs requests sessions that may not write: omit it, or use read-write")
	// ErrStandby is the error of a session on a standby.
	ErrStandby = errors.New("the server is a standby")
	// ErrReadOnly is the error of a read-only session on a primary.
	ErrReadOnly = errors.New("the session may not write: default_transaction_read_only is on")
)

// atInHost matches a URL with an @ in what pgx takes for hosts and the database: it is after a login, which ends at the first
// @ with no / before it. Errors, and requests to DNS, contain them.
var atInHost = regexp.MustCompile(`^postgres(ql)?://([^@/]*@|[^@/?]*/)[^?]*@`)

// ReadOnlyError is the ErrReadOnly of a new session.
type ReadOnlyError struct {
	Source         string // of default_transaction_read_only, as pg_settings names it
	Role, Database string // of the session
}

func (e *ReadOnlyError) Error() string { return ErrReadOnly.Error() + ", set by " + e.Source }
func (e *ReadOnlyError) Unwrap() error { return ErrReadOnly }

// Queries returns a function that returns the text of queries/<name>.sql, which the caller's package has embedded. It
// reads all files at once: workers ask for the same texts with each decision.
func Queries(files embed.FS) (query func(name string) string) {
	texts := make(map[string]string)
	found, _ := fs.Glob(files, "queries/*.sql") // the pattern is valid
	for _, file := range found {
		text, err := files.ReadFile(file)
		if err != nil {
			panic(err) // cannot happen: it was found
		}
		texts[strings.TrimSuffix(path.Base(file), ".sql")] = string(text)
	}
	return func(name string) string {
		text, known := texts[name]
		if !known {
			panic("no query " + name) // cannot happen: a test compares the names with the files
		}
		return text
	}
}

// Settings are run-time settings of sessions by name, such as lock_timeout.
type Settings map[string]string

// Option changes the configuration of a pool.
type Option = func(*pgxpool.Config)

// Config returns the configuration of a pool of sessions that may write, with the schema of
// namespace as their search path, and with more settings. A session ends with ErrSilent when its server does not answer.
// Config returns ErrURL, ErrTLS, ErrTarget or ErrParameter for a URL that cannot be used.
//
// A session sets the settings itself, because a pooler such as PgBouncer does not pass them on when
// a session starts.
func Config(url, namespace string, more Settings) (*pgxpool.Config, error) {
	if !record.NamespacePattern.MatchString(namespace) {
		return nil, fmt.Errorf("namespace %q does not match %s", namespace, record.NamespacePattern)
	}
	config, err := pgxpool.ParseConfig(url)
	switch {
	case atInHost.MatchString(url):
		return nil, ErrURL
	case err != nil && strings.Contains(err.Error(), "failed to configure TLS"):
		return nil, fmt.Errorf("%w: %w", ErrTLS, errors.Unwrap(err)) // the cause does not contain the URL
	case err != nil:
		return nil, ErrURL
	case demandsOthers(config.ConnConfig.ValidateConnect):
		return nil, ErrTarget
	}
	if err := adaptParameters(&config.ConnConfig.Config); err != nil {
		return nil, err
	}
	// Statements are written for that isolation. A role or a database may have another default.
	all := Settings{"search_path": namespace, "default_transaction_isolation": "read committed"}
	maps.Copy(all, more)
	config.ConnConfig.ConnectTimeout = connectWithin
	config.PingTimeout = cmp.Or(config.PingTimeout, pingWithin) // pool_ping_timeout in the URL
	config.ConnConfig.ValidateConnect = all.begin
	config.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) { return MayWrite(conn) == nil, nil }
	EndSilent(silenceMax)(config)
	return config, nil
}

// AllowReadOnlyRole allows read-only sessions on a primary too, such as those of a role for audits.
func AllowReadOnlyRole(config *pgxpool.Config) {
	begin := config.ConnConfig.ValidateConnect
	config.ConnConfig.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := begin(ctx, conn); !errors.Is(err, ErrReadOnly) {
			return err
		}
		return nil
	}
	config.PrepareConn = nil
}

// demandsOthers reports whether a URL, or the environment, requests sessions that may not write.
// pgx stores the requested kind of session as a function, so the functions are compared.
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

// begin sets the settings in a new session, and rejects one that may not write.
func (s Settings) begin(ctx context.Context, conn *pgconn.PgConn) error {
	var statements strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s)) {
		value, err := conn.EscapeString(s[name])
		if err != nil {
			return err
		}
		fmt.Fprintf(&statements, "SET %s = '%s';", pgx.Identifier{name}.Sanitize(), value)
	}
	statements.WriteString("SELECT pg_is_in_recovery(), current_setting('transaction_read_only')")
	results, err := conn.Exec(ctx, statements.String()).ReadAll()
	if err != nil {
		return err
	}
	switch state := results[len(results)-1].Rows[0]; {
	case string(state[0]) == "t":
		return ErrStandby
	case string(state[1]) == "on":
		return readOnly(ctx, conn)
	}
	return nil
}

// readOnly returns the ReadOnlyError of a session.
func readOnly(ctx context.Context, conn *pgconn.PgConn) error {
	results, err := conn.Exec(ctx, "SELECT source, current_user, current_database() FROM pg_settings "+
		"WHERE name = 'default_transaction_read_only'").ReadAll()
	if err != nil {
		return errors.Join(ErrReadOnly, err)
	}
	row := results[0].Rows[0]
	return &ReadOnlyError{Source: string(row[0]), Role: string(row[1]), Database: string(row[2])}
}

// MayWrite returns ErrStandby or ErrReadOnly when the session could not write during its last
// query: the result of that query may be out of date. It sends nothing.
func MayWrite(conn *pgx.Conn) error {
	switch session := conn.PgConn(); {
	case session.ParameterStatus("in_hot_standby") == "on":
		return ErrStandby
	case session.ParameterStatus("default_transaction_read_only") == "on":
		return ErrReadOnly
	}
	return nil
}

// LinkOf describes how a connection is protected.
func LinkOf(conn *pgx.Conn) *connect.Link {
	config := conn.Config()
	var password, certificate string
	if config.Password != "" {
		password = connect.LoginPassword
	}
	if config.TLSConfig != nil && len(config.TLSConfig.Certificates) > 0 {
		certificate = connect.LoginCertificate
	}
	link := connect.LinkOf(conn.PgConn().Conn(), certificate, password)
	if link.Encrypted && config.TLSConfig != nil && config.TLSConfig.VerifyPeerCertificate != nil {
		link.VerifiedWithoutName() // sslmode=verify-ca
	}
	return link
}
