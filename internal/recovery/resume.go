package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/failpoint"
	"holdfast/internal/holds"
	"holdfast/internal/lua"
	"holdfast/internal/record"
)

// errNotResumable says that what Redis has cannot be brought up to date, and must be rebuilt.
var errNotResumable = errors.New("redis is rebuilt")

// The bounds of a resume's reads and writes.
const (
	loadMax   = 500 // holds or request keys that one command reads
	changeMax = 200 // records of one call of replay.lua
)

// tryResume brings Redis up to date if it has the data of an earlier moment (see doc.go). resumed is false
// when Redis must be rebuilt instead; the log says why.
func (a *rebuild) tryResume(ctx context.Context) (r RebuildResult, resumed bool, err error) {
	epochs, err := a.EpochStore.Epochs(ctx)
	if err != nil {
		return r, false, err
	}
	for p := range a.partitions.Each() {
		if cause := causeOf(epochs[p].Why); cause != causeAnotherServer && cause != causeNewerEpoch {
			return r, false, nil // it has no data, or data that is not to be trusted
		}
	}
	a.resuming = true
	r, err = a.resume(ctx, &epochs)
	a.resuming = false
	if errors.Is(err, errNotResumable) || errors.Is(err, holds.ErrCorrupt) {
		a.Log.Warn().Err(err).Stringer("partitions", a.partitions).Msg("redis not resumed, rebuilding it")
		return RebuildResult{}, false, nil
	}
	return r, true, err
}

// resume brings the partitions up to date. Their data was written under the lost epochs.
func (a *rebuild) resume(ctx context.Context, epochs *Epochs) (r RebuildResult, err error) {
	if a.evicted {
		return r, fmt.Errorf("keys were evicted: %w", errNotResumable)
	}
	found, err := a.markPartitions(ctx, true)
	if err != nil {
		return r, err
	}
	markers, err := a.readMarkers(found, epochs)
	if err != nil {
		return r, err
	}
	if err := a.checkNotMoved(ctx); err != nil {
		return r, err
	}
	failpoint.Hit("resume.marked")
	from, err := a.findPosition(ctx, markers)
	if errors.Is(err, errNotResumable) {
		return a.keep(ctx, markers, epochs, err)
	}
	if err != nil {
		return r, err
	}
	if a.resumedAt, err = a.redisTime(ctx); err != nil {
		return r, err
	}
	last, err := a.readUntilDrained(ctx, from.Seq)
	if err == nil {
		err = a.checkStored(ctx, from) // outcomes may have been removed before they were read
	}
	if err != nil {
		return r, err
	}
	if err := a.readStored(ctx); err != nil {
		return r, err
	}
	failpoint.Hit("resume.read")
	// From now on the data is that of no moment. The next attempt must rebuild it.
	if _, err := a.markPartitions(ctx, false); err != nil {
		return r, err
	}
	failpoint.Hit("resume.unmarked")
	if r, err = a.replayAll(ctx); err != nil {
		return r, err
	}
	failpoint.Hit("resume.replayed")
	// A worker that was stopped for long may have published meanwhile.
	_, more, err := a.readMore(ctx, last)
	if err != nil {
		return r, err
	}
	if more {
		return r, fmt.Errorf("outcomes were stored meanwhile: %w", errNotResumable)
	}
	r.Outcomes, r.Resumed = a.projection.applied, true
	return r, a.seal(ctx, a.partitions)
}

// markedPartition is what a partition had before it was marked.
type markedPartition struct{ epoch, marker string }

// isKept reports whether a partition has a later epoch than its marker, as rebuild.keep leaves it until the first marker of
// the new epoch. Whatever else begins an epoch removes the marker first.
func (f markedPartition) isKept(m marker) bool {
	return !strings.Contains(f.epoch, " ") && generation(f.epoch) > generation(m.epoch)
}

// readMarkers returns the marker of each partition. It returns errNotResumable unless each has one of its lost epoch,
// and unchanged data. The epoch may be one that Postgres has lost: a marker of it was written after it was complete. Postgres
// does not know then whether it is the last one, but a server that ran on since the marker was not replaced by another.
func (a *rebuild) readMarkers(found []markedPartition, epochs *Epochs) (markers []marker, err error) {
	for i, p := range a.partitions.Sorted() {
		one, lost := found[i], epochs[p].Lost
		m, ok := parseMarker(one.marker)
		newer := causeOf(epochs[p].Why) == causeNewerEpoch
		if newer {
			lost = m.epoch
		}
		unchanged := one.epoch == lost || one.epoch == lost+lostSuffix ||
			strings.HasSuffix(one.epoch, resumeSuffix) || newer && one.isKept(m)
		switch {
		case !ok || m.epoch != lost:
			err = fmt.Errorf("no marker of epoch %s", lost)
		case !unchanged:
			err = fmt.Errorf("unknown changes, epoch %q", one.epoch)
		case newer && m.history != a.server.history:
			err = errors.New("the server was started or promoted since its marker, and postgres does not know the epoch")
		case a.to.Addr != "" && !a.server.continues(m.history):
			// It was moved to this server, key by key, and this server may have lost some of the keys.
			err = errors.New("marker of another server")
		}
		if err != nil {
			return nil, fmt.Errorf("partition %d: %w: %w", p, err, errNotResumable)
		}
		markers = append(markers, m)
	}
	return markers, nil
}

// findPosition returns the position up to which all partitions have the changes behind the outcomes: the lowest one of
// their markers. It returns errNotResumable unless the stream has the outcomes of all, and everything after them.
func (a *rebuild) findPosition(ctx context.Context, markers []marker) (from holds.LogPosition, err error) {
	checked := make(map[holds.LogPosition]bool)
	for i, m := range markers {
		switch {
		case i > 0 && !m.Created.Equal(from.Created):
			return from, fmt.Errorf("markers of several streams: %w", errNotResumable)
		case i == 0 || m.Seq < from.Seq:
			from = m.LogPosition
		}
		// A higher one may be of what the stream had before an older state of it was restored.
		if !checked[m.LogPosition] {
			checked[m.LogPosition] = true
			if err := a.checkStored(ctx, m.LogPosition); err != nil {
				return from, err
			}
		}
	}
	return from, nil
}

// isNewest reports whether Redis has everything, and both Postgres and the outbound stream are from before: Postgres has
// lost the epochs, and the stream the outcomes of their markers.
func (a *rebuild) isNewest(ctx context.Context, markers []marker, epochs *Epochs) (bool, error) {
	end, err := a.OutcomeLog.Position(ctx)
	if err != nil {
		return false, err
	}
	for i, p := range a.partitions.Sorted() {
		m := markers[i]
		forgotten := !end.SameStream(m.LogPosition) || end.Seq < m.Seq
		if causeOf(epochs[p].Why) != causeNewerEpoch || !forgotten {
			return false, nil
		}
	}
	return true, nil
}

// keep begins the epoch with the data that Redis has if that is newer than everything else: a rebuild would forget what
// Redis alone has. Else, and when Postgres lacks a waiting payment that Redis has settled, it returns why, an errNotResumable.
// Payments that the inbound stream has lost, too, are as in any Redis beside a restored Postgres: an audit finds them.
func (a *rebuild) keep(ctx context.Context, markers []marker, epochs *Epochs, why error) (r RebuildResult, err error) {
	if newest, err := a.isNewest(ctx, markers, epochs); err != nil || !newest {
		return r, cmp.Or(err, why)
	}
	client := func(Server) *redis.Client { return a.client }
	lost, err := a.lostSettledPayments(ctx, []Server{a.to}, client, a.partitions)
	if err != nil {
		return r, err
	}
	if lost != 0 {
		return r, fmt.Errorf("%v: %s: %w", lost, lostCommitsWhy, why)
	}
	a.Log.Warn().Stringer("partitions", a.partitions).
		Msg("redis is newer than postgres and the outbound stream, its data is kept")
	r.Resumed = true
	return r, a.seal(ctx, a.partitions)
}

// checkNotMoved returns errNotResumable if another primary of a Redis Cluster has keys of the partitions, or may have
// some: resharding was moving them, key by key, when their primary failed. The replica that was promoted lacks the moved
// ones and does not know of the move.
func (a *rebuild) checkNotMoved(ctx context.Context) error {
	if a.to.Addr == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, firstTopologyTimeout)
	defer cancel()
	shards, err := a.client.ClusterShards(ctx).Result()
	if err != nil {
		return fmt.Errorf("find the other primaries: %w: %w", err, errNotResumable)
	}
	for _, shard := range shards {
		if hasSlotOf(shard, a.keys, a.partitions) {
			continue // the server itself, its replicas, and its former primary
		}
		for _, node := range shard.Nodes {
			isFormer := len(shard.Slots) == 0 && node.Health != "online" // of a shard of its own, when Redis is older than 7.2
			if node.Role != "master" || isFormer {
				continue
			}
			if err := a.checkHasNone(ctx, node); err != nil {
				return fmt.Errorf("%w: %w", err, errNotResumable)
			}
		}
	}
	return nil
}

// hasSlotOf reports whether a shard has the hash slot of some of the partitions.
func hasSlotOf(shard redis.ClusterShard, keys record.Keyspace, partitions record.PartitionSet) bool {
	for p := range partitions.Each() {
		slot := int64(hashSlot(keys.Epoch(p)))
		if slices.ContainsFunc(shard.Slots, func(its redis.SlotRange) bool { return its.Start <= slot && slot <= its.End }) {
			return true
		}
	}
	return false
}

// checkHasNone returns an error if a primary of the cluster has keys of the partitions, or does not answer.
func (a *rebuild) checkHasNone(ctx context.Context, node redis.Node) error {
	options, port := a.to.Options(), node.Port
	if options.TLSConfig != nil {
		port = node.TLSPort
	}
	options.Addr = net.JoinHostPort(node.Endpoint, strconv.FormatInt(port, 10))
	client := redis.NewClient(options)
	defer func() { _ = client.Close() }() // no command is in progress
	pipe, counts := client.Pipeline(), make(map[int]*redis.IntCmd)
	for p := range a.partitions.Each() {
		counts[p] = pipe.ClusterCountKeysInSlot(ctx, hashSlot(a.keys.Epoch(p)))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("count keys at the primary %s: %w", options.Addr, err)
	}
	for p, count := range counts {
		if count.Val() > 0 {
			return fmt.Errorf("the primary %s has keys of partition %d, which were being moved", options.Addr, p)
		}
	}
	return nil
}

// checkResumable returns errNotResumable when a resume must not go on after an outcome that was stored at a time.
func (a *rebuild) checkResumable(storedAt holds.Time) error {
	// Only holds that Redis cannot have forgotten are taken for lost, see dropForgotten.
	if at := storedAt.UnixMilli(); !storedAt.IsZero() && a.resumedAt-at > a.projection.requestKeyTTLMS(at)/2 {
		return fmt.Errorf("the data is too old: %w", errNotResumable)
	}
	return a.checkMemory()
}

// checkMemory returns errNotResumable when the projection has more than a resume keeps in memory.
func (a *rebuild) checkMemory() error {
	if a.projection.weight > a.ResumeBytes {
		return fmt.Errorf("the outcomes after the marker and their holds need too much memory: %w", errNotResumable)
	}
	return nil
}

// checkStored returns errNotResumable unless all outcomes after a position are stored.
func (a *rebuild) checkStored(ctx context.Context, after holds.LogPosition) error {
	missing, err := a.OutcomeLog.MissingAfter(ctx, after)
	if err == nil && missing != "" {
		err = fmt.Errorf("%s: %w", missing, errNotResumable)
	}
	return err
}

// resumePendingMax bounds the payments and cancellations that a resume reads, all of which it keeps in memory with their
// holds. A rebuild keeps only those without an answer.
const resumePendingMax = 100_000

const resumeBytes = 64 << 20 // see Supervisor.ResumeBytes

// readPending reads the payments and cancellations that are not acknowledged, and returns errNotResumable when they are
// too many.
func (a *rebuild) readPending(ctx context.Context) (pending pendingEvents, err error) {
	_, err = a.eachUnacknowledged(ctx, a.partitions, 0, func(some pendingEvents) error {
		pending.payments = append(pending.payments, some.payments...)
		pending.cancellations = append(pending.cancellations, some.cancellations...)
		if pending.len() > resumePendingMax {
			return fmt.Errorf("more than %d payments and cancellations may wait: %w", resumePendingMax, errNotResumable)
		}
		return nil
	})
	return pending, err
}

// readStored adds to the projection what Redis has of all holds and request keys that the outcomes and the
// pending events concern, and what Postgres has decided of them.
func (a *rebuild) readStored(ctx context.Context) error {
	a.reportProgress("reading the holds that have changed")
	pending, err := a.readPending(ctx)
	if err != nil {
		return err
	}
	ids, keys := a.projection.references()
	for _, payment := range pending.payments {
		ids.add(payment.Hold.Resource, payment.Hold.UUID)
	}
	for _, c := range pending.cancellations {
		if c.request.Hold.UUID != "" {
			ids.add(c.request.Resource, c.request.Hold.UUID)
		} else {
			keys.add(c.request.Resource, c.request.RequestKey)
		}
	}
	if err := a.loadAnswers(ctx, keys, ids); err != nil {
		return err
	}
	if err := a.loadHolds(ctx, ids, keys); err != nil {
		return err
	}
	if err := a.applyPending(ctx, pending); err != nil {
		return err
	}
	return a.loadDue(ctx, ids, keys)
}

// loadAnswers adds the stored answers to request keys, and to ids the holds that they name.
func (a *rebuild) loadAnswers(ctx context.Context, keys, ids refs) error {
	return a.load(ctx, keys, func(pipe redis.Pipeliner, resource string, keys []string) *redis.SliceCmd {
		names := make([]string, len(keys))
		for i, key := range keys {
			names[i] = a.keys.Prefix(resource) + "request:" + key
		}
		return pipe.MGet(ctx, names...)
	}, func(resource, key string, found []any) error {
		line, stored := found[0].(string)
		if !stored {
			return nil
		}
		hold, err := a.projection.addStoredAnswer(resource, key, line)
		if err == nil && hold != "" {
			ids.add(resource, hold)
		}
		return err
	})
}

// loadHolds adds the stored records of holds, and the answers to their requests unless they are among
// keys.
func (a *rebuild) loadHolds(ctx context.Context, ids, keys refs) error {
	more := make(refs)
	err := a.load(ctx, ids, func(pipe redis.Pipeliner, resource string, ids []string) *redis.SliceCmd {
		fields := make([]string, 0, 2*len(ids))
		for _, id := range ids {
			fields = append(fields, id, latePrefix+id)
		}
		return pipe.HMGet(ctx, a.keys.Prefix(resource)+"records", fields...)
	}, func(resource, id string, found []any) error {
		line, _ := found[0].(string) // nil when missing
		late, _ := found[1].(string)
		key, err := a.projection.addStored(resource, id, line, late)
		if _, loaded := keys[resource][key]; key != "" && !loaded {
			more.add(resource, key)
		}
		return err
	})
	if err != nil {
		return err
	}
	return a.loadAnswers(ctx, more, make(refs))
}

// loadDue adds the stored holds that were due when something was granted on their resource later: that
// grant has expired them, and may have taken their slots.
func (a *rebuild) loadDue(ctx context.Context, ids, keys refs) error {
	due := make(refs)
	a.projection.addGrants()
	for resource, last := range a.projection.grantedUntil() {
		for at := int64(0); ; at += loadMax {
			some, err := a.client.ZRangeArgs(ctx, redis.ZRangeArgs{
				Key: a.keys.Prefix(resource) + "due", ByScore: true, Start: "-inf", Stop: last, Offset: at, Count: loadMax,
			}).Result()
			if err != nil {
				return readError(err)
			}
			for _, id := range some {
				if _, loaded := ids[resource][id]; !loaded {
					due.add(resource, id)
				}
			}
			if len(some) < loadMax {
				break
			}
		}
	}
	return a.loadHolds(ctx, due, keys)
}

// load reads what Redis has under the names of each resource, some names at a time, and calls add for each name with what
// was found: read returns the command, which finds as many values for each name.
func (a *rebuild) load(
	ctx context.Context, of refs, read func(pipe redis.Pipeliner, resource string, names []string) *redis.SliceCmd,
	add func(resource, name string, found []any) error,
) error {
	type part struct {
		resource string
		names    []string
	}
	var parts []part
	for resource, names := range of {
		for some := range slices.Chunk(slices.Collect(maps.Keys(names)), loadMax) {
			parts = append(parts, part{resource, some})
		}
	}
	for len(parts) > 0 {
		pipe := a.client.Pipeline()
		var found []*redis.SliceCmd
		for weight := 0; weight < loadMax && len(found) < len(parts); {
			next := parts[len(found)]
			found, weight = append(found, read(pipe, next.resource, next.names)), weight+len(next.names)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return readError(err)
		}
		for i, values := range found {
			names, each := parts[i].names, len(values.Val())/len(parts[i].names)
			for j, name := range names {
				if err := add(parts[i].resource, name, values.Val()[j*each:(j+1)*each]); err != nil {
					return err
				}
			}
		}
		parts = parts[len(found):]
		if err := a.checkMemory(); err != nil {
			return err
		}
	}
	return nil
}

// readError returns holds.ErrCorrupt for a key of another type.
func readError(err error) error {
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return fmt.Errorf("%w: %w", holds.ErrCorrupt, err)
	}
	return fmt.Errorf("read redis: %w", err)
}

// replayAll writes the changes of all resources, some resources at a time.
func (a *rebuild) replayAll(ctx context.Context) (r RebuildResult, err error) {
	a.reportProgress("writing changes")
	writers := newSenders(ctx, rebuildPlansMax, func(ctx context.Context, batch []*plan) error {
		var calls []*lua.Call
		for _, one := range batch {
			for some := range slices.Chunk(one.changes, recordValues*changeMax) {
				calls = append(calls, a.replayCall(one.resource, some))
			}
		}
		if err := a.send(ctx, calls); err != nil {
			return err
		}
		if err := a.writeBatch(ctx, batch); err != nil {
			return err
		}
		failpoint.Hit("resume.writing")
		return nil
	})
	err = a.projection.eachChange(a.resumedAt, func(one *plan) error {
		r.count(writtenResource{records: len(one.records) / recordValues, live: one.live, answers: one.answers})
		one.records = nil // only the answers are left for writeBatch
		return writers.add(one, len(one.changes)+len(one.requests)+len(one.expiring))
	})
	return r, errors.Join(err, writers.wait())
}

func (a *rebuild) replayCall(resource string, changes []string) *lua.Call {
	memory := a.projection.policies.At(time.Now()).RequestKeyTTL.Milliseconds()
	c := a.call(record.Partition(resource), resource, a.keys.Prefix(resource), fmt.Sprint(memory))
	c.Script = scriptReplay
	for _, value := range changes {
		c.Args = append(c.Args, value)
	}
	return c
}
