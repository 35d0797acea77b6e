package main

import (
	"fmt"
	"time"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// Config is everything that can be set, each by a flag or by the environment. The table in
// README.md is generated from it.
type Config struct {
	NATSURL         string        `name:"nats-url" env:"HOLDFAST_NATS_URL" placeholder:"URL" help:"NATS with JetStream."`
	RedisURL        string        `name:"redis-url" env:"HOLDFAST_REDIS_URL" placeholder:"URL" help:"Redis 7 or newer (tested with 7.0), with a maxmemory-policy that does not evict."`
	PostgresURL     string        `name:"postgres-url" env:"HOLDFAST_POSTGRES_URL" placeholder:"URL" help:"Postgres; tested with 15."`
	Namespace       string        `name:"namespace" env:"HOLDFAST_NAMESPACE" default:"${namespace}" help:"First token of subjects, prefix of Redis keys, schema in Postgres."`
	HTTPAddr        string        `name:"http-addr" env:"HOLDFAST_HTTP_ADDR" default:"127.0.0.1:8080" help:"Where health, readiness, metrics and queries are served."`
	HoldTTL         time.Duration `name:"hold-ttl" env:"HOLDFAST_HOLD_TTL" default:"10m" help:"How long a hold lasts when its request names no ttl."`
	HoldTTLMax      time.Duration `name:"hold-ttl-max" env:"HOLDFAST_HOLD_TTL_MAX" default:"1h" help:"The longest ttl that a request may name."`
	HoldLifetimeMax time.Duration `name:"hold-lifetime-max" env:"HOLDFAST_HOLD_LIFETIME_MAX" default:"2h" help:"The longest life of a hold, extensions included."`
	PaymentWindow   time.Duration `name:"payment-window" env:"HOLDFAST_PAYMENT_WINDOW" default:"5m" help:"What a hold has at least when its payment was started."`
	LatePayment     string        `name:"late-payment" env:"HOLDFAST_LATE_PAYMENT" default:"reject" enum:"reject,accept_if_free" help:"What becomes of a payment for a hold that has lapsed: reject, or accept_if_free."`
	HoldsPerUser    int           `name:"holds-per-user" env:"HOLDFAST_HOLDS_PER_USER" default:"10" help:"Live holds of one user on one resource."`
	NightsMax       int           `name:"nights-max" env:"HOLDFAST_NIGHTS_MAX" default:"90" help:"Nights in one request."`
	Horizon         int           `name:"horizon" env:"HOLDFAST_HORIZON" default:"1095" help:"How many days ahead a night can be asked for."`
	RequestKeyTTL   time.Duration `name:"request-key-ttl" env:"HOLDFAST_REQUEST_KEY_TTL" default:"24h" help:"How long answers and ended holds are remembered."`
	LockStrategy    string        `name:"lock-strategy" env:"HOLDFAST_LOCK_STRATEGY" default:"range" enum:"range,redlock,optimistic,none" help:"How work on the same slots is ordered: range, redlock, optimistic or none. Results are right with each."`
	LockRedisURLs   []string      `name:"lock-redis-urls" env:"HOLDFAST_LOCK_REDIS_URLS" placeholder:"URL" help:"Redis servers that redlock locks on: an odd number, at least 3, that replicate nothing to each other."`
	LockLease       leaseSetting  `name:"lock-lease" env:"HOLDFAST_LOCK_LEASE" default:"5s" help:"After how long a lock ends by itself, 100ms to 1m; or auto: from what is measured."`
	LockRenewMax    time.Duration `name:"lock-renew-max" env:"HOLDFAST_LOCK_RENEW_MAX" default:"0s" help:"For how long a lock is renewed, each third of its lease, while its work goes on; at most 10m. 0s: never."`
	LockFair        bool          `name:"lock-fair" env:"HOLDFAST_LOCK_FAIR" default:"false" help:"Only range: who waits for a lock queues, first in, first out."`
	LockWait        time.Duration `name:"lock-wait" env:"HOLDFAST_LOCK_WAIT" default:"2s" help:"How long a request waits for a lock before it is delivered again."`
	Reconcile       string        `name:"reconcile" env:"HOLDFAST_RECONCILE" default:"heal" enum:"heal,report,off" help:"What is done about differences in what is kept: heal what follows from the records, only report, or off: nobody looks."`
	NATSMonitorURLs []string      `name:"nats-monitor-urls" env:"HOLDFAST_NATS_MONITOR_URLS" placeholder:"URL" help:"Monitoring addresses of the NATS servers, like http://nats:8222: the preflight asks them for sync_interval."`
	Preflight       string        `name:"preflight" env:"HOLDFAST_PREFLIGHT" default:"refuse" enum:"refuse,warn" help:"On servers that would break a promise (see worker preflight): refuse to start, or warn and start."`
	LogLevel        string        `name:"log-level" env:"HOLDFAST_LOG_LEVEL" default:"${log_level}" enum:"debug,info,warn,error" help:"What is logged: debug, info, warn or error."`

	NoNotifications bool `name:"no-notifications" env:"HOLDFAST_NO_NOTIFICATIONS" hidden:"" help:"For tests: ignore keyspace notifications."`
	NoTimer         bool `name:"no-timer" env:"HOLDFAST_NO_TIMER" hidden:"" help:"For tests: no deadline timer."`
}

// defaultNamespace is the namespace that is used where none is given.
const defaultNamespace = "holdfast"

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

// AfterApply checks what the types do not say. kong calls it.
func (c *Config) AfterApply() error {
	switch {
	case c.Namespace != "" && !holds.NamespacePattern.MatchString(c.Namespace):
		return misused("--namespace %q must match %s", c.Namespace, holds.NamespacePattern)
	case c.HoldTTL < time.Second || c.HoldTTL > c.HoldTTLMax:
		return misused("--hold-ttl %s must be from 1s to --hold-ttl-max (%s)", c.HoldTTL, c.HoldTTLMax)
	case c.HoldTTLMax > c.HoldLifetimeMax:
		return misused("--hold-ttl-max %s must not exceed --hold-lifetime-max (%s)", c.HoldTTLMax, c.HoldLifetimeMax)
	case c.PaymentWindow < time.Second || c.PaymentWindow > c.HoldLifetimeMax:
		return misused("--payment-window %s must be from 1s to --hold-lifetime-max (%s)", c.PaymentWindow, c.HoldLifetimeMax)
	case c.RequestKeyTTL < c.HoldLifetimeMax:
		return misused("--request-key-ttl %s must not be shorter than --hold-lifetime-max (%s): a hold would outlive the memory of its request", c.RequestKeyTTL, c.HoldLifetimeMax)
	case c.HoldsPerUser < 1, c.NightsMax < 1, c.NightsMax > 1000, c.Horizon < 1:
		return misused("--holds-per-user, --nights-max (at most 1000) and --horizon must be at least 1")
	case c.LockWait < 0 || c.LockWait > 5*time.Second:
		return misused("--lock-wait %s must be from 0s to 5s", c.LockWait)
	case c.LockRenewMax < 0 || c.LockRenewMax > 10*time.Minute:
		return misused("--lock-renew-max %s must be from 0s to 10m", c.LockRenewMax)
	}
	return c.checkLocks()
}

// checkLocks refuses what the strategy would ignore, and servers that Redlock cannot work with.
func (c *Config) checkLocks() error {
	leased := c.LockStrategy == rangeStrategy || c.LockStrategy == redlockStrategy
	switch n := len(c.LockRedisURLs); {
	case n > 0 && c.LockStrategy != redlockStrategy:
		return misused("--lock-redis-urls is used by --lock-strategy redlock only, not by %s: leave one of them out", c.LockStrategy)
	case n > 0 && (n < lockServersMin || n%2 == 0):
		return misused("--lock-redis-urls names %d, but a majority needs an odd number of servers, at least %d", n, lockServersMin)
	case c.LockFair && c.LockStrategy != rangeStrategy:
		return misused("--lock-fair is for --lock-strategy range only: nobody queues with %s", c.LockStrategy)
	case !leased && c.LockLease == leaseAuto:
		return misused("--lock-lease auto is for --lock-strategy range and redlock only: %s has no leases", c.LockStrategy)
	case !leased && c.LockRenewMax > 0:
		return misused("--lock-renew-max is for --lock-strategy range and redlock only: %s has no leases", c.LockStrategy)
	}
	_, err := c.lockServerOptions()
	return err
}

// missingURL returns an error that says what to do when a server's URL is not given.
func (c *Config) missingURL() error {
	for _, url := range []struct{ value, flag, env string }{
		{c.NATSURL, "--nats-url", "HOLDFAST_NATS_URL"},
		{c.RedisURL, "--redis-url", "HOLDFAST_REDIS_URL"},
		{c.PostgresURL, "--postgres-url", "HOLDFAST_POSTGRES_URL"},
	} {
		if url.value == "" {
			return misused("give %s or %s, or start the servers too: worker run --embedded, or worker dev", url.flag, url.env)
		}
	}
	return nil
}

// missingLockURLs returns an error that says what to do when Redlock has no servers.
func (c *Config) missingLockURLs() error {
	if c.LockStrategy == redlockStrategy && len(c.LockRedisURLs) == 0 {
		return misused("redlock needs Redis servers of its own, an odd number, at least %d: give --lock-redis-urls or "+
			"HOLDFAST_LOCK_REDIS_URLS, or start them too: worker run --embedded, or worker dev", lockServersMin)
	}
	return nil
}

// reach is how far back an outcome can matter.
func (c *Config) reach() events.Reach {
	return events.Reach{Life: c.HoldLifetimeMax, Memory: c.RequestKeyTTL}
}

// policy is the part of the configuration that package holds decides by.
func (c *Config) policy() holds.Policy {
	return holds.Policy{
		HoldTTL: c.HoldTTL, HoldTTLMax: c.HoldTTLMax, HoldLifetimeMax: c.HoldLifetimeMax,
		PaymentWindow: c.PaymentWindow, LatePayment: holds.LatePayment(c.LatePayment), HoldsPerUser: c.HoldsPerUser, NightsMax: c.NightsMax,
		HorizonDays: c.Horizon, RequestKeyTTL: c.RequestKeyTTL, LockWait: c.LockWait,
	}
}
