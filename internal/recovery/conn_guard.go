package recovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
)

// errReplica says that the server follows another.
var errReplica = errors.New("this redis is a replica")

// server is what a Redis says of itself. One that was restarted, or another that was put in its
// place, may have older data: only the one that the epoch was written to, in the same life and
// with the same history, has all that was written since.
type server struct {
	run     string // changes with each start
	history string // changes with each promotion, and when nobody has replicated it for an hour
	adopted bool   // its history continues that of a server it followed, or of before its start
}

// name is how Postgres remembers the server.
func (s server) name() string { return s.run + " " + s.history }

// is reports whether s is the server with a name and has been ever since. A new history that
// continues no other is that of a server whose replicas have gone, or whose first has come.
func (s server) is(name string) bool {
	run, history, _ := strings.Cut(name, " ")
	return s.run == run && (s.history == history || !s.adopted)
}

// historyOf returns the history in a server's name.
func historyOf(name string) string {
	_, history, _ := strings.Cut(name, " ")
	return history
}

// infoCommand asks what parseServer reads.
var infoCommand = []any{"info", "server", "replication"}

// parseServer reads the answer to infoCommand. It returns errReplica for a server that follows
// another.
func parseServer(info string) (s server, err error) {
	const never = "0000000000000000000000000000000000000000"
	fields := make(map[string]string)
	for line := range strings.Lines(info) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	s = server{fields["run_id"], fields["master_replid"], fields["master_replid2"] != never}
	switch {
	case s.run == "" || s.history == "":
		return s, errors.New("this redis does not say who it is: INFO has no run_id or no master_replid")
	case fields["role"] != "master":
		return s, errReplica
	}
	return s, nil
}

// ConnGuard keeps commands from servers that may not have all that was written: each new connection
// asks the server who it is before its first command is sent, and while Redis must not be used no
// connection is made, and those that there are are closed.
type ConnGuard struct {
	mu         sync.Mutex
	allowed    bool
	server     string // the name of the server, "" = any
	conns      map[net.Conn]struct{}
	blockedWhy string // why it is not open
}

// NewConnGuard returns a Guard that is closed.
func NewConnGuard() *ConnGuard {
	return &ConnGuard{conns: make(map[net.Conn]struct{}), blockedWhy: "not looked at yet"}
}

// Attach has the connections of clients with these options guarded.
func (g *ConnGuard) Attach(o *redis.Options) {
	dial := o.Dialer
	if dial == nil {
		dial = redis.NewDialer(o)
	}
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return g.track(conn), nil
	}
	o.OnConnect = g.verifyServer
}

// Allow lets connections be made to the server with a name ("" = any). Those to another are closed.
func (g *ConnGuard) Allow(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.allowed || g.server != name {
		g.closeAll()
	}
	g.allowed, g.server = true, name
}

// Block closes all connections and lets none be made.
func (g *ConnGuard) Block(why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.allowed, g.blockedWhy = false, why
	g.closeAll()
}

// Reconnect has every connection made anew.
func (g *ConnGuard) Reconnect() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closeAll()
}

// closeAll closes all connections. A command that is on its way fails as one whose reply was lost.
func (g *ConnGuard) closeAll() {
	for conn := range g.conns {
		_ = conn.Close() // closed it is in any case
	}
	clear(g.conns)
}

func (g *ConnGuard) track(conn net.Conn) net.Conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns[conn] = struct{}{}
	kept := guardedConn{conn, g}
	if raw, ok := conn.(syscall.Conn); ok { // go-redis looks whether it is alive by it
		return struct {
			guardedConn
			syscall.Conn
		}{kept, raw}
	}
	return kept
}

// guardedConn is a connection that its Guard knows of until it is closed.
type guardedConn struct {
	net.Conn
	guard *ConnGuard
}

func (c guardedConn) Close() error {
	c.guard.mu.Lock()
	delete(c.guard.conns, c.Conn)
	c.guard.mu.Unlock()
	return c.Conn.Close()
}

// verifyServer is run on each new connection.
func (g *ConnGuard) verifyServer(ctx context.Context, conn *redis.Conn) error {
	g.mu.Lock()
	open, want, closed := g.allowed, g.server, g.blockedWhy
	g.mu.Unlock()
	if !open {
		return fmt.Errorf("connect: %w", &holds.RebuildingError{Progress: closed})
	}
	info, err := conn.Do(ctx, infoCommand...).Text()
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	found, err := parseServer(info)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if want != "" && !found.is(want) {
		return fmt.Errorf("connect: %w", &holds.RebuildingError{Progress: anotherServer})
	}
	// It may have been closed meanwhile, before the connection was known to go-redis.
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.allowed || g.server != want {
		return fmt.Errorf("connect: %w", &holds.RebuildingError{Progress: g.blockedWhy})
	}
	return nil
}

// anotherServer says why data is not trusted.
const anotherServer = "another server, or the same after a restart or a failover: it may have older data"
