package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
)

// Backends are where the data of a namespace is.
type Backends struct {
	Namespace string
	JetStream jetstream.JetStream
	Redis     redis.UniversalClient // with MaxRetries -1: a repair is not sent twice
	Postgres  *pgxpool.Pool         // see OpenPostgres
}

// Options say what is looked at.
type Options struct {
	ResourceID string // only this one, "" = all
	// CapacityByEvents says that nobody writes capacity by SQL, so that what was told of it is what there was.
	CapacityByEvents bool
	// Progress is told now and then what is being read and how far that is, 0 to 1; nil = nobody asks.
	Progress func(what string, share float64)

	groupMessages uint64 // messages of the streams that are kept in mind at a time, 0 = the default
}

const (
	groupMessages = 1_000_000
	findingsMax   = 1000 // of a kind that are told one by one
)

// Stats counts what an audit has looked at.
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

func (c *Stats) add(other Stats) {
	c.Events += other.Events
	c.Outcomes += other.Outcomes
	c.DeadLetters += other.DeadLetters
	c.Resources += other.Resources
	c.Records += other.Records
	c.Reservations += other.Reservations
	c.Payments += other.Payments
	c.Slots += other.Slots
}

// Pending counts what is on its way: no fault, but not done either.
type Pending struct {
	Events        int         `json:"events"` // that have no outcome yet
	Oldest        *holds.Time `json:"oldest"` // when the oldest of them was stored, nil when there is none
	Expirations   int         `json:"lapses"` // holds that are over and not swept yet
	Announcements int         `json:"announcements"`

	oldest int64
}

func (p *Pending) event(stored int64) {
	p.Events++
	if p.oldest == 0 || stored < p.oldest {
		p.oldest = stored
	}
}

func (p *Pending) add(other Pending) {
	p.Events += other.Events
	p.Expirations += other.Expirations
	p.Announcements += other.Announcements
	if p.oldest == 0 || other.oldest != 0 && other.oldest < p.oldest {
		p.oldest = other.oldest
	}
	if p.oldest != 0 {
		at := holds.TimeFromMillis(p.oldest)
		p.Oldest = &at
	}
}

// Report is what an audit has found.
type Report struct {
	Namespace    string                 `json:"namespace"`
	At           holds.Time             `json:"at"` // by Redis' clock, when it began
	TookMS       int64                  `json:"took_ms"`
	Stats        Stats                  `json:"checked"`
	Pending      Pending                `json:"pending"`
	StreamStarts map[string]StreamStart `json:"since"`       // by stream
	Inconclusive []string               `json:"cannot_tell"` // what could not be judged, and why
	Counts       map[Kind]int           `json:"counts"`
	Findings     []*Finding             `json:"findings"` // at most 1,000 of a kind
}

// StreamStart tells from where on a stream is there.
type StreamStart struct {
	Seq   uint64      `json:"seq"`
	Time  *holds.Time `json:"time"`  // nil when it is empty
	Whole bool        `json:"whole"` // nothing was dropped from its beginning
}

// Unrepaired is how many differences are left: found, and not repaired.
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

// addInconclusive notes how many of something could not be judged.
func (r *Report) addInconclusive(n int, one, many string) {
	switch {
	case n == 1:
		r.Inconclusive = append(r.Inconclusive, "1 "+one)
	case n > 1:
		r.Inconclusive = append(r.Inconclusive, fmt.Sprintf("%d %s", n, many))
	}
}

// add takes over findings, of each kind no more than can be told one by one.
func (r *Report) add(found []*Finding) {
	for _, f := range found {
		r.Counts[f.Kind]++
		if r.Counts[f.Kind] <= findingsMax {
			r.Findings = append(r.Findings, f)
		}
	}
}

// inconclusive counts what could not be judged.
type inconclusive struct {
	outcomesDropped    int // events whose outcome may have been dropped
	eventsDropped      int // outcomes whose event may have been dropped
	deadLettersDropped int // events whose letter may have been in another stream of that name
	former             int // outcomes that were told before the schema was made
	slots              int // slots whose capacity at a time is not known
	cut                int // slots that were sold beyond a capacity that somebody may have raised meanwhile
	recounts           int // slots of resources with too many doubts
	unread             int // resources of which Redis had lost its data when they were looked at
}

// auditor is one audit on its way.
type auditor struct {
	Backends
	options      Options
	keys         keyspace
	subjects     events.Namespace
	inspector    *inspector
	report       *Report
	inconclusive inconclusive
	progress     func(what string, share float64)

	installed int64                 // when the schema was made: what was told before is of another database
	reserved  map[string][]*Finding // of what is reserved, by resource
}

// Run looks at everything that belongs to a namespace, or to one resource, and returns what
// differs from what is promised. It only reads. Workers may go on meanwhile; doc.go says why that
// makes no difference. It returns an error when it could not look.
func Run(ctx context.Context, backends Backends, options Options) (*Report, error) {
	began := time.Now()
	a := &auditor{
		Backends: backends, options: options, keys: newKeyspace(backends.Namespace), subjects: events.Namespace(backends.Namespace),
		report:   &Report{Namespace: backends.Namespace, StreamStarts: make(map[string]StreamStart), Inconclusive: []string{}, Counts: make(map[Kind]int), Findings: []*Finding{}},
		progress: options.Progress,
	}
	if a.progress == nil {
		a.progress = func(string, float64) {}
	}
	a.inspector = &inspector{Backends: backends, keys: a.keys, wait: func(ctx context.Context, _ int) error { return ctx.Err() }}
	if err := a.run(ctx); err != nil {
		return nil, fmt.Errorf("audit of %s: %w", backends.Namespace, err)
	}
	a.report.TookMS = time.Since(began).Milliseconds()
	return a.report, nil
}

func (a *auditor) run(ctx context.Context) error {
	now, err := a.Redis.Time(ctx).Result()
	if err != nil {
		return fmt.Errorf("read the clock of redis: %w", err)
	}
	a.report.At = holds.TimeFromMillis(now.UnixMilli())
	if err := a.Postgres.QueryRow(ctx, queryInstalled).Scan(&a.installed); err != nil {
		return fmt.Errorf("read when the schema was made: %w", toMigrate(err))
	}
	for _, step := range []func(context.Context) ([]*Finding, error){a.checkEpoch, a.checkConstraints, a.checkSums, a.checkGroups} {
		found, err := step(ctx)
		if err != nil {
			return err
		}
		a.report.add(found)
	}
	a.reportInconclusive()
	slices.SortStableFunc(a.report.Findings, func(x, y *Finding) int {
		return strings.Compare(x.Resource+"\x00"+string(x.Kind)+"\x00"+x.Item, y.Resource+"\x00"+string(y.Kind)+"\x00"+y.Item)
	})
	return a.explain(ctx)
}

// readEpoch reads what the epoch of every partition of Redis must be. It returns a *holds.RebuildingError while Redis
// has not all that was written to it.
func (s *Backends) readEpoch(ctx context.Context) (epoch string, err error) {
	var written bool
	var why, progress string
	err = s.Postgres.QueryRow(ctx, queryEpoch).Scan(&epoch, &written, &why, &progress)
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && !written && why == "":
		return "", errors.New("nothing was ever written to redis for this database: run `worker migrate` first")
	case err != nil:
		return "", fmt.Errorf("read the epoch: %w", toMigrate(err))
	case !written && progress == "":
		return "", &holds.RebuildingError{Progress: quoted(why) + "; nobody fills it again yet"}
	case !written:
		return "", &holds.RebuildingError{Progress: quoted(why) + "; it is being filled again: " + quoted(progress)}
	}
	return epoch, nil
}

// wasRebuilt reports whether Redis has lost its data, and was filled again, since the schema was made: the
// first epoch of a database has no number.
func (a *auditor) wasRebuilt() bool { return strings.Contains(a.inspector.epoch, "/") }

// checkEpoch finds partitions whose data Redis has lost. While it is being filled again these are all.
func (a *auditor) checkEpoch(ctx context.Context) ([]*Finding, error) {
	var err error
	a.inspector.epoch, err = a.readEpoch(ctx)
	rebuilding, isRebuilding := errors.AsType[*holds.RebuildingError](err)
	if err != nil && !isRebuilding {
		return nil, err
	}
	if _, err := recovery.ReadFormat(ctx, a.Namespace, a.Redis); errors.Is(err, recovery.ErrUnknownFormat) {
		return nil, err
	}
	pipe := a.Redis.Pipeline()
	found, fences := make([]*redis.StringCmd, record.Partitions), make([]*redis.StatusCmd, record.Partitions)
	for p := range found {
		found[p], fences[p] = pipe.Get(ctx, a.keys.Epoch(p)), pipe.Type(ctx, a.keys.Fence(p))
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	all := checkFences(a.keys, fences)
	lost, is := 0, "nothing"
	for p, cmd := range found {
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, fmt.Errorf("read the epoch of partition %d: %w", p, err)
		}
		if isRebuilding || cmd.Val() != a.inspector.epoch {
			lost++
		}
		if other := cmd.Val(); other != a.inspector.epoch && other != "" {
			is = quoted(other)
		}
	}
	if lost == 0 {
		return all, nil
	}
	if isRebuilding {
		return append(all, &Finding{
			Kind: DataLost, Item: fmt.Sprintf("%d partitions", lost), Where: string(a.keys.Keyspace) + ":{...}:epoch", Expected: "an epoch that postgres knows", Found: is,
			Text: "Redis has not all that was written to it: " + rebuilding.Progress + ". What it holds is not judged.", Remedy: remedyDataLost,
		}), nil
	}
	return append(all, &Finding{
		Kind: DataLost, Item: fmt.Sprintf("%d partitions", lost), Where: string(a.keys.Keyspace) + ":{...}:epoch", Expected: a.inspector.epoch, Found: is,
		Text: fmt.Sprintf("%d of %d partitions of Redis do not have the epoch that was written: their data is lost, or of another database. What they hold is not judged.",
			lost, record.Partitions),
		Remedy: remedyDataLost,
	}), nil
}

const remedyDataLost = "A worker that runs notices it and fills Redis again, see its log and /readyz; by hand: worker rebuild. Until then nothing is granted. " + notSafe

// checkFences finds partitions in which what counts the locks is damaged.
func checkFences(keys keyspace, types []*redis.StatusCmd) (found []*Finding) {
	for p, cmd := range types {
		is := cmd.Val()
		if cmd.Err() != nil || is == "none" || is == "string" {
			continue
		}
		key := keys.Fence(p)
		found = append(found, &Finding{
			Kind: WrongType, Item: "fence", Where: key, Expected: "string", Found: is,
			Text:   fmt.Sprintf("The key %s, which counts the locks of a partition, is a %s.", key, is),
			Remedy: "Nothing is to be done: the next lock there begins a count above all that there ever were.",
		})
	}
	return found
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
	a.report.addInconclusive(gone, "slot is reserved and has no inventory row any more: nothing is to be compared", "slots are reserved and have no inventory row any more: nothing is to be compared")
	return found, err
}

// checkGroups looks at the resources, so many at a time that what is known of them fits into memory.
func (a *auditor) checkGroups(ctx context.Context) (all []*Finding, err error) {
	keyed, err := a.scanKeys(ctx)
	if err != nil {
		return nil, err
	}
	streams := make([]*stream, 3)
	var messages uint64
	for i, name := range []string{a.subjects.InStream(), a.subjects.OutStream(), a.subjects.DLQStream()} {
		if streams[i], err = openStream(ctx, a.JetStream, name); err != nil {
			return nil, err
		}
		messages += streams[i].state.Msgs
		since := StreamStart{Seq: streams[i].state.FirstSeq, Whole: streams[i].whole}
		if !streams[i].since.IsZero() {
			at := holds.Time{Time: streams[i].since.UTC()}
			since.Time = &at
		}
		a.report.StreamStarts[name] = since
	}
	each := a.options.groupMessages
	if each == 0 {
		each = groupMessages
	}
	groups := max(1, int((messages+each-1)/each))
	if a.options.ResourceID != "" {
		groups = 1
	}
	var removed uint64
	var missing []string
	var unanswered, withoutDeadLetter []uint64
	for n := range groups {
		g := &group{
			auditor: a, number: n, of: groups,
			events: make(map[id]*event), another: make(map[id]uint64), pending: make(map[string][]*event),
			deadLetters: make(map[uint64]*deadLetter), formerHolds: make(map[id]struct{}), resources: make(map[string]*resource),
		}
		for i, to := range []**stream{&g.in, &g.out, &g.dlq} {
			own := *streams[i]
			*to = &own
		}
		found, err := g.audit(ctx, keyed)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
		a.report.Stats.add(g.stats)
		a.report.Pending.add(g.waiting)
		a.inconclusive.add(g.inconclusive)
		unanswered, withoutDeadLetter = append(unanswered, g.unanswered...), append(withoutDeadLetter, g.withoutDeadLetter...)
		removed = g.dlq.removed()
		missing = missing[:0]
		for _, name := range consumers {
			if _, there := g.floors[name]; !there {
				missing = append(missing, name)
			}
		}
	}
	for _, name := range missing {
		a.report.Inconclusive = append(a.report.Inconclusive, fmt.Sprintf("consumer %s of %s is missing: what it would take waits until a worker or `worker migrate` has made it", name, a.subjects.InStream()))
	}
	return append(all, a.checkUnanswered(unanswered, withoutDeadLetter, removed)...), nil
}

// scanKeys judges all keys by their names. It returns all resources that have keys, with what
// differs.
func (a *auditor) scanKeys(ctx context.Context) (map[string][]difference, error) {
	keyed, names := make(map[string][]difference), make(map[string][]string)
	strange, waiting := 0, 0
	for cursor := uint64(0); ; {
		keys, next, err := a.inspector.scan(ctx, cursor, a.keys.pattern(a.options.ResourceID))
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
				keyed[k.resource] = slices.Clip(keyed[k.resource])
			default:
				names[k.resource] = append(names[k.resource], k.name)
				waiting++
			}
		}
		a.progress("redis", 0)
		if cursor = next; waiting < keysAhead && cursor != 0 {
			continue
		}
		found, err := a.inspector.strays(ctx, names)
		if err != nil {
			return nil, err
		}
		for name := range names {
			keyed[name] = append(keyed[name], found[name]...)
		}
		clear(names)
		if waiting = 0; cursor == 0 {
			break
		}
	}
	others, err := a.scanAgendas(ctx, keyed)
	if err != nil {
		return nil, err
	}
	strange += others
	for name, differences := range keyed { // a scan may show a key twice
		slices.SortFunc(differences, func(x, y difference) int { return strings.Compare(x.name, y.name) })
		keyed[name] = slices.Compact(differences)
	}
	a.report.addInconclusive(strange, "key or entry in redis is none that this version knows", "keys or entries in redis are none that this version knows")
	return keyed, nil
}

// scanAgendas adds the resources that are on an agenda. strange counts what is none.
func (a *auditor) scanAgendas(ctx context.Context, keyed map[string][]difference) (strange int, err error) {
	for p := range record.Partitions {
		for cursor := uint64(0); ; {
			members, next, err := a.Redis.ZScan(ctx, a.keys.Agenda(p), cursor, "", scanCount).Result()
			if redis.HasErrorPrefix(err, "WRONGTYPE") {
				break // of which each resource tells
			}
			if err != nil {
				return 0, fmt.Errorf("scan agenda of partition %d: %w", p, err)
			}
			for i := 0; i < len(members); i += 2 { // a member and its time
				switch name := members[i]; {
				case a.options.ResourceID != "" && name != a.options.ResourceID:
				case !holds.ResourcePattern.MatchString(name) || record.Partition(name) != p:
					strange++
				default:
					keyed[name] = slices.Clip(keyed[name])
				}
			}
			if cursor = next; cursor == 0 {
				break
			}
		}
	}
	return strange, nil
}

// keysAhead is how many names of keys are kept until they are judged: the more, the fewer scripts.
const keysAhead = 50_000

// reportInconclusive tells what could not be judged.
func (a *auditor) reportInconclusive() {
	u := a.inconclusive
	a.report.addInconclusive(u.outcomesDropped, "event is older than the outbound stream: its outcome was dropped", "events are older than the outbound stream: their outcomes were dropped")
	a.report.addInconclusive(u.eventsDropped, "outcome may belong to an event that was dropped from the inbound stream", "outcomes may belong to events that were dropped from the inbound stream")
	a.report.addInconclusive(u.deadLettersDropped, "event without outcome is older than the stream of dead letters: its letter may have been in another", "events without outcomes are older than the stream of dead letters: their letters may have been in another")
	a.report.addInconclusive(u.former, "outcome was told before the schema of this database was made: it is not compared with anything", "outcomes were told before the schema of this database was made: they are not compared with anything")
	a.report.addInconclusive(u.cut, "slot was granted beyond the capacity that was told of it last: somebody has raised it by SQL, or it was oversold (look with --capacity-by-events, if nobody has)", "slots were granted beyond the capacity that was told of them last: somebody has raised it by SQL, or they were oversold (look with --capacity-by-events, if nobody has)")
	a.report.addInconclusive(u.slots, "slot was taken more than is for sale now, at a time of which the capacity is not known any more", "slots were taken more than is for sale now, at times of which the capacity is not known any more")
	a.report.addInconclusive(u.unread, "resource could not be looked at in redis, which has lost its data or was filled again meanwhile", "resources could not be looked at in redis, which has lost its data or was filled again meanwhile")
	a.report.addInconclusive(u.recounts, "slot has too many times to recount: was the clock of redis set back?", "slots have too many times to recount: was the clock of redis set back?")
}

// explain reads the events that findings name.
func (a *auditor) explain(ctx context.Context) error {
	for _, f := range a.report.Findings {
		if f.seq == 0 {
			continue
		}
		name := a.subjects.OutStream()
		if f.inbound {
			name = a.subjects.InStream()
		}
		after, err := a.eventAt(ctx, name, f.seq)
		if err != nil {
			return err
		}
		f.After = after
	}
	return nil
}

// eventAt reads what is in a stream, nil when it is not there any more.
func (a *auditor) eventAt(ctx context.Context, name string, seq uint64) (*Event, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	source, err := a.JetStream.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	m, err := source.GetMsg(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil //nolint:nilnil // nothing is there, and that is no failure
	}
	if err != nil {
		return nil, fmt.Errorf("read sequence %d of %s: %w", seq, name, err)
	}
	about := events.Summarize(m.Subject, m.Header, m.Data)
	return &Event{Stream: name, Seq: seq, ID: quoted(about.ID), Type: quoted(about.Type), Time: holds.Time{Time: m.Time.UTC()}}, nil
}

func (u *inconclusive) add(other inconclusive) {
	u.outcomesDropped += other.outcomesDropped
	u.eventsDropped += other.eventsDropped
	u.deadLettersDropped += other.deadLettersDropped
	u.former += other.former
	u.slots += other.slots
	u.cut += other.cut
	u.recounts += other.recounts
	u.unread += other.unread
}
