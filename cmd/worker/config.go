package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"holdfast/internal/connect"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/record"
	"holdfast/internal/stack/endpoints"
)

// Config has all settings of a running worker. Each can be given by a flag or by an environment
// variable. A command embeds only the parts that it uses, so its help lists no setting that it
// ignores. The table in docs/settings.md is generated from the flags of all commands.
type Config struct {
	Connections `embed:"" group:"Connections:"`
	Policies    `embed:"" group:"Policies:"`
	Locks       `embed:"" group:"Locks:"`
	Operations  `embed:"" group:"Operations:"`

	NoNotifications bool `name:"no-notifications" env:"HOLDFAST_NO_NOTIFICATIONS" hidden:"" help:"For tests: ignore keyspace notifications."`
	NoTimer         bool `name:"no-timer" env:"HOLDFAST_NO_TIMER" hidden:"" help:"For tests: no deadline timer."`
}

// Connections are the URLs of the servers, the files for logins and TLS, and the namespace on the
// servers.
type Connections struct {
	NATSServers `embed:""`
	RedisURL    string `name:"redis-url" env:"HOLDFAST_REDIS_URL" placeholder:"URL" help:"Redis server, version 7 or newer (tested with 7.0 and 8.0; Valkey with 8.0 and 8.1), with maxmemory-policy noeviction: redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://, redis+cluster:// or rediss+cluster://."`
	PostgresURL string `name:"postgres-url" env:"HOLDFAST_POSTGRES_URL" placeholder:"URL" help:"Postgres server, version 14 or newer (tested with 14, 15 and 17). The URL may name several hosts: the worker uses the one that accepts writes."`

	RedisFiles      RedisFiles `embed:""`
	PostgresURLFile string     `name:"postgres-url-file" env:"HOLDFAST_POSTGRES_URL_FILE" placeholder:"FILE" help:"File that contains the Postgres URL, such as a mounted secret."`
	Named           `embed:""`
}

// NATSServers are the NATS servers, and the files for the login and TLS.
type NATSServers struct {
	NATSURL string `name:"nats-url" env:"HOLDFAST_NATS_URL" placeholder:"URL" help:"NATS servers with JetStream, separated by commas."`

	NATSFiles connect.NATSFiles `embed:""`
}

// Named has the namespace on the servers.
type Named struct {
	Namespace string `name:"namespace" env:"HOLDFAST_NAMESPACE" nonzero:"is empty; leave the flag out for the default" default:"${namespace}" placeholder:"${namespace_shown}" help:"First token of NATS subjects, prefix of Redis keys, and schema in Postgres${namespace_note}."`
}

// RedisFiles are the settings that name files for Redis.
type RedisFiles struct {
	URLFile  string `name:"redis-url-file" env:"HOLDFAST_REDIS_URL_FILE" placeholder:"FILE" help:"File that contains the Redis URL, such as a mounted secret."`
	CAFile   string `name:"redis-ca-file" env:"HOLDFAST_REDIS_CA_FILE" placeholder:"FILE" help:"Certificates in PEM form that Redis' certificate is verified against, instead of the system's."`
	CertFile string `name:"redis-cert-file" env:"HOLDFAST_REDIS_CERT_FILE" placeholder:"FILE" help:"Client certificate for Redis, in PEM form."`
	KeyFile  string `name:"redis-key-file" env:"HOLDFAST_REDIS_KEY_FILE" placeholder:"FILE" help:"Key of the client certificate for Redis."`
}

// Lifetimes bound how long an outcome can matter.
type Lifetimes struct {
	HoldLifetimeMax time.Duration `name:"hold-lifetime-max" env:"HOLDFAST_HOLD_LIFETIME_MAX" default:"2h" help:"Maximum life of a hold, extensions included."`
	RequestKeyTTL   time.Duration `name:"request-key-ttl" env:"HOLDFAST_REQUEST_KEY_TTL" default:"24h" help:"How long answers and ended holds are remembered."`
}

// Terms are the settings that a rebuild of Redis needs.
type Terms struct {
	HoldTTL   time.Duration `name:"hold-ttl" env:"HOLDFAST_HOLD_TTL" default:"10m" help:"Time to live of a hold whose request has no ttl."`
	Lifetimes `embed:""`
}

// Policies are the settings that decide answers.
type Policies struct {
	Terms         `embed:""`
	HoldTTLMax    time.Duration `name:"hold-ttl-max" env:"HOLDFAST_HOLD_TTL_MAX" default:"1h" help:"Maximum ttl of a request."`
	PaymentWindow time.Duration `name:"payment-window" env:"HOLDFAST_PAYMENT_WINDOW" default:"5m" help:"Minimum time left after payment started."`
	LatePayment   string        `name:"late-payment" env:"HOLDFAST_LATE_PAYMENT" default:"reject" enum:"reject,accept_if_free" help:"Answer to a payment for an expired hold: reject, or accept_if_free, which confirms it when its slots are still free."`
	HoldsPerUser  int           `name:"holds-per-user" env:"HOLDFAST_HOLDS_PER_USER" default:"10" help:"Maximum number of live holds of one user on one resource."`
	NightsMax     int           `name:"nights-max" env:"HOLDFAST_NIGHTS_MAX" default:"90" help:"Maximum number of nights in one request."`
	Horizon       int           `name:"horizon" env:"HOLDFAST_HORIZON" default:"1095" help:"Maximum number of days ahead that a night can be requested."`
}

// LockServers select how and where a worker locks.
type LockServers struct {
	LockStrategy  string   `name:"lock-strategy" env:"HOLDFAST_LOCK_STRATEGY" default:"range" enum:"range,redlock,optimistic,none" help:"How workers order work on the same slots: range, redlock, optimistic or none. Results are correct with each of them."`
	LockRedisURLs []string `name:"lock-redis-urls" env:"HOLDFAST_LOCK_REDIS_URLS" placeholder:"URL" help:"Redis servers for the locks of redlock: an odd number, at least 3, that do not replicate to each other."`
}

// Locks are the settings of the locks that order work on the same slots.
type Locks struct {
	LockServers  `embed:""`
	LockLease    leaseSetting  `name:"lock-lease" env:"HOLDFAST_LOCK_LEASE" default:"5s" help:"Lock lease, 100ms to 1m, or auto: chosen from measured times."`
	LockRenewMax time.Duration `name:"lock-renew-max" env:"HOLDFAST_LOCK_RENEW_MAX" default:"0s" help:"How long a lock is renewed while its work continues, at most 10m. It is renewed after each third of its lease. 0s: never."`
	LockFair     bool          `name:"lock-fair" env:"HOLDFAST_LOCK_FAIR" default:"false" help:"FIFO queue for each lock (range only)."`
	LockWait     time.Duration `name:"lock-wait" env:"HOLDFAST_LOCK_WAIT" default:"2s" help:"How long a request waits for a lock before it is delivered again, at most 5s."`
}

// Monitors are the monitoring addresses of NATS, which show more than a client can see.
type Monitors struct {
	NATSMonitorURLs []string `name:"nats-monitor-urls" env:"HOLDFAST_NATS_MONITOR_URLS" placeholder:"URL" help:"Monitoring addresses of the NATS servers, such as http://nats:8222. The preflight reads sync_interval and the server's limit of storage there."`
}

// Replication sets how many copies a new stream has.
type Replication struct {
	StreamReplicas int `name:"stream-replicas" env:"HOLDFAST_STREAM_REPLICAS" default:"0" help:"Number of replicas of each new stream, 1 to 5. 0: 3 in a cluster, 1 on a single server."`
}

// Starting has the settings of a command that prepares the servers.
type Starting struct {
	Monitors    `embed:""`
	Replication `embed:""`
	Preflight   string `name:"preflight" env:"HOLDFAST_PREFLIGHT" default:"refuse" enum:"refuse,warn" help:"When a check of worker preflight fails: refuse to start, or warn and start."`
	Logging     `embed:""`
}

// Logging sets what is logged and how.
type Logging struct {
	LogLevel  string `name:"log-level" env:"HOLDFAST_LOG_LEVEL" default:"${log_level}" enum:"debug,info,warn,error" help:"Lowest level that is logged: debug, info, warn or error."`
	LogFormat string `name:"log-format" env:"HOLDFAST_LOG_FORMAT" default:"auto" enum:"auto,json,console" help:"Format of the log: json, console (readable lines), or auto: console on a terminal, else json."`
}

// The values of --log-format besides auto.
const (
	logJSON    = "json"
	logConsole = "console"
)

// Operations are the settings for those who run and watch a worker.
type Operations struct {
	InboundKeep  time.Duration `name:"inbound-keep" env:"HOLDFAST_INBOUND_KEEP" default:"72h" help:"How long an inbound event is kept after it was stored, at least 1m. A worker then removes it when every consumer has acknowledged it and no dead letter needs it."`
	HTTPAddr     string        `name:"http-addr" env:"HOLDFAST_HTTP_ADDR" default:"127.0.0.1:8080" help:"Address that serves health, readiness, metrics and queries."`
	Reconcile    string        `name:"reconcile" env:"HOLDFAST_RECONCILE" default:"heal" enum:"heal,report,off" help:"Background reconciliation: heal (repair what follows from the records), report or off."`
	OTLPEndpoint string        `name:"otlp-endpoint" env:"OTEL_EXPORTER_OTLP_ENDPOINT" placeholder:"URL" help:"OTLP receiver for traces by HTTP, such as http://collector:4318. Only events whose traceparent is sampled are traced. Default: no traces."`
	OTLPTraces   string        `name:"otlp-traces-endpoint" env:"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" placeholder:"URL" help:"The same as a URL with its path, such as http://collector:4318/v1/traces. It takes precedence."`
	API          `embed:""`
	Starting     `embed:""`
}

// Directory is the directory of a worker that starts its own servers.
type Directory struct {
	DataDir string `name:"data-dir" env:"HOLDFAST_DATA_DIR" default:".holdfast" type:"path" placeholder:"DIR" help:"Directory of a worker that starts its own servers (worker dev, worker run --embedded). Its file endpoints.env has their URLs; run --embedded keeps its data there. Default: .holdfast."`
}

// FoundServers are the servers of a command that needs no settings beside a running worker: those whose URLs are not given,
// and the namespace, are those in the endpoints file.
type FoundServers struct {
	Directory   `embed:""`
	Connections `embed:"" group:"Connections:" set:"namespace=" set:"namespace_shown=NAME" set:"namespace_note=. Default: from endpoints.env, else holdfast"` //nolint:staticcheck // kong reads each set tag
}

// Installing sets whether a worker may install missing servers.
type Installing struct {
	Install string `name:"install" env:"HOLDFAST_INSTALL" default:"auto" enum:"auto,never" help:"When redis-server or postgres is missing: auto installs it (Debian, as root), never prints how to."`
}

// The defaults, and the variables of the tags above. A command that needs other values overrides
// them in the tag of the part that it embeds.
const (
	defaultNamespace = "holdfast"
	defaultDataDir   = ".holdfast"
)

var tagVariables = kong.Vars{
	"namespace": defaultNamespace, "namespace_shown": defaultNamespace, "namespace_note": "", "log_level": "info", "console": consoleOff,
}

// The lock strategies that other settings depend on.
const (
	rangeStrategy   = "range"
	redlockStrategy = "redlock"
)

// The values of --reconcile besides report.
const (
	reconcileHeal = "heal"
	reconcileOff  = "off"
)

// replicasMax is the most replicas that NATS allows.
const replicasMax = 5

// lockServersMin is the smallest number of servers that keeps its majority when one server fails.
const lockServersMin = 3

// leaseSetting is the lease of a lock, or leaseAuto.
type leaseSetting time.Duration

const leaseAuto leaseSetting = 0

// UnmarshalText parses "auto" or a duration from 100ms to 1m. kong calls it.
func (l *leaseSetting) UnmarshalText(text []byte) error {
	if string(text) == "auto" {
		*l = leaseAuto
		return nil
	}
	fixed, err := time.ParseDuration(string(text))
	if err != nil || fixed < 100*time.Millisecond || fixed > locking.LeaseMax {
		return fmt.Errorf("%q must be auto, or from 100ms to 1m", text)
	}
	*l = leaseSetting(fixed)
	return nil
}

// usageError is the error of a wrong setting. Its message says what would be right.
type usageError struct{ message string }

func (e *usageError) Error() string { return e.message }

func misused(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// AfterApply reads the URLs that are given as files. kong calls this method
// and those below after parsing.
func (c *Connections) AfterApply() error {
	for _, one := range []struct {
		name      string
		url, file *string
	}{
		{"redis-url", &c.RedisURL, &c.RedisFiles.URLFile},
		{"postgres-url", &c.PostgresURL, &c.PostgresURLFile},
	} {
		found, err := connect.ReadURL(one.name, *one.url, *one.file)
		if err != nil {
			return misused("%v", err)
		}
		*one.url, *one.file = found, ""
	}
	return nil
}

// AfterApply reads the URL if it is given as a file or by a context.
func (c *NATSServers) AfterApply() error {
	found, err := c.NATSFiles.FindURL(c.NATSURL)
	if err != nil {
		return misused("%v", err)
	}
	c.NATSURL, c.NATSFiles.URLFile = found, ""
	return nil
}

// AfterApply checks the namespace.
func (c *Named) AfterApply() error {
	if c.Namespace != "" && !record.NamespacePattern.MatchString(c.Namespace) {
		return misused("--namespace %q must match %s", c.Namespace, record.NamespacePattern)
	}
	if strings.HasPrefix(c.Namespace, "pg_") || c.Namespace == "information_schema" {
		return misused("--namespace %q is the name of a schema of Postgres itself; choose another one", c.Namespace)
	}
	return nil
}

// rememberMax bounds how long something is remembered: sums and multiples of such times must not overflow.
const rememberMax = 10 * 365 * 24 * time.Hour

// policyOrder ends the error for two policies that contradict each other.
const policyOrder = "; needed is --hold-ttl ≤ --hold-ttl-max ≤ --hold-lifetime-max ≤ --request-key-ttl and " +
	"--payment-window ≤ --hold-lifetime-max, where a policy that is not given has its default"

// AfterApply checks the bounds, and that the answer to an extension is remembered at least as long as the hold lives.
func (l *Lifetimes) AfterApply() error {
	if l.HoldLifetimeMax < time.Second {
		return misused("--hold-lifetime-max %s must be at least 1s", l.HoldLifetimeMax)
	}
	if l.RequestKeyTTL > rememberMax {
		return misused("--request-key-ttl %s must be at most %s", l.RequestKeyTTL, rememberMax)
	}
	if l.RequestKeyTTL < l.HoldLifetimeMax {
		return misused("--request-key-ttl %s must not be shorter than --hold-lifetime-max (%s): "+
			"the answer to an extension would be forgotten while its hold lives"+policyOrder, l.RequestKeyTTL, l.HoldLifetimeMax)
	}
	return nil
}

// AfterApply checks the bounds.
func (p *Policies) AfterApply() error {
	switch {
	case p.HoldTTL < time.Second || p.HoldTTL > p.HoldTTLMax:
		return misused("--hold-ttl %s must be from 1s to --hold-ttl-max (%s)"+policyOrder, p.HoldTTL, p.HoldTTLMax)
	case p.HoldTTLMax > p.HoldLifetimeMax:
		return misused("--hold-ttl-max %s must not exceed --hold-lifetime-max (%s)"+policyOrder, p.HoldTTLMax, p.HoldLifetimeMax)
	case p.PaymentWindow < time.Second || p.PaymentWindow > p.HoldLifetimeMax:
		return misused("--payment-window %s must be from 1s to --hold-lifetime-max (%s)"+policyOrder,
			p.PaymentWindow, p.HoldLifetimeMax)
	case p.HoldsPerUser < 1:
		return misused("--holds-per-user %d must be at least 1", p.HoldsPerUser)
	case p.NightsMax < 1 || p.NightsMax > 1000:
		return misused("--nights-max %d must be from 1 to 1000", p.NightsMax)
	case p.Horizon < 1:
		return misused("--horizon %d must be at least 1", p.Horizon)
	}
	return nil
}

// AfterApply rejects lock servers that the strategy would ignore, and a number of them that Redlock
// cannot use.
func (l *LockServers) AfterApply() error {
	switch n := len(l.LockRedisURLs); {
	case n > 0 && l.LockStrategy != redlockStrategy:
		return misused("--lock-redis-urls is for --lock-strategy redlock only, not for %s: omit one of them",
			l.LockStrategy)
	case n > 0 && (n < lockServersMin || n%2 == 0):
		return misused("--lock-redis-urls has %d servers, but a majority needs an odd number, at least %d",
			n, lockServersMin)
	}
	_, err := (&Config{Locks: Locks{LockServers: *l}}).lockServerOptions()
	return err
}

// AfterApply rejects values out of bounds, and settings that the strategy would ignore.
func (l *Locks) AfterApply() error {
	leased := l.LockStrategy == rangeStrategy || l.LockStrategy == redlockStrategy
	switch {
	case l.LockWait < 0 || l.LockWait > 5*time.Second:
		return misused("--lock-wait %s must be from 0s to 5s", l.LockWait)
	case l.LockRenewMax < 0 || l.LockRenewMax > 10*time.Minute:
		return misused("--lock-renew-max %s must be from 0s to 10m", l.LockRenewMax)
	case l.LockFair && l.LockStrategy != rangeStrategy:
		return misused("--lock-fair is for --lock-strategy range only: %s has no queue", l.LockStrategy)
	case !leased && l.LockLease == leaseAuto:
		return misused("--lock-lease auto is for --lock-strategy range and redlock only: %s has no leases", l.LockStrategy)
	case !leased && l.LockRenewMax > 0:
		return misused("--lock-renew-max is for --lock-strategy range and redlock only: %s has no leases", l.LockStrategy)
	}
	return nil
}

// AfterApply checks the bounds, and the settings of traces.
func (o *Operations) AfterApply() error {
	if o.InboundKeep < time.Minute || o.InboundKeep > rememberMax {
		return misused("--inbound-keep %s must be from 1m to %s", o.InboundKeep, rememberMax)
	}
	return o.checkTraces()
}

// AfterApply checks the bounds.
func (r *Replication) AfterApply() error {
	if r.StreamReplicas < 0 || r.StreamReplicas > replicasMax {
		return misused("--stream-replicas %d must be from 1 to %d, or 0", r.StreamReplicas, replicasMax)
	}
	return nil
}

// AfterApply treats an empty variable as unset.
func (d *Directory) AfterApply() error { //nolint:unparam // kong requires an error result
	d.DataDir = cmp.Or(d.DataDir, defaultDataDir)
	return nil
}

// unknownVariables returns the names of the variables that look like settings, and are settings of no command. It leaves
// out those of tests, those that Kubernetes adds for each Service, such as HOLDFAST_PORT_8080_TCP, and passwords, from
// which an operator makes URLs.
func unknownVariables(environ []string, model *kong.Application) (unknown []string) {
	known := make(map[string]bool)
	for _, command := range model.Leaves(false) {
		for _, flags := range command.AllFlags(false) {
			for _, flag := range flags {
				for _, variable := range flag.Envs {
					known[variable] = true
				}
			}
		}
	}
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "HOLDFAST_") && !known[name] && !notSettings.MatchString(name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return unknown
}

var notSettings = regexp.MustCompile(`^HOLDFAST_(TEST_|FAILPOINT$)|_SERVICE_(HOST|PORT)|_PORT(_|$)|_PASSWORD$`)

// missingURL returns a usage error when the URL of a server is not given. The error names the flag
// and the variable, and ends with advice.
func (c *Connections) missingURL(advice string) error {
	return cmp.Or(c.NATSServers.missingURL(advice),
		missingURL(c.RedisURL, "--redis-url", "HOLDFAST_REDIS_URL", advice),
		missingURL(c.PostgresURL, "--postgres-url", "HOLDFAST_POSTGRES_URL", advice))
}

func (c *NATSServers) missingURL(advice string) error {
	return missingURL(c.NATSURL, "--nats-url", "HOLDFAST_NATS_URL", advice)
}

func missingURL(url, flag, variable, advice string) error {
	if url == "" {
		return misused("give %s or %s, or %s", flag, variable, advice)
	}
	return nil
}

// startToo is the advice of commands that use only servers whose URLs are given.
const startToo = "use worker run --embedded or worker dev, which start the servers"

// find takes the URLs that are not given from the endpoints file in dir. It takes the namespace
// from there too, unless a NATS URL is given.
func (c *Connections) find(dir string) error {
	found, err := c.NATSServers.find(dir, &c.Named)
	if err != nil {
		return err
	}
	c.RedisURL = cmp.Or(c.RedisURL, found["HOLDFAST_REDIS_URL"])
	c.PostgresURL = cmp.Or(c.PostgresURL, found["HOLDFAST_POSTGRES_URL"])
	return c.missingURL(notIn(dir))
}

// find takes the URL that is not given from the endpoints file in dir, and the namespace too, unless a NATS
// URL is given. It returns what the file has.
func (c *NATSServers) find(dir string, named *Named) (map[string]string, error) {
	found, err := endpoints.ReadIn(dir)
	if err != nil {
		return nil, err
	}
	if c.NATSURL == "" {
		named.Namespace = cmp.Or(named.Namespace, found["HOLDFAST_NAMESPACE"])
	}
	named.Namespace = cmp.Or(named.Namespace, defaultNamespace)
	c.NATSURL = cmp.Or(c.NATSURL, found["HOLDFAST_NATS_URL"])
	return found, c.missingURL(notIn(dir))
}

// notIn is the advice of commands that also read the endpoints file in a directory.
func notIn(dir string) string {
	return fmt.Sprintf("the --data-dir of a running worker dev or worker run --embedded "+
		"(endpoints.env in %s has no such URL)", dir)
}

// findLockServers takes the lock servers of redlock from the endpoints file in dir, unless they are given.
func (l *LockServers) findLockServers(dir string) error {
	if l.LockStrategy != redlockStrategy || len(l.LockRedisURLs) > 0 {
		return nil
	}
	found, err := endpoints.ReadIn(dir)
	if urls := found["HOLDFAST_LOCK_REDIS_URLS"]; urls != "" {
		l.LockRedisURLs = strings.Split(urls, ",")
	}
	return err
}

// missingLockURLs returns a usage error when Redlock has no lock servers.
func (l *LockServers) missingLockURLs() error {
	if l.LockStrategy == redlockStrategy && len(l.LockRedisURLs) == 0 {
		return misused("redlock needs separate Redis servers, an odd number, at least %d: give --lock-redis-urls or "+
			"HOLDFAST_LOCK_REDIS_URLS, or "+startToo, lockServersMin)
	}
	return nil
}

// retention returns the settings that the streams depend on.
func (c *Config) retention() events.Retention {
	return events.Retention{HoldLifetime: c.HoldLifetimeMax, AnswerTTL: c.RequestKeyTTL, Replicas: c.StreamReplicas}
}

// policy returns the settings by which package holds decides.
func (c *Config) policy() holds.Policy {
	return holds.Policy{
		HoldTTL: c.HoldTTL, HoldTTLMax: c.HoldTTLMax, HoldLifetimeMax: c.HoldLifetimeMax,
		PaymentWindow: c.PaymentWindow, LatePayment: holds.LatePayment(c.LatePayment),
		HoldsPerUser: c.HoldsPerUser, NightsMax: c.NightsMax, HorizonDays: c.Horizon,
		RequestKeyTTL: c.RequestKeyTTL, LockWait: c.LockWait,
	}
}
