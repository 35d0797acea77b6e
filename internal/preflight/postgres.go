package preflight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"holdfast/internal/postgres"
	"holdfast/internal/store"
)

// postgres checks Postgres. It returns its clock.
func (r *report) postgres(ctx context.Context, t Target) clock {
	const reachable, primary = "postgres.reachable", "postgres.primary"
	others := []string{PostgresEncoding, postgresLink, PostgresFsync, PostgresCommit, PostgresPages, PostgresCommits, PostgresStandbys, PostgresSchema, "postgres.grants", PostgresPrivileges}
	// First, because a session that is not the program's own must not get its settings.
	pooled, err := t.Store.CheckSessions(ctx)
	if errors.Is(err, postgres.ErrPooled) {
		r.ok(reachable, "it answers")
		r.fail(PostgresSessions, err.Error(),
			"LISTEN, session locks and prepared statements need a session for each connection", sessionsFix)
		r.skipAll(PostgresSessions+" failed", append([]string{primary}, others...)...)
		return clock{of: "postgres", err: errUnreachable}
	}
	sessionsErr := err
	others = append(others, PostgresSessions)
	server, err := t.Store.Inspect(ctx, t.Namespace)
	switch {
	case errors.Is(err, postgres.ErrReadOnly), errors.Is(err, postgres.ErrStandby):
		r.ok(reachable, "it answers")
		r.fail(primary, err.Error(), "no payment can be written, and the data may be out of date", writableFix(err))
		r.skipAll(primary+" failed", others...)
		return clock{of: "postgres", err: errUnreachable}
	case err != nil:
		why, fix := "it does not answer correctly",
			"start it, correct its URL, or grant missing privileges: deployments/postgres/grants.sql"
		if isTimeout(err) {
			why, fix = slow, "start it, correct its URL, or "+slowFix
		}
		r.fail(reachable, err.Error(), why, fix)
		r.skipAll(reachable+" failed", append([]string{primary}, others...)...)
		return clock{of: "postgres", err: errUnreachable}
	}
	r.ok(reachable, fmt.Sprintf("Postgres %s, role %s, database %s", server.Version, server.Role, server.Database))
	r.ok(primary, "takes writes")
	r.postgresSessions(pooled, sessionsErr)
	r.postgresEncoding(server)
	r.postgresLink(ctx, t)
	r.postgresSetting(server, PostgresFsync, Fail,
		"a crash of the machine may lose answered payments, or corrupt all tables")
	r.postgresSetting(server, PostgresCommit, Fail,
		"a crash loses the last payments, although they were answered as reservations")
	r.postgresSetting(server, PostgresPages, Warn,
		"a crash while a page is written corrupts it, unless the file system writes pages atomically (ZFS does)")
	r.postgresStandbys(server)
	r.postgresSchema(server, t)
	r.postgresGrants(ctx, server, t)
	r.postgresPrivileges(ctx, server, t)
	return readClock(ctx, "postgres", t.Store.Clock)
}

const (
	postgresLink = "postgres.link"
	sessionsFix  = "pool_mode = session\nin the configuration of PgBouncer for this database, or give the URL of Postgres itself"
)

func (r *report) postgresSessions(pooled bool, err error) {
	switch {
	case err != nil:
		r.unknown(PostgresSessions, err.Error(), "check again; a pooler needs "+sessionsFix)
	case pooled:
		r.ok(PostgresSessions, "a pooler keeps a session for each connection")
	default:
		r.ok(PostgresSessions, "without a pooler")
	}
}

// postgresEncoding checks that the database can store every text.
func (r *report) postgresEncoding(f *store.ServerInfo) {
	switch f.Encoding {
	case "UTF8", "SQL_ASCII": // SQL_ASCII stores every text as it comes
		r.ok(PostgresEncoding, f.Encoding)
	default:
		r.fail(PostgresEncoding, fmt.Sprintf("database %s has the encoding %s", f.Database, f.Encoding),
			"a payment of a hold whose metadata has another character could never be answered",
			"CREATE DATABASE holdfast TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';\n"+
				"copy the schema with pg_dump and psql if it has data, and give the URL of the new database")
	}
}

func (r *report) postgresLink(ctx context.Context, t Target) {
	link, err := t.Store.Link(ctx)
	if err != nil {
		r.unknown(postgresLink, err.Error(), "check again")
		return
	}
	r.link(postgresLink, link, "give user and password, and sslmode=verify-full&sslrootcert=FILE, in the Postgres URL")
}

// writableFix returns the fix for sessions that may not write.
func writableFix(err error) string {
	const url = "add the primary to the URL, which may name several hosts: a worker uses the one that accepts writes"
	session, is := errors.AsType[*postgres.ReadOnlyError](err)
	if !is {
		return url
	}
	const name = "default_transaction_read_only"
	fix := settingFix(&store.ServerInfo{Role: session.Role, Database: session.Database}, name, "off", session.Source)
	if strings.HasPrefix(fix, "ALTER") { // the session of an administrator may be read-only too
		fix = "SET " + name + " = off;\n" + fix
	}
	return "use the worker's role; if this role should write, and this server is the primary:\n" + fix + "\n" + url
}

// postgresSetting checks that a setting is on. The name of the setting is the part of check after
// the dot.
func (r *report) postgresSetting(f *store.ServerInfo, check string, bad Status, why string) {
	_, name, _ := strings.Cut(check, ".")
	setting := f.Settings[name]
	if setting.Value != "off" {
		r.ok(check, setting.Value)
		return
	}
	r.add(check, bad, "off, set by "+setting.Source, why, settingFix(f, name, "on", setting.Source))
}

// postgresStandbys checks that commits end, and that a standby that may replace the server has every answered one.
func (r *report) postgresStandbys(f *store.ServerInfo) {
	const why = "a failover to a standby that is behind loses answered payments: workers put back what was published, " +
		"and that takes seconds without any answer"
	setting := f.Settings["synchronous_commit"]
	level := setting.Value
	waits := f.Synchronous != "" && level != "local"
	names := strings.Join(slices.Compact(slices.Sorted(slices.Values(f.Standbys))), ", ")
	if names != "" {
		names = "ANY 1 (" + strings.ReplaceAll(names, "'", "''") + ")"
	}
	fix := "ALTER SYSTEM SET synchronous_standby_names = '" + names + "';\nSELECT pg_reload_conf();"
	switch {
	case !waits || level == "off":
		r.ok(PostgresCommits, "they wait for no standby")
	case f.CommitsStuck:
		r.fail(PostgresCommits, "they wait for "+f.Synchronous+", and too few of these standbys follow",
			"no commit ends: no payment is answered", "start these standbys, or, to go on without them:\n"+fix)
	default:
		r.ok(PostgresCommits, "they wait for "+f.Synchronous)
	}
	switch {
	case len(f.Standbys) == 0:
		r.ok(PostgresStandbys, "no standby follows")
	case waits:
		r.ok(PostgresStandbys, "commits wait for "+f.Synchronous)
	default:
		var fixes []string
		if level == "local" {
			fixes = append(fixes, settingFix(f, "synchronous_commit", "on", setting.Source))
		}
		if f.Synchronous == "" {
			fixes = append(fixes, fix)
		}
		r.fail(PostgresStandbys, fmt.Sprintf("%d standbys follow, and no commit waits for one", len(f.Standbys)), why,
			strings.Join(fixes, "\n"))
	}
}

// settingFix returns how to set a setting to a value, which depends on where it was set to another.
func settingFix(f *store.ServerInfo, name, value, source string) string {
	switch source {
	case "command line":
		return "start postgres without -c " + name
	case "database":
		return fmt.Sprintf("ALTER DATABASE %s RESET %s;", quoted(f.Database), name)
	case "user":
		return fmt.Sprintf("ALTER ROLE %s RESET %s;", quoted(f.Role), name)
	case "database user":
		return fmt.Sprintf("ALTER ROLE %s IN DATABASE %s RESET %s;", quoted(f.Role), quoted(f.Database), name)
	case "client", "session":
		return "remove " + name + " from the worker's Postgres URL and PGOPTIONS"
	default:
		return fmt.Sprintf("ALTER SYSTEM SET %s = %s;\nSELECT pg_reload_conf();", name, value)
	}
}

func quoted(identifier string) string { return `"` + strings.ReplaceAll(identifier, `"`, `""`) + `"` }

func (r *report) postgresSchema(f *store.ServerInfo, t Target) {
	const migrate = "worker migrate"
	s, known := f.Schema, store.SchemaVersion
	found := fmt.Sprintf("schema %s has version %d, this program knows %d", t.Namespace, s.Version, known)
	switch {
	case !s.Exists && t.Migrates && s.Creates:
		r.ok(PostgresSchema, "schema "+t.Namespace+" does not exist yet; the worker creates it")
	case !s.Exists && t.Migrates:
		r.fail(PostgresSchema, "schema "+t.Namespace+" does not exist", "role "+f.Role+" may not create it",
			fmt.Sprintf("CREATE SCHEMA %s AUTHORIZATION %s;\n"+
				"or run worker migrate as another role, and the worker with --no-migrate", quoted(t.Namespace), quoted(f.Role)))
	case !s.Exists:
		r.fail(PostgresSchema, "schema "+t.Namespace+" does not exist", "with --no-migrate the worker does not create it", migrate)
	case !s.Usable:
		r.unknown(PostgresSchema, "role "+f.Role+" may not use schema "+t.Namespace, "see postgres.grants")
	case s.Version > known && s.WorksFrom > known:
		r.fail(PostgresSchema, fmt.Sprintf("%s and needs to know at least %d", found, s.WorksFrom),
			"this program would misread the data", "run the version of the worker that migrated it, or a newer one")
	case len(s.Triggers.Off()) > 0:
		status := Warn
		if s.Triggers.Oversell() {
			status = Fail
		}
		r.add(PostgresSchema, status, "triggers of inventory are off, at least in some sessions: "+strings.Join(s.Triggers.Off(), ", "),
			s.Triggers.Risk(), s.Triggers.Fix(t.Namespace))
	case s.Version > known:
		r.ok(PostgresSchema, found+" and is compatible with it")
	case s.IsTooOld():
		r.fail(PostgresSchema, found, "its queries would fail", store.FixTooOld)
	case s.Version < known && !t.Migrates:
		r.fail(PostgresSchema, found, "its queries would fail", migrate)
	case s.Version < known && !s.Alters:
		r.fail(PostgresSchema, found, "role "+f.Role+" may not migrate it: it does not own its tables, or may not create any",
			"run worker migrate as the owner, and the worker with --no-migrate")
	case s.Version < known:
		r.ok(PostgresSchema, found+"; the worker migrates it")
	default:
		r.ok(PostgresSchema, fmt.Sprintf("version %d", s.Version))
	}
}

func (r *report) postgresGrants(ctx context.Context, f *store.ServerInfo, t Target) {
	const name = "postgres.grants"
	if !f.Schema.Exists || f.Schema.Usable && f.Schema.Version < store.SchemaVersion {
		r.skipAll("the schema is not migrated yet", name)
		return
	}
	missing, err := t.Store.MissingGrants(ctx, t.Namespace, f)
	if slices.Contains(t.Skip, NATSTrimming) { // by worker migrate, which calls no function of Postgres that a worker needs
		missing = slices.DeleteFunc(missing, func(grant string) bool { return strings.HasPrefix(grant, "GRANT EXECUTE ") })
	}
	switch {
	case err != nil:
		r.unknown(name, err.Error(), "check again")
	case len(missing) > 0:
		r.fail(name, fmt.Sprintf("role %s lacks %d of the privileges that it needs", f.Role, len(missing)),
			"events would wait until it has them",
			strings.Join(missing, ";\n")+";\nor run deployments/postgres/grants.sql as the owner of the tables")
	default:
		r.ok(name, "role "+f.Role+" has all privileges that it needs")
	}
}

func (r *report) postgresPrivileges(ctx context.Context, f *store.ServerInfo, t Target) {
	const fix = "use a role like holdfast_worker in deployments/postgres/roles.sql"
	role, err := t.Store.RoleAttributes(ctx, t.Namespace)
	if err != nil {
		r.unknown(PostgresPrivileges, err.Error(), "check again")
		return
	}
	var may []string
	if len(role.Attributes) > 0 {
		may = append(may, "has "+strings.Join(role.Attributes, ", "))
	}
	if len(role.Owned) > 0 && !t.Migrates {
		may = append(may, "owns "+strings.Join(role.Owned, ", "))
	}
	if len(role.Destroys) > 0 {
		may = append(may, "has "+strings.Join(role.Destroys, ", "))
	}
	switch {
	case len(may) > 0:
		r.warn(PostgresPrivileges, "role "+f.Role+" "+strings.Join(may, "; it "),
			"a mistake, or an intruder with the worker's login, could remove the constraints that prevent overselling",
			fix+", after worker migrate as another role, and run the worker with --no-migrate")
	case len(role.Owned) > 0:
		r.ok(PostgresPrivileges, "role "+f.Role+" owns the tables, as a worker that migrates must")
	default:
		r.ok(PostgresPrivileges, "role "+f.Role+" has no privileges that a worker does not need")
	}
}
