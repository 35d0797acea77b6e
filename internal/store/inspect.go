package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pressly/goose/v3"

	"holdfast/internal/connect"
	"holdfast/internal/holds"
	"holdfast/internal/postgres"
)

// ServerInfo describes a server, the role of the session, and a namespace's schema.
type ServerInfo struct {
	Version  string
	Role     string
	Database string
	Encoding string             // of the database
	Settings map[string]Setting // those of SettingsInspected

	Standbys    []string // the quoted names of those that follow the server and may replace it
	Synchronous string   // the names of those for which a commit waits, "" for none
	// CommitsStuck is true when commits that wait for Synchronous do not end. It may be false though they do not, if the role
	// lacks pg_read_all_stats.
	CommitsStuck bool

	Schema Schema
}

// SettingsInspected are the settings that decide whether committed data survives a crash.
var SettingsInspected = []string{"fsync", "full_page_writes", "synchronous_commit"}

// Setting is a setting in a worker's sessions.
type Setting struct {
	Value  string
	Source string // its source in pg_settings
}

// Schema describes the schema of a namespace.
type Schema struct {
	Exists  bool
	Creates bool  // the role may create schemas
	Usable  bool  // the role may use it
	Alters  bool  // the role may create tables in it, and alter those that it has
	Version int64 // the last migration, 0 for none; only read of a usable schema

	// WorksFrom is the oldest schema version that a program may know. It is only read if Version is
	// unknown to this program.
	WorksFrom int64

	// Triggers are only read of a schema that this program knows, or of a newer one. Of one that it migrates only those are read
	// without which slots are sold twice.
	Triggers Triggers
}

// SchemaVersion is the version that this program knows, and to which Migrate brings a schema.
var SchemaVersion = lastMigration()

// firstMigration is the version of the first file. What came before it is not migrated.
const firstMigration = 16

// FixTooOld says what to do about a schema that IsTooOld.
const FixTooOld = "this program migrates schemas from version 16 on; first migrate this one with a build of 27 November 2026, " +
	"the last with migrations 1 to 16"

// IsTooOld reports whether Migrate refuses the schema.
func (s Schema) IsTooOld() bool { return 0 < s.Version && s.Version < firstMigration }

func lastMigration() int64 {
	files, err := migrationFiles.ReadDir("migrations") // sorted
	if err != nil {
		panic(err) // embedded files always exist
	}
	version, err := goose.NumericComponent(files[len(files)-1].Name())
	if err != nil {
		panic(err) // misnamed file
	}
	return version
}

// CheckSessions reports whether a pooler is between this program and Postgres. It returns
// postgres.ErrPooled when the pooler does not keep a session for each connection.
func (s *Store) CheckSessions(ctx context.Context) (pooled bool, err error) {
	return postgres.CheckSessions(ctx, s.pool.Config().ConnConfig)
}

// ReadDatabase returns the identity of the database and how far its server is.
func (s *Store) ReadDatabase(ctx context.Context) (d holds.Database, err error) {
	if err = s.pool.QueryRow(ctx, query("database_read")).Scan(&d.ID, &d.Position); err != nil {
		return d, fmt.Errorf("read the identity of the database: %w", err)
	}
	return d, nil
}

// Link describes how a connection to the server is protected.
func (s *Store) Link(ctx context.Context) (l *connect.Link, err error) {
	err = s.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		l = postgres.LinkOf(conn.Conn())
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("inspect postgres: %w", err)
	}
	return l, nil
}

// Inspect reads the description of the server. It changes nothing. It returns postgres.ErrStandby
// or postgres.ErrReadOnly if no host of the URL accepts writes.
func (s *Store) Inspect(ctx context.Context, namespace string) (*ServerInfo, error) {
	f := &ServerInfo{Settings: make(map[string]Setting)}
	migrated := false
	err := s.pool.QueryRow(ctx, query("inspect_server"), namespace).Scan(&f.Version, &f.Role, &f.Database, &f.Encoding,
		&f.Schema.Creates, &f.Schema.Exists, &f.Schema.Usable, &f.Schema.Alters, &migrated, &f.Standbys, &f.Synchronous,
		&f.CommitsStuck)
	if err != nil {
		return nil, fmt.Errorf("inspect postgres: %w", err)
	}
	rows, _ := s.pool.Query(ctx, query("inspect_settings"), SettingsInspected) // ForEachRow returns its error
	var name string
	var setting Setting
	_, err = pgx.ForEachRow(rows, []any{&name, &setting.Value, &setting.Source}, func() error {
		f.Settings[name] = setting
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("inspect postgres: %w", err)
	}
	if migrated && f.Schema.Usable {
		err := s.pool.QueryRow(ctx,
			`SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied`).Scan(&f.Schema.Version)
		if err != nil {
			return nil, fmt.Errorf("inspect postgres: version of schema %s: %w", namespace, err)
		}
	}
	if f.Schema.Version >= firstMigration {
		triggers, names := pgx.Batch{}, guardTriggers // which each version has
		if f.Schema.Version >= SchemaVersion {
			names = inventoryTriggers
		}
		f.Schema.Triggers.queue(&triggers, names)
		if err := s.pool.SendBatch(ctx, &triggers).Close(); err != nil {
			return nil, fmt.Errorf("inspect postgres: triggers of inventory: %w", err)
		}
	}
	if f.Schema.Version > SchemaVersion {
		err := s.pool.QueryRow(ctx, `SELECT works_from FROM schema_compatibility`).Scan(&f.Schema.WorksFrom)
		if err != nil {
			return nil, fmt.Errorf("inspect postgres: compatibility of schema %s: %w", namespace, err)
		}
	}
	return f, nil
}

// grant is a privilege that a worker needs: on some columns of a table, on all of them, on a
// sequence, or on a function of Postgres.
type grant struct {
	on, privilege string
	columns       []string
}

// grants are all privileges that the queries need. deployments/postgres/grants.sql grants them, except those on functions,
// which PUBLIC has by default.
var grants = []grant{
	{"inventory", "SELECT", nil},
	{"inventory", "INSERT", []string{
		"resource_id", "slot", "capacity",
		"set_by_event_at", "set_in_stream_at", "set_by_stream_created_at", "set_by_stream_seq",
	}},
	{"inventory", "UPDATE", []string{
		"capacity", "reserved", "updated_at",
		"set_by_event_at", "set_in_stream_at", "set_by_stream_created_at", "set_by_stream_seq",
	}},
	{"reservations", "SELECT", nil},
	{"reservations", "INSERT",
		[]string{"hold_id", "resource_id", "user_id", "slots", "quantity", "payment_id", "request_key",
			"confirmed_at"}},
	{"reservations", "UPDATE", []string{"status", "cancelled_by", "cancel_reason", "cancelled_at"}},
	{"payments", "SELECT", nil},
	{"payments", "INSERT", nil},
	{"event_answers", "SELECT", nil},
	{"event_answers", "INSERT", []string{"cause", "resource_id", "answer"}},
	{"event_answers", "DELETE", nil},
	{"partition_epochs", "SELECT", nil},
	{"partition_epochs", "UPDATE",
		[]string{"epoch", "generation", "written", "server", "lost", "lost_why", "rebuilder", "leased_until",
			"progress"}},
	{"commit_marker", "SELECT", nil},
	{"commit_marker", "INSERT", []string{"history", "server"}},
	{"commit_marker", "UPDATE", []string{"history", "server", "stream_created_at", "seq", "marked_at"}},
	{"lost_commits", "SELECT", nil},
	{"lost_commits", "INSERT", []string{"outcome_id", "resource_id", "event", "reason", "outcome"}},
	{"lost_commits", "DELETE", nil},
	{"policies", "SELECT", nil},
	{"leases", "SELECT", nil},
	{"leases", "INSERT", []string{"name", "holder", "held_until"}},
	{"leases", "UPDATE", []string{"holder", "held_until"}},
	{"workers", "SELECT", nil},
	{"workers", "INSERT", []string{"id"}},
	{"workers", "UPDATE", []string{"drained", "forgotten_at"}},
	{"workers", "DELETE", nil},
	{"lock_fence_bases", "USAGE", nil},
	{"goose_db_version", "SELECT", nil},
	{"schema_compatibility", "SELECT", nil},
	{"pg_control_system()", "EXECUTE", nil},
	{"pg_current_wal_lsn()", "EXECUTE", nil},
	{"pg_walfile_name(pg_lsn)", "EXECUTE", nil},
}

// statement returns the GRANT to a role.
func (g grant) statement(namespace, role string) string {
	on, columns := pgx.Identifier{namespace, g.on}.Sanitize(), ""
	switch g.privilege {
	case "USAGE":
		on = "SEQUENCE " + on
	case "EXECUTE":
		on = "FUNCTION " + g.on
	}
	if len(g.columns) > 0 {
		columns = " (" + strings.Join(g.columns, ", ") + ")"
	}
	return fmt.Sprintf("GRANT %s%s ON %s TO %s", g.privilege, columns, on, pgx.Identifier{role}.Sanitize())
}

// MissingGrants returns, as GRANT statements, the privileges that a worker needs and the role
// lacks. The schema must exist.
func (s *Store) MissingGrants(ctx context.Context, namespace string, f *ServerInfo) (statements []string, err error) {
	if !f.Schema.Usable {
		return []string{fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", pgx.Identifier{namespace}.Sanitize(),
			pgx.Identifier{f.Role}.Sanitize())}, nil
	}
	var of, relations, columns, privileges []string // of: the statement for each requested row
	for _, g := range grants {
		requested := g.columns
		if len(requested) == 0 {
			requested = []string{""}
		}
		for _, column := range requested {
			of, relations = append(of, g.statement(namespace, f.Role)), append(relations, g.on)
			columns, privileges = append(columns, column), append(privileges, g.privilege)
		}
	}
	// ForEachRow returns the error of Query.
	rows, _ := s.pool.Query(ctx, query("inspect_grants"), namespace, relations, columns, privileges)
	var n int
	_, err = pgx.ForEachRow(rows, []any{&n}, func() error {
		statements = append(statements, of[n-1])
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("inspect privileges: %w", err)
	}
	return slices.Compact(statements), nil // the rows are in the order of the grants
}

// RoleAttributes are the powers of the role that a worker does not need.
type RoleAttributes struct {
	Attributes []string // SUPERUSER and similar attributes, and predefined roles
	Owned      []string // tables and sequences that it may alter and drop
	Destroys   []string // privileges like "TRUNCATE on payments", on tables that it does not own
}

// RoleAttributes reads the powers of the role. It changes nothing.
func (s *Store) RoleAttributes(ctx context.Context, namespace string) (p RoleAttributes, err error) {
	err = s.pool.QueryRow(ctx, query("inspect_role"), namespace).Scan(&p.Attributes, &p.Owned, &p.Destroys)
	if err != nil {
		return RoleAttributes{}, fmt.Errorf("inspect role: %w", err)
	}
	return p, nil
}

// Clock reads the server's clock.
func (s *Store) Clock(ctx context.Context) (now time.Time, err error) {
	if err := s.pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return time.Time{}, fmt.Errorf("read the clock of postgres: %w", err)
	}
	return now, nil
}
