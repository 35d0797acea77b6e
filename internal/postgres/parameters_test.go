package postgres_test

import (
	"crypto/tls"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"holdfast/internal/postgres"
	"holdfast/internal/stack/stacktest"
)

// TestConfig_ParametersOfLibpq_SessionIsOpened opens a session with the parameters of libpq that the driver does not know.
func TestConfig_ParametersOfLibpq_SessionIsOpened(t *testing.T) {
	t.Parallel()
	plain := stacktest.PostgresURL(stacktest.StartPostgres(t))
	for _, setting := range []string{
		`client_encoding = 'LATIN1'`, `default_transaction_isolation = 'serializable'`, `timezone = 'Europe/Berlin'`,
	} {
		stacktest.PostgresSQL(t, plain, `ALTER ROLE CURRENT_USER SET `+setting)
	}
	url := plain + "&keepalives=1&keepalives_idle=30&keepalives_interval=5" +
		"&keepalives_count=3&tcp_user_timeout=9000&gssencmode=prefer&gsslib=gssapi&gssdelegation=0&load_balance_hosts=random" +
		"&fallback_application_name=x&sslcompression=0&client_encoding=auto&ssl_min_protocol_version=TLSv1.2&lock_timeout=7s" +
		"&replication=false&requiressl=0&ssl_max_protocol_version=TLSv1.3&timezone=America/Lima"
	config, err := postgres.Config(url, "holdfast", nil)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer postgres.Close(pool)
	for name, want := range map[string]string{
		"lock_timeout": "7s", "client_encoding": "UTF8", "timezone": "Europe/Berlin", "default_transaction_isolation": "read committed",
	} {
		var value string
		if err := pool.QueryRow(t.Context(), `SHOW `+name).Scan(&value); err != nil || value != want {
			t.Errorf("%v: %s is %q, want %q", err, name, value, want)
		}
	}
}

// TestConfig_RoleWithAnotherEncoding_SessionIsOurs has a role whose sessions begin with settings in which the driver escapes
// no text, also as the URL demands them, and through PgBouncer. Other options of the URL count.
func TestConfig_RoleWithAnotherEncoding_SessionIsOurs(t *testing.T) {
	t.Parallel()
	server := stacktest.StartPostgres(t)
	plain := stacktest.PostgresURL(server)
	for _, setting := range []string{`client_encoding = 'LATIN1'`, `standard_conforming_strings = off`} {
		stacktest.PostgresSQL(t, plain, `ALTER ROLE CURRENT_USER SET `+setting)
	}
	const demanded = "&client_encoding=SJIS&standard_conforming_strings=off"
	pooled := stacktest.StartPgBouncer(t, server.Port, "session")
	for url, lockTimeout := range map[string]string{
		plain: "0", plain + demanded: "0", pooled: "0", pooled + demanded: "0", plain + "&lock_timeout=7s": "7s",
		plain + "&options=-c%20client_encoding%3DSJIS%20-c%20standard_conforming_strings%3Doff%20-c%20lock_timeout%3D7s": "7s",
	} {
		config, err := postgres.Config(url, "holdfast", nil)
		if err != nil {
			t.Fatal(err)
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer postgres.Close(pool)
		for name, want := range map[string]string{
			"client_encoding": "UTF8", "standard_conforming_strings": "on", "lock_timeout": lockTimeout, "search_path": "holdfast",
		} {
			var value string
			if err := pool.QueryRow(t.Context(), `SHOW `+name).Scan(&value); err != nil || value != want {
				t.Errorf("%s: %v: %s is %q, want %q", url, err, name, value, want)
			}
		}
	}
}

// TestConfig_ParametersThatMatter_AreHonouredOrRefused has parameters without which a connection would be less safe, or
// lead elsewhere.
func TestConfig_ParametersThatMatter_AreHonouredOrRefused(t *testing.T) {
	t.Parallel()
	const plain = "postgres://u:s3cret@a:1,b:2/d?sslmode=require"
	config, err := postgres.Config(plain+"&ssl_min_protocol_version=tlsv1.3", "holdfast", nil)
	if err != nil {
		t.Fatal(err)
	}
	versions := []uint16{config.ConnConfig.TLSConfig.MinVersion}
	for _, to := range config.ConnConfig.Fallbacks {
		versions = append(versions, to.TLSConfig.MinVersion)
	}
	for _, v := range versions {
		if v != tls.VersionTLS13 || len(versions) != 2 {
			t.Errorf("TLS versions %x, want 1.3 for both hosts", versions)
		}
	}
	for _, one := range []string{
		"hostaddr=10.0.0.1", "requirepeer=postgres", "requiressl=1", "sslcrl=f", "sslcrldir=d", "gssencmode=require",
		"replication=database", "ssl_max_protocol_version=TLSv1.2", "ssl_min_protocol_version=TLSv1.9", "sslkeylogfile=f",
		"scram_client_key=k", "oauth_issuer=i",
	} {
		if _, err := postgres.Config(plain+"&"+one, "holdfast", nil); !errors.Is(err, postgres.ErrParameter) {
			t.Errorf("%s: %v, want %v", one, err, postgres.ErrParameter)
		}
	}
}
