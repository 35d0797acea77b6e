package preflight

import (
	"context"
	"net"
	"net/url"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/connect"
)

// The checks how the connections are protected, besides postgresLink.
const (
	redisLink = "redis.link"
	natsLink  = "nats.link"
)

// redisLink opens a connection as a client does, and adds a check how it is protected.
func (r *report) redisLink(ctx context.Context, client *redis.Client) {
	options := client.Options()
	conn, err := options.Dialer(ctx, options.Network, options.Addr)
	if err != nil {
		r.unknown(redisLink, err.Error(), "check again")
		return
	}
	defer func() { _ = conn.Close() }() // nothing was sent
	var login, certificate string
	switch {
	case options.Username != "":
		login = connect.LoginACLUser + options.Username
	case options.Password != "":
		login = connect.LoginPassword
	}
	if options.TLSConfig != nil && options.TLSConfig.GetClientCertificate != nil {
		certificate = connect.LoginCertificate
	}
	r.link(redisLink, connect.LinkOf(conn, certificate, login),
		"use rediss:// or rediss+sentinel:// with a user and --redis-ca-file")
}

// linkOfNATS describes a connection. Of several URLs each may have another login.
func linkOfNATS(nc *nats.Conn) *connect.Link {
	var login, certificate string
	var user *url.Userinfo
	if connected, err := url.Parse(nc.ConnectedUrl()); err == nil { // else it has lost its server
		user = connected.User
	}
	_, hasPassword := user.Password()
	switch {
	case nc.Opts.UserJWT != nil:
		login = connect.LoginCreds
	case nc.Opts.Nkey != "":
		login = connect.LoginNKey
	case hasPassword:
		login = connect.LoginPassword
	case user != nil:
		login = connect.LoginToken
	}
	if nc.Opts.TLSConfig != nil && nc.Opts.TLSConfig.GetClientCertificate != nil {
		certificate = connect.LoginCertificate
	}
	var addr net.Addr
	if host, _, err := net.SplitHostPort(nc.ConnectedAddr()); err == nil {
		addr = &net.TCPAddr{IP: net.ParseIP(host)}
	}
	state, err := nc.TLSConnectionState()
	if err != nil {
		return connect.NewLink(addr, nil, certificate, login)
	}
	return connect.NewLink(addr, &state, certificate, login)
}
