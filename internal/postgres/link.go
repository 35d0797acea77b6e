package postgres

import (
	"github.com/jackc/pgx/v5"

	"holdfast/internal/connect"
)

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
