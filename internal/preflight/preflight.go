// Package preflight looks at the servers that a worker would use, and says what about them would
// break a promise of section 11 of the contract, why, and what mends it. It changes nothing.
//
// What fails and what only warns is decided by the promises. It fails if something that a careful
// operator expects to survive (a full memory, a restart, a power cut, two workers of different
// versions) would break one that makes no exception for it. It warns where the contract makes an
// exception (not every hold survives the loss of Redis' data), where more
// than one thing has to go wrong, and where a role may do more than it needs. It does not guess:
// what it cannot see is unknown.
package preflight

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/events"
	"holdfast/internal/store"
)

// Status is what a check has come to.
type Status string

// The states of a check, the worst last.
const (
	OK      Status = "ok"
	Skipped Status = "skipped" // it was not asked for, or means nothing here
	Unknown Status = "unknown" // it cannot be seen, or is not permitted to be
	Warn    Status = "warn"    // a risk
	Fail    Status = "fail"    // a promise would be broken
)

// The names of the checks that some workers leave out, or never do. The others are named where they are made.
const (
	RedisFormat        = "redis.format"
	RedisCommands      = "redis.commands"
	RedisPrivileges    = "redis.privileges"
	NATSReplicas       = "nats.replicas"
	NATSSync           = "nats.sync_interval"
	NATSPrivileges     = "nats.privileges"
	PostgresFsync      = "postgres.fsync"
	PostgresCommit     = "postgres.synchronous_commit"
	PostgresPages      = "postgres.full_page_writes"
	PostgresPrivileges = "postgres.privileges"
	PostgresSchema     = "postgres.schema"
)

// Privileges are the checks that ask whether somebody may do more than a worker needs.
var Privileges = []string{RedisPrivileges, NATSPrivileges, PostgresPrivileges}

// Versions are the checks that ask whether what is kept was written by a version that this program knows: no
// worker starts where one of them fails.
var Versions = []string{RedisFormat, PostgresSchema}

// Durability are the checks that ask whether what was acknowledged outlives a crash. None is of Redis: nobody
// can know what it has lost, so after each restart it is filled again from the others, whatever it has.
var Durability = []string{NATSReplicas, NATSSync, PostgresFsync, PostgresCommit, PostgresPages}

// Check is one thing that was looked at.
type Check struct {
	Name   string `json:"name"` // server.thing
	Status Status `json:"status"`
	Found  string `json:"found"`           // what there is
	Impact string `json:"reason,omitzero"` // what would come of it
	Fix    string `json:"fix,omitzero"`    // what to do: a command, or words
}

// Target is what a worker would use.
type Target struct {
	Namespace   string
	NATSURL     string
	Redis       *redis.Options
	LockServers []*redis.Options // of redlock, in their order
	Store       *store.Store
	Optimistic  bool             // the worker locks by transactions
	Retention   events.Retention // how far back outcomes can matter
	Migrates    bool             // the worker creates what is missing
	Monitors    []string         // monitoring addresses of NATS servers, like http://nats:8222; may be empty
	Skip        []string         // names of checks that are not made
}

// within bounds everything that is asked of one server.
const within = 10 * time.Second

// Run makes all checks, of all servers at the same time, in at most about 10 seconds. Their order
// is always the same.
func Run(ctx context.Context, t Target) []Check {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var all sync.WaitGroup
	var ofRedis, ofLocks, ofNATS, ofPostgres report
	var clocks [3]clock
	for _, check := range []func(){
		func() { clocks[0] = ofRedis.redis(ctx, t) },
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
			checks[i] = Check{Name: checks[i].Name, Status: Skipped, Found: "not looked at"}
		}
	}
	return checks
}

// Filter returns the checks with one of the states.
func Filter(checks []Check, states ...Status) []Check {
	return slices.DeleteFunc(slices.Clone(checks), func(c Check) bool { return !slices.Contains(states, c.Status) })
}

// Format tells a check that is not ok to a person, in lines that begin with indent.
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

// report collects checks.
type report struct{ checks []Check }

func (r *report) add(name string, status Status, found, why, fix string) {
	found = strings.Join(strings.Fields(found), " ") // some drivers tell errors in several lines
	r.checks = append(r.checks, Check{name, status, found, why, fix})
}

func (r *report) ok(name, found string)             { r.add(name, OK, found, "", "") }
func (r *report) warn(name, found, why, fix string) { r.add(name, Warn, found, why, fix) }
func (r *report) fail(name, found, why, fix string) { r.add(name, Fail, found, why, fix) }
func (r *report) unknown(name, found, fix string)   { r.add(name, Unknown, found, "", fix) }

// skipAll skips what cannot be looked at because something before it has failed.
func (r *report) skipAll(because string, names ...string) {
	for _, name := range names {
		r.add(name, Skipped, because, "", "")
	}
}

// drifts adds one check for all faults of something: it is ok when there are none, and fails when
// one of them breaks a promise.
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
		founds, whys = append(founds, f.Found), append(whys, f.Impact)
		if !slices.Contains(fixes, f.Fix) {
			fixes = append(fixes, f.Fix)
		}
	}
	r.add(name, status, strings.Join(founds, "; "), strings.Join(whys, "; "), strings.Join(fixes, "\n"))
}
