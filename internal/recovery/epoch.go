package recovery

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
	"holdfast/internal/lua"
	"holdfast/internal/record"
)

// Epoch is the row in Postgres that says which data Redis must have. A name is a UUID, or that UUID,
// a slash and a number that grows. The UUID names the database and distinguishes its epochs from
// those of other databases.
type Epoch struct {
	Name     string
	Complete bool   // Redis has the epoch and everything that was written under it
	Server   string // name of the server that has it, "" when it was not checked

	// Set only while Complete is false.
	Lost      string // the last complete epoch, "" when there was none
	Why       string // the reason for which Lost was invalidated
	Rebuilder string // the worker that rebuilds Redis, "" when none has begun
	Progress  string // of the rebuild
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

// What follows the epoch's name in partitions that do not have it.
const (
	markSuffix   = " rebuilding" // the partition is being rebuilt under the epoch
	resumeSuffix = " resuming"   // the partition is being brought up to date under the epoch
	lostSuffix   = " lost"       // another server may lack the last writes under the epoch
)

// ErrEpochChanged says that the row in Postgres differs from what the caller expects. Nothing was
// changed.
var ErrEpochChanged = errors.New("epoch changed concurrently")

// ErrUnknownSchema says that this program is too old for the schema in Postgres.
var ErrUnknownSchema = errors.New("the schema needs a newer program")

// errForeign says that another database has written to the namespace in Redis.
var errForeign = errors.New("the namespace in redis belongs to another database")

// EpochStore is implemented by Postgres. Every change fails with ErrEpochChanged when the row
// differs from what the caller expects, so a change may be repeated after any error.
type EpochStore interface {
	// Epoch reads the row. It returns ErrUnknownSchema when this program is too old for the schema.
	Epoch(ctx context.Context) (Epoch, error)
	// InvalidateEpoch stores that Redis lacks data of an epoch. When it returns, no payment is decided
	// under that epoch any more (see holds.Inventory.Decide).
	InvalidateEpoch(ctx context.Context, epoch, why string) error
	// BeginEpoch starts the next epoch for one rebuilder. No other rebuilder can start one until the
	// lease ends or the epoch is complete.
	BeginEpoch(ctx context.Context, rebuilder string, lease time.Duration) (epoch string, err error)
	// RenewEpochLease restarts the lease and stores the progress.
	RenewEpochLease(ctx context.Context, epoch, rebuilder string, lease time.Duration, progress string) error
	// CompleteEpoch stores that a server has an epoch. Rebuilder is "" for the first epoch.
	CompleteEpoch(ctx context.Context, epoch, server, rebuilder string) error
	// SetEpochServer changes the name of the server that has a complete epoch.
	SetEpochServer(ctx context.Context, epoch, server, before string) error
	// Policies reads the stored policies in the order of Since. There may be none.
	Policies(ctx context.Context) (holds.Policies, error)
	// Reservations calls each for those of the holds that have become reservations.
	Reservations(ctx context.Context, ids []holds.HoldID, each func(Reservation)) error
}

// Initialise writes the first epoch to every partition of an empty Redis and returns the name of the
// server. It returns an error when a partition has another epoch: the namespace then belongs to
// another database.
func Initialise(
	ctx context.Context, namespace string, client redis.UniversalClient, epoch string,
) (server string, err error) {
	keys := record.Keyspace(namespace)
	for p := range record.Partitions {
		if err := client.SetNX(ctx, keys.Epoch(p), epoch, 0).Err(); err != nil {
			return "", fmt.Errorf("write epoch of partition %d: %w", p, err)
		}
	}
	state, err := readState(ctx, namespace, client)
	if err != nil {
		return "", err
	}
	for p, found := range state.epochs {
		if found != epoch {
			return "", fmt.Errorf("partition %d: %w", p, errForeign)
		}
	}
	return state.server.name(), nil
}

// redisState is what readState reads.
type redisState struct {
	server server
	epochs []string // of each partition, "" when missing
	format string   // as stored, "" when missing
}

// readState reads a server's identity, epochs and format on one connection. It returns errReplica
// for a server that follows another.
func readState(ctx context.Context, namespace string, client redis.UniversalClient) (s redisState, err error) {
	keys := record.Keyspace(namespace)
	pipe := client.Pipeline()
	info := pipe.Do(ctx, infoCommand...)
	found := make([]*redis.StringCmd, record.Partitions+1)
	for p := range record.Partitions {
		found[p] = pipe.Get(ctx, keys.Epoch(p))
	}
	found[record.Partitions] = pipe.Get(ctx, keys.Format())
	_, _ = pipe.Exec(ctx) // each command has its own error
	text, err := info.Text()
	if err == nil {
		s.server, err = parseServer(text)
	}
	if err != nil {
		return s, fmt.Errorf("read the state of redis: %w", err)
	}
	values := make([]string, len(found))
	for i, cmd := range found {
		// A key of another type counts as missing: no worker has written it.
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return s, fmt.Errorf("read the state of redis: %w", err)
		}
		values[i] = cmd.Val()
	}
	s.epochs, s.format = values[:record.Partitions], values[record.Partitions]
	return s, nil
}

// CheckEpoch returns holds.ErrDataLost unless every partition has the epoch.
func CheckEpoch(ctx context.Context, namespace string, client redis.UniversalClient, epoch string) error {
	state, err := readState(ctx, namespace, client)
	if err != nil {
		return err
	}
	for p, found := range state.epochs {
		if found != epoch {
			return fmt.Errorf("partition %d: %w", p, holds.ErrDataLost)
		}
	}
	return nil
}

// replaceEpoch replaces one epoch by another, or removes it when to is "". Partitions without the
// epoch from stay unchanged; others is their number.
func replaceEpoch(
	ctx context.Context, keys record.Keyspace, client redis.UniversalClient, from, to string,
) (others int, err error) {
	calls := make([]*lua.Call, record.Partitions)
	for p := range calls {
		calls[p] = &lua.Call{Script: scriptSwap, Keys: []string{keys.Epoch(p)}, Args: []any{from, "", "", to}}
	}
	lua.Run(ctx, client, calls)
	for p, c := range calls {
		switch holds.SetReplyError(c); {
		case errors.Is(c.Err, holds.ErrDataLost):
			others++
		case c.Expect(0) != nil:
			return 0, fmt.Errorf("change epoch of partition %d: %w", p, c.Err)
		}
	}
	return others, nil
}
