package preflight

import (
	"context"
	"net"
	"net/url"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/connect"
)

// The checks how the connections are protected, besides postgresLink.
const (
	redisLink = "redis.link"
	natsLink  = "nats.link"
)

// recordConn returns options with which dialed returns the latest connection of their clients.
func recordConn(options *redis.Options) (recording *redis.Options, dialed func() net.Conn) {
	copied := *options
	dial := options.Dialer
	if dial == nil {
		dial = redis.NewDialer(options)
	}
	var latest atomic.Value
	copied.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err == nil {
			latest.Store(&conn)
		}
		return conn, err
	}
	return &copied, func() net.Conn { return *latest.Load().(*net.Conn) }
}

// linkOfRedis describes a connection of a client with these options.
func linkOfRedis(options *redis.Options, conn net.Conn) *connect.Link {
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
	return connect.LinkOf(conn, certificate, login)
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
