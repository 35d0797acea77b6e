package holds

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"

	"github.com/redis/go-redis/v9"
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

// Guard keeps commands from servers that may not have all that was written: each new connection
// asks the server who it is before its first command is sent, and while Redis must not be used no
// connection is made, and those that there are are closed.
type Guard struct {
	mu     sync.Mutex
	open   bool
	want   string // the name of the server, "" = any
	conns  map[net.Conn]struct{}
	closed string // why it is not open
}

// NewGuard returns a Guard that is closed.
func NewGuard() *Guard {
	return &Guard{conns: make(map[net.Conn]struct{}), closed: "not looked at yet"}
}

// Watch has the connections of clients with these options guarded.
func (g *Guard) Watch(o *redis.Options) {
	dial := o.Dialer
	if dial == nil {
		dial = redis.NewDialer(o)
	}
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return g.keep(conn), nil
	}
	o.OnConnect = g.check
}

// Open lets connections be made to the server with a name ("" = any). Those to another are closed.
func (g *Guard) Open(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.open || g.want != name {
		g.cut()
	}
	g.open, g.want = true, name
}

// Close closes all connections and lets none be made.
func (g *Guard) Close(why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open, g.closed = false, why
	g.cut()
}

// Renew has every connection made anew.
func (g *Guard) Renew() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cut()
}

// cut closes all connections. A command that is on its way fails as one whose reply was lost.
func (g *Guard) cut() {
	for conn := range g.conns {
		_ = conn.Close() // closed it is in any case
	}
	clear(g.conns)
}

func (g *Guard) keep(conn net.Conn) net.Conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns[conn] = struct{}{}
	kept := guarded{conn, g}
	if raw, ok := conn.(syscall.Conn); ok { // go-redis looks whether it is alive by it
		return struct {
			guarded
			syscall.Conn
		}{kept, raw}
	}
	return kept
}

// guarded is a connection that its Guard knows of until it is closed.
type guarded struct {
	net.Conn
	guard *Guard
}

func (c guarded) Close() error {
	c.guard.mu.Lock()
	delete(c.guard.conns, c.Conn)
	c.guard.mu.Unlock()
	return c.Conn.Close()
}

// check is run on each new connection.
func (g *Guard) check(ctx context.Context, conn *redis.Conn) error {
	g.mu.Lock()
	open, want, closed := g.open, g.want, g.closed
	g.mu.Unlock()
	if !open {
		return fmt.Errorf("connect: %w", &LostError{closed})
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
		return fmt.Errorf("connect: %w", &LostError{anotherServer})
	}
	// It may have been closed meanwhile, before the connection was known to go-redis.
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.open || g.want != want {
		return fmt.Errorf("connect: %w", &LostError{g.closed})
	}
	return nil
}

// anotherServer says why data is not trusted.
const anotherServer = "another server, or the same after a restart or a failover: it may have older data"
