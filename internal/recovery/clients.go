package recovery

import (
	"slices"

	"github.com/redis/go-redis/v9"
)

// serverClients are clients of single servers, by address. Each has one connection. One goroutine uses them.
type serverClients map[string]*redis.Client

// of returns the client of a server. It creates it when it is missing.
func (c serverClients) of(server Server) *redis.Client {
	if c[server.Addr] == nil {
		options := server.Options()
		options.PoolSize = 1
		c[server.Addr] = redis.NewClient(options)
	}
	return c[server.Addr]
}

// close closes the connection to a server.
func (c serverClients) close(addr string) {
	if client := c[addr]; client != nil {
		_ = client.Close() // no command is in progress
		delete(c, addr)
	}
}

// keep closes the connections to other servers than these.
func (c serverClients) keep(servers []Server) {
	for addr := range c {
		if !slices.ContainsFunc(servers, func(server Server) bool { return server.Addr == addr }) {
			c.close(addr)
		}
	}
}

func (c serverClients) closeAll() {
	for addr := range c {
		c.close(addr)
	}
}
