package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/lua"
	"holdfast/internal/postgres"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
)

// Backends holds the clients of the three servers that keep a namespace's data.
type Backends struct {
	Namespace string
	JetStream jetstream.JetStream
	Redis     redis.UniversalClient // with MaxRetries -1, so that no repair is sent twice
	Postgres  *pgxpool.Pool         // see OpenPostgres
}

// Options select what an audit checks.
type Options struct {
	ResourceID string // the only resource to audit, "" for all
	// CapacityByEvents states that no capacity is written by SQL, so the published capacities are
	// all that there were.
	CapacityByEvents bool
	// Progress, unless nil, is called from time to time with the part that is being read and the
	// share of the audit that is done, 0 to 1.
	Progress func(what string, share float64)

	groupMessages uint64 // messages of the streams that are in memory at a time, 0 for the default
}

const (
	groupMessages = 1_000_000
	findingsMax   = 1000 // findings of one kind in a report
)

// Stats counts what an audit has read.
type Stats struct {
	Events       int `json:"events"`
	Outcomes     int `json:"outcomes"`
	DeadLetters  int `json:"dead_letters"`
	Resources    int `json:"resources"`
	Records      int `json:"records"` // of holds that Redis remembers
	Keys         int `json:"keys"`    // in Redis
	Reservations int `json:"reservations"`
	Payments     int `json:"payments"`
	Slots        int `json:"slots"` // with inventory
}

// Pending counts work in progress. None of it is a fault.
type Pending struct {
	Events        int         `json:"events"` // without an outcome yet
	Oldest        *holds.Time `json:"oldest"` // when the oldest event without an outcome was stored, nil without one
	Expirations   int         `json:"lapses"` // holds past their deadline that are not swept yet
	Announcements int         `json:"announcements"`
}

// event adds an event without an outcome yet.
func (p *Pending) event(stored int64) {
	at := holds.TimeFromMillis(stored)
	p.add(Pending{Events: 1, Oldest: &at})
}

func (p *Pending) add(other Pending) {
	p.Events += other.Events
	p.Expirations += other.Expirations
	p.Announcements += other.Announcements
	if p.Oldest == nil || other.Oldest != nil && other.Oldest.Before(p.Oldest.Time) {
		p.Oldest = other.Oldest
	}
}

// Report is the result of an audit.
type Report struct {
	Namespace    string                 `json:"namespace"`
	At           holds.Time             `json:"at"` // by Redis' clock, when it began
	TookMS       int64                  `json:"took_ms"`
	Stats        Stats                  `json:"checked"`
	Pending      Pending                `json:"pending"`
	StreamStarts map[string]StreamStart `json:"since"`       // by stream
	Inconclusive []string               `json:"cannot_tell"` // what could not be checked, and why
	Counts       map[Kind]int           `json:"counts"`
	Findings     []*Finding             `json:"findings"` // at most 1,000 of a kind
}

// StreamStart is the position of the first message that a stream still has.
type StreamStart struct {
	Seq   uint64      `json:"seq"`
	Time  *holds.Time `json:"time"`  // when the message was stored, nil when the stream is empty
	Whole bool        `json:"whole"` // no older message was dropped
}

// Unrepaired returns how many differences were found and not repaired.
func (r *Report) Unrepaired() (n int) {
	for _, count := range r.Counts {
		n += count
	}
	for _, f := range r.Findings {
		if f.Result.resolved() {
			n--
		}
	}
	return n
}

// add adds findings to the report: all to the counts, and at most findingsMax of a kind to the
// list.
func (r *Report) add(found []*Finding) {
	for _, f := range found {
		r.Counts[f.Kind]++
		if r.Counts[f.Kind] <= findingsMax {
			r.Findings = append(r.Findings, f)
		}
	}
}

// The reasons why something could not be checked.
const (
	outcomesDropped    = "events older than the outbound stream, whose outcomes were dropped"
	endsDropped        = "holds granted before the outbound stream begins, whose ends may have been dropped"
	eventsDropped      = "outcomes that may belong to events that were dropped from the inbound stream"
	deadLettersDropped = "events without outcomes older than the stream of dead letters, whose dead letters may have " +
		"been in a deleted stream"
	deadLettersRemoved   = "events without an outcome or a dead letter, whose dead letters may have been removed"
	unprocessableRemoved = "events that cannot be processed and have no dead letter, while as many were removed"
	former               = "outcomes published before the schema of this database was created, which are not checked"
	notCompared          = "differences that may be gone when workers have compared Postgres with the outbound stream (start them, " +
		"then audit again)"
	slotsCut = "slots granted beyond their last published capacity, which was raised by SQL, or they were oversold " +
		"(audit with --capacity-by-events if no capacity is written by SQL)"
	slotsFormer = "slots taken beyond their current capacity at times whose capacity is unknown"
	slotsGone   = "slots with reservations and without an inventory row, whose reserved number cannot be compared"
	pastRemoved = "reservations of nights that are over, which were removed as docs/storage.md allows, or lost"
	unread      = "resources that could not be read in redis, which has lost their data or was rebuilt meanwhile"
	uncounted   = "resources whose counters could not be compared with their holds (a hold is unreadable, the resource is " +
		"too busy, or the clock of redis was set back)"
	recounts    = "slots that need too many recounts (was the clock of redis set back?)"
	unknownKeys = "keys or entries in redis that are unknown to this version"
)

// inconclusive counts what could not be checked, by the reason.
type inconclusive map[string]int

// auditor is one running audit.
type auditor struct {
	*inspector
	options      Options
	subjects     events.Namespace
	report       *Report
	inconclusive inconclusive

	inbound, outbound *stream // as they were opened; each group reads copies of them

	installed int64                 // when the schema was created, ms; older outcomes are of another database
	lostSales map[string]*Finding   // findings about sales in lost_commits, by hold
	reserved  map[string][]*Finding // findings about inventory.reserved, by resource
	unstored  bool                  // the outbound stream lacks outcomes of what Redis has: a rebuild would lose that
}

// Run audits a namespace, or one resource of it, and returns what contradicts the promises. It only
// reads. Workers may run meanwhile; doc.go explains why that causes no findings. An error means
// that something could not be read.
func Run(ctx context.Context, backends Backends, options Options) (*Report, error) {
	began := time.Now()
	a := &auditor{
		inspector: newInspector(backends), options: options, subjects: events.Namespace(backends.Namespace),
		inconclusive: make(inconclusive),
		report: &Report{Namespace: backends.Namespace, StreamStarts: make(map[string]StreamStart),
			Inconclusive: []string{}, Counts: make(map[Kind]int), Findings: []*Finding{}},
	}
	if options.Progress == nil {
		a.options.Progress = func(string, float64) {}
	}
	if err := a.run(ctx); err != nil {
		return nil, fmt.Errorf("audit of %s: %w", backends.Namespace, err)
	}
	a.report.TookMS = time.Since(began).Milliseconds()
	return a.report, nil
}

func (a *auditor) run(ctx context.Context) error {
	servers, err := lua.Primaries(ctx, a.Redis)
	if err != nil {
		return fmt.Errorf("find the servers of redis: %w", err)
	}
	now, err := servers[0].Time(ctx).Result()
	if err != nil {
		return fmt.Errorf("read the clock of redis: %w", err)
	}
	a.report.At = holds.TimeFromMillis(now.UnixMilli())
	if err := a.readRow(ctx, query("installed"), &a.installed); err != nil {
		return fmt.Errorf("read when the schema was created: %w", postgres.HintMigrate(err))
	}
	for _, step := range []func(context.Context) ([]*Finding, error){a.checkEpoch, a.checkConstraints,
		a.checkLostCommits, a.checkSums, a.checkGroups} {
		found, err := step(ctx)
		if err != nil {
			return err
		}
		a.report.add(found)
	}
	if a.unstored {
		a.keepUnstored()
	}
	for _, reason := range slices.Sorted(maps.Keys(a.inconclusive)) {
		if n := a.inconclusive[reason]; n > 0 {
			a.report.Inconclusive = append(a.report.Inconclusive, fmt.Sprintf("%s: %d", reason, n))
		}
	}
	slices.SortStableFunc(a.report.Findings, func(x, y *Finding) int {
		return strings.Compare(x.Resource+"\x00"+string(x.Kind)+"\x00"+x.Item,
			y.Resource+"\x00"+string(y.Kind)+"\x00"+y.Item)
	})
	return a.explain(ctx)
}

// keepUnstored replaces the remedies that rebuild Redis: a rebuild would lose what Redis alone has.
func (a *auditor) keepUnstored() {
	const loses = "A rebuild of Redis would lose live holds, or their last deadlines, and grant their slots to others: the " +
		"outbound stream lacks them, as after the restore of an older copy. "
	for _, f := range a.report.Findings {
		switch {
		case !strings.Contains(f.Remedy, "worker rebuild"):
		case f.Kind == DataLost: // nothing is granted there until it is rebuilt
			f.Remedy = loses + f.Remedy
		case f.Kind == EndUnannounced && f.Expected == holds.EventHoldConfirmed:
			f.Remedy = "If Postgres has no reservation of it, its slots may be sold again: enter the sale again or refund it, before " +
				"Redis forgets the hold. Else inform its publisher. " + notSafe
		default:
			f.Remedy = loses + "Wait until these holds have ended, then audit again (see \"Backup\" in docs/operating.md). " + notSafe
		}
	}
}

// readMarkers returns the positions in the outbound stream that the markers in Redis name, those that can be read: who reads
// the records reports a server that does not answer.
func (a *auditor) readMarkers(ctx context.Context) map[holds.LogPosition]struct{} {
	pipe := a.Redis.Pipeline()
	found := make([]*redis.StringCmd, record.Partitions)
	for p := range found {
		found[p] = pipe.Get(ctx, a.keys.Applied(p))
	}
	_, _ = pipe.Exec(ctx)                           // each command has its error
	markers := make(map[holds.LogPosition]struct{}) // most partitions have the same
	for _, cmd := range found {
		if p, ok := recovery.MarkedPosition(cmd.Val()); ok {
			markers[p] = struct{}{}
		}
	}
	return markers
}

// checkMarkers notes whether the outbound stream lacks what it had up to one of the markers.
func (a *auditor) checkMarkers(ctx context.Context, out *stream, markers map[holds.LogPosition]struct{}) error {
	for p := range markers {
		if !p.StoredAt.IsZero() {
			p.Created = out.created // a complete copy that was restored has a new time of creation, and lacks nothing
		}
		back, err := out.goneBack(ctx, p)
		if err != nil {
			return err
		}
		a.unstored = a.unstored || back
	}
	return nil
}

// epochs are what the partitions of Redis must have, "" where nothing is checked.
type epochs [record.Partitions]string

// epochsOf returns the epochs under which a worker decides.
func epochsOf(current *holds.CurrentEpochs) (e epochs) {
	for p := range e {
		e[p] = current.Partition(p).Name
	}
	return e
}

// readEpochs returns the epochs that the partitions of Redis must have. While some of them lack data
// that was written to them, it also returns a *holds.RebuildingError.
func (s *Backends) readEpochs(ctx context.Context) (e epochs, err error) {
	var partitions []int
	var epoch, why, progress string
	var written bool
	var rebuilding []string
	known := false
	values := []any{&partitions, &epoch, &written, &why, &progress}
	err = forEachRow(ctx, s.Postgres, query("epoch"), nil, values, func() error {
		switch {
		case written:
			known = true
			for _, p := range partitions {
				e[p] = epoch
			}
		case why != "":
			state := quoted(why) + "; the rebuild has not started"
			if progress != "" {
				state = quoted(why) + "; the rebuild is running: " + quoted(progress)
			}
			if set := record.PartitionSetOf(partitions...); set != record.AllPartitions {
				state = set.String() + ": " + state
			}
			rebuilding = append(rebuilding, state)
		}
		return nil
	})
	switch {
	case err != nil:
		return e, fmt.Errorf("read the epochs: %w", postgres.HintMigrate(err))
	case len(rebuilding) > 0:
		return e, &holds.RebuildingError{Progress: strings.Join(rebuilding, "; ")}
	case !known:
		return e, errors.New("redis was never initialised for this database: run `worker migrate` first")
	}
	return e, nil
}

// wasRebuilt reports whether Redis lost its data and was rebuilt since the schema was created. Only
// the first epoch of a partition has no number.
func (a *auditor) wasRebuilt() bool {
	return slices.ContainsFunc(a.epochs[:], func(epoch string) bool { return strings.Contains(epoch, "/") })
}

// The remedies of partitions without the epoch that they must have.
const (
	remedyLost = "A running worker detects this and rebuilds Redis: see its log and /readyz. To rebuild by hand, or if they " +
		"say that the data belongs to another database, run worker rebuild. Nothing is granted until then. "
	remedyForeign = "Workers leave such data alone and decide nothing on its server. Check whether another database uses " +
		"the same Redis and namespace. If none does, run worker rebuild, which replaces the data. "
)

// checkEpoch finds partitions whose data Redis has lost or which another database has written, or which are being
// rebuilt.
func (a *auditor) checkEpoch(ctx context.Context) (all []*Finding, err error) {
	a.epochs, err = a.readEpochs(ctx)
	rebuilding, isRebuilding := errors.AsType[*holds.RebuildingError](err)
	if err != nil && !isRebuilding {
		return nil, err
	}
	if _, err := recovery.ReadFormat(ctx, a.Namespace, a.Redis); errors.Is(err, recovery.ErrUnknownFormat) {
		return nil, err
	}
	pipe := a.Redis.Pipeline()
	found := make([]*redis.StringCmd, record.Partitions)
	for p := range found {
		found[p] = pipe.Get(ctx, a.keys.Epoch(p))
	}
	if err := lua.Exec(ctx, pipe); err != nil {
		return nil, fmt.Errorf("read the epochs: %w", err)
	}
	var waiting, lost, foreign record.PartitionSet
	is := "nothing"
	for p, cmd := range found {
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, fmt.Errorf("read the epoch of partition %d: %w", p, err)
		}
		switch want := a.epochs[p]; {
		case want == "":
			waiting.Add(p)
		case cmd.Val() != "" && databaseOf(cmd.Val()) != databaseOf(want):
			foreign.Add(p)
		case cmd.Val() != want:
			lost.Add(p)
		default:
			continue
		}
		if cmd.Val() != "" {
			is = quoted(cmd.Val())
		}
	}
	report := func(of record.PartitionSet, expected, text, remedy string) {
		all = append(all, &Finding{
			Kind: DataLost, Item: fmt.Sprintf("%d partitions", of.Len()), Where: string(a.keys.Keyspace) + ":{...}:epoch",
			Expected: expected, Found: is, Text: text, Remedy: remedy + notSafe,
		})
	}
	if waiting != 0 {
		report(waiting, "an epoch that postgres knows",
			"Redis has lost data: "+rebuilding.Progress+". The audit does not check what Redis holds there.", remedyLost)
	}
	if lost != 0 {
		report(lost, a.epochs[lost.Sorted()[0]],
			fmt.Sprintf("%d of %d partitions of Redis lack the epoch that Postgres has: their data is lost. The audit does "+
				"not check what they hold.", lost.Len(), record.Partitions), remedyLost)
	}
	if foreign != 0 {
		report(foreign, a.epochs[foreign.Sorted()[0]], fmt.Sprintf("%d of %d partitions of Redis have an epoch of another "+
			"database. The audit does not check what they hold.", foreign.Len(), record.Partitions), remedyForeign)
	}
	return all, nil
}

// databaseOf returns the part of an epoch that all epochs of one database share.
func databaseOf(epoch string) string {
	return epoch[:strings.IndexAny(epoch+" ", "/ ")]
}

func (a *auditor) checkSums(ctx context.Context) ([]*Finding, error) {
	var only []string
	if a.options.ResourceID != "" {
		only = []string{a.options.ResourceID}
	}
	found, gone, err := a.checkReserved(ctx, only)
	a.reserved = make(map[string][]*Finding)
	for _, f := range found {
		a.reserved[f.Resource] = append(a.reserved[f.Resource], f)
	}
	a.inconclusive[slotsGone] = gone
	return found, err
}

// checkGroups audits the resources in as many groups as needed for the data of each group to fit
// into memory.
func (a *auditor) checkGroups(ctx context.Context) (all []*Finding, err error) {
	keyed, err := a.scanKeys(ctx)
	if err != nil {
		return nil, err
	}
	markers := a.readMarkers(ctx) // workers move them behind the stream
	streams, messages, err := a.openStreams(ctx)
	if err != nil {
		return nil, err
	}
	a.inbound, a.outbound = streams[0], streams[1]
	if err := a.checkMarkers(ctx, a.outbound, markers); err != nil {
		return nil, err
	}
	groups := 1
	if a.options.ResourceID == "" {
		sales, err := a.countSales(ctx)
		if err != nil {
			return nil, err
		}
		each := cmp.Or(a.options.groupMessages, groupMessages)
		groups = max(1, int((messages+sales+each-1)/each))
	}
	var g *group
	var unanswered, withoutDeadLetter []uint64
	for n := range groups {
		in, out, dlq := *streams[0], *streams[1], *streams[2] // each group reads them from the beginning
		g = &group{
			auditor: a, number: n, of: groups, in: &in, out: &out, dlq: &dlq,
			events: make(map[id]*event), pending: make(map[string][]*event),
			deadLetters: make(map[uint64]*deadLetter), formerHolds: make(map[id]struct{}),
			resources: make(map[string]*resource),
		}
		found, err := g.audit(ctx, keyed)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
		a.report.Pending.add(g.waiting)
		for reason, n := range g.inconclusive {
			a.inconclusive[reason] += n
		}
		unanswered, withoutDeadLetter = append(unanswered, g.unanswered...),
			append(withoutDeadLetter, g.withoutDeadLetter...)
	}
	for _, name := range events.ConsumerNames() {
		if _, there := g.floors[name]; !there {
			a.report.Inconclusive = append(a.report.Inconclusive,
				fmt.Sprintf("consumer %s of %s is missing: its events wait until a worker or `worker migrate` creates it",
					name, a.subjects.InStream()))
		}
	}
	return append(all, a.checkUnanswered(unanswered, withoutDeadLetter, g.dlq.removed())...), nil
}

// openStreams opens the inbound stream, the outbound stream and that of the dead letters, reports where they
// start, and counts their messages.
func (a *auditor) openStreams(ctx context.Context) (streams [3]*stream, messages uint64, err error) {
	for i, name := range []string{a.subjects.InStream(), a.subjects.OutStream(), a.subjects.DLQStream()} {
		if streams[i], err = openStream(ctx, a.JetStream, name); err != nil {
			return streams, 0, err
		}
		messages += streams[i].state.Msgs
		since := StreamStart{Seq: streams[i].state.FirstSeq, Whole: streams[i].isWhole()}
		if !streams[i].since.IsZero() {
			at := holds.Time{Time: streams[i].since.UTC()}
			since.Time = &at
		}
		a.report.StreamStarts[name] = since
	}
	return streams, messages, nil
}

// scanKeys checks all keys of Redis by their names. It returns the differences by resource, with an
// entry for every resource that has keys.
func (a *auditor) scanKeys(ctx context.Context) (map[string][]difference, error) {
	keyed, names := make(map[string][]difference), make(map[string][]string)
	note := func(resource string, found ...difference) { keyed[resource] = append(keyed[resource], found...) }
	strange, waiting := 0, 0
	check := func() error {
		found, err := a.strays(ctx, names)
		for name := range names {
			note(name, found[name]...)
		}
		clear(names)
		waiting = 0
		return err
	}
	for keys, err := range a.scan(ctx, a.keys.pattern(a.options.ResourceID)) {
		if err != nil {
			return nil, err
		}
		for _, k := range keys {
			a.report.Stats.Keys++
			switch {
			case !k.ours:
				strange++
			case k.resource == "":
			case isOwn(k.name):
				note(k.resource)
			default:
				names[k.resource] = append(names[k.resource], k.name)
				waiting++
			}
		}
		a.options.Progress("redis", 0)
		if waiting < keysAhead {
			continue
		}
		if err := check(); err != nil {
			return nil, err
		}
	}
	if err := check(); err != nil {
		return nil, err
	}
	others, err := a.scanAgendas(ctx, note)
	if err != nil {
		return nil, err
	}
	a.inconclusive[unknownKeys] = strange + others
	for name, differences := range keyed { // a scan may show a key twice
		slices.SortFunc(differences, func(x, y difference) int { return strings.Compare(x.name, y.name) })
		keyed[name] = slices.Compact(differences)
	}
	return keyed, nil
}

// scanAgendas notes the resources that are on an agenda. It returns how many members of agendas name no
// resource of their partition.
func (a *auditor) scanAgendas(ctx context.Context, note func(string, ...difference)) (strange int, err error) {
	for p := range record.Partitions {
		members := a.Redis.ZScan(ctx, a.keys.Agenda(p), 0, "", scanCount).Iterator()
		for members.Next(ctx) {
			switch name := members.Val(); {
			case a.options.ResourceID != "" && name != a.options.ResourceID:
			case !holds.ResourcePattern.MatchString(name) || record.Partition(name) != p:
				strange++
			default:
				note(name)
			}
			members.Next(ctx) // its time
		}
		// The inspection of each resource reports an agenda of a wrong type.
		if err := members.Err(); err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return 0, fmt.Errorf("scan agenda of partition %d: %w", p, err)
		}
	}
	return strange, nil
}

// keysAhead bounds the names of keys that are collected before scripts check them: the more names,
// the fewer scripts.
const keysAhead = 50_000

// explain reads the event of each finding that names one.
func (a *auditor) explain(ctx context.Context) error {
	for _, f := range a.report.Findings {
		if f.seq == 0 {
			continue
		}
		from := a.outbound
		if f.inbound {
			from = a.inbound
		}
		after, err := from.eventAt(ctx, f.seq)
		if err != nil {
			return err
		}
		f.After = after
	}
	return nil
}
