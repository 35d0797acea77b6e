package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack"
	"holdfast/internal/stack/endpoints"
)

// Config is everything that a running worker can be set to, each by a flag or by the environment. A command
// embeds the parts that it uses and no others: what it ignores is not in its help. The table in README.md is
// generated from the flags of all commands.
type Config struct {
	Connections `embed:"" group:"Connections:"`
	Policies    `embed:"" group:"Policies:"`
	Locks       `embed:"" group:"Locks:"`
	Operations  `embed:"" group:"Operations:"`

	NoNotifications bool `name:"no-notifications" env:"HOLDFAST_NO_NOTIFICATIONS" hidden:"" help:"For tests: ignore keyspace notifications."`
	NoTimer         bool `name:"no-timer" env:"HOLDFAST_NO_TIMER" hidden:"" help:"For tests: no deadline timer."`
}

// Connections are the servers, and what is Holdfast's on them.
type Connections struct {
	NATSURL     string `name:"nats-url" env:"HOLDFAST_NATS_URL" placeholder:"URL" help:"NATS with JetStream."`
	RedisURL    string `name:"redis-url" env:"HOLDFAST_REDIS_URL" placeholder:"URL" help:"Redis 7 or newer (tested with 7.0), with a maxmemory-policy that does not evict."`
	PostgresURL string `name:"postgres-url" env:"HOLDFAST_POSTGRES_URL" placeholder:"URL" help:"Postgres 14 or newer (tested with 15). Of several hosts the one that takes writes is used."`
	Namespace   string `name:"namespace" env:"HOLDFAST_NAMESPACE" default:"${namespace}" placeholder:"${namespace_shown}" help:"First token of subjects, prefix of Redis keys, schema in Postgres${namespace_note}."`
}

// Lifetimes are for how long an outcome can matter.
type Lifetimes struct {
	HoldLifetimeMax time.Duration `name:"hold-lifetime-max" env:"HOLDFAST_HOLD_LIFETIME_MAX" default:"2h" help:"The longest life of a hold, extensions included."`
	RequestKeyTTL   time.Duration `name:"request-key-ttl" env:"HOLDFAST_REQUEST_KEY_TTL" default:"24h" help:"How long answers and ended holds are remembered."`
}

// Terms are what holds are rebuilt by.
type Terms struct {
	HoldTTL   time.Duration `name:"hold-ttl" env:"HOLDFAST_HOLD_TTL" default:"10m" help:"How long a hold lasts when its request names no ttl."`
	Lifetimes `embed:""`
}

// Policies are what answers are decided by.
type Policies struct {
	Terms         `embed:""`
	HoldTTLMax    time.Duration `name:"hold-ttl-max" env:"HOLDFAST_HOLD_TTL_MAX" default:"1h" help:"The longest ttl that a request may name."`
	PaymentWindow time.Duration `name:"payment-window" env:"HOLDFAST_PAYMENT_WINDOW" default:"5m" help:"What a hold has at least when its payment was started."`
	LatePayment   string        `name:"late-payment" env:"HOLDFAST_LATE_PAYMENT" default:"reject" enum:"reject,accept_if_free" help:"What becomes of a payment for a hold that has lapsed: reject, or accept_if_free."`
	HoldsPerUser  int           `name:"holds-per-user" env:"HOLDFAST_HOLDS_PER_USER" default:"10" help:"Live holds of one user on one resource."`
	NightsMax     int           `name:"nights-max" env:"HOLDFAST_NIGHTS_MAX" default:"90" help:"Nights in one request."`
	Horizon       int           `name:"horizon" env:"HOLDFAST_HORIZON" default:"1095" help:"How many days ahead a night can be asked for."`
}

// LockServers are where locks are.
type LockServers struct {
	LockStrategy  string   `name:"lock-strategy" env:"HOLDFAST_LOCK_STRATEGY" default:"range" enum:"range,redlock,optimistic,none" help:"How work on the same slots is ordered: range, redlock, optimistic or none. Results are right with each."`
	LockRedisURLs []string `name:"lock-redis-urls" env:"HOLDFAST_LOCK_REDIS_URLS" placeholder:"URL" help:"Redis servers that redlock locks on: an odd number, at least 3, that replicate nothing to each other."`
}

// Locks are how work on the same slots is ordered.
type Locks struct {
	LockServers  `embed:""`
	LockLease    leaseSetting  `name:"lock-lease" env:"HOLDFAST_LOCK_LEASE" default:"5s" help:"After how long a lock ends by itself, 100ms to 1m; or auto: from what is measured."`
	LockRenewMax time.Duration `name:"lock-renew-max" env:"HOLDFAST_LOCK_RENEW_MAX" default:"0s" help:"For how long a lock is renewed, each third of its lease, while its work goes on; at most 10m. 0s: never."`
	LockFair     bool          `name:"lock-fair" env:"HOLDFAST_LOCK_FAIR" default:"false" help:"Only range: who waits for a lock queues, first in, first out."`
	LockWait     time.Duration `name:"lock-wait" env:"HOLDFAST_LOCK_WAIT" default:"2s" help:"How long a request waits for a lock before it is delivered again."`
}

// Monitors are where more is to be seen of NATS than by its clients.
type Monitors struct {
	NATSMonitorURLs []string `name:"nats-monitor-urls" env:"HOLDFAST_NATS_MONITOR_URLS" placeholder:"URL" help:"Monitoring addresses of the NATS servers, like http://nats:8222: the preflight asks them for sync_interval."`
}

// Replication is how streams are created.
type Replication struct {
	StreamReplicas int `name:"stream-replicas" env:"HOLDFAST_STREAM_REPLICAS" default:"0" help:"How many NATS servers keep a copy of each stream that is created, 1 to 5. 0: 3 in a cluster, 1 on a lone server."`
}

// Starting is what a command that prepares the servers needs.
type Starting struct {
	Monitors    `embed:""`
	Replication `embed:""`
	Preflight   string `name:"preflight" env:"HOLDFAST_PREFLIGHT" default:"refuse" enum:"refuse,warn" help:"On servers that would break a promise (see worker preflight): refuse to start, or warn and start."`
	LogLevel    string `name:"log-level" env:"HOLDFAST_LOG_LEVEL" default:"${log_level}" enum:"debug,info,warn,error" help:"What is logged: debug, info, warn or error."`
}

// Operations are how a worker is run and watched.
type Operations struct {
	InboundKeep time.Duration `name:"inbound-keep" env:"HOLDFAST_INBOUND_KEEP" default:"72h" help:"How long an inbound event is kept after it was stored; then a worker removes it, if every consumer has acknowledged it and no dead letter needs it. At least 1m."`
	HTTPAddr    string        `name:"http-addr" env:"HOLDFAST_HTTP_ADDR" default:"127.0.0.1:8080" help:"Where health, readiness, metrics and queries are served."`
	Reconcile   string        `name:"reconcile" env:"HOLDFAST_RECONCILE" default:"heal" enum:"heal,report,off" help:"What is done about differences in what is kept: heal what follows from the records, only report, or off: nobody looks."`
	Starting    `embed:""`
}

// Directory is where a worker that starts servers says where they are.
type Directory struct {
	DataDir string `name:"data-dir" env:"HOLDFAST_DATA_DIR" default:".holdfast" type:"path" placeholder:"DIR" help:"Directory of the worker that has started its servers (worker dev, worker run --embedded): endpoints.env there says where they are, and run --embedded keeps its data there. Default: .holdfast."`
}

// Installing is whether servers that are missing may be installed.
type Installing struct {
	Install string `name:"install" env:"HOLDFAST_INSTALL" default:"auto" enum:"auto,never" help:"A redis-server or postgres that is to be started and is missing: auto installs it (Debian, as root), never prints how to."`
}

// What is used where nothing is given. The variables are those of the tags above; a command that uses other values sets
// them where it embeds.
const (
	defaultNamespace = "holdfast"
	defaultDataDir   = ".holdfast"
)

var tagVariables = kong.Vars{
	"namespace": defaultNamespace, "namespace_shown": defaultNamespace, "namespace_note": "", "log_level": "info",
}

// The lock strategies that other settings depend on.
const (
	rangeStrategy   = "range"
	redlockStrategy = "redlock"
)

// What --reconcile can be besides report.
const (
	reconcileHeal = "heal"
	reconcileOff  = "off"
)

// replicasMax is how many replicas NATS allows.
const replicasMax = 5

// lockServersMin is the fewest of which one can be lost without the majority.
const lockServersMin = 3

// leaseSetting is after how long a lock ends, or leaseAuto.
type leaseSetting time.Duration

const leaseAuto leaseSetting = 0

// UnmarshalText reads a setting. kong calls it.
func (l *leaseSetting) UnmarshalText(text []byte) error {
	if string(text) == "auto" {
		*l = leaseAuto
		return nil
	}
	fixed, err := time.ParseDuration(string(text))
	if err != nil || fixed < 100*time.Millisecond || fixed > time.Minute {
		return fmt.Errorf("%q must be auto, or from 100ms to 1m", text)
	}
	*l = leaseSetting(fixed)
	return nil
}

// usageError says that a setting is wrong and what would be right.
type usageError struct{ message string }

func (e *usageError) Error() string { return e.message }

func misused(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// installPolicy is Install as package stack has it.
func (i *Installing) installPolicy() stack.InstallPolicy {
	if i.Install == "never" {
		return stack.InstallNever
	}
	return stack.InstallAuto
}

// AfterApply checks what the types do not say. kong calls it, and those below.
func (c *Connections) AfterApply() error {
	if c.Namespace != "" && !holds.NamespacePattern.MatchString(c.Namespace) {
		return misused("--namespace %q must match %s", c.Namespace, holds.NamespacePattern)
	}
	return nil
}

// AfterApply checks the relation of the two.
func (l *Lifetimes) AfterApply() error {
	if l.HoldLifetimeMax < time.Second {
		return misused("--hold-lifetime-max %s must be at least 1s", l.HoldLifetimeMax)
	}
	if l.RequestKeyTTL < l.HoldLifetimeMax {
		return misused("--request-key-ttl %s must not be shorter than --hold-lifetime-max (%s): "+
			"a hold would outlive the memory of its request", l.RequestKeyTTL, l.HoldLifetimeMax)
	}
	return nil
}

// AfterApply checks the bounds.
func (p *Policies) AfterApply() error {
	switch {
	case p.HoldTTL < time.Second || p.HoldTTL > p.HoldTTLMax:
		return misused("--hold-ttl %s must be from 1s to --hold-ttl-max (%s)", p.HoldTTL, p.HoldTTLMax)
	case p.HoldTTLMax > p.HoldLifetimeMax:
		return misused("--hold-ttl-max %s must not exceed --hold-lifetime-max (%s)", p.HoldTTLMax, p.HoldLifetimeMax)
	case p.PaymentWindow < time.Second || p.PaymentWindow > p.HoldLifetimeMax:
		return misused("--payment-window %s must be from 1s to --hold-lifetime-max (%s)", p.PaymentWindow, p.HoldLifetimeMax)
	case p.HoldsPerUser < 1, p.NightsMax < 1, p.NightsMax > 1000, p.Horizon < 1:
		return misused("--holds-per-user, --nights-max (at most 1000) and --horizon must be at least 1")
	}
	return nil
}

// AfterApply refuses servers that the strategy would ignore, or that Redlock cannot work with.
func (l *LockServers) AfterApply() error {
	switch n := len(l.LockRedisURLs); {
	case n > 0 && l.LockStrategy != redlockStrategy:
		return misused("--lock-redis-urls is used by --lock-strategy redlock only, not by %s: leave one of them out",
			l.LockStrategy)
	case n > 0 && (n < lockServersMin || n%2 == 0):
		return misused("--lock-redis-urls names %d, but a majority needs an odd number of servers, at least %d",
			n, lockServersMin)
	}
	_, err := (&Config{Locks: Locks{LockServers: *l}}).lockServerOptions()
	return err
}

// AfterApply refuses what is out of bounds, and what the strategy would ignore.
func (l *Locks) AfterApply() error {
	leased := l.LockStrategy == rangeStrategy || l.LockStrategy == redlockStrategy
	switch {
	case l.LockWait < 0 || l.LockWait > 5*time.Second:
		return misused("--lock-wait %s must be from 0s to 5s", l.LockWait)
	case l.LockRenewMax < 0 || l.LockRenewMax > 10*time.Minute:
		return misused("--lock-renew-max %s must be from 0s to 10m", l.LockRenewMax)
	case l.LockFair && l.LockStrategy != rangeStrategy:
		return misused("--lock-fair is for --lock-strategy range only: there is no queue with %s", l.LockStrategy)
	case !leased && l.LockLease == leaseAuto:
		return misused("--lock-lease auto is for --lock-strategy range and redlock only: %s has no leases", l.LockStrategy)
	case !leased && l.LockRenewMax > 0:
		return misused("--lock-renew-max is for --lock-strategy range and redlock only: %s has no leases", l.LockStrategy)
	}
	return nil
}

// AfterApply checks the bounds.
func (o *Operations) AfterApply() error {
	if o.InboundKeep < time.Minute {
		return misused("--inbound-keep %s must be at least 1m", o.InboundKeep)
	}
	return nil
}

// AfterApply checks the bounds.
func (r *Replication) AfterApply() error {
	if r.StreamReplicas < 0 || r.StreamReplicas > replicasMax {
		return misused("--stream-replicas %d must be from 1 to %d, or 0", r.StreamReplicas, replicasMax)
	}
	return nil
}

// AfterApply takes an empty variable for none.
func (d *Directory) AfterApply() error { //nolint:unparam // kong wants an error
	d.DataDir = cmp.Or(d.DataDir, defaultDataDir)
	return nil
}

// missingURL returns an error that says what to do, and that advice, when a server's URL is not given.
func (c *Connections) missingURL(advice string) error {
	for _, url := range []struct{ value, flag, env string }{
		{c.NATSURL, "--nats-url", "HOLDFAST_NATS_URL"},
		{c.RedisURL, "--redis-url", "HOLDFAST_REDIS_URL"},
		{c.PostgresURL, "--postgres-url", "HOLDFAST_POSTGRES_URL"},
	} {
		if url.value == "" {
			return misused("give %s or %s, or %s", url.flag, url.env, advice)
		}
	}
	return nil
}

// startToo is the advice of commands that work on no servers but those that are given.
const startToo = "start the servers too: worker run --embedded, or worker dev"

// find takes the URLs that are not given from the endpoints file of a directory. The namespace is the one there, unless
// another NATS is given.
func (c *Connections) find(dir string) error {
	found, err := endpointsIn(dir)
	if err != nil {
		return err
	}
	if c.NATSURL == "" {
		c.Namespace = cmp.Or(c.Namespace, found["HOLDFAST_NAMESPACE"])
	}
	c.Namespace = cmp.Or(c.Namespace, defaultNamespace)
	c.NATSURL = cmp.Or(c.NATSURL, found["HOLDFAST_NATS_URL"])
	c.RedisURL = cmp.Or(c.RedisURL, found["HOLDFAST_REDIS_URL"])
	c.PostgresURL = cmp.Or(c.PostgresURL, found["HOLDFAST_POSTGRES_URL"])
	return c.missingURL(fmt.Sprintf("the --data-dir of a worker with servers of its own, "+
		"worker dev or worker run --embedded (%s has no such address)", dir))
}

// find takes the servers of redlock from the endpoints file of a directory, unless they are given.
func (l *LockServers) find(dir string) error {
	if l.LockStrategy != redlockStrategy || len(l.LockRedisURLs) > 0 {
		return nil
	}
	found, err := endpointsIn(dir)
	if urls := found["HOLDFAST_LOCK_REDIS_URLS"]; urls != "" {
		l.LockRedisURLs = strings.Split(urls, ",")
	}
	return err
}

// endpointsIn returns where the worker is that has written endpoints.env to a directory, and its servers; nothing
// when there is no such file.
func endpointsIn(dir string) (map[string]string, error) {
	found, err := endpoints.Read(filepath.Join(dir, "endpoints.env"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return found, err
}

// missingLockURLs returns an error that says what to do when Redlock has no servers.
func (l *LockServers) missingLockURLs() error {
	if l.LockStrategy == redlockStrategy && len(l.LockRedisURLs) == 0 {
		return misused("redlock needs Redis servers of its own, an odd number, at least %d: give --lock-redis-urls or "+
			"HOLDFAST_LOCK_REDIS_URLS, or start them too: worker run --embedded, or worker dev", lockServersMin)
	}
	return nil
}

// retention is what the streams depend on.
func (c *Config) retention() events.Retention {
	return events.Retention{HoldLifetime: c.HoldLifetimeMax, AnswerTTL: c.RequestKeyTTL, Replicas: c.StreamReplicas}
}

// policy is the part of the configuration that package holds decides by.
func (c *Config) policy() holds.Policy {
	return holds.Policy{
		HoldTTL: c.HoldTTL, HoldTTLMax: c.HoldTTLMax, HoldLifetimeMax: c.HoldLifetimeMax,
		PaymentWindow: c.PaymentWindow, LatePayment: holds.LatePayment(c.LatePayment), HoldsPerUser: c.HoldsPerUser, NightsMax: c.NightsMax,
		HorizonDays: c.Horizon, RequestKeyTTL: c.RequestKeyTTL, LockWait: c.LockWait,
	}
}
