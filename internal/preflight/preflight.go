// Package preflight checks the servers that a worker would use. For each setting that would break a
// promise of the README it returns the reason and the fix. It changes nothing.
//
// The promises decide the status of a check:
//
//   - It fails when an event that a careful operator expects to survive (full memory, a restart, a power
//     cut, two workers of different versions) would break a promise that makes no exception for it.
//   - It warns when the contract makes an exception (not every hold survives the loss of Redis' data),
//     when several failures must coincide, or when a role may do more than it needs.
//   - It is unknown when the preflight cannot see the setting.
package preflight

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/connect"
	"holdfast/internal/events"
	"holdfast/internal/recovery"
	"holdfast/internal/store"
)

// Status is the result of a check.
type Status string

// The states of a check, the worst last.
const (
	OK      Status = "ok"
	Skipped Status = "skipped" // not requested, or not applicable
	Unknown Status = "unknown" // not visible, or not permitted to be read
	Warn    Status = "warn"    // a risk
	Fail    Status = "fail"    // a promise would be broken
)

// The names of checks that callers refer to. The other checks are named where they are made.
const (
	RedisCluster       = "redis.cluster"
	RedisFormat        = "redis.format"
	RedisCommands      = "redis.commands"
	RedisPrivileges    = "redis.privileges"
	RedisWrites        = "redis.writes" // whether Redis accepts writes now
	NATSReplicas       = "nats.replicas"
	NATSSync           = "nats.sync_interval"
	NATSPrivileges     = "nats.privileges"
	NATSAnswering      = "nats.events"  // whether the user may fetch events and answer them
	NATSReading        = "nats.rebuild" // whether the user may read the streams for a rebuild of Redis
	NATSTrimming       = "nats.trim"    // whether the user may remove inbound events
	NATSConsole        = "nats.console" // whether the user may do what the console needs
	NATSLimits         = "nats.limits"  // whether messages can be stored and consumers be created now
	NATSWorkers        = "nats.workers" // whether the workers that run use the same database
	PostgresFsync      = "postgres.fsync"
	PostgresCommit     = "postgres.synchronous_commit"
	PostgresPages      = "postgres.full_page_writes"
	PostgresCommits    = "postgres.commits" // whether commits end
	PostgresStandbys   = "postgres.standbys"
	PostgresPrivileges = "postgres.privileges"
	PostgresSchema     = "postgres.schema"
	PostgresSessions   = "postgres.sessions"
	PostgresEncoding   = "postgres.encoding"
)

// Privileges are the checks whether the worker's users may do more than a worker needs.
var Privileges = []string{RedisPrivileges, NATSPrivileges, PostgresPrivileges}

// OfWorker are the checks of what only a worker's users may do, or may do at most. Another database may be prepared while
// workers run, so NATSWorkers is one of them.
var OfWorker = append(slices.Clone(Privileges), RedisCommands, NATSAnswering, NATSReading, NATSTrimming, NATSConsole,
	NATSWorkers)

// Required are the checks without which no worker starts: it would misread data or sell slots twice, its
// sessions would not be its own, or the database could not store all texts.
var Required = []string{RedisFormat, PostgresSchema, PostgresSessions, PostgresEncoding}

// Writable are the checks whether the servers accept writes now. A worker starts although one of them fails: it ends
// holds and removes answered events, which makes room, and waits until the servers accept its writes.
var Writable = []string{RedisWrites, NATSLimits, PostgresCommits}

// Durability are the checks whether acknowledged writes survive a crash. None of them is about
// Redis: a restart of Redis can lose writes without a trace, so after each restart it is brought up to date
// or rebuilt from the other servers.
var Durability = []string{NATSReplicas, NATSSync, PostgresFsync, PostgresCommit, PostgresPages, PostgresStandbys}

// Check is the result of one check.
type Check struct {
	Name   string `json:"name"` // server.setting
	Status Status `json:"status"`
	Found  string `json:"found"`           // the value that was found
	Impact string `json:"reason,omitzero"` // the consequence for a worker
	Fix    string `json:"fix,omitzero"`    // a command, or words

	Link *connect.Link `json:"link,omitzero"` // only of the checks redis.link, nats.link and postgres.link
}

// Target has the servers and settings that a worker would use.
type Target struct {
	Namespace   string
	NATSURL     string
	NATSOptions []nats.Option // for a login and certificates by files
	Redis       *redis.Options
	// Primaries finds the servers of a Redis Cluster that have partitions. It is nil for a lone Redis.
	Primaries   func(context.Context) ([]recovery.Server, error)
	LockServers []*redis.Options // for redlock, in their order
	Store       *store.Store
	Optimistic  bool             // the worker locks by transactions
	Retention   events.Retention // how far back outcomes can matter
	Migrates    bool             // the worker creates missing streams, consumers and the schema
	Console     string           // HOLDFAST_CONSOLE: off, read or act
	Monitors    []string         // monitoring addresses of NATS servers, such as http://nats:8222; may be empty
	Skip        []string         // names of checks to skip
}

// within bounds all checks of one server.
const within = 10 * time.Second

// Run runs all checks, of all servers at the same time, in at most about 10 seconds. Their order is
// always the same.
func Run(ctx context.Context, t Target) []Check {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var all sync.WaitGroup
	var ofRedis, ofLocks, ofNATS, ofPostgres report
	var clocks [3]clock
	for _, check := range []func(){
		func() { clocks[0] = ofRedis.allRedis(ctx, t) },
		func() { clocks[1] = ofPostgres.postgres(ctx, t) },
		func() { clocks[2] = ofNATS.nats(ctx, t) },
		func() { ofLocks.lockServers(ctx, t) },
	} {
		all.Go(check)
	}
	all.Wait()
	var ofClocks report
	ofClocks.clocks(clocks[:])
	checks := slices.Concat(ofRedis.checks, ofLocks.checks, ofNATS.checks, ofPostgres.checks, ofClocks.checks)
	for i := range checks {
		if slices.Contains(t.Skip, checks[i].Name) {
			checks[i] = Check{Name: checks[i].Name, Status: Skipped, Found: "not checked"}
		}
	}
	return checks
}

// Filter returns the checks with one of the states.
func Filter(checks []Check, states ...Status) []Check {
	return slices.DeleteFunc(slices.Clone(checks), func(c Check) bool { return !slices.Contains(states, c.Status) })
}

// Format returns a check as text for people, in lines that begin with indent.
func (c Check) Format(indent string) string {
	text := indent + c.Name + ": " + c.Found
	if c.Impact != "" {
		text += "\n" + indent + "  why: " + c.Impact
	}
	if c.Fix != "" {
		text += "\n" + indent + "  do:  " + strings.ReplaceAll(c.Fix, "\n", "\n"+indent+"       ")
	}
	return text
}

// The advice about a server that does not answer in time.
const (
	slow    = "it does not answer in time"
	slowFix = "check the network and the load of the server, and try again"
)

// isTimeout reports whether a server did not answer in time.
func isTimeout(err error) bool {
	late, is := errors.AsType[net.Error](err)
	return is && late.Timeout()
}

// errUnreachable is why the clock of a server could not be read.
var errUnreachable = errors.New("unreachable")

// report collects checks.
type report struct{ checks []Check }

func (r *report) add(name string, status Status, found, why, fix string) {
	found = oneLine(found)
	r.checks = append(r.checks, Check{Name: name, Status: status, Found: found, Impact: why, Fix: fix})
}

// oneLine returns a text on one line. Errors of Postgres' driver have a line for each attempt to connect, often the
// same one twice: with TLS and without.
func oneLine(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(slices.Compact(lines), " ")
}

func (r *report) ok(name, found string)             { r.add(name, OK, found, "", "") }
func (r *report) warn(name, found, why, fix string) { r.add(name, Warn, found, why, fix) }
func (r *report) fail(name, found, why, fix string) { r.add(name, Fail, found, why, fix) }
func (r *report) unknown(name, found, fix string)   { r.add(name, Unknown, found, "", fix) }

// link adds a check how a connection is protected. fix protects it.
func (r *report) link(name string, l *connect.Link, fix string) {
	if risk := l.Risk(); risk != "" {
		r.warn(name, l.String(), risk, fix)
	} else {
		r.ok(name, l.String())
	}
	r.checks[len(r.checks)-1].Link = l
}

// version adds a check that the version of a server is not older than oldest. Both begin with two numbers between dots.
func (r *report) version(name, server, version, oldest, why, fix string) {
	const form = "%d.%d"
	var has, want [2]int
	_, _ = fmt.Sscanf(oldest, form, &want[0], &want[1]) // a constant
	switch _, err := fmt.Sscanf(version, form, &has[0], &has[1]); {
	case err != nil:
		r.unknown(name, fmt.Sprintf("it reports version %.20q", version), "make sure that it is "+server+" "+oldest+" or newer")
	case slices.Compare(has[:], want[:]) < 0:
		r.fail(name, version, why, fix)
	default:
		r.ok(name, version)
	}
}

// skipAll adds skipped checks: they are impossible because of an earlier one.
func (r *report) skipAll(because string, names ...string) {
	for _, name := range names {
		r.add(name, Skipped, because, "", "")
	}
}

// drifts adds one check for all drifts of a configuration. It is ok when there are none, and fails
// when one of them breaks a promise.
func (r *report) drifts(name, found string, drifts []events.ConfigDrift) {
	if len(drifts) == 0 {
		r.ok(name, found)
		return
	}
	status := Warn
	var founds, whys, fixes []string
	for _, f := range drifts {
		if f.Fatal {
			status = Fail
		}
		founds = append(founds, f.Found)
		if !slices.Contains(whys, f.Impact) {
			whys = append(whys, f.Impact)
		}
		if !slices.Contains(fixes, f.Fix) {
			fixes = append(fixes, f.Fix)
		}
	}
	r.add(name, status, strings.Join(founds, "; "), strings.Join(whys, "; "), strings.Join(fixes, "\n"))
}

// The checks how the connections are protected, besides postgresLink.
const (
	redisLink = "redis.link"
	natsLink  = "nats.link"
)

// redisLink opens a connection as a client does, and adds a check how it is protected.
func (r *report) redisLink(ctx context.Context, client *redis.Client) {
	options := client.Options()
	conn, err := options.Dialer(ctx, options.Network, options.Addr)
	if err != nil {
		r.unknown(redisLink, err.Error(), "check again")
		return
	}
	defer func() { _ = conn.Close() }() // nothing was sent
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
	r.link(redisLink, connect.LinkOf(conn, certificate, login),
		"use rediss:// or rediss+sentinel:// with a user and --redis-ca-file")
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
