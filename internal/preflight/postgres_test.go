package preflight_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"holdfast/internal/preflight"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// TestPostgres_NoAnswer_IsNotAPrivilege checks a Postgres that does not answer in time: the advice is not about the
// privileges of its role.
func TestPostgres_NoAnswer_IsNotAPrivilege(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	address, proxy := stacktest.ProxyTo(t, w.PostgresURL)
	proxy.Set(stacktest.Upstream, stacktest.Toxics{Stall: true})
	db := w.open(address)
	reachable := w.check(func(target *preflight.Target) { target.Store = db })["postgres.reachable"]
	if reachable.Status != preflight.Fail || !strings.Contains(reachable.Impact, "in time") ||
		strings.Contains(reachable.Fix, "grant") {
		t.Errorf("%+v", reachable)
	}
}

// TestPostgres_Misconfigured_FailsAndFixRepairs changes one setting of Postgres after the other.
// Only its check fails, and the fix of the check repairs it.
func TestPostgres_Misconfigured_FailsAndFixRepairs(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.expect("healthy servers", nil)
	wantFixed := func(what, check string, status preflight.Status, change ...func(*preflight.Target)) preflight.Check {
		t.Helper()
		c := w.expect(what, []string{check + " " + string(status)}, change...)[check]
		w.applyFix(c)
		// Postgres signals its processes to reload the settings; some take a while.
		stacktest.Eventually(t, check+" to be fixed", func() bool { return w.check(change...)[check].Status == preflight.OK })
		w.expect("after "+what, nil, change...)
		return c
	}
	off := func(sql ...string) {
		t.Helper()
		for _, statement := range sql {
			w.sql(statement)
		}
	}
	switchOff := func(setting, check string) {
		t.Helper()
		off("ALTER SYSTEM SET "+setting+" = off", "SELECT pg_reload_conf()")
		stacktest.Eventually(t, setting+" to be off", func() bool { return w.check()[check].Status != preflight.OK })
	}
	switchOff("fsync", "postgres.fsync")
	wantFixed("fsync off", "postgres.fsync", preflight.Fail)
	switchOff("full_page_writes", "postgres.full_page_writes")
	wantFixed("full_page_writes off", "postgres.full_page_writes", preflight.Warn)
	switchOff("synchronous_commit", "postgres.synchronous_commit")
	wantFixed("synchronous_commit off", "postgres.synchronous_commit", preflight.Fail)
	off("ALTER ROLE postgres SET synchronous_commit = off")
	wantFixed("synchronous_commit off for the role", "postgres.synchronous_commit", preflight.Fail)
	off("ALTER DATABASE postgres SET synchronous_commit = off")
	wantFixed("synchronous_commit off for the database", "postgres.synchronous_commit", preflight.Fail)
	off("ALTER ROLE postgres IN DATABASE postgres SET synchronous_commit = off")
	wantFixed("synchronous_commit off for the role in the database", "postgres.synchronous_commit", preflight.Fail)
	c := w.expect("synchronous_commit off in the URL", []string{"postgres.synchronous_commit fail"},
		func(t *preflight.Target) {
			t.Store = w.open(w.PostgresURL + "&synchronous_commit=off")
		})["postgres.synchronous_commit"]
	if !strings.Contains(c.Fix, "URL") {
		t.Errorf("%+v", c)
	}
	c = w.expect("no server", append(unreachable("postgres"), "nats.workers unknown", "clocks unknown"), func(t *preflight.Target) {
		t.Store = w.open("postgres://postgres:s3cret@127.0.0.1:1/postgres")
	})["postgres.reachable"]
	if strings.Count(c.Found, "connection refused") != 1 {
		t.Errorf("each attempt to connect is reported: %s", c.Found)
	}

	// The schema.
	off("INSERT INTO holdfast.goose_db_version (version_id, is_applied) VALUES (9999, true)")
	w.expect("a newer schema that works", nil)
	w.expect("a newer schema that works, and a worker that migrates", nil, migrates)
	off("UPDATE holdfast.schema_compatibility SET works_from = 9999")
	w.expect("a newer schema", []string{"postgres.schema fail"})
	w.expect("a newer schema, and a worker that migrates", []string{"postgres.schema fail"}, migrates)
	off("UPDATE holdfast.schema_compatibility SET works_from = 1",
		"DELETE FROM holdfast.goose_db_version WHERE version_id = 9999")
	off("CREATE TABLE kept AS SELECT * FROM holdfast.goose_db_version",
		"DELETE FROM holdfast.goose_db_version WHERE version_id > 16")
	w.expect("an older schema", []string{"postgres.schema fail", "postgres.grants skipped"})
	w.expect("an older schema, and a worker that migrates", []string{"postgres.grants skipped"}, migrates)
	off("DELETE FROM holdfast.goose_db_version WHERE version_id > 15")
	c = w.expect("a schema too old to migrate, and a worker that migrates",
		[]string{"postgres.schema fail", "postgres.grants skipped"}, migrates)["postgres.schema"]
	if c.Fix != store.FixTooOld {
		t.Errorf("%+v", c)
	}
	off("DELETE FROM holdfast.goose_db_version", "INSERT INTO holdfast.goose_db_version SELECT * FROM kept")
	w.expect("the schema again", nil)
	off("ALTER TABLE holdfast.inventory DISABLE TRIGGER USER")
	wantFixed("triggers disabled", "postgres.schema", preflight.Fail)
	off("ALTER TABLE holdfast.inventory ENABLE TRIGGER USER")
	wantFixed("triggers that do not fire always", "postgres.schema", preflight.Warn)
	off("ALTER SCHEMA holdfast RENAME TO aside")
	w.expect("no schema, and a worker that migrates", []string{"postgres.grants skipped"}, migrates)
	w.applyFix(w.expect("no schema", []string{"postgres.schema fail", "postgres.grants skipped"})["postgres.schema"])
	w.expect("after no schema", nil)
}

// TestPostgresPrimary_SessionsReadOnly_FixRepairs makes the sessions of a worker read-only, by each source of the setting.
func TestPostgresPrimary_SessionsReadOnly_FixRepairs(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	for source, statement := range map[string]string{
		"user": "ALTER ROLE postgres SET", "database": "ALTER DATABASE postgres SET",
		"database user": "ALTER ROLE postgres IN DATABASE postgres SET", "configuration file": "ALTER SYSTEM SET",
	} {
		w.sql(statement + " default_transaction_read_only = on")
		w.sql("SELECT pg_reload_conf()")
		primary := func() preflight.Check { return w.check()["postgres.primary"] }
		stacktest.Eventually(t, "the sessions to be read-only", func() bool { return primary().Status == preflight.Fail })
		c := w.expect("read-only by "+source, append(unreachable("postgres"), "postgres.reachable ok", "postgres.primary fail",
			"nats.workers unknown", "clocks unknown"))["postgres.primary"]
		if !strings.HasSuffix(c.Found, "default_transaction_read_only is on, set by "+source) ||
			!strings.HasPrefix(c.Fix, "use the worker's role") {
			t.Errorf("read-only by %s: %+v", source, c)
		}
		w.applyFix(c)
		stacktest.Eventually(t, "the sessions to write", func() bool { return primary().Status == preflight.OK })
	}
	w.expect("sessions that write again", nil)
}

// checkPostgres returns one check of a database. The other servers do not answer.
func checkPostgres(t *testing.T, url, name string) preflight.Check {
	t.Helper()
	db, err := store.Open(t.Context(), url, "holdfast")
	stacktest.Must(t, err)
	defer db.Close()
	checks := preflight.Run(t.Context(), preflight.Target{Namespace: "holdfast", Store: db, NATSURL: "nats://127.0.0.1:1",
		Redis: stacktest.RedisOptions("redis://127.0.0.1:1")})
	return checks[slices.IndexFunc(checks, func(c preflight.Check) bool { return c.Name == name })]
}

// TestPostgresEncoding_EachDatabase_OnlyThoseOfEveryTextPass checks databases with several encodings.
func TestPostgresEncoding_EachDatabase_OnlyThoseOfEveryTextPass(t *testing.T) {
	t.Parallel()
	url := stacktest.PostgresURL(stacktest.StartPostgres(t))
	for encoding, want := range map[string]preflight.Status{
		"UTF8": preflight.OK, "SQL_ASCII": preflight.OK, "LATIN1": preflight.Fail, "EUC_JP": preflight.Fail, "WIN1252": preflight.Fail,
	} {
		name := strings.ToLower(encoding)
		stacktest.PostgresSQL(t, url, "CREATE DATABASE "+name+" TEMPLATE template0 ENCODING '"+encoding+"' LOCALE 'C'")
		c := checkPostgres(t, strings.Replace(url, "/postgres?", "/"+name+"?", 1), preflight.PostgresEncoding)
		if c.Status != want || !strings.Contains(c.Found, encoding) || want == preflight.Fail && !strings.Contains(c.Fix, "ENCODING 'UTF8'") {
			t.Errorf("%s: %+v", encoding, c)
		}
	}
}

// TestPostgres_Standby_Fails checks a standby.
func TestPostgres_Standby_Fails(t *testing.T) {
	t.Parallel()
	dir := stacktest.DataDir(t)
	start := func() *stack.Stack {
		t.Helper()
		s, err := stack.Start(t.Context(), stack.Options{Dir: dir, Postgres: true})
		stacktest.Must(t, err)
		return s
	}
	w := newHarness(t)
	stacktest.Must(t, start().Close())
	data := filepath.Join(dir, "postgres")
	signal := filepath.Join(data, "standby.signal")
	stacktest.Must(t, os.WriteFile(signal, nil, 0o600))
	owner, err := os.Stat(data)
	stacktest.Must(t, err)
	if s := owner.Sys().(*syscall.Stat_t); os.Chown(signal, int(s.Uid), int(s.Gid)) != nil {
		t.Fatal("the file does not belong to postgres")
	}
	standby := start()
	defer func() { _ = standby.Close() }()
	c := w.check(func(t *preflight.Target) { t.Store = w.open(standby.PostgresURL) })["postgres.primary"]
	if c.Status != preflight.Fail || !strings.Contains(c.Found, "standby") {
		t.Errorf("%+v", c)
	}
}

// TestPostgresGrants_MissingAndExcess_AreReported revokes each privilege that a worker needs from
// its role, and grants each that it should not have.
func TestPostgresGrants_MissingAndExcess_AreReported(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	for _, statement := range []string{
		`CREATE ROLE worker LOGIN`, `CREATE ROLE "Odd ""one""" LOGIN`,
		`GRANT USAGE ON SCHEMA holdfast TO worker`,
	} {
		w.sql(statement)
	}
	as := func(role string) func(*preflight.Target) {
		return func(t *preflight.Target) { t.Store = w.open(strings.Replace(w.PostgresURL, "postgres@", role+"@", 1)) }
	}
	// A role without privileges gets the missing grants as statements.
	const noVersion = "version of schema"
	c := w.check(as("worker"))["postgres.reachable"]
	if c.Status != preflight.Fail || !strings.Contains(c.Found, noVersion) {
		t.Errorf("a role without privileges: %+v", c)
	}
	w.sql(`GRANT SELECT ON holdfast.goose_db_version TO worker`)
	c = w.expect("a role with nothing more", []string{"postgres.grants fail", "postgres.privileges ok"},
		as("worker"))["postgres.grants"]
	w.applyFix(preflight.Check{Name: c.Name, Fix: c.Fix[:strings.Index(c.Fix, "\nor run deployments")]})
	w.expect("with the printed commands", []string{"postgres.privileges ok"}, as("worker"))
	var all []string
	for line := range strings.Lines(c.Fix) {
		if strings.HasPrefix(line, "GRANT ") {
			all = append(all, strings.TrimSuffix(strings.TrimSpace(line), ";"))
		}
	}
	if len(all) < 10 {
		t.Fatalf("only %d grants are listed: %s", len(all), c.Fix)
	}
	for _, grant := range all {
		w.sql(strings.Replace(strings.Replace(grant, "GRANT ", "REVOKE ", 1), " TO ", " FROM ", 1))
		c := w.check(as("worker"))["postgres.grants"]
		if c.Status != preflight.Fail || !strings.HasPrefix(c.Fix, grant+";\nor run deployments") {
			t.Errorf("without %s: %+v", grant, c)
		}
		w.sql(grant)
	}
	w.expect("with all again", []string{"postgres.privileges ok"}, as("worker"))
	w.sql(`REVOKE USAGE ON SCHEMA holdfast FROM worker`)
	c = w.expect("without the schema",
		[]string{"postgres.grants fail", "postgres.schema unknown", "postgres.privileges ok"},
		as("worker"))["postgres.grants"]
	w.applyFix(c)
	w.expect("with the schema again", []string{"postgres.privileges ok"}, as("worker"))

	for give, take := range map[string]string{
		`ALTER ROLE worker CREATEDB`:                                         `ALTER ROLE worker NOCREATEDB`,
		`ALTER ROLE worker CREATEROLE`:                                       `ALTER ROLE worker NOCREATEROLE`,
		`ALTER ROLE worker BYPASSRLS`:                                        `ALTER ROLE worker NOBYPASSRLS`,
		`ALTER ROLE worker SUPERUSER`:                                        `ALTER ROLE worker NOSUPERUSER`,
		`GRANT pg_write_all_data TO worker`:                                  `REVOKE pg_write_all_data FROM worker`,
		`GRANT "Odd ""one""" TO worker; ALTER ROLE "Odd ""one""" CREATEROLE`: `DROP ROLE "Odd ""one"""`,
		`GRANT TRUNCATE ON holdfast.payments TO worker`:                      `REVOKE TRUNCATE ON holdfast.payments FROM worker`,
		`GRANT DELETE ON holdfast.reservations TO worker`:                    `REVOKE DELETE ON holdfast.reservations FROM worker`,
		`ALTER TABLE holdfast.payments OWNER TO worker`:                      `ALTER TABLE holdfast.payments OWNER TO postgres`,
	} {
		w.sql(give)
		if c := w.check(as("worker"))["postgres.privileges"]; c.Status != preflight.Warn {
			t.Errorf("after %s: %+v", give, c)
		}
		w.sql(take)
		if strings.Contains(give, "OWNER") {
			w.sql(`GRANT SELECT, INSERT ON holdfast.payments TO worker`)
		}
	}
	w.expect("with what it needs and nothing more", []string{"postgres.privileges ok"}, as("worker"))

	// A role that migrates must own the tables and may need to create the schema.
	w.sql(`CREATE ROLE migrator LOGIN`)
	w.sql(`ALTER SCHEMA holdfast RENAME TO aside`)
	w.expect("a role that may not create schemas",
		[]string{"postgres.schema fail", "postgres.grants skipped", "postgres.privileges ok"}, as("migrator"), migrates)
	w.sql(`CREATE SCHEMA holdfast AUTHORIZATION migrator`)
	w.expect("a role with an empty schema", []string{"postgres.grants skipped", "postgres.privileges ok"},
		as("migrator"), migrates)
	db, err := store.Open(t.Context(), strings.Replace(w.PostgresURL, "postgres@", "migrator@", 1), "holdfast")
	stacktest.Must(t, err)
	defer db.Close()
	stacktest.Must(t, db.Migrate(t.Context(), "holdfast"))
	w.expect("the owner, and a worker that migrates", []string{"postgres.privileges ok"}, as("migrator"), migrates)
	w.expect("the owner, and a worker that does not", []string{"postgres.privileges warn"}, as("migrator"))
}

// TestPostgresSchema_RoleMayNotMigrate_Fails checks schemas that a worker should migrate, as roles that may and may not. One
// that is up to date needs no migration.
func TestPostgresSchema_RoleMayNotMigrate_Fails(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	as := func(t *preflight.Target) { t.Store = w.open(strings.Replace(w.PostgresURL, "postgres@", "worker@", 1)) }
	w.sql("CREATE ROLE worker LOGIN")
	w.sql("GRANT USAGE ON SCHEMA holdfast TO worker")
	w.sql("GRANT ALL ON ALL TABLES IN SCHEMA holdfast TO worker")
	want := func(what string, status preflight.Status) {
		t.Helper()
		if c := w.check(as, migrates)["postgres.schema"]; c.Status != status ||
			status == preflight.Fail && c.Fix != "run worker migrate as the owner, and the worker with --no-migrate" {
			t.Errorf("%s: %+v", what, c)
		}
	}
	want("an up-to-date schema of another role", preflight.OK)
	w.sql("DELETE FROM holdfast.goose_db_version WHERE version_id = (SELECT max(version_id) FROM holdfast.goose_db_version)")
	want("an older schema of another role", preflight.Fail)
	w.sql("GRANT CREATE ON SCHEMA holdfast TO worker")
	want("an older schema whose tables belong to another role", preflight.Fail)
	w.sql("CREATE ROLE owner")
	w.sql("GRANT owner TO worker")
	w.sql("ALTER TABLE holdfast.inventory OWNER TO owner")
	want("an older schema whose owner the role may act as", preflight.OK)
	w.sql("ALTER SCHEMA holdfast RENAME TO aside")
	w.sql("CREATE SCHEMA holdfast")
	w.sql("GRANT USAGE ON SCHEMA holdfast TO worker")
	want("an empty schema of another role", preflight.Fail)
	if c := w.check(as, migrates)["postgres.grants"]; c.Found != "the schema is not migrated yet" {
		t.Errorf("privileges on an empty schema: %+v", c)
	}
	w.sql("GRANT CREATE ON SCHEMA holdfast TO worker")
	want("an empty schema in which the role may create tables", preflight.OK)
}

// TestPostgresGrants_FunctionRevoked_Fails revokes each function that workers call. The fix repairs it.
func TestPostgresGrants_FunctionRevoked_Fails(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.sql("CREATE ROLE worker LOGIN")
	w.sql("ALTER SCHEMA holdfast RENAME TO aside")
	w.sql("CREATE SCHEMA holdfast AUTHORIZATION worker")
	db := w.open(strings.Replace(w.PostgresURL, "postgres@", "worker@", 1))
	stacktest.Must(t, db.Migrate(t.Context(), "holdfast"))
	grants := func(skipped ...string) preflight.Check {
		t.Helper()
		return w.check(func(t *preflight.Target) {
			t.Skip = skipped
			t.Store = w.open(strings.Replace(w.PostgresURL, "postgres@", "worker@", 1))
		})["postgres.grants"]
	}
	for _, function := range []string{"pg_control_system()", "pg_current_wal_lsn()", "pg_walfile_name(pg_lsn)"} {
		w.sql("REVOKE EXECUTE ON FUNCTION " + function + " FROM PUBLIC")
		c := grants()
		if c.Status != preflight.Fail || !strings.HasPrefix(c.Fix, "GRANT EXECUTE ON FUNCTION "+function+` TO "worker";`) {
			t.Errorf("without %s: %+v", function, c)
			continue
		}
		if c := grants(preflight.OfWorker...); c.Status != preflight.OK {
			t.Errorf("worker migrate, which does not call %s: %+v", function, c)
		}
		w.sql(strings.SplitAfter(c.Fix, ";")[0])
		if c := grants(); c.Status != preflight.OK {
			t.Errorf("after the fix for %s: %+v", function, c)
		}
	}
}

// TestPostgresSchema_GuardsOffBeforeMigration_Fails checks a schema of an older build in which a bulk load has left triggers
// disabled. The worker that migrates it would start, and be refused at its next start.
func TestPostgresSchema_GuardsOffBeforeMigration_Fails(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.sql("DELETE FROM holdfast.goose_db_version WHERE version_id > 16")
	if c := w.check(migrates)["postgres.schema"]; c.Status != preflight.OK {
		t.Errorf("an older schema: %+v", c)
	}
	w.sql("ALTER TABLE holdfast.inventory DISABLE TRIGGER USER")
	if c := w.check(migrates)["postgres.schema"]; c.Status != preflight.Fail || !strings.Contains(c.Found, "a_slot_with_reservations_stays") {
		t.Errorf("with its triggers disabled: %+v", c)
	}
}

// TestPostgres_StandbyFollows_OneMustBeSynchronous lets a standby follow, and applies the fix. When the standby is gone no
// commit ends, until the next fix is applied. A role without privileges sees all of it, too.
func TestPostgres_StandbyFollows_OneMustBeSynchronous(t *testing.T) {
	t.Parallel()
	pair := stacktest.StartPostgresPair(t, stacktest.StartPostgres(t))
	primary := stacktest.PostgresURL(pair.Primary)
	stacktest.PostgresSQL(t, primary, "CREATE ROLE plain LOGIN")
	find := func(name string) preflight.Check {
		return checkPostgres(t, strings.Replace(primary, "postgres@", "plain@", 1), name)
	}
	check := func() preflight.Check { return find(preflight.PostgresStandbys) }
	stacktest.Eventually(t, "the standby to be found", func() bool { return check().Status == preflight.Fail })
	applySQL(t, primary, check().Fix)
	stacktest.Eventually(t, "commits to wait for the standby", func() bool { return check().Status == preflight.OK })
	if c := find(preflight.PostgresCommits); c.Status != preflight.OK {
		t.Errorf("while a standby confirms commits: %+v", c)
	}
	pair.Detach(t)
	if c := check(); c.Status != preflight.OK || !strings.Contains(c.Found, "no standby") {
		t.Errorf("without a standby: %+v", c)
	}
	c := find(preflight.PostgresCommits)
	if c.Status != preflight.Fail || !strings.Contains(c.Impact, "no commit ends") {
		t.Errorf("without the standby for which commits wait: %+v", c)
	}
	applySQL(t, primary, c.Fix)
	stacktest.Eventually(t, "no commit to wait", func() bool { return find(preflight.PostgresCommits).Status == preflight.OK })
}

// TestPostgresStandbys_CommitsOnlyLocal_FixRepairs lets a standby follow while commits do not wait for it, because of
// synchronous_commit, by each source of the setting, or also because no standby is named.
func TestPostgresStandbys_CommitsOnlyLocal_FixRepairs(t *testing.T) {
	t.Parallel()
	pair := stacktest.StartPostgresPair(t, stacktest.StartPostgres(t))
	primary := stacktest.PostgresURL(pair.Primary)
	check := func(url string) preflight.Check { return checkPostgres(t, url, preflight.PostgresStandbys) }
	stacktest.Eventually(t, "the standby to be found", func() bool { return check(primary).Status == preflight.Fail })
	for _, set := range []string{"ALTER SYSTEM SET", "ALTER ROLE postgres SET", "ALTER DATABASE postgres SET"} {
		stacktest.PostgresSQL(t, primary, set+" synchronous_commit = local")
		stacktest.PostgresSQL(t, primary, "SELECT pg_reload_conf()")
		stacktest.Eventually(t, set+" to be in force", func() bool {
			return stacktest.PostgresSQL(t, primary, "SHOW synchronous_commit") == "local"
		})
		applySQL(t, primary, check(primary).Fix)
		stacktest.Eventually(t, "the fix after "+set, func() bool { return check(primary).Status == preflight.OK })
	}
	c := check(primary + "&synchronous_commit=local")
	if c.Status != preflight.Fail || c.Fix != "remove synchronous_commit from the worker's Postgres URL and PGOPTIONS" {
		t.Errorf("with synchronous_commit in the URL: %+v", c)
	}
}

// applySQL runs the statements of a fix, each on a line.
func applySQL(t *testing.T, url, fix string) {
	t.Helper()
	for line := range strings.SplitSeq(fix, "\n") {
		if strings.HasSuffix(line, ";") {
			stacktest.PostgresSQL(t, url, line)
		}
	}
}

// TestPostgresCommits_StandbysGone_Fails sets names of standbys that do not follow. A role without privileges sees that when
// a session of it waits.
func TestPostgresCommits_StandbysGone_Fails(t *testing.T) {
	t.Parallel()
	pair := stacktest.StartPostgresPair(t, stacktest.StartPostgres(t))
	primary := stacktest.PostgresURL(pair.Primary)
	plain := strings.Replace(primary, "postgres@", "plain@", 1)
	for _, statement := range []string{"CREATE ROLE plain LOGIN", "CREATE TABLE written (n int)", "GRANT INSERT ON written TO plain"} {
		stacktest.PostgresSQL(t, primary, statement)
	}
	commits := func() preflight.Check { return checkPostgres(t, primary, preflight.PostgresCommits) }
	await := func(names string, status preflight.Status) {
		t.Helper()
		stacktest.PostgresSQL(t, primary, "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'")
		stacktest.PostgresSQL(t, primary, "SELECT pg_reload_conf()")
		stacktest.Eventually(t, names+" to be set, and "+string(status), func() bool {
			c := commits()
			return c.Status == status && strings.Contains(c.Found, "they wait for "+names)
		})
	}
	for names, status := range map[string]preflight.Status{
		"*": preflight.OK, "holdfast": preflight.OK, "ANY 1 (gone, holdfast)": preflight.OK, "FIRST 1 (gone, holdfast)": preflight.OK,
		"ANY 2 (gone, holdfast)": preflight.Fail, "2 (gone, holdfast)": preflight.Fail, "gone": preflight.Fail, "ANY 1 (gone)": preflight.Fail,
	} {
		await(names, status)
	}
	await("ANY 1 (gone)", preflight.Fail)
	if c := checkPostgres(t, primary+"&synchronous_commit=off", preflight.PostgresCommits); c.Status != preflight.OK {
		t.Errorf("while commits do not wait: %+v", c)
	}
	if c := checkPostgres(t, plain, preflight.PostgresCommits); c.Status != preflight.OK {
		t.Errorf("by a role that does not see it: %+v", c)
	}
	conn := stacktest.ConnectPostgres(t, plain)
	committed := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "INSERT INTO written VALUES (1)")
		committed <- err
	}()
	stacktest.Eventually(t, "a commit of the role to wait", func() bool {
		return checkPostgres(t, plain, preflight.PostgresCommits).Status == preflight.Fail
	})
	applySQL(t, primary, commits().Fix)
	stacktest.Must(t, <-committed)
	stacktest.Eventually(t, "the fix to work", func() bool { return commits().Status == preflight.OK })
}

// TestPostgresStandbys_OnlyReceiversFollow_NoneIsAStandby connects programs that receive the write-ahead log for a backup, or
// decode it. A role without privileges sees the rest, too.
func TestPostgresStandbys_OnlyReceiversFollow_NoneIsAStandby(t *testing.T) {
	t.Parallel()
	url := stacktest.PostgresURL(stacktest.StartPostgres(t, "wal_level=logical"))
	stacktest.PostgresSQL(t, url, "CREATE ROLE plain LOGIN")
	connect := func(replication, name string) *pgconn.PgConn {
		t.Helper()
		conn, err := pgconn.Connect(t.Context(), url+"&replication="+replication+"&application_name="+name)
		stacktest.Must(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
	for _, name := range []string{"pg_receivewal", "pg_basebackup", "barman_receive_wal", "barman_streaming_backup"} {
		connect("true", name)
	}
	_, err := connect("database", "debezium").Exec(t.Context(), "CREATE_REPLICATION_SLOT decoded TEMPORARY LOGICAL pgoutput").ReadAll()
	stacktest.Must(t, err)
	check := func() preflight.Check {
		return checkPostgres(t, strings.Replace(url, "postgres@", "plain@", 1), preflight.PostgresStandbys)
	}
	if c := check(); c.Status != preflight.OK || !strings.Contains(c.Found, "no standby") {
		t.Errorf("with receivers: %+v", c)
	}
	connect("true", "walreceiver")
	if c := check(); c.Status != preflight.Fail || !strings.Contains(c.Found, "1 standbys follow") ||
		!strings.Contains(c.Fix, "'ANY 1 (walreceiver)'") {
		t.Errorf("with a standby too: %+v", c)
	}
}
