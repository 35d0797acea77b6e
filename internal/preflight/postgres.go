package preflight

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"holdfast/internal/postgres"
	"holdfast/internal/store"
)

// postgres looks at Postgres. It returns its clock.
func (r *report) postgres(ctx context.Context, t Target) clock {
	const reachable, primary = "postgres.reachable", "postgres.primary"
	others := []string{PostgresFsync, PostgresCommit, PostgresPages, PostgresSchema, "postgres.grants", PostgresPrivileges}
	server, err := t.Store.Inspect(ctx, t.Namespace)
	switch {
	case errors.Is(err, postgres.ErrReadOnly), errors.Is(err, postgres.ErrStandby):
		r.ok(reachable, "it answers")
		r.fail(primary, err.Error(), "no payment can be written, and what is read may be old", writableFix(err, t.Store.Role()))
		r.skipAll(primary+" failed", others...)
		return clock{of: "postgres", err: errors.New("it could not be asked")}
	case err != nil:
		r.fail(reachable, err.Error(), "it does not answer as it should", "start it, correct its URL, or grant what is missing: deployments/postgres/grants.sql")
		r.skipAll(reachable+" failed", append([]string{primary}, others...)...)
		return clock{of: "postgres", err: errors.New("it could not be asked")}
	}
	r.ok(reachable, fmt.Sprintf("Postgres %s, role %s, database %s", server.Version, server.Role, server.Database))
	r.ok(primary, "takes writes")
	r.postgresSetting(server, PostgresFsync, Fail, "a crash of the machine may lose payments that were answered, or damage all tables")
	r.postgresSetting(server, PostgresCommit, Fail, "a crash loses the last payments, which were answered as reservations")
	r.postgresSetting(server, PostgresPages, Warn, "a crash in the midst of writing a page damages it, unless the file system writes pages whole (ZFS does)")
	r.postgresSchema(server, t)
	r.postgresGrants(ctx, server, t)
	r.postgresPrivileges(ctx, server, t)
	return readClock(ctx, "postgres", t.Store.Clock)
}

// writableFix is how a worker gets sessions that may write.
func writableFix(err error, role string) string {
	const url = "add the primary to the URL, which may name several hosts: a worker uses the one that takes writes"
	if errors.Is(err, postgres.ErrReadOnly) {
		return "use the worker's role, or, if this role should write and this server is the primary:\n" +
			"ALTER ROLE " + quoted(role) + " RESET default_transaction_read_only;\n" + url
	}
	return url
}

// postgresSetting says that a setting should be on. Its name is the part of the check's after the dot.
func (r *report) postgresSetting(f *store.ServerInfo, check string, bad Status, why string) {
	_, name, _ := strings.Cut(check, ".")
	setting := f.Settings[name]
	if setting.Value != "off" {
		r.ok(check, setting.Value)
		return
	}
	r.add(check, bad, "off, by "+setting.Source, why, settingFix(f, name, setting.Source))
}

// settingFix is what switches a setting on again, which depends on where it was switched off.
func settingFix(f *store.ServerInfo, name, source string) string {
	switch source {
	case "command line":
		return "start postgres without -c " + name + "=off"
	case "database":
		return fmt.Sprintf("ALTER DATABASE %s RESET %s;", quoted(f.Database), name)
	case "user":
		return fmt.Sprintf("ALTER ROLE %s RESET %s;", quoted(f.Role), name)
	case "database user":
		return fmt.Sprintf("ALTER ROLE %s IN DATABASE %s RESET %s;", quoted(f.Role), quoted(f.Database), name)
	case "client", "session":
		return "take " + name + " out of the worker's Postgres URL and PGOPTIONS"
	default:
		return fmt.Sprintf("ALTER SYSTEM SET %s = on;\nSELECT pg_reload_conf();", name)
	}
}

func quoted(identifier string) string { return `"` + strings.ReplaceAll(identifier, `"`, `""`) + `"` }

func (r *report) postgresSchema(f *store.ServerInfo, t Target) {
	const name, migrate = PostgresSchema, "worker migrate"
	s, known := f.Schema, store.SchemaVersion
	found := fmt.Sprintf("schema %s has version %d, this program knows %d", t.Namespace, s.Version, known)
	switch {
	case !s.Exists && t.Migrates && s.Creates:
		r.ok(name, "there is no schema "+t.Namespace+" yet; the worker creates it")
	case !s.Exists && t.Migrates:
		r.fail(name, "there is no schema "+t.Namespace, "role "+f.Role+" may not create one",
			fmt.Sprintf("CREATE SCHEMA %s AUTHORIZATION %s;\nor run worker migrate as another role, and the worker with --no-migrate", quoted(t.Namespace), quoted(f.Role)))
	case !s.Exists:
		r.fail(name, "there is no schema "+t.Namespace, "with --no-migrate the worker does not create it", migrate)
	case !s.Usable:
		r.unknown(name, "role "+f.Role+" may not use schema "+t.Namespace, "see postgres.grants")
	case s.Version > known && s.WorksFrom > known:
		r.fail(name, fmt.Sprintf("%s, and %d is the lowest that works", found, s.WorksFrom), "it means something else by now",
			"run the version of the worker that migrated it, or a newer one")
	case s.Version > known:
		r.ok(name, found+" and works with it")
	case s.Version < known && !t.Migrates:
		r.fail(name, found, "its queries would fail", migrate)
	case s.Version < known:
		r.ok(name, found+"; the worker migrates it")
	default:
		r.ok(name, fmt.Sprintf("version %d", s.Version))
	}
}

func (r *report) postgresGrants(ctx context.Context, f *store.ServerInfo, t Target) {
	const name = "postgres.grants"
	if !f.Schema.Exists || f.Schema.Usable && f.Schema.Version < store.SchemaVersion {
		r.skipAll("the tables are not there yet", name)
		return
	}
	missing, err := t.Store.MissingGrants(ctx, t.Namespace, f)
	switch {
	case err != nil:
		r.unknown(name, err.Error(), "look again")
	case len(missing) > 0:
		r.fail(name, fmt.Sprintf("role %s does not have %d of the privileges that it needs", f.Role, len(missing)),
			"events would wait until it has them", strings.Join(missing, ";\n")+";\nor all of deployments/postgres/grants.sql, by the owner of the tables")
	default:
		r.ok(name, "role "+f.Role+" has all that it needs")
	}
}

func (r *report) postgresPrivileges(ctx context.Context, f *store.ServerInfo, t Target) {
	const fix = "use a role like holdfast_worker in deployments/postgres/roles.sql"
	role, err := t.Store.RoleAttributes(ctx, t.Namespace)
	if err != nil {
		r.unknown(PostgresPrivileges, err.Error(), "look again")
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
			"a mistake, or whoever gets at the worker, could undo what the constraints promise", fix+", after worker migrate by another role, and run the worker with --no-migrate")
	case len(role.Owned) > 0:
		r.ok(PostgresPrivileges, "role "+f.Role+" owns the tables, which a worker that migrates must")
	default:
		r.ok(PostgresPrivileges, "role "+f.Role+" has none that a worker does not need")
	}
}
