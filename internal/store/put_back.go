package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"

	"holdfast/internal/holds"
	"holdfast/internal/postgres"
)

// lostBatch bounds the lost commits in one transaction.
const lostBatch = 50

// contradictionError is the reason why the commit behind a published outcome cannot be put back.
type contradictionError string

func (e contradictionError) Error() string { return string(e) }

// lostCommit is a lost commit with the reason why it cannot be put back.
type lostCommit struct {
	outcome holds.StoredOutcome
	reason  string
}

// lostRow is a row of lost_commits.
type lostRow struct {
	lostCommit
	noticedAt time.Time
	decoded   bool // else outcome has only what other columns have
}

// lockedReason is the reason of a lost commit that is put back when another session has ended.
const lockedReason = "another session has locked its rows"

// undecodedReason is the reason of a lost commit that another version has stored, or that was changed by hand.
const undecodedReason = "this version of the worker cannot decode it"

// PutBack implements recovery.HistoryStore.
func (s *Store) PutBack(ctx context.Context, outcomes []holds.StoredOutcome) (restored int, err error) {
	err = s.transact(ctx, func(tx pgx.Tx) error {
		changed, lost, err := putBackIn(ctx, tx, outcomes)
		if err != nil {
			return err
		}
		restored = len(changed)
		added, err := insertLost(ctx, tx, lost)
		if err == nil && restored+added > 0 {
			_, err = tx.Exec(ctx, query("history_incomplete"))
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("put back %d outcomes: %w", len(outcomes), err)
	}
	return restored, nil
}

// PutBackLost implements recovery.HistoryStore. Some can be put back only after others, so it tries
// again until a try of all puts nothing back.
func (s *Store) PutBackLost(ctx context.Context) (restored int, err error) {
	for {
		some, err := s.putBackLostOnce(ctx)
		restored += some
		if some > 0 && (err == nil || errors.Is(err, holds.ErrBusy)) {
			continue
		}
		if err != nil {
			err = fmt.Errorf("put back lost commits: %w", err)
		}
		return restored, err
	}
}

// putBackLostOnce tries all lost commits, a batch in one transaction. When another session has locked the row of one, as an
// operator does who removes it, it tries each of the batch alone, and returns holds.ErrBusy in the end.
func (s *Store) putBackLostOnce(ctx context.Context) (restored int, err error) {
	var last lostRow
	var busy error
	wait, alone := lockTimeout, 0 // alone is how many of the next ones are tried alone
	for {
		batch := lostBatch
		if alone > 0 {
			batch, alone = 1, alone-1
		}
		rows, lost, err := s.putBackLostAfter(ctx, last, batch, wait)
		switch {
		case waitedForLock(err) && len(rows) > 1:
			wait, alone = shorter(wait), len(rows)
			continue
		case waitedForLock(err) && len(rows) == 1:
			busy = fmt.Errorf("another session has locked the row %s of lost_commits, or a table, end its transaction: %w",
				rows[0].outcome.ID, holds.ErrBusy)
		case err != nil:
			return restored, err
		case len(rows) == 0:
			return restored, busy
		default:
			restored += len(rows) - len(lost)
		}
		last = rows[len(rows)-1]
	}
}

// putBackLostAfter tries the lost commits after one, and returns them and those that stay. wait is for each row that
// another session has locked.
func (s *Store) putBackLostAfter(
	ctx context.Context, after lostRow, batch int, wait time.Duration,
) (rows []lostRow, lost []lostCommit, err error) {
	err = s.transactWaiting(ctx, wait, func(tx pgx.Tx) (err error) {
		if rows, err = readLost(ctx, tx, after, batch); err != nil || len(rows) == 0 {
			return err
		}
		var outcomes []holds.StoredOutcome
		var unknown []lostCommit
		for _, row := range rows {
			if row.decoded {
				outcomes = append(outcomes, row.outcome)
			} else {
				unknown = append(unknown, lostCommit{row.outcome, undecodedReason})
			}
		}
		if _, lost, err = putBackIn(ctx, tx, outcomes); err != nil {
			return err
		}
		lost = append(lost, unknown...)
		return replaceLost(ctx, tx, rows, lost)
	})
	return rows, lost, err
}

// replaceLost removes the rows that are not lost any more, and stores the reasons of those that have another one now. A
// lock of another session passes, so it is the reason only of what has had no other one. It returns errRaced when a row was
// removed meanwhile.
func replaceLost(ctx context.Context, tx pgx.Tx, rows []lostRow, lost []lostCommit) error {
	var ids []string
	var reasons []*string
	for _, row := range rows {
		i := slices.IndexFunc(lost, func(l lostCommit) bool { return l.outcome.ID == row.outcome.ID })
		switch {
		case i < 0:
			ids, reasons = append(ids, row.outcome.ID), append(reasons, nil)
		case lost[i].reason != row.reason && lost[i].reason != lockedReason:
			ids, reasons = append(ids, row.outcome.ID), append(reasons, &lost[i].reason)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	var removed int
	err := tx.QueryRow(ctx, query("lost_replace"), ids, reasons).Scan(&removed)
	if err == nil && removed != len(ids) {
		err = errRaced // another session has removed one: if it is an operator's, it must not be put back
	}
	return err
}

// putBackIn puts back what follows from outcomes and is missing. changed has the resource of each outcome that it has put
// back. It touches nothing of the outcomes in lost.
func putBackIn(
	ctx context.Context, tx pgx.Tx, outcomes []holds.StoredOutcome,
) (changed []string, lost []lostCommit, err error) {
	missing, lost, err := findMissing(ctx, tx, outcomes)
	if err != nil {
		return nil, nil, err
	}
	locked := make(map[string]bool) // by resource
	wait := lockTimeout
	for _, o := range missing {
		if locked[o.Resource] {
			lost = append(lost, lostCommit{o, lockedReason})
			continue
		}
		err := pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error { return putBackOne(ctx, savepoint, o) })
		if err == nil {
			changed = append(changed, o.Resource)
			continue
		}
		reason := lostReason(o, err)
		if reason == "" {
			return nil, nil, err
		}
		lost = append(lost, lostCommit{o, reason})
		if reason == lockedReason {
			locked[o.Resource] = true
			wait = shorter(wait)
			if err := waitForLocks(ctx, tx, wait); err != nil {
				return nil, nil, err
			}
		}
	}
	if len(locked) > 0 { // what follows is not theirs
		if err := waitForLocks(ctx, tx, lockTimeout); err != nil {
			return nil, nil, err
		}
	}
	if len(changed) > 0 { // reserved may be higher than workers have read
		_, err = tx.Exec(ctx, `SELECT pg_notify(current_schema() || '_inventory', changed) FROM unnest($1::text[]) AS changed`, changed)
	}
	return changed, lost, err
}

// lostReason returns the reason why an outcome could not be put back, "" when the error is not its own, and nothing can be
// put back now.
func lostReason(o holds.StoredOutcome, err error) string {
	contradicts, is := errors.AsType[contradictionError](err)
	switch {
	case is:
		return contradicts.Error()
	case exceedsCapacity(err) && o.Event == holds.EventInventoryUpdated:
		return "more is reserved than it sets: publish a newer inventory.set, or remove this row"
	case exceedsCapacity(err) && o.Event != holds.EventReservationCancelled: // which takes nothing
		return "the capacity is lower than what is reserved with it"
	case errors.Is(err, errInsufficientCapacity):
		return "a slot has no inventory row"
	case waitedForLock(err):
		return lockedReason
	}
	refused, is := errors.AsType[*postgres.Error](postgres.WrapError(err))
	if is && refused.Rejected() || postgres.HasCode(err, postgres.CodeCardinality) { // the latter if it has a slot twice
		return "Postgres refuses it: " + err.Error()
	}
	return ""
}

// findMissing returns the outcomes that Postgres does not have, and those that contradict what it
// has.
func findMissing(
	ctx context.Context, tx pgx.Tx, outcomes []holds.StoredOutcome,
) (missing []holds.StoredOutcome, lost []lostCommit, err error) {
	var payments []holds.Payment
	var causes []string
	for _, o := range outcomes {
		if p, is := paymentIn(o); is {
			payments = append(payments, p)
		} else {
			causes = append(causes, o.ID)
		}
	}
	decided, paid, err := readDecisions(ctx, tx, payments)
	if err != nil {
		return nil, nil, err
	}
	answered, err := readStoredAnswers(ctx, tx, causes)
	if err != nil {
		return nil, nil, err
	}
	incomplete, err := readIncomplete(ctx, tx, outcomes)
	if err != nil {
		return nil, nil, err
	}
	next := 0
	for _, o := range outcomes {
		p, is := paymentIn(o)
		if !is {
			if _, found := answered[o.ID]; isMissing(o, found, incomplete) {
				missing = append(missing, o)
			}
			continue
		}
		decision, reserved := decided[next], paid[next].by != ""
		next++
		switch {
		case decision.DecidedAt.IsZero(), p.Claimed && decision.Confirmed && !reserved:
			missing = append(missing, o)
			incomplete[p.Hold] = incomplete[p.Hold] || p.Claimed // when it is put back
		case decision.Confirmed != p.Claimed:
			lost = append(lost, lostCommit{o, "the payment has another answer"})
		}
	}
	return missing, lost, nil
}

// isMissing reports whether Postgres lacks an outcome, or a part of it. The outcome is not that of a payment.
func isMissing(o holds.StoredOutcome, answered bool, incomplete map[holds.HoldID]bool) bool {
	switch data := o.Data.(type) {
	case holds.ReservationCancelled:
		return !answered || incomplete[data.HoldID]
	case holds.InventoryRejected:
		return !answered && data.Reason == holds.ReasonBelowReserved
	default:
		return !answered
	}
}

// readIncomplete returns the reservations whose published cancellation is missing, or only its time (it has two
// commits), and those that are lost commits: a cancellation waits for them.
func readIncomplete(ctx context.Context, tx pgx.Tx, outcomes []holds.StoredOutcome) (map[holds.HoldID]bool, error) {
	byText := make(map[string]holds.HoldID)
	for _, o := range outcomes {
		if data, is := o.Data.(holds.ReservationCancelled); is {
			byText[data.HoldID.String()] = data.HoldID
		}
	}
	found := make(map[holds.HoldID]bool)
	if len(byText) == 0 {
		return found, nil
	}
	// ForEachRow returns the error of Query.
	rows, _ := tx.Query(ctx, query("reservations_incomplete"), slices.Collect(maps.Keys(byText)))
	var id string
	_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
		found[byText[id]] = true
		return nil
	})
	return found, err
}

// paymentIn returns the payment that an outcome answers, as it was decided. is is false for other outcomes.
func paymentIn(o holds.StoredOutcome) (p holds.Payment, is bool) {
	switch data := o.Data.(type) {
	case holds.HoldConfirmed:
		p.Hold, p.PaymentID, p.Data = data.HoldID, data.PaymentID, data.HoldData
		p.Claimed, p.Late, p.At = true, data.Late, data.ConfirmedAt
	case holds.ConfirmRejected:
		p.Hold, p.PaymentID, p.Data = data.HoldID, data.PaymentID, data.HoldData
		p.Reason, p.At = data.Reason, o.At
	default:
		return p, false
	}
	p.Amount, p.Currency = o.RebuildMetadata.Amount, o.RebuildMetadata.Currency
	if p.At.IsZero() {
		p.At = o.StoredAt
	}
	return p, true
}

// putBackOne puts back what follows from one outcome. It returns a contradictionError,
// errInsufficientCapacity or the violation of the constraint when it cannot.
func putBackOne(ctx context.Context, tx pgx.Tx, o holds.StoredOutcome) error {
	if p, is := paymentIn(o); is {
		return putBackPayment(ctx, tx, p)
	}
	switch data := o.Data.(type) {
	case holds.ReservationCancelled:
		return putBackCancellation(ctx, tx, o, data)
	case holds.CancelRejected:
		return storeAnswerOnce(ctx, tx, o.ID, o.Resource, holds.CancelDecision{Reason: data.Reason, Data: data.HoldData})
	case holds.InventoryUpdated:
		return putBackCapacity(ctx, tx, o, data)
	case holds.InventoryRejected:
		return storeAnswerOnce(ctx, tx, o.ID, o.Resource, holds.CapacityDecision{BelowReserved: true})
	}
	return nil
}

func putBackPayment(ctx context.Context, tx pgx.Tx, p holds.Payment) (err error) {
	one := []holds.Payment{p}
	decided, paid, err := readDecisions(ctx, tx, one)
	if err != nil {
		return err
	}
	answered := !decided[0].DecidedAt.IsZero()
	switch {
	case answered && decided[0].Confirmed != p.Claimed:
		return contradictionError("the payment has another answer")
	case answered && (!p.Claimed || paid[0].by != ""):
		return nil // the payment has several outcomes
	}
	if p.Claimed {
		if p.Data.Quantity == nil {
			return contradictionError("the outcome has no quantity")
		}
		if one[0].Names, err = p.Data.ReservedSlots(); err != nil {
			return contradictionError("the outcome has invalid slots")
		}
		switch paid[0].by {
		case "":
			if err := putBackReservation(ctx, tx, one); err != nil {
				return err
			}
		case p.PaymentID:
		default:
			return contradictionError("another payment has the reservation")
		}
	}
	if answered { // only the reservation was lost, as when single tables are restored
		return nil
	}
	answer := holds.PaymentDecision{Confirmed: p.Claimed, Late: p.Late, Reason: p.Reason, DecidedAt: p.At, Data: p.Data}
	return writeDecisions(ctx, tx, one, []holds.PaymentDecision{answer}, []int{0})
}

// putBackReservation puts back the reservation of one payment. One whose cancellation is a lost commit takes nothing, so it
// is put back as cancelled, whatever the capacity is now.
func putBackReservation(ctx context.Context, tx pgx.Tx, one []holds.Payment) error {
	hold := one[0].Hold
	var cancelledBy string
	err := tx.QueryRow(ctx, query("lost_cancellation"), hold.Resource, hold.String()).Scan(&cancelledBy)
	if errors.Is(err, pgx.ErrNoRows) {
		return makeReservations(ctx, tx, one, []int{0})
	}
	if err == nil {
		err = insertReservations(ctx, tx, one, []int{0})
	}
	if err == nil {
		_, err = tx.Exec(ctx, query("reservations_cancel"), []string{hold.String()}, []string{cancelledBy}, []*string{nil})
	}
	return err
}

func putBackCancellation(
	ctx context.Context, tx pgx.Tx, o holds.StoredOutcome, data holds.ReservationCancelled,
) error {
	id := data.HoldID.String()
	found, err := lockReservations(ctx, tx, []string{id})
	if err != nil {
		return err
	}
	if found[id] == nil {
		return contradictionError("the reservation is missing")
	}
	if !found[id].cancelled {
		requests := []holds.CancelRequest{{EventID: o.ID, Hold: data.HoldID}}
		if err := restoreInventory(ctx, tx, requests, found, []int{0}); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, query("reservations_cancelled_at"), []string{id}, data.CancelledAt.Time); err != nil {
		return err
	}
	return storeAnswerOnce(ctx, tx, o.ID, o.Resource, holds.CancelDecision{Data: found[id].hold})
}

func putBackCapacity(ctx context.Context, tx pgx.Tx, o holds.StoredOutcome, data holds.InventoryUpdated) error {
	position := o.RebuildMetadata.Position
	if position == (holds.StreamPosition{}) {
		return contradictionError("it was published without its position in the inbound stream")
	}
	sorted := slices.SortedFunc(slices.Values(data.Slots),
		func(a, b holds.SlotCounts) int { return strings.Compare(a.Slot, b.Slot) })
	names, capacities := make([]string, len(sorted)), make([]int64, len(sorted))
	for i, slot := range sorted {
		names[i], capacities[i] = slot.Slot, slot.Capacity
	}
	_, err := tx.Exec(ctx, query("inventory_set"), o.Resource, names, capacities, position.At,
		position.StreamCreatedAt, int64(position.Seq))
	if err != nil {
		return err
	}
	return storeAnswerOnce(ctx, tx, o.ID, o.Resource, holds.CapacityDecision{Slots: data.Slots})
}

// storedCommit is the column outcome of lost_commits.
type storedCommit struct {
	Event    string               `json:"event"`
	ID       string               `json:"id"`
	At       holds.Time           `json:"at,omitzero"`
	StoredAt holds.Time           `json:"stored_at"`
	Data     jsontext.Value       `json:"data"`
	Amount   string               `json:"amount,omitzero"`
	Currency string               `json:"currency,omitzero"`
	Position holds.StreamPosition `json:"position,omitzero"`
}

// insertLost stores lost commits, and returns how many of them are new.
func insertLost(ctx context.Context, tx pgx.Tx, lost []lostCommit) (added int, err error) {
	if len(lost) == 0 {
		return 0, nil
	}
	var ids, resources, events, reasons, outcomes []string
	for _, l := range lost {
		o := l.outcome
		stored := storedCommit{Event: o.Event, ID: o.ID, At: o.At, StoredAt: o.StoredAt,
			Amount: o.RebuildMetadata.Amount, Currency: o.RebuildMetadata.Currency, Position: o.RebuildMetadata.Position}
		if stored.Data, err = json.Marshal(o.Data); err != nil {
			return 0, err
		}
		text, err := json.Marshal(stored)
		if err != nil {
			return 0, err
		}
		ids, resources, events = append(ids, o.ID), append(resources, o.Resource), append(events, o.Event)
		reasons, outcomes = append(reasons, l.reason), append(outcomes, string(text))
	}
	tag, err := tx.Exec(ctx, query("lost_insert"), ids, resources, events, reasons, outcomes)
	return int(tag.RowsAffected()), err
}

// readLost reads the next lost commits after a row.
func readLost(ctx context.Context, tx pgx.Tx, after lostRow, limit int) ([]lostRow, error) {
	rows, _ := tx.Query(ctx, query("lost_read"), limit, after.noticedAt, after.outcome.ID) // CollectRows returns its error
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (l lostRow, err error) {
		var text []byte
		err = row.Scan(&l.outcome.ID, &l.outcome.Resource, &l.reason, &text, &l.noticedAt)
		l.decoded = decodeLost(text, &l.outcome)
		return l, err
	})
}

// decodeLost decodes the column outcome of a lost commit, and reports whether it could.
func decodeLost(text []byte, o *holds.StoredOutcome) bool {
	var stored storedCommit
	if json.Unmarshal(text, &stored) != nil {
		return false
	}
	o.Event, o.At, o.StoredAt = stored.Event, stored.At, stored.StoredAt
	o.RebuildMetadata.Amount, o.RebuildMetadata.Currency = stored.Amount, stored.Currency
	o.RebuildMetadata.Position = stored.Position
	data, known, err := holds.DecodeOutcomeData(stored.Event, stored.Data)
	o.Data = data
	if p, is := paymentIn(*o); is && !holds.ValidName(p.PaymentID) {
		return false // else no batch with it can be read
	}
	return known && err == nil
}
