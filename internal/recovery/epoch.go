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

// Epoch is Postgres' entry about what Redis has. A name is a UUID, or that UUID, a slash and a
// number that grows: the UUID is the database's, and tells its epochs from those of another.
type Epoch struct {
	Name     string
	Complete bool   // Redis has it, and all that was written under it
	Server   string // that has it, "" = it was not looked at

	// While it is not written:
	Lost      string // the last that was written, "" = there was none
	Why       string // that is not any more
	Rebuilder string // who fills Redis, "" = nobody has begun
	Progress  string
}

// lineage and generation are the parts of an epoch's name.
func lineage(name string) string {
	first, _, _ := strings.Cut(strings.TrimSuffix(name, markSuffix), "/")
	return first
}

func generation(name string) int64 {
	_, number, _ := strings.Cut(strings.TrimSuffix(name, markSuffix), "/")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 1 // the first has no number
	}
	return n
}

// markSuffix makes of an epoch's name what partitions have while they are filled under it.
const markSuffix = " rebuilding"

// ErrEpochChanged says that the entry is not as the caller believes: nothing was changed.
var ErrEpochChanged = errors.New("somebody else has changed the epoch")

// ErrUnknownSchema says that Postgres has a schema that programs as old as this one must not use.
var ErrUnknownSchema = errors.New("the schema is for newer programs than this one")

// errForeign says that Redis has what another database has written to it.
var errForeign = errors.New("this Redis has the namespace of another database")

// EpochStore is Postgres' word on what Redis has. Every change is refused with ErrEpochChanged
// when the entry is another one than the caller believes, so it may be repeated after any error.
type EpochStore interface {
	// Epoch reads the entry. It returns ErrUnknownSchema when this program is too old for the schema.
	Epoch(ctx context.Context) (Epoch, error)
	// InvalidateEpoch notes that Redis has not all that was written under an epoch. When it returns
	// no payment is decided under it any more (see Inventory.Decide).
	InvalidateEpoch(ctx context.Context, epoch, why string) error
	// BeginEpoch begins the next epoch for one who fills Redis under it; nobody else can for as
	// long as the lease, or until it is written.
	BeginEpoch(ctx context.Context, rebuilder string, lease time.Duration) (epoch string, err error)
	// RenewEpochLease begins the lease anew and notes the progress.
	RenewEpochLease(ctx context.Context, epoch, rebuilder string, lease time.Duration, progress string) error
	// CompleteEpoch notes that a server has an epoch. Who has written it is "" for the first.
	CompleteEpoch(ctx context.Context, epoch, server, rebuilder string) error
	// SetEpochServer notes by what name the server of a written epoch goes now.
	SetEpochServer(ctx context.Context, epoch, server, before string) error
	// Policies reads the stored policies, in the order of Since; there may be none.
	Policies(ctx context.Context) (holds.Policies, error)
	// Reservations hands to each which of the holds have become reservations.
	Reservations(ctx context.Context, ids []holds.HoldID, each func(Reservation)) error
}

// Initialise writes the first epoch to every partition of an empty Redis, and returns the
// server's name. Where there is another epoch it returns an error: this Redis belongs to another
// database.
func Initialise(ctx context.Context, namespace string, client redis.UniversalClient, epoch string) (server string, err error) {
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

// redisState is what a look at a Redis has found.
type redisState struct {
	server server
	epochs []string // of each partition, "" = none
	format string   // that is noted, "" = none
}

// readState asks a server who it is and which epochs it has, all on one connection.
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
		return s, fmt.Errorf("look at redis: %w", err)
	}
	values := make([]string, len(found))
	for i, cmd := range found {
		// What is no string is not what was written.
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return s, fmt.Errorf("look at redis: %w", err)
		}
		values[i] = cmd.Val()
	}
	s.epochs, s.format = values[:record.Partitions], values[record.Partitions]
	return s, nil
}

// CheckEpoch returns ErrDataLost unless every partition has the epoch.
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

// replaceEpoch gives every partition that has one epoch another ("" = none). Those that have not the
// first are left as they are; their number is returned.
func replaceEpoch(ctx context.Context, keys record.Keyspace, client redis.UniversalClient, from, to string) (others int, err error) {
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
