package postgres

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrParameter is the error for a URL with a parameter of libpq that would have no effect here, although the connection
// is less safe without it, or leads elsewhere.
var ErrParameter = errors.New("the Postgres URL has a parameter that has no effect here")

// ignored are the parameters of libpq that only tune what the driver does in its own way.
var ignored = []string{
	"client_encoding", "fallback_application_name", "gssdelegation", "gsslib", "keepalives", "keepalives_count",
	"keepalives_idle", "keepalives_interval", "load_balance_hosts", "sslcompression", "tcp_user_timeout",
}

// refused are the parameters of libpq that cannot be ignored, with what to do instead.
var refused = map[string]string{
	"hostaddr": "give the address as the host", "replication": "omit it", "requirepeer": "omit it",
	"requiressl": "use sslmode=require", "sslcrl": "omit it", "sslcrldir": "omit it", "ssl_max_protocol_version": "omit it",
}

// adaptParameters takes the parameters of libpq that the driver does not know from those that it sends to the server,
// which would refuse the session.
func adaptParameters(config *pgconn.Config) error {
	for name, instead := range refused {
		if config.RuntimeParams[name] != "" {
			return fmt.Errorf("%w: %s: %s", ErrParameter, name, instead)
		}
		delete(config.RuntimeParams, name)
	}
	if config.RuntimeParams["gssencmode"] == "require" {
		return fmt.Errorf("%w: gssencmode=require: use TLS", ErrParameter)
	}
	if config.RuntimeParams["ssl_min_protocol_version"] == "TLSv1.3" { // an older one is below the driver's own minimum
		for _, to := range append(config.Fallbacks, &pgconn.FallbackConfig{TLSConfig: config.TLSConfig}) {
			if to.TLSConfig != nil {
				to.TLSConfig.MinVersion = tls.VersionTLS13
			}
		}
	}
	for _, name := range slices.Concat(ignored, []string{"gssencmode", "ssl_min_protocol_version"}) {
		delete(config.RuntimeParams, name)
	}
	return nil
}
