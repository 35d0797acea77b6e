package recovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
)

// errReplica is returned for a server that follows another.
var errReplica = errors.New("this redis is a replica")

// server identifies a Redis server by its own INFO. A server that was restarted, or that replaced
// another one, may have older data. Only the server to which the epoch was written, in the same run
// and with the same replication history, has everything that was written since.
type server struct {
	run     string // run_id, changes with each start
	history string // master_replid, changes with each promotion and after an hour without a replica
	before  string // master_replid2: the history that history continues, zeros when there is none
	adopted bool   // history continues that of a server it followed, or of before its start
}

// name is the text by which Postgres remembers the server.
func (s server) name() string { return s.run + " " + s.history }

// is reports whether s is the server with the given name, with all its data. A new history that
// continues no other one belongs to the same server: its last replica left, or its first one came.
func (s server) is(name string) bool {
	run, history, _ := strings.Cut(name, " ")
	return s.run == run && (s.history == history || !s.adopted)
}

// continues reports whether the server has the given history, or had it before it was promoted.
func (s server) continues(history string) bool { return history == s.history || history == s.before }

// historyOf returns the history in a server's name.
func historyOf(name string) string {
	_, history, _ := strings.Cut(name, " ")
	return history
}

// infoCommand requests the text that parseServer and parseEviction read.
var infoCommand = []any{"info", "server", "replication", "memory", "stats"}

// parseServer reads the reply to infoCommand. It returns errReplica for a server that follows
// another.
func parseServer(info string) (s server, err error) {
	const never = "0000000000000000000000000000000000000000"
	fields := InfoFields(info)
	s = server{fields["run_id"], fields["master_replid"], fields["master_replid2"], fields["master_replid2"] != never}
	switch {
	case s.run == "" || s.history == "":
		return s, errors.New("INFO lacks run_id or master_replid")
	case fields["role"] != "master":
		return s, errReplica
	}
	return s, nil
}

// InfoFields returns the values in a reply to INFO, by field.
func InfoFields(info string) map[string]string {
	fields := make(map[string]string)
	for line := range strings.Lines(info) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	return fields
}

// ConnGuard blocks connections to servers that may lack acknowledged writes. On each new connection
// it identifies the server before the first command is sent. It refuses new connections to servers that
// must not be used, and closes the existing ones. It is safe for concurrent use.
type ConnGuard struct {
	mu         sync.Mutex
	allowed    map[string]bool // names of the servers, "" for any
	conns      map[net.Conn]*address
	blockedWhy string // the reason while no server is allowed
}

// address is where the clients of one Attach connect to.
type address struct{ server string } // the name of the server that was verified there last, "" before

// NewConnGuard returns a ConnGuard that blocks.
func NewConnGuard() *ConnGuard {
	return &ConnGuard{conns: make(map[net.Conn]*address), blockedWhy: notCheckedYet}
}

// Attach guards the connections of clients that are created with these options.
func (g *ConnGuard) Attach(o *redis.Options) {
	dial := o.Dialer
	if dial == nil {
		dial = redis.NewDialer(o)
	}
	to := &address{}
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return g.track(conn, to), nil
	}
	o.OnConnect = func(ctx context.Context, conn *redis.Conn) error { return g.verifyServer(ctx, conn, to) }
}

// Allow permits connections to the servers with the given names, and only to them; the name "" stands
// for any server. It closes the connections to all other servers.
func (g *ConnGuard) Allow(names ...string) {
	allowed := make(map[string]bool, len(names))
	for _, name := range names {
		allowed[name] = true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if maps.Equal(allowed, g.allowed) {
		return
	}
	g.allowed = allowed
	g.closeUnless(func(to *address) bool { return allowed[to.server] })
}

// Block closes all connections and refuses new ones, with the given reason.
func (g *ConnGuard) Block(why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.allowed, g.blockedWhy = nil, why
	g.closeUnless(func(*address) bool { return false })
}

// Reconnect closes the connections to the servers with the given names, so that each is opened again
// and verified.
func (g *ConnGuard) Reconnect(names ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closeUnless(func(to *address) bool { return !slices.Contains(names, to.server) })
}

// closeUnless closes connections. A command in progress fails as one whose reply was lost.
func (g *ConnGuard) closeUnless(keep func(*address) bool) {
	for conn, to := range g.conns {
		if !keep(to) {
			_ = conn.Close() // it is closed even after an error
			delete(g.conns, conn)
		}
	}
}

func (g *ConnGuard) track(conn net.Conn, to *address) net.Conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns[conn] = to
	guarded := guardedConn{conn, g}
	if raw, ok := conn.(syscall.Conn); ok { // go-redis uses it to check whether the connection is alive
		return struct {
			guardedConn
			syscall.Conn
		}{guarded, raw}
	}
	return guarded
}

// guardedConn removes itself from its guard when it is closed.
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

// verifyServer runs on each new connection before its first command.
func (g *ConnGuard) verifyServer(ctx context.Context, conn *redis.Conn, to *address) error {
	g.mu.Lock()
	blocked, why := len(g.allowed) == 0, g.blockedWhy
	g.mu.Unlock()
	if blocked {
		return fmt.Errorf("connect: %w", &holds.RebuildingError{Progress: why})
	}
	info, err := conn.Do(ctx, infoCommand...).Text()
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	found, err := parseServer(info)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	// The guard may have blocked meanwhile, before go-redis knew the connection.
	g.mu.Lock()
	defer g.mu.Unlock()
	for name := range g.allowed {
		if name == "" || found.is(name) {
			to.server = name
			return nil
		}
	}
	why = anotherServer
	if len(g.allowed) == 0 {
		why = g.blockedWhy
	}
	return fmt.Errorf("connect: %w", &holds.RebuildingError{Progress: why})
}

// notCheckedYet is the reason for which a new guard blocks and a new term has no epoch.
const notCheckedYet = "not checked yet"

// anotherServer is the reason for which data is not trusted.
const anotherServer = "another server, or the same after a restart or a failover: it may have older data"
