package audit

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"holdfast/internal/holds"
	"holdfast/internal/postgres"
)

//go:embed queries/*.sql
var queryFiles embed.FS

// query returns the text of queries/<name>.sql.
var query = postgres.Queries(queryFiles)

const postgresConnections = 2

// lockTimeout is how long a query waits for a lock of another session, such as one on a whole table.
const lockTimeout = 5 * time.Second

// OpenPostgres returns connections for an audit of a namespace, to a server that accepts writes.
// options change the configuration (see postgres.AllowReadOnlyRole). It does not connect: the first
// query fails if the server is unreachable. It returns an error of package postgres for an unusable
// URL.
func OpenPostgres(ctx context.Context, url, namespace string, options ...func(*pgxpool.Config)) (*pgxpool.Pool, error) {
	config, err := postgres.Config(url, namespace, postgres.Settings{
		"lock_timeout": strconv.FormatInt(lockTimeout.Milliseconds(), 10),
	})
	if err != nil {
		return nil, err
	}
	for _, option := range options {
		option(config)
	}
	config.MaxConns = postgresConnections
	config.ConnConfig.RuntimeParams["application_name"] = "holdfast audit " + namespace
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open postgres: %w", err)
	}
	return pool, nil
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// forEachRow calls each after it has read a row of a query into the values.
func forEachRow(
	ctx context.Context, on querier, sql string, args, values []any, each func() error,
) error {
	rows, _ := on.Query(ctx, sql, args...) // ForEachRow returns its error
	_, err := pgx.ForEachRow(rows, values, each)
	return explain(err)
}

// explain says what to check when a query did not get a lock.
func explain(err error) error {
	if postgres.HasCode(err, postgres.CodeLockNotAvailable) {
		return fmt.Errorf("another session holds a lock in postgres (pg_locks): %w", err)
	}
	return err
}

// readRow reads the only row of a query into the values.
func (s *Backends) readRow(ctx context.Context, sql string, values ...any) error {
	return explain(s.Postgres.QueryRow(ctx, sql).Scan(values...))
}

// readPostgres reads the rows of the group's resources, all as of one moment. only names the
// resources that are read again; nil means all.
func (g *group) readPostgres(ctx context.Context, only []string) error {
	if only == nil && g.options.ResourceID != "" {
		only = []string{g.options.ResourceID}
	}
	for _, r := range g.resources {
		if only == nil || slices.Contains(only, r.name) {
			r.forgetPostgres()
		}
	}
	tx, err := g.Postgres.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return fmt.Errorf("read postgres: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }() // nothing to commit
	for _, table := range []struct {
		name string
		read func(context.Context, pgx.Tx, []string) error
	}{{"reservations", g.readReservations}, {"payments", g.readPayments}, {"inventory", g.readInventory},
		{"commit_marker", g.readCompared}} {
		if err := table.read(ctx, tx, only); err != nil {
			return fmt.Errorf("read %s: %w", table.name, err)
		}
	}
	return nil
}

// forgetPostgres drops what was read from Postgres, except the highest capacity.
func (r *resource) forgetPostgres() {
	for _, h := range r.holds {
		h.reservation = nil
		h.answers = slices.DeleteFunc(h.answers, func(a answer) bool { return a.outcome == 0 })
		for i := range h.answers {
			h.answers[i].row = nil
		}
	}
}

// countSales returns the number of reservations and of answers to payments.
func (a *auditor) countSales(ctx context.Context) (rows uint64, err error) {
	if err = a.Postgres.QueryRow(ctx, query("sales")).Scan(&rows); err != nil {
		return 0, fmt.Errorf("count sales: %w", err)
	}
	return rows, nil
}

func (g *group) readReservations(ctx context.Context, tx pgx.Tx, only []string) error {
	var holdID, resourceID, payment string
	var slots []string
	var quantity, confirmedAt, cancelledAt int64
	var cancelled bool
	return forEachRow(ctx, tx, query("reservations"), []any{only},
		[]any{&holdID, &resourceID, &slots, &quantity, &payment, &cancelled, &confirmedAt, &cancelledAt}, func() error {
			h := g.holdNamed(holdID)
			if h == nil {
				return nil
			}
			g.report.Stats.Reservations++
			h.reservation = &reservation{strings.Clone(resourceID), payment, slices.Clone(slots), quantity, confirmedAt, cancelled,
				cancelledAt}
			return nil
		})
}

func (g *group) readPayments(ctx context.Context, tx pgx.Tx, only []string) error {
	var holdID, payment, paidHold string
	var found decision
	return forEachRow(ctx, tx, query("payments"), []any{only},
		[]any{&holdID, &payment, &found.confirmed, &found.reason, &found.late, &found.at, &paidHold}, func() error {
			h := g.holdNamed(holdID)
			if h == nil {
				return nil
			}
			g.report.Stats.Payments++
			one := found
			a := h.answerTo(payment)
			a.row, a.past = &one, isPast(paidHold, g.report.At.Time)
			return nil
		})
}

// isPast reports whether the slots of a hold, in JSON, are nights that were all over a day before a time, in UTC.
func isPast(hold string, at time.Time) bool {
	var data holds.HoldData
	if json.Unmarshal([]byte(hold), &data) != nil {
		return false
	}
	slots, err := data.ReservedSlots()
	return err == nil && !slices.ContainsFunc(slots, func(slot string) bool {
		night, err := time.Parse(holds.DateFormat, slot)
		return err != nil || night.AddDate(0, 0, 2).After(at)
	})
}

func (g *group) readInventory(ctx context.Context, tx pgx.Tx, only []string) error {
	var resourceID, slot string
	var capacity int64
	return forEachRow(ctx, tx, query("inventory"), []any{only}, []any{&resourceID, &slot, &capacity}, func() error {
		if !g.isMine(resourceID) || !holds.ResourcePattern.MatchString(resourceID) {
			return nil
		}
		g.report.Stats.Slots++
		g.resource(resourceID).addCapacity(slot, capacity, 0)
		return nil
	})
}

// readCompared reads up to which outcome workers have compared Postgres. It decides as a worker does that starts
// (recovery.HistoryChecker): a marker of another state of the outbound stream counts for nothing.
func (g *group) readCompared(ctx context.Context, tx pgx.Tx, _ []string) error {
	g.comparedSeq = 0
	var sameServer bool
	var created *time.Time
	var seq int64
	var marker holds.LogPosition
	values := []any{&sameServer, &created, &seq, &marker.StoredAt}
	err := forEachRow(ctx, tx, query("commit_marker"), nil, values, func() error {
		switch {
		case created != nil:
			marker.Created, marker.Seq = *created, uint64(seq)
		case sameServer:
			g.comparedSeq = math.MaxUint64 // workers take all outcomes to be there
		}
		return nil
	})
	if err != nil || marker.Seq == 0 {
		return err
	}
	back, err := g.out.goneBack(ctx, marker)
	if !back {
		g.comparedSeq = marker.Seq
	}
	return err
}

// holdNamed returns a hold of the group, nil for an invalid id or a hold of another group.
func (g *group) holdNamed(text string) *hold {
	parsed, err := holds.ParseHoldID(text)
	if err != nil || !g.isMine(parsed.Resource) {
		return nil
	}
	uuid, _ := parseID(parsed.UUID) // ParseHoldID has validated it
	return g.resource(parsed.Resource).hold(uuid)
}

// constraints are the constraints that the promises about Postgres rest on, with the definition
// that restores each.
var constraints = []struct{ name, table, definition string }{
	{"reserved_is_between_zero_and_capacity", "inventory", "CHECK (reserved BETWEEN 0 AND capacity)"},
	{"inventory_has_one_row_per_resource_and_slot", "inventory", "PRIMARY KEY (resource_id, slot)"},
	{"a_hold_becomes_one_reservation", "reservations", "PRIMARY KEY (hold_id)"},
	{"a_payment_of_a_hold_has_one_answer", "payments", "PRIMARY KEY (hold_id, payment_id)"},
}

// checkConstraints finds missing constraints, and rows that violate them.
func (a *auditor) checkConstraints(ctx context.Context) (found []*Finding, err error) {
	valid := make(map[string]bool)
	var name string
	var validated bool
	if err := forEachRow(ctx, a.Postgres, query("constraints"), []any{a.Namespace}, []any{&name, &validated},
		func() error { valid[name] = validated; return nil }); err != nil {
		return nil, fmt.Errorf("read the constraints of postgres: %w", err)
	}
	for _, c := range constraints {
		if valid[c.name] {
			continue
		}
		is, remedy := "missing",
			fmt.Sprintf("ALTER TABLE %s.%s ADD CONSTRAINT %s %s", a.Namespace, c.table, c.name, c.definition)
		if _, there := valid[c.name]; there {
			is, remedy = "not validated",
				fmt.Sprintf("ALTER TABLE %s.%s VALIDATE CONSTRAINT %s", a.Namespace, c.table, c.name)
		}
		found = append(found, &Finding{
			Kind: NoConstraint, Item: c.name, Where: a.Namespace + "." + c.table, Expected: c.definition, Found: is,
			Text: fmt.Sprintf("The constraint %s of table %s is %s: Postgres does not enforce the promises.", c.name,
				c.table, is),
			Remedy: remedy + ". " + notSafe,
		})
	}
	var resourceID, slot string
	var capacity, reserved int64
	err = forEachRow(ctx, a.Postgres, query("out_of_bounds"), []any{a.options.ResourceID},
		[]any{&resourceID, &slot, &capacity, &reserved}, func() error {
			found = append(found, &Finding{
				Kind: OutOfBounds, Resource: quoted(resourceID), Item: quoted(slot), Where: a.Namespace + ".inventory",
				Expected: fmt.Sprintf("0 to %d", capacity), Found: strconv.FormatInt(reserved, 10),
				Text: fmt.Sprintf("Slot %s of %s has %d reserved and a capacity of %d.", quoted(slot), quoted(resourceID),
					reserved, capacity),
				Remedy: "Raise the capacity if there is more to sell, or cancel reservations (publisher " +
					"cancel-reservation). " + notSafe,
			})
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("read inventory: %w", err)
	}
	return found, nil
}

// checkLostCommits finds published outcomes whose commit Postgres has lost and workers could not put back.
func (a *auditor) checkLostCommits(ctx context.Context) (found []*Finding, err error) {
	a.lostSales = make(map[string]*Finding)
	var resourceID, outcomeID, event, hold, reason string
	var noticed time.Time
	err = forEachRow(ctx, a.Postgres, query("lost_commits"), []any{a.options.ResourceID},
		[]any{&resourceID, &outcomeID, &event, &hold, &reason, &noticed}, func() error {
			lost := &Finding{
				Kind: CommitLost, Resource: quoted(resourceID), Item: quoted(outcomeID), Where: a.Namespace + ".lost_commits",
				Expected: quoted(event), Found: quoted(reason),
				Text: fmt.Sprintf("Postgres has lost the commit of a published %s of %s, and since %s it cannot be put back: "+
					"%s. Nothing is granted on the resource.",
					quoted(event), quoted(resourceID), moment(noticed.UnixMilli()), quoted(reason)),
				Remedy: "Raise the capacity or cancel another reservation (publisher cancel-reservation), or publish a newer " +
					"inventory.set where the reason says so: workers put the rest back within 10 s. What cannot be kept, " +
					"refund and remove: see HoldfastLostCommits in the runbook. " + notSafe,
			}
			found = append(found, lost)
			if event == holds.EventHoldConfirmed {
				a.lostSales[hold] = lost
			}
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("read lost commits: %w", postgres.HintMigrate(err))
	}
	return found, nil
}

// checkReserved finds slots whose reserved number differs from the sum of their reservations.
// resources names those that are checked; nil means all. gone is the number of slots that have
// reservations and no inventory row.
func (s *Backends) checkReserved(ctx context.Context, resources []string) (found []*Finding, gone int, err error) {
	var resourceID, slot string
	var reserved *int64
	var reservations int64
	err = forEachRow(ctx, s.Postgres, query("reserved"), []any{resources},
		[]any{&resourceID, &slot, &reserved, &reservations}, func() error {
			if reserved == nil {
				gone++
				return nil
			}
			d := difference{Reserved, slot, strconv.FormatInt(*reserved, 10), strconv.FormatInt(reservations, 10)}
			found = append(found, &Finding{
				Kind: Reserved, Resource: quoted(resourceID), Item: quoted(slot), Where: s.Namespace + ".inventory",
				Expected: d.expected, Found: d.found,
				Text: fmt.Sprintf("Postgres has %d reserved of slot %s of %s; its confirmed reservations take %d.",
					*reserved, quoted(slot), quoted(resourceID), reservations),
				Remedy: "Set reserved to the sum of the reservations.", Automatic: true,
				difference: d, resourceID: resourceID,
			})
			return nil
		})
	if err != nil {
		return nil, 0, fmt.Errorf("sum up reservations: %w", err)
	}
	return found, gone, nil
}

// defaultMemory is how long answers and ended holds are remembered when no policy is stored.
const defaultMemory = 24 * time.Hour

// storedMemory returns how long answers and ended holds are remembered: the request-key-ttl of the stored
// policy that is in force, or defaultMemory.
func (s *Backends) storedMemory(ctx context.Context) (time.Duration, error) {
	var text string
	err := s.readRow(ctx, query("request_key_ttl"), &text)
	if errors.Is(err, pgx.ErrNoRows) {
		return defaultMemory, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the stored policy: %w", postgres.HintMigrate(err))
	}
	memory, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("stored policy: request-key-ttl: %w", err)
	}
	return memory, nil
}
