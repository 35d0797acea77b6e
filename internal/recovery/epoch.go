package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
	"holdfast/internal/lua"
	"holdfast/internal/record"
)

// Epoch is the row in Postgres that says which data a partition of Redis must have. A name is a UUID,
// or that UUID, a slash and a number. The UUID names the database and distinguishes its epochs from
// those of other databases. No two epochs of a partition have the same name, those included that Postgres has
// lost. Exception: while its clock is behind numbers that it gave when the clock was ahead, it counts on from the last one
// that it has, and may give a lost one again.
type Epoch struct {
	Name     string
	Complete bool   // Redis has the epoch and everything that was written under it
	Server   string // name of the server that has it, "" when it was not checked

	// Set only while Complete is false.
	Lost      string // the last complete epoch, "" when there was none
	Why       string // the reason for which Lost was invalidated
	Rebuilder string // the worker that rebuilds the partition, "" when none has begun
	Progress  string // of the rebuild
}

// progress says why a partition that is not complete waits, and how far its rebuild is.
func (e *Epoch) progress() string {
	progress := "waiting for a worker to rebuild it"
	if e.Rebuilder != "" {
		progress = e.Rebuilder + ": " + cmp.Or(e.Progress, "starting")
	}
	if e.Why != "" {
		progress += "; why: " + e.Why
	}
	return progress
}

// Epochs are the epochs of all partitions.
type Epochs [record.Partitions]Epoch

// Complete returns the partitions whose epoch is complete.
func (e *Epochs) Complete() (complete record.PartitionSet) {
	for p := range e {
		if e[p].Complete {
			complete.Add(p)
		}
	}
	return complete
}

// Uninitialised returns the partitions to which no epoch was written yet.
func (e *Epochs) Uninitialised() (first record.PartitionSet) {
	for p := range e {
		if !e[p].Complete && e[p].Why == "" {
			first.Add(p)
		}
	}
	return first
}

// groupBy groups some partitions by a property of their epochs.
func (e *Epochs) groupBy(of record.PartitionSet, property func(*Epoch) string) map[string]record.PartitionSet {
	groups := make(map[string]record.PartitionSet)
	for p := range of.Each() {
		groups[property(&e[p])] |= record.PartitionSetOf(p)
	}
	return groups
}

// lineage returns the first part of an epoch's name: the UUID of its database.
func lineage(name string) string {
	name, _, _ = strings.Cut(name, " ")
	first, _, _ := strings.Cut(name, "/")
	return first
}

// generation returns the number in an epoch's name, 1 for the first epoch, which has none.
func generation(name string) int64 {
	name, _, _ = strings.Cut(name, " ")
	_, number, _ := strings.Cut(name, "/")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 1
	}
	return n
}

// oldestGeneration returns the lowest generation of the data of some partitions: until a rebuild is complete it is that
// of the lost epoch.
func (e *Epochs) oldestGeneration(of record.PartitionSet) int64 {
	oldest := int64(math.MaxInt64)
	for p := range of.Each() {
		name := e[p].Name
		if !e[p].Complete {
			name = cmp.Or(e[p].Lost, name)
		}
		oldest = min(oldest, generation(name))
	}
	return oldest
}

// What follows the epoch's name in partitions that do not have it.
const (
	markSuffix   = " rebuilding" // the partition is being rebuilt under the epoch
	resumeSuffix = " resuming"   // the partition is being brought up to date under the epoch
	lostSuffix   = " lost"       // another server may lack the last writes under the epoch
)

// ErrEpochChanged says that rows in Postgres differ from what the caller expects. Nothing was changed.
var ErrEpochChanged = errors.New("epoch changed concurrently")

// ErrUnknownSchema says that this program is too old for the schema in Postgres.
var ErrUnknownSchema = errors.New("the schema needs a newer program")

// errForeign says that another database has written to the namespace in Redis.
var errForeign = errors.New("the namespace in redis belongs to another database")

// PostgresState is what Postgres has, each field read after the ones before it, all on one server.
type PostgresState struct {
	History    History
	Epochs     Epochs
	Registered bool           // the worker was registered, see EpochStore.RegisterWorker
	Policies   holds.Policies // as stored, in the order of Since; nil when there are none
}

// EpochStore is implemented by Postgres. Every change concerns a set of partitions, in one step. It
// fails with ErrEpochChanged when their rows differ from what the caller expects, so a change may be
// repeated after any error.
type EpochStore interface {
	// State reads all that a check of a worker needs, in one round trip. It returns ErrUnknownSchema as Epochs does.
	State(ctx context.Context, worker string) (PostgresState, error)
	// Epochs reads the rows. It returns ErrUnknownSchema when this program is too old for the schema.
	Epochs(ctx context.Context) (Epochs, error)
	// InvalidateEpochs stores that Redis lacks data of partitions, of the epochs with the given names and
	// for the given reasons. It returns the partitions that it has changed; the epochs of the others were
	// invalidated before. When it returns, no payment is decided under these epochs any more (see
	// holds.Inventory.Decide).
	InvalidateEpochs(
		ctx context.Context, lost record.PartitionSet, epochs *Epochs,
	) (changed record.PartitionSet, err error)
	// BeginEpoch starts the next epoch of those partitions that need a rebuild and have no rebuilder, for
	// one rebuilder. No other rebuilder can start one of these partitions until the lease ends or their
	// epoch is complete. The epoch has another name than any before, see Epoch.
	BeginEpoch(
		ctx context.Context, of record.PartitionSet, rebuilder string, lease time.Duration,
	) (begun record.PartitionSet, epoch string, err error)
	// RenewEpochLease restarts the lease and stores the progress.
	RenewEpochLease(
		ctx context.Context, of record.PartitionSet, epoch, rebuilder string, lease time.Duration, progress string,
	) error
	// CompleteEpoch stores that a server has an epoch of partitions. Rebuilder is "" for the first epoch.
	CompleteEpoch(ctx context.Context, of record.PartitionSet, epoch, server, rebuilder string) error
	// SetEpochServer changes the name of the server that has complete epochs of partitions.
	SetEpochServer(ctx context.Context, of record.PartitionSet, epochs *Epochs, server string) error
	// RegisterWorker stores that a worker may decide. With an error, it may be stored at any later time.
	// What the worker has read of epochs before that does not count.
	RegisterWorker(ctx context.Context, id string) error
	// StoreDrained stores that a registered worker publishes nothing any more that was decided before these
	// epochs of partitions, each a holds.EpochID.
	StoreDrained(ctx context.Context, id string, epochs []string) error
	// Undrained returns the registered workers for which StoreDrained has not stored these epochs, and those that were
	// forgotten within a time.
	Undrained(ctx context.Context, epochs []string, forgotten time.Duration) (ids []string, err error)
	// ForgetWorkers forgets those of the workers for which StoreDrained has still not stored these epochs; without
	// epochs, all of them. One that still runs registers again before it decides.
	ForgetWorkers(ctx context.Context, ids, epochs []string) error
	// RemoveWorker removes a worker that has published everything.
	RemoveWorker(ctx context.Context, id string) error
	// Reservations calls each for those of the holds that have become reservations.
	Reservations(ctx context.Context, ids []holds.HoldID, each func(Reservation)) error
}

// Initialise writes the first epoch to partitions of an empty Redis, which must be on the client's
// server, and returns the name of the server. The epoch must not be complete in Postgres before it returns: else it could
// hide that Redis has lost it. It returns an error when a partition has another epoch:
// the namespace then belongs to another database.
func Initialise(
	ctx context.Context, namespace string, client redis.UniversalClient, partitions record.PartitionSet, epoch string,
) (server string, err error) {
	keys := record.Keyspace(namespace)
	for p := range partitions.Each() {
		if err := client.SetNX(ctx, keys.Epoch(p), epoch, 0).Err(); err != nil {
			return "", fmt.Errorf("write epoch of partition %d: %w", p, err)
		}
	}
	state, err := readState(ctx, namespace, client, partitions)
	if err != nil {
		return "", err
	}
	for p := range partitions.Each() {
		if state.epochs[p] != epoch {
			return "", fmt.Errorf("partition %d: %w", p, errForeign)
		}
	}
	return state.server.name(), nil
}

// redisState is what readState reads.
type redisState struct {
	server     server
	eviction   eviction
	partitions record.PartitionSet       // those that the server has
	moving     record.PartitionSet       // those of them of which other keys may have been moved to another server
	epochs     [record.Partitions]string // of these partitions, "" when missing
	format     string                    // as stored, "" when missing or stored on another server
}

// isForeign reports whether another database than that of an epoch has written to some of the partitions.
func (s *redisState) isForeign(of record.PartitionSet, epoch string) bool {
	for p := range of.Each() {
		if stored := s.epochs[p]; stored != "" && lineage(stored) != lineage(epoch) {
			return true
		}
	}
	return false
}

// FormatPartition is the partition whose server has the format.
const FormatPartition = 0

// readState reads a server's identity, the epochs of partitions and the format on one connection. It
// leaves out partitions that are on another server by now, or on their way. With a lua.ClusterNode it finds out which are on
// their way while the server still has their epochs. It returns errReplica for a server that follows another.
func readState(
	ctx context.Context, namespace string, client redis.UniversalClient, partitions record.PartitionSet,
) (s redisState, err error) {
	keys := record.Keyspace(namespace)
	pipe := client.Pipeline()
	info := pipe.Do(ctx, infoCommand...)
	_, inCluster := client.(lua.ClusterNode)
	var found, moving [record.Partitions]*redis.StringCmd
	for p := range partitions.Each() {
		found[p] = pipe.Get(ctx, keys.Epoch(p))
		if inCluster {
			moving[p] = pipe.Get(ctx, keys.Moving(p))
		}
	}
	format := redis.NewStringResult("", redis.Nil)
	if partitions.Has(FormatPartition) {
		format = pipe.Get(ctx, keys.Format())
	}
	if err := lua.Exec(ctx, pipe); err != nil {
		return s, fmt.Errorf("read the state of redis: %w", err)
	}
	text, err := info.Text()
	if err == nil {
		s.server, err = parseServer(text)
		s.eviction = parseEviction(text)
	}
	if err != nil {
		return s, fmt.Errorf("read the state of redis: %w", err)
	}
	for p := range partitions.Each() {
		var here bool
		whole := true
		if s.epochs[p], here, err = storedText(found[p]); err == nil && inCluster {
			_, whole, err = storedText(moving[p])
		}
		if err != nil {
			return s, fmt.Errorf("read the state of redis: %w", err)
		}
		if here {
			s.partitions.Add(p)
		}
		if here && !whole {
			s.moving.Add(p)
		}
	}
	if s.format, _, err = storedText(format); err != nil {
		return s, fmt.Errorf("read the state of redis: %w", err)
	}
	return s, nil
}

// storedText returns the value of a key, "" when it is missing. A key of another type counts as
// missing: no worker has written it. here is false when the key is on another server of a cluster.
func storedText(cmd *redis.StringCmd) (value string, here bool, err error) {
	switch err := cmd.Err(); {
	case err == nil:
		return cmd.Val(), true, nil
	case errors.Is(err, redis.Nil), redis.HasErrorPrefix(err, "WRONGTYPE"):
		return "", true, nil
	case isElsewhere(err):
		return "", false, nil
	default:
		return "", false, err
	}
}

// isElsewhere reports whether an error says that keys are on another server of a cluster, or on their way there.
func isElsewhere(err error) bool {
	return redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK") || redis.HasErrorPrefix(err, "TRYAGAIN") ||
		redis.HasErrorPrefix(err, "Script attempted to access a non local key") // by checkSlot of package lua
}

// CheckEpochs returns holds.ErrDataLost unless every partition of which a worker decides has its epoch.
func CheckEpochs(
	ctx context.Context, namespace string, client redis.UniversalClient, current *holds.CurrentEpochs,
) error {
	if _, cluster := client.(*redis.ClusterClient); cluster {
		return checkEpochsOfCluster(ctx, record.Keyspace(namespace), client, current)
	}
	state, err := readState(ctx, namespace, client, current.Ready)
	if err != nil {
		return err
	}
	for p := range state.partitions.Each() {
		if state.epochs[p] != current.Partition(p).Name {
			return fmt.Errorf("partition %d: %w", p, holds.ErrDataLost)
		}
	}
	return nil
}

// checkEpochsOfCluster is CheckEpochs for a Redis Cluster. A client of a cluster sends to a certain
// server only commands that have a key. A server that does not answer does not hide a loss of another one.
func checkEpochsOfCluster(
	ctx context.Context, keys record.Keyspace, client redis.UniversalClient, current *holds.CurrentEpochs,
) error {
	pipe := client.Pipeline()
	found := make([]*redis.StringCmd, 0, current.Ready.Len())
	for p := range current.Ready.Each() {
		found = append(found, pipe.Get(ctx, keys.Epoch(p)))
	}
	if err := lua.Exec(ctx, pipe); err != nil {
		return fmt.Errorf("read the epochs of %v: %w", current.Ready, err)
	}
	var lost, unread record.PartitionSet
	var cause error
	for i, p := range current.Ready.Sorted() {
		switch stored, here, err := storedText(found[i]); {
		case err != nil:
			unread.Add(p)
			cause = cmp.Or(cause, err)
		case here && stored != current.Partition(p).Name:
			lost.Add(p)
		}
	}
	var failed []error
	if lost != 0 {
		failed = append(failed, fmt.Errorf("%v: %w", lost, holds.ErrDataLost))
	}
	if unread != 0 {
		failed = append(failed, fmt.Errorf("read the epochs of %v: %w", unread, cause))
	}
	return errors.Join(failed...)
}

// replaceEpochs replaces the epoch from of each partition by to, or removes it when that is "". It returns the partitions
// that have another epoch than from: these stay unchanged.
func replaceEpochs(
	ctx context.Context, keys record.Keyspace, client redis.UniversalClient, of record.PartitionSet,
	change func(partition int) (from, to string),
) (others record.PartitionSet, err error) {
	partitions := of.Sorted()
	calls := make([]*lua.Call, len(partitions))
	for i, p := range partitions {
		from, to := change(p)
		calls[i] = &lua.Call{Script: scriptSwap, Keys: []string{keys.Epoch(p), keys.Applied(p)}, Args: []any{to, from, 1}}
	}
	lua.Run(ctx, client, calls)
	for i, c := range calls {
		switch holds.SetReplyError(c); {
		case errors.Is(c.Err, holds.ErrDataLost):
			others.Add(partitions[i])
		case c.Expect(0) != nil:
			return 0, fmt.Errorf("change epoch of partition %d: %w", partitions[i], c.Err)
		}
	}
	return others, nil
}
