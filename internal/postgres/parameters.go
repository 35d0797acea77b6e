package postgres

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrParameter is the error for a URL with a parameter of libpq that would have no effect here, although the connection
// is less safe without it, or leads elsewhere.
var ErrParameter = errors.New("the Postgres URL has a parameter that has no effect here")

// ignored are the parameters of libpq that only tune what the driver does in its own way, or that no session may have.
var ignored = []string{
	"fallback_application_name", "gssdelegation", "gsslib", "keepalives", "keepalives_count", "keepalives_idle",
	"keepalives_interval", "load_balance_hosts", "sslcompression", "tcp_user_timeout",
	"timezone", // also PGTZ: times without a time zone are of the zone of the server, in all sessions
}

// refused are the parameters of libpq that cannot be ignored, with what to do instead, and the values by which they
// demand nothing.
var refused = map[string]struct {
	instead  string
	harmless []string
}{
	"gssencmode":               {"use TLS", []string{"disable", "prefer"}},
	"hostaddr":                 {"give the address as the host", nil},
	"oauth_client_id":          {"use a password or a certificate", nil},
	"oauth_client_secret":      {"use a password or a certificate", nil},
	"oauth_issuer":             {"use a password or a certificate", nil},
	"oauth_scope":              {"use a password or a certificate", nil},
	"replication":              {"omit it", []string{"0", "false", "no", "off"}},
	"requirepeer":              {"omit it", nil},
	"requiressl":               {"use sslmode=require", []string{"0"}},
	"scram_client_key":         {"use a password", nil},
	"scram_server_key":         {"use a password", nil},
	"sslcrl":                   {"omit it", nil},
	"sslcrldir":                {"omit it", nil},
	"sslkeylogfile":            {"omit it", nil},
	"ssl_max_protocol_version": {"omit it", []string{"tlsv1.3"}},
	// The driver's own minimum is 1.2.
	"ssl_min_protocol_version": {"use TLSv1.2 or TLSv1.3", []string{"tlsv1", "tlsv1.1", "tlsv1.2", "tlsv1.3"}},
}

// adaptParameters takes the parameters of libpq that the driver does not know from those that it sends to the server,
// which would refuse the session, and adds those without which the driver cannot use a session.
func adaptParameters(config *pgconn.Config) error {
	given := config.RuntimeParams
	for name, r := range refused {
		if value := strings.ToLower(given[name]); value != "" && !slices.Contains(r.harmless, value) {
			return fmt.Errorf("%w: %s: %s", ErrParameter, name, r.instead)
		}
	}
	if strings.EqualFold(given["ssl_min_protocol_version"], "TLSv1.3") {
		for _, to := range append(config.Fallbacks, &pgconn.FallbackConfig{TLSConfig: config.TLSConfig}) {
			if to.TLSConfig != nil {
				to.TLSConfig.MinVersion = tls.VersionTLS13
			}
		}
	}
	maps.DeleteFunc(given, func(name, _ string) bool {
		_, is := refused[name]
		return is || slices.Contains(ignored, name)
	})
	// The driver knows no others. A role or a database may have them.
	given["client_encoding"], given["standard_conforming_strings"] = "UTF8", "on"
	return nil
}
