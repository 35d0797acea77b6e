package stacktest

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/stack"
)

// LeastPrivilege reports whether the tests of both programs run on restricted servers, each program as
// a user with only the privileges that it needs: HOLDFAST_TEST_PRIVILEGES=least. CI runs them so too.
func LeastPrivilege() bool { return os.Getenv("HOLDFAST_TEST_PRIVILEGES") == "least" }

// RestrictedNamespace is the namespace of the files under deployments.
const RestrictedNamespace = "holdfast"

// RestrictedUsers are all users of the files under deployments. Each server knows only some of them.
var RestrictedUsers = []string{
	"admin", "migrator", "worker", "operator", "auditor", "upstream", "booking", "payment", "inventory",
}

// RestrictedServers are servers with the users of the files under deployments and with random
// passwords. They allow nothing without a user.
type RestrictedServers struct {
	stack *stack.Stack
	nats  *server.Server
	dir   string // of NATS
	ca    *CA    // nil without TLS

	redisURL, postgresURL string // without a user
}

// passwords returns the passwords by user. All restricted servers of a process share them, because NATS
// reads them from the environment.
var passwords = sync.OnceValue(func() map[string]string {
	all := make(map[string]string)
	for _, user := range append([]string{"sys", "routes", "replication"}, RestrictedUsers...) {
		all[user] = "pw-" + rand.Text()
		for _, name := range []string{"NATS", "REDIS"} {
			if err := os.Setenv("HOLDFAST_"+name+"_"+strings.ToUpper(user)+"_PASSWORD", all[user]); err != nil {
				panic(err)
			}
		}
	}
	return all
})

// Passwords returns all passwords, which no output may show.
func Passwords() (all []string) {
	for _, password := range passwords() {
		all = append(all, password)
	}
	return all
}

// moduleRoot is the directory of go.mod. It is set before a test can change the working directory.
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

// Deployment returns the path of a file under deployments.
func Deployment(path ...string) string {
	return filepath.Join(append([]string{moduleRoot, "deployments"}, path...)...)
}

// NewRestrictedServers starts restricted servers for a test. They are empty: migrate them as the
// migrator, and then call Grant.
func NewRestrictedServers(t testing.TB) *RestrictedServers {
	t.Helper()
	s, err := StartRestrictedServers(t.Context())
	return closeAfter(t, s, err)
}

// NewSecureServers starts restricted servers that accept only encrypted connections. A client verifies
// them with CAFile.
func NewSecureServers(t testing.TB) *RestrictedServers {
	t.Helper()
	s, err := startRestricted(t.Context(), TestCA(t))
	return closeAfter(t, s, err)
}

// closeAfter closes servers when the test ends. err is the error of their start.
func closeAfter[T io.Closer](t testing.TB, s T, err error) T {
	t.Helper()
	Must(t, err)
	t.Cleanup(func() { Must(t, s.Close()) })
	return s
}

// StartRestrictedServers starts restricted servers. The caller calls Close.
func StartRestrictedServers(ctx context.Context) (s *RestrictedServers, err error) {
	ca, err := caOfRun()
	if err != nil {
		return nil, err
	}
	return startRestricted(ctx, ca)
}

// startRestricted starts restricted servers, with TLS if ca is not nil.
func startRestricted(ctx context.Context, ca *CA) (s *RestrictedServers, err error) {
	passwords()
	s = &RestrictedServers{ca: ca}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("restricted servers: %w", err), s.Close())
		}
	}()
	if s.stack, err = stack.Start(ctx, stack.Options{Redis: true, Postgres: true}); err != nil {
		return s, err
	}
	if err := s.startNATS(); err != nil {
		return s, err
	}
	if s.redisURL, err = restrictRedis(ctx, s.stack.RedisURL, s.ca); err != nil {
		return s, err
	}
	return s, s.restrictPostgres(ctx)
}

// Close stops the servers.
func (s *RestrictedServers) Close() error {
	var err error
	if s.nats != nil {
		s.nats.Shutdown()
		s.nats.WaitForShutdown()
	}
	if s.dir != "" {
		err = os.RemoveAll(s.dir)
	}
	if s.stack != nil {
		err = errors.Join(err, s.stack.Close())
	}
	return err
}

// URLs returns the URLs of the servers for a user. A server may not know the user.
func (s *RestrictedServers) URLs(user string) (nats, redis, postgres string) {
	return URLAs(user, s.nats.ClientURL()), URLAs(user, s.redisURL), withUser(s.postgresURL, postgresUser(user), passwords()[user])
}

// URLAs returns the URL of NATS or Redis for a user.
func URLAs(user, address string) string {
	return withUser(address, "holdfast_"+user, passwords()[user])
}

// CAFile returns the certificate of the authority of these servers, "" without TLS.
func (s *RestrictedServers) CAFile() string {
	if s.ca == nil {
		return ""
	}
	return s.ca.File
}

// MonitorURL returns the monitoring URL of NATS.
func (s *RestrictedServers) MonitorURL() string { return "http://" + s.nats.MonitorAddr().String() }

func postgresUser(user string) string {
	if user == "admin" {
		return "postgres"
	}
	return "holdfast_" + user
}

// withUser returns a URL with a user. The URL may have several hosts.
func withUser(address, user, password string) string {
	scheme, rest, _ := strings.Cut(address, "://")
	if _, hosts, found := strings.Cut(rest, "@"); found {
		rest = hosts
	}
	return scheme + "://" + url.UserPassword(user, password).String() + "@" + rest
}

// startNATS starts NATS with its file under deployments, but on a free port and in a new directory.
func (s *RestrictedServers) startNATS() (err error) {
	if s.dir, err = os.MkdirTemp("", "holdfast-nats-"); err != nil {
		return err
	}
	o, err := s.natsOptions()
	if err != nil {
		return err
	}
	s.nats, err = startNATS(o)
	return err
}

func (s *RestrictedServers) natsOptions() (*server.Options, error) {
	o, err := server.ProcessConfigFile(Deployment("nats", "nats-server.conf"))
	if err != nil {
		return nil, err
	}
	o.Host, o.Port, o.HTTPPort = "127.0.0.1", server.RANDOM_PORT, server.RANDOM_PORT
	o.StoreDir, o.NoSigs, o.NoLog = s.dir, true, true
	if s.ca != nil {
		if o.TLSConfig, err = s.ca.ServerConfig(tls.NoClientCert); err != nil {
			return nil, err
		}
		o.TLS, o.TLSTimeout = true, time.Minute.Seconds()
	}
	if s.nats != nil { // a reload cannot change the port
		o.Port = s.nats.Addr().(*net.TCPAddr).Port
	}
	return o, nil
}

// DenyNATS denies a user to publish on a subject, as if its line were missing in the file. It restores
// the permissions of earlier calls; with an empty subject it does only that.
func (s *RestrictedServers) DenyNATS(user, subject string) error {
	return s.changeNATS(user, func(p *server.SubjectPermission) {
		if subject != "" {
			p.Deny = append(p.Deny, subject)
		}
	})
}

// AllowActing allows the worker what the file names for HOLDFAST_CONSOLE=act, and does not grant. It restores the
// permissions of earlier calls, as DenyNATS does.
func (s *RestrictedServers) AllowActing() error {
	accounts, err := os.ReadFile(Deployment("nats", "accounts.conf"))
	if err != nil {
		return err
	}
	_, after, _ := strings.Cut(string(accounts), "HOLDFAST_CONSOLE=act add")
	named, _, found := strings.Cut(after, ": it acts as an operator")
	if !found {
		return errors.New("accounts.conf does not name the permissions of HOLDFAST_CONSOLE=act")
	}
	return s.changeNATS("worker", func(p *server.SubjectPermission) {
		for _, quoted := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(named, -1) {
			p.Allow = append(p.Allow, quoted[1])
		}
	})
}

// changeNATS has the server use the file, with a change of what a user may publish on.
func (s *RestrictedServers) changeNATS(user string, change func(*server.SubjectPermission)) error {
	o, err := s.natsOptions()
	if err != nil {
		return err
	}
	for _, u := range o.Users {
		if u.Username == "holdfast_"+user {
			change(u.Permissions.Publish)
		}
	}
	return s.nats.ReloadOptions(o)
}

// redisUsers returns the rules of each user in the file under deployments.
func redisUsers() (map[string][]string, error) {
	passwords()
	template, err := os.ReadFile(Deployment("redis", "users.conf.template"))
	if err != nil {
		return nil, err
	}
	users := make(map[string][]string)
	for line := range strings.Lines(os.ExpandEnv(string(template))) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "user" {
			users[words[1]] = words[2:]
		}
	}
	return users, nil
}

// restrictRedis creates the users of the file under deployments in a Redis, and makes it accept only
// encrypted connections when ca is not nil. It returns its URL.
func restrictRedis(ctx context.Context, url string, ca *CA) (restricted string, err error) {
	users, err := redisUsers()
	if err != nil {
		return "", err
	}
	client := redis.NewClient(RedisOptions(url))
	defer func() { err = errors.Join(err, client.Close()) }()
	conn := client.Conn() // stays authenticated after the default user is disabled
	defer func() { err = errors.Join(err, conn.Close()) }()
	for user, rules := range users {
		args := []any{"ACL", "SETUSER", user}
		for _, rule := range rules {
			args = append(args, rule)
		}
		if err := conn.Do(ctx, args...).Err(); err != nil {
			return "", fmt.Errorf("%s: %w", user, err)
		}
	}
	if ca == nil {
		return url, nil
	}
	return ca.SecureRedis(ctx, conn, "optional")
}

// WorkerOptions creates a user in a Redis with the privileges of a worker of a namespace, those of the file under
// deployments, and returns the options of a client that is this user.
func WorkerOptions(t testing.TB, url, namespace string) *redis.Options {
	t.Helper()
	users, err := redisUsers()
	Must(t, err)
	args := []any{"ACL", "SETUSER", namespace}
	for _, rule := range users["holdfast_worker"] {
		args = append(args, strings.ReplaceAll(rule, RestrictedNamespace+":", namespace+":"))
	}
	Must(t, ConnectRedis(t, url).Do(t.Context(), args...).Err())
	o := RedisOptions(url)
	o.Username, o.Password = namespace, passwords()["worker"]
	return o
}

// restrictPostgres creates the roles with passwords, and makes Postgres require the passwords, and
// TLS if these servers have it.
func (s *RestrictedServers) restrictPostgres(ctx context.Context) (err error) {
	conn, err := pgx.Connect(ctx, s.stack.PostgresURL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	if err := runFile(ctx, conn, Deployment("postgres", "roles.sql")); err != nil {
		return err
	}
	for _, user := range []string{"admin", "migrator", "worker", "upstream", "auditor"} {
		statement := fmt.Sprintf("ALTER ROLE %s PASSWORD '%s'", postgresUser(user), passwords()[user])
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	if s.postgresURL = s.stack.PostgresURL; s.ca != nil {
		if s.postgresURL, err = s.ca.SecurePostgres(ctx, conn, s.postgresURL); err != nil {
			return err
		}
		return s.awaitPasswords(ctx)
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
	return s.awaitPasswords(ctx)
}

// awaitPasswords waits until Postgres refuses connections without a password. After pg_reload_conf it
// reads its file with a delay.
func (s *RestrictedServers) awaitPasswords(ctx context.Context) error {
	return stack.Poll(ctx, pollMin, func() (bool, error) {
		conn, err := pgx.Connect(ctx, s.stack.PostgresURL)
		if err != nil {
			return true, ctx.Err()
		}
		return false, conn.Close(ctx)
	})
}

// Grant runs grants.sql as the migrator, as required after each migration.
func (s *RestrictedServers) Grant(ctx context.Context) (err error) {
	_, _, address := s.URLs("migrator")
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

// UseRedisCluster restricts the servers of a cluster as these are, also to TLS, and replaces the Redis of these by
// it. The servers of the cluster can be used by their pooled connections only.
func (s *RestrictedServers) UseRedisCluster(t testing.TB, c *RedisCluster) {
	t.Helper()
	var hosts, ports []string
	for i := range c.Nodes {
		c.ID(i) // opens a connection, which stays when the port is closed
		address, err := restrictRedis(t.Context(), "redis://"+c.Addr(i), s.ca)
		Must(t, err)
		_, host, _ := strings.Cut(strings.TrimSuffix(address, "/0"), "://")
		_, port, _ := strings.Cut(host, ":")
		hosts, ports = append(hosts, host), append(ports, port)
	}
	if s.redisURL = "redis+cluster://" + strings.Join(hosts, ","); s.ca == nil {
		return
	}
	s.redisURL = "rediss+cluster://" + strings.Join(hosts, ",")
	for i := range c.Nodes {
		c.do(i, "config", "set", "tls-cluster", "yes")
		c.do(i, "config", "set", "cluster-announce-tls-port", ports[i]) // else it announces the other port until a restart
	}
	for i := range c.Nodes {
		Eventually(t, "the ports for TLS", func() bool {
			slots := fmt.Sprint(c.do(i, "cluster", "slots"))
			return !slices.ContainsFunc(ports, func(port string) bool { return !strings.Contains(slots, " "+port+" ") })
		})
	}
}
