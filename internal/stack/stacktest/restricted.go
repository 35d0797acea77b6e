package stacktest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/stack"
)

// LeastPrivilege reports whether tests are to run on guarded servers, each program as the user who may no
// more than it needs: HOLDFAST_TEST_PRIVILEGES=least. CI runs the tests of both programs so.
func LeastPrivilege() bool { return os.Getenv("HOLDFAST_TEST_PRIVILEGES") == "least" }

// RestrictedNamespace is the namespace of the files under deployments.
const RestrictedNamespace = "holdfast"

// RestrictedUsers are all users of the files under deployments. Not every one is known to all servers.
var RestrictedUsers = []string{"admin", "migrator", "worker", "operator", "auditor", "upstream", "booking", "payment", "inventory"}

// RestrictedServers are servers on which nobody may do anything without a user: those of the files under
// deployments. Their passwords are made up.
type RestrictedServers struct {
	stack *stack.Stack
	nats  *server.Server
	dir   string // of NATS
}

// passwords are the same for all guarded servers of a process: NATS reads them from the environment.
var passwords = sync.OnceValue(func() map[string]string {
	all := make(map[string]string)
	for _, user := range append([]string{"sys"}, RestrictedUsers...) {
		all[user] = "pw-" + rand.Text()
		for _, name := range []string{"NATS", "REDIS"} {
			if err := os.Setenv("HOLDFAST_"+name+"_"+strings.ToUpper(user)+"_PASSWORD", all[user]); err != nil {
				panic(err)
			}
		}
	}
	return all
})

// Passwords are all that nobody may be told.
func Passwords() (all []string) {
	for _, password := range passwords() {
		all = append(all, password)
	}
	return all
}

// moduleRoot is where go.mod is; it is looked for before a test changes its directory.
var moduleRoot = findRoot()

func findRoot() string {
	dir, err := os.Getwd()
	for err == nil && dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return "."
}

// Deployment is the path of a file under deployments.
func Deployment(path ...string) string {
	return filepath.Join(append([]string{moduleRoot, "deployments"}, path...)...)
}

// NewRestrictedServers starts guarded servers for a test. They are empty; migrate them as the migrator, and
// then call Grant.
func NewRestrictedServers(t testing.TB) *RestrictedServers {
	t.Helper()
	g, err := StartRestrictedServers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// StartRestrictedServers starts guarded servers. The caller calls Close.
func StartRestrictedServers(ctx context.Context) (g *RestrictedServers, err error) {
	passwords()
	g = &RestrictedServers{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("guarded servers: %w", err), g.Close())
		}
	}()
	if g.stack, err = stack.Start(ctx, stack.Options{Redis: true, Postgres: true}); err != nil {
		return g, err
	}
	if err := g.startNATS(); err != nil {
		return g, err
	}
	if err := restrictRedis(ctx, g.stack.RedisURL); err != nil {
		return g, err
	}
	return g, g.restrictPostgres(ctx)
}

// Close stops the servers.
func (g *RestrictedServers) Close() error {
	var err error
	if g.nats != nil {
		g.nats.Shutdown()
		g.nats.WaitForShutdown()
	}
	if g.dir != "" {
		err = os.RemoveAll(g.dir)
	}
	if g.stack != nil {
		err = errors.Join(err, g.stack.Close())
	}
	return err
}

// URLs are the addresses of the servers for a user, who may be unknown to some of them.
func (g *RestrictedServers) URLs(user string) (nats, redis, postgres string) {
	return withUser(g.nats.ClientURL(), "holdfast_"+user, passwords()[user]),
		withUser(g.stack.RedisURL, "holdfast_"+user, passwords()[user]),
		withUser(g.stack.PostgresURL, postgresUser(user), passwords()[user])
}

// MonitorURL is the monitoring address of NATS.
func (g *RestrictedServers) MonitorURL() string { return "http://" + g.nats.MonitorAddr().String() }

func postgresUser(user string) string {
	if user == "admin" {
		return "postgres"
	}
	return "holdfast_" + user
}

func withUser(address, user, password string) string {
	parsed, err := url.Parse(address)
	if err != nil {
		panic(err) // a stack made it
	}
	parsed.User = url.UserPassword(user, password)
	return parsed.String()
}

// startNATS starts NATS as its file says, but on a free port and in a directory of its own.
func (g *RestrictedServers) startNATS() (err error) {
	if g.dir, err = os.MkdirTemp("", "holdfast-nats-"); err != nil {
		return err
	}
	o, err := g.natsOptions()
	if err != nil {
		return err
	}
	if g.nats, err = server.NewServer(o); err != nil {
		return err
	}
	g.nats.Start()
	if !g.nats.ReadyForConnections(time.Minute) {
		return errors.New("nats does not start")
	}
	return nil
}

func (g *RestrictedServers) natsOptions() (*server.Options, error) {
	o, err := server.ProcessConfigFile(Deployment("nats", "nats-server.conf"))
	if err != nil {
		return nil, err
	}
	o.Host, o.Port, o.HTTPPort, o.StoreDir, o.NoSigs, o.NoLog = "127.0.0.1", server.RANDOM_PORT, server.RANDOM_PORT, g.dir, true, true
	if g.nats != nil { // its port cannot be changed
		o.Port = g.nats.Addr().(*net.TCPAddr).Port
	}
	return o, nil
}

// DenyNATS takes from a user the permission to publish on a subject, as if its line were missing,
// and gives back what was taken before; with an empty subject only the latter.
func (g *RestrictedServers) DenyNATS(user, subject string) error {
	o, err := g.natsOptions()
	if err != nil {
		return err
	}
	for _, u := range o.Users {
		if u.Username == "holdfast_"+user && subject != "" {
			u.Permissions.Publish.Deny = append(u.Permissions.Publish.Deny, subject)
		}
	}
	return g.nats.ReloadOptions(o)
}

// restrictRedis gives a Redis the users of its file, in the words of the file.
func restrictRedis(ctx context.Context, url string) (err error) {
	passwords()
	template, err := os.ReadFile(Deployment("redis", "users.conf.template"))
	if err != nil {
		return err
	}
	client := redis.NewClient(RedisOptions(url))
	defer func() { err = errors.Join(err, client.Close()) }()
	conn := client.Conn() // it goes on when nobody is let in any more
	defer func() { err = errors.Join(err, conn.Close()) }()
	for line := range strings.Lines(os.ExpandEnv(string(template))) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "user" {
			continue
		}
		args := []any{"ACL", "SETUSER"}
		for _, word := range words[1:] {
			args = append(args, word)
		}
		if err := conn.Do(ctx, args...).Err(); err != nil {
			return fmt.Errorf("%s: %w", words[1], err)
		}
	}
	return nil
}

// restrictPostgres makes the roles, gives them passwords and has Postgres ask for them.
func (g *RestrictedServers) restrictPostgres(ctx context.Context) (err error) {
	conn, err := pgx.Connect(ctx, g.stack.PostgresURL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	if err := runFile(ctx, conn, Deployment("postgres", "roles.sql")); err != nil {
		return err
	}
	for _, user := range []string{"admin", "migrator", "worker", "upstream", "auditor"} {
		if _, err := conn.Exec(ctx, fmt.Sprintf("ALTER ROLE %s PASSWORD '%s'", postgresUser(user), passwords()[user])); err != nil {
			return err
		}
	}
	var file string
	if err := conn.QueryRow(ctx, "SHOW hba_file").Scan(&file); err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte("host all all 127.0.0.1/32 scram-sha-256\n"), 0o600); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	return g.awaitPasswords(ctx)
}

// awaitPasswords waits until Postgres lets nobody in without a password: it reads its file when it
// comes to it.
func (g *RestrictedServers) awaitPasswords(ctx context.Context) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, g.stack.PostgresURL)
		if err != nil {
			return ctx.Err()
		}
		if err := conn.Close(ctx); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Grant gives the roles of Postgres their privileges, as the migrator does after each migration.
func (g *RestrictedServers) Grant(ctx context.Context) (err error) {
	_, _, address := g.URLs("migrator")
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return fmt.Errorf("grant: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	return runFile(ctx, conn, Deployment("postgres", "grants.sql"))
}

func runFile(ctx context.Context, conn *pgx.Conn, path string) error {
	statements, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if _, err := conn.PgConn().Exec(ctx, string(statements)).ReadAll(); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}
