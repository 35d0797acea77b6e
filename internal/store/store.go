// Package store keeps the permanent data in Postgres: capacity, reservations, and the answer to
// every payment. Every promise about money rests on its constraints, not on its callers.
//
// One file has one kind of statement. The queries are in queries/, each with its inputs and outputs.
// Migrations are immutable once released.
package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"holdfast/internal/holds"
	"holdfast/internal/postgres"
)

//go:embed queries/*.sql
var queryFiles embed.FS

var query = postgres.Queries(queryFiles)

// The constraint of promise 1, and the retries of a transaction.
const (
	constraintReserved   = "reserved_is_between_zero_and_capacity"
	transactionTriesMax  = 10
	transactionRetryWait = 5 * time.Millisecond
	lockTimeout          = 500 * time.Millisecond
	lockTimeoutLeast     = 5 * time.Millisecond
)

// Store is a namespace's schema in a Postgres database. It implements holds.Inventory.
type Store struct {
	pool      *pgxpool.Pool
	namespace string
	dry       bool // it rolls transactions back
}

var _ holds.Inventory = (*Store)(nil)

// Open returns a Store for a namespace, whose schema is the search path of every connection. It
// does not connect: the first query fails if the server is unreachable. It returns an error of
// package postgres for an unusable URL. options change the configuration (see Guard and ForQueries).
func Open(ctx context.Context, url, namespace string, options ...postgres.Option) (*Store, error) {
	config, err := postgres.Config(url, namespace, postgres.Settings{
		// A worker that is cut off must not keep row locks for ever.
		"idle_in_transaction_session_timeout": "30000",
		// Other sessions may lock rows of inventory for any time. No decision waits for them longer
		// than this.
		"lock_timeout": strconv.FormatInt(lockTimeout.Milliseconds(), 10),
		// The statements use indexes. To compile one that has thousands of parameters takes longer than to run it.
		"jit": "off",
	})
	if err != nil {
		return nil, err
	}
	config.ConnConfig.Tracer = queryTracer{}
	config.ConnConfig.RuntimeParams["application_name"] = "holdfast worker " + namespace
	for _, option := range options {
		option(config)
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open postgres: %w", err)
	}
	return &Store{pool: pool, namespace: namespace}, nil
}

// queryConnections bounds the connections for the queries of a worker. queryPingWithin bounds the ping before the use of
// one that was not used for a second: when a network has lost all of them, a query still gets a new one in time.
const (
	queryConnections = 4
	queryPingWithin  = 500 * time.Millisecond
)

// ForQueries returns an option of Open: a few connections for queries, which then take none from decisions.
func ForQueries(namespace string) postgres.Option {
	return func(config *pgxpool.Config) {
		config.ConnConfig.RuntimeParams["application_name"] = "holdfast queries " + namespace
		config.MinConns, config.MaxConns = 0, queryConnections
		config.ShouldPing = closeUnlessAnswering
	}
}

// closeUnlessAnswering pings a connection that was not used for a second, and closes it when it does not answer. It then
// returns true: the pool's own ping fails at once. A failed ping alone would keep the place in the pool for 15 s, for
// which the driver waits for the server to end the connection.
func closeUnlessAnswering(ctx context.Context, p pgxpool.ShouldPingParams) bool {
	if p.IdleDuration < time.Second {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, queryPingWithin)
	defer cancel()
	if p.Conn.Ping(ctx) == nil {
		return false
	}
	_ = p.Conn.PgConn().Conn().Close() // it does not answer
	return true
}

// Dry returns a Store on the same connections that decides as s would and changes nothing: it rolls
// each transaction back at its end.
func (s *Store) Dry() *Store { return &Store{pool: s.pool, namespace: s.namespace, dry: true} }

// errDry rolls back the transaction of a dry Store.
var errDry = errors.New("dry")

// Close closes all connections. It does not wait for a server that does not answer.
func (s *Store) Close() { postgres.Close(s.pool) }

// PoolStats returns the state of the pool of connections.
func (s *Store) PoolStats() *pgxpool.Stat { return s.pool.Stat() }

// Ping returns an error if the database does not answer.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.pool.Ping(ctx); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

// InventoryRows implements holds.Inventory.
func (s *Store) InventoryRows(
	ctx context.Context, resources []string, slots [][]string,
) ([][]holds.InventoryRow, error) {
	answer := make([][]holds.InventoryRow, len(resources))
	var resourceIDs, firsts, lasts []string
	var runs []slotRun // runs[n-1] is run n of the query
	for i, names := range slots {
		answer[i] = make([]holds.InventoryRow, len(names))
		for j := 0; j < len(names); {
			end := j + 1
			for end < len(names) && isNextNight(names[end-1], names[end]) {
				end++
			}
			resourceIDs, firsts, lasts = append(resourceIDs, resources[i]), append(firsts, names[j]), append(lasts, names[end-1])
			runs = append(runs, slotRun{names[j:end], answer[i][j:end]})
			j = end
		}
	}
	var n, capacity, reserved int64
	var slot string
	var lost bool
	err := s.read(ctx, func(conn *pgxpool.Conn) error {
		found, _ := conn.Query(ctx, query("inventory_rows"), resourceIDs, firsts, lasts) // ForEachRow returns its error
		_, err := pgx.ForEachRow(found, []any{&n, &slot, &capacity, &reserved, &lost}, func() error {
			if at, is := slices.BinarySearch(runs[n-1].names, slot); is {
				runs[n-1].rows[at] = holds.InventoryRow{Known: true, Capacity: capacity, Reserved: reserved, LostCommits: lost}
			}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read inventory: %w", err)
	}
	return answer, nil
}

// slotRun is a slot, or consecutive nights of one month, and where their rows go. Such nights have the same order
// in every collation, so one scan of the index finds them. That costs a tenth of a search for each.
type slotRun struct {
	names []string
	rows  []holds.InventoryRow
}

// isNextNight reports whether two slots have the form of nights, and the second is the next one of the same month.
func isNextNight(slot, next string) bool {
	const year, month = len("2006"), len("2006-01")
	if len(slot) != len(holds.DateFormat) || len(next) != len(slot) || slot[:month+1] != next[:month+1] ||
		slot[year] != '-' || slot[month] != '-' {
		return false
	}
	day, err := strconv.ParseUint(slot[month+1:], 10, 8)
	nextDay, err2 := strconv.ParseUint(next[month+1:], 10, 8)
	return err == nil && err2 == nil && nextDay == day+1
}

// read runs work that only reads, on one session. It returns an error if the session may no longer
// write: then another server may have newer rows than work has read. Work that writes needs no such
// check.
func (s *Store) read(ctx context.Context, work func(conn *pgxpool.Conn) error) error {
	return wrapError(s.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		if err := work(conn); err != nil {
			return err
		}
		return postgres.MayWrite(conn.Conn())
	}))
}

// transact runs work in a transaction, and retries it when Postgres returns 40001 or 40P01, or work
// errRaced. After an error from Commit it is unknown whether the transaction was committed. transact
// returns that error. work must read the result of an earlier commit first, so that its caller can retry.
func (s *Store) transact(ctx context.Context, work func(tx pgx.Tx) error) error {
	for try := 1; ; try++ {
		err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			if err := work(tx); err != nil || !s.dry {
				return err
			}
			return errDry
		})
		if errors.Is(err, errDry) {
			return nil
		}
		again := errors.Is(err, errRaced) || postgres.HasCode(err, postgres.CodeSerialization, postgres.CodeDeadlock)
		if !again || try == transactionTriesMax {
			return wrapError(err)
		}
		select {
		case <-ctx.Done():
			return wrapError(errors.Join(err, context.Cause(ctx)))
		case <-time.After(time.Duration(try) * transactionRetryWait):
		}
	}
}

// wrapError returns an error of a session as one of Postgres, unless it says that Redis has lost data.
func wrapError(err error) error {
	if errors.Is(err, holds.ErrDataLost) {
		return err
	}
	return postgres.WrapError(err)
}

// shorter returns how long to wait for the next locked row after one was waited for in vain. Work on many resources waits
// less and less: however many others are locked too, the free ones are done in time.
func shorter(wait time.Duration) time.Duration { return max(wait/10, lockTimeoutLeast) }

// busyIfLocked returns an error of work that waited for a locked row as a holds.ErrBusy, and makes wait shorter for the next
// row. It returns other errors unchanged, nil too.
func busyIfLocked(err error, wait *time.Duration) error {
	if !waitedForLock(err) {
		return err
	}
	*wait = shorter(*wait)
	return fmt.Errorf("%w: %w", holds.ErrBusy, err)
}

// transactWaiting is transact with another time for which work waits for each locked row.
func (s *Store) transactWaiting(ctx context.Context, limit time.Duration, work func(tx pgx.Tx) error) error {
	return s.transact(ctx, func(tx pgx.Tx) error {
		if limit != lockTimeout {
			if err := waitForLocks(ctx, tx, limit); err != nil {
				return err
			}
		}
		return work(tx)
	})
}

// waitForLocks changes how long the rest of a transaction waits for each locked row.
func waitForLocks(ctx context.Context, tx pgx.Tx, limit time.Duration) error {
	_, err := tx.Exec(ctx, "SET LOCAL lock_timeout = "+strconv.FormatInt(limit.Milliseconds(), 10))
	return err
}

// exceedsCapacity reports whether Postgres refused a change that would exceed the capacity.
func exceedsCapacity(err error) bool {
	refused, is := errors.AsType[*pgconn.PgError](err)
	return is && refused.Code == postgres.CodeCheckViolation && strings.EqualFold(refused.ConstraintName, constraintReserved)
}

// waitedForLock reports whether Postgres stopped waiting for rows that another session has locked.
func waitedForLock(err error) bool { return postgres.HasCode(err, postgres.CodeLockNotAvailable) }

// FenceBase returns a number that is higher than all earlier ones, at least 1. It is a
// locking.FenceBase.
func (s *Store) FenceBase(ctx context.Context) (base int64, err error) {
	if err := s.pool.QueryRow(ctx, query("fence_base")).Scan(&base); err != nil {
		return 0, fmt.Errorf("draw base of fencing tokens: %w", wrapError(err))
	}
	return base, nil
}
