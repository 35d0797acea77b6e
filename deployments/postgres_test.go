package deployments

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ofPostgres has statements with the roles that may run them. The test rolls each back.
var ofPostgres = map[string][]string{
	"DROP TABLE payments":                   {"migrator"},
	"DROP SCHEMA holdfast CASCADE":          {"migrator"},
	"ALTER TABLE payments DROP COLUMN hold": {"migrator"},
	"ALTER TABLE inventory DROP CONSTRAINT reserved_is_between_zero_and_capacity": {"migrator"},
	"ALTER TABLE inventory DISABLE TRIGGER ALL":                                   {"migrator"},
	"TRUNCATE inventory":                            {"migrator"},
	"TRUNCATE payments":                             {"migrator"},
	"CREATE TABLE holdfast.more (n int)":            {"migrator"},
	"CREATE TABLE public.more (n int)":              {},
	"CREATE TEMPORARY TABLE more (n int)":           {},
	"CREATE SCHEMA others":                          {},
	"CREATE ROLE others":                            {},
	"ALTER ROLE holdfast_worker SUPERUSER":          {},
	"SET ROLE holdfast_migrator":                    {"migrator"},
	"SET ROLE postgres":                             {},
	"ALTER SYSTEM SET fsync = off":                  {},
	"SELECT pg_reload_conf()":                       {},
	"SELECT pg_read_file('postgresql.conf')":        {},
	"SELECT rolpassword FROM pg_authid":             {},
	"COPY payments TO PROGRAM 'cat'":                {},
	"SELECT setval('holdfast.lock_fence_bases', 1)": {"migrator"},

	"DELETE FROM inventory":                                                                 {"migrator", "worker"},
	"DELETE FROM reservations":                                                              {"migrator"},
	"DELETE FROM payments":                                                                  {"migrator"},
	"DELETE FROM event_answers":                                                             {"migrator", "worker"},
	"DELETE FROM redis_epoch":                                                               {"migrator"},
	"DELETE FROM partition_epochs":                                                          {"migrator"},
	"DELETE FROM goose_db_version":                                                          {"migrator"},
	"DELETE FROM leases":                                                                    {"migrator"},
	"DELETE FROM workers":                                                                   {"migrator", "worker"},
	"UPDATE workers SET drained = '{}'":                                                     {"migrator", "worker"},
	"UPDATE workers SET id = 'x'":                                                           {"migrator"},
	"INSERT INTO workers (id) VALUES ('x')":                                                 {"migrator", "worker"},
	"UPDATE leases SET held_until = now()":                                                  {"migrator", "worker"},
	"UPDATE leases SET name = 'x'":                                                          {"migrator"},
	"UPDATE payments SET outcome = 'confirmed'":                                             {"migrator"},
	"UPDATE payments SET hold = '{}'":                                                       {"migrator"},
	"UPDATE event_answers SET answer = '{}'":                                                {"migrator"},
	"UPDATE reservations SET user_id = 'x'":                                                 {"migrator"},
	"UPDATE reservations SET quantity = 1":                                                  {"migrator"},
	"UPDATE reservations SET confirmed_at = now()":                                          {"migrator"},
	"UPDATE reservations SET status = 'cancelled'":                                          {"migrator", "worker"},
	"UPDATE inventory SET resource_id = 'x'":                                                {"migrator"},
	"UPDATE inventory SET slot = 'x'":                                                       {"migrator"},
	"UPDATE inventory SET reserved = 0":                                                     {"migrator", "worker"},
	"UPDATE inventory SET capacity = 1":                                                     {"migrator", "worker", "upstream"},
	"UPDATE redis_epoch SET epoch = 'x'":                                                    {"migrator", "worker"},
	"UPDATE partition_epochs SET epoch = 'x'":                                               {"migrator", "worker"},
	"UPDATE partition_epochs SET partition = 64 + partition":                                {"migrator"},
	"SELECT true FROM partition_epochs FOR SHARE":                                           {"migrator", "worker"},
	"UPDATE redis_epoch SET partitions = 1":                                                 {"migrator"},
	"SELECT true FROM redis_epoch FOR SHARE":                                                {"migrator", "worker"},
	"SELECT true FROM payments FOR SHARE":                                                   {"migrator"},
	"UPDATE schema_compatibility SET works_from = 1":                                        {"migrator"},
	"UPDATE goose_db_version SET version_id = 9":                                            {"migrator"},
	"INSERT INTO redis_epoch (epoch, partitions, only_row) VALUES ('x', 64, false)":         {}, // only one row is allowed
	"INSERT INTO partition_epochs (partition, epoch) VALUES (99, 'x')":                      {"migrator"},
	"INSERT INTO goose_db_version (version_id, is_applied) VALUES (9, true)":                {"migrator"},
	"INSERT INTO inventory (resource_id, slot, capacity) VALUES ('x', 's', 1)":              {"migrator", "worker", "upstream"},
	"INSERT INTO inventory (resource_id, slot, capacity, reserved) VALUES ('x', 's', 1, 1)": {"migrator"},

	"SELECT resource_id, slot, capacity, reserved FROM inventory": {"migrator", "worker", "upstream", "auditor"},
	"SELECT set_by_event_at FROM inventory":                       {"migrator", "worker", "auditor"},
	"SELECT * FROM reservations":                                  {"migrator", "worker", "auditor"},
	"SELECT * FROM payments":                                      {"migrator", "worker", "auditor"},
	"SELECT * FROM event_answers":                                 {"migrator", "worker", "auditor"},
	"SELECT * FROM redis_epoch":                                   {"migrator", "worker", "auditor"},
	"SELECT * FROM partition_epochs":                              {"migrator", "worker", "auditor"},
	"SELECT * FROM leases":                                        {"migrator", "worker", "auditor"},
	"SELECT * FROM workers":                                       {"migrator", "worker", "auditor"},
	"SELECT * FROM goose_db_version":                              {"migrator", "worker", "auditor"},
	"SELECT * FROM schema_compatibility":                          {"migrator", "worker", "auditor"},
	"SELECT last_value FROM lock_fence_bases":                     {"migrator", "auditor"},
	"SELECT nextval('lock_fence_bases')":                          {"migrator", "worker"},
	"LISTEN holdfast_inventory":                                   {"migrator", "worker", "upstream", "auditor"},
	"SELECT * FROM secrets.of_others":                             {},
}

// TestRoles_EachStatement_OnlyAllowedRoles runs each statement as each role.
func TestRoles_EachStatement_OnlyAllowedRoles(t *testing.T) {
	t.Parallel()
	g := newServers(t)
	ctx := t.Context()
	admin := postgresAs(t, g, "admin")
	for _, statement := range []string{
		"CREATE SCHEMA secrets", "CREATE TABLE secrets.of_others (n int)",
		"INSERT INTO holdfast.inventory (resource_id, slot, capacity) VALUES ('hall', 'A', 2)",
	} {
		if _, err := admin.Exec(ctx, statement); err != nil {
			t.Fatal(err)
		}
	}
	for _, role := range []string{"migrator", "worker", "upstream", "auditor"} {
		conn := postgresAs(t, g, role)
		if _, err := conn.Exec(ctx, "SET search_path = holdfast"); err != nil {
			t.Fatal(err)
		}
		// An auditor can run this, too, and still may not write.
		if _, err := conn.Exec(ctx, "SET default_transaction_read_only = off"); err != nil {
			t.Fatal(err)
		}
		for statement, roles := range ofPostgres {
			want := false
			for _, r := range roles {
				want = want || r == role
			}
			err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, statement); err != nil {
					return err
				}
				return errDone
			})
			if got := errors.Is(err, errDone); got != want {
				t.Errorf("%s may run %s: %v (%v), want %v", role, statement, got, err, want)
			}
			var refused *pgconn.PgError
			if !want && (!errors.As(err, &refused) || refused.Code != "42501" && refused.Code != "25001" && refused.Code != "23514") {
				t.Errorf("%s: %s is refused with %v", role, statement, err)
			}
		}
	}
	var capacity int
	if err := admin.QueryRow(ctx, "SELECT capacity FROM holdfast.inventory").Scan(&capacity); err != nil || capacity != 2 {
		t.Errorf("capacity %d, %v", capacity, err)
	}

	// The files can run again, and revoke what they do not grant.
	if _, err := admin.Exec(ctx, "GRANT ALL ON ALL TABLES IN SCHEMA holdfast TO holdfast_worker"); err != nil {
		t.Fatal(err)
	}
	if err := g.Grant(ctx); err != nil {
		t.Fatal(err)
	}
	var pgErr *pgconn.PgError
	if _, err := postgresAs(t, g, "worker").Exec(ctx, "TRUNCATE holdfast.payments"); !errors.As(err, &pgErr) || pgErr.Code != "42501" {
		t.Errorf("after grants.sql has run again, a worker may truncate: %v", err)
	}

	// Other roles cannot connect, and no role can without its password.
	if _, err := admin.Exec(ctx, "CREATE ROLE stranger LOGIN PASSWORD 'x'"); err != nil {
		t.Fatal(err)
	}
	config := admin.Config().Copy()
	for user, password := range map[string]string{"stranger": "x", "holdfast_worker": "", "postgres": "wrong"} {
		config.User, config.Password = user, password
		if conn, err := pgx.ConnectConfig(ctx, config); err == nil {
			t.Errorf("%s can connect with the password %q", user, password)
			_ = conn.Close(context.Background())
		}
	}
}

var errDone = errors.New("succeeded and rolled back")
