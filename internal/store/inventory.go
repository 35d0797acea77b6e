package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"

	"holdfast/internal/holds"
)

// SetCapacities implements holds.Inventory. Each change has a transaction of its own, which stores the answer too, so an
// event that is delivered again gets the same answer and changes nothing.
func (s *Store) SetCapacities(ctx context.Context, changes []holds.CapacityChange) []holds.CapacityDecision {
	answers := make([]holds.CapacityDecision, len(changes))
	wait := lockTimeout
	for i, change := range changes {
		var err error
		if answers[i], err = s.setCapacity(ctx, change, wait); err != nil {
			err = busyIfLocked(err, &wait)
			answers[i].Err = fmt.Errorf("set capacity of %d slots of %s: %w", len(change.Names), change.Resource, err)
		}
	}
	return answers
}

// setCapacity makes a change. wait is for each locked row.
func (s *Store) setCapacity(
	ctx context.Context, change holds.CapacityChange, wait time.Duration,
) (answer holds.CapacityDecision, err error) {
	for _, refuse := range []bool{false, true} {
		err = s.transactWaiting(ctx, wait, func(tx pgx.Tx) (err error) {
			answer, err = setCapacityIn(ctx, tx, change, refuse)
			return err
		})
		if !exceedsCapacity(err) {
			break
		}
	}
	return answer, err
}

// setCapacityIn decides a change; with refuse it refuses it.
func setCapacityIn(
	ctx context.Context, tx pgx.Tx, change holds.CapacityChange, refuse bool,
) (answer holds.CapacityDecision, err error) {
	remembered, err := readStoredAnswers(ctx, tx, []string{change.EventID})
	if err != nil {
		return answer, err
	}
	if text, answered := remembered[change.EventID]; answered {
		return answer, json.Unmarshal([]byte(text), &answer)
	}
	var lost bool // what was published of the event may still be put back
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM lost_commits WHERE outcome_id = $1)`, change.EventID).Scan(&lost)
	if err == nil && lost {
		err = fmt.Errorf("the event waits until its lost commit is put back or removed: %w", holds.ErrBusy)
	}
	if err != nil {
		return answer, err
	}
	if refuse {
		answer.BelowReserved = true
	} else if answer.Slots, err = setRows(ctx, tx, change); err != nil {
		return answer, err
	}
	return answer, storeAnswers(ctx, tx, []string{change.EventID}, []string{change.Resource}, []any{answer})
}

func setRows(ctx context.Context, tx pgx.Tx, change holds.CapacityChange) ([]holds.SlotCounts, error) {
	_, err := tx.Exec(ctx, query("inventory_set"), change.Resource, change.Names,
		slices.Repeat([]int64{change.Capacity}, len(change.Names)), change.Position.At, change.Position.StreamCreatedAt, change.Position.Seq)
	if err != nil {
		return nil, err
	}
	rows, _ := tx.Query(ctx, query("inventory_read"), change.Resource, change.Names) // ForEachRow returns its error
	set := make(map[string]holds.SlotCounts, len(change.Names))
	var row holds.SlotCounts
	_, err = pgx.ForEachRow(rows, []any{&row.Slot, &row.Capacity, &row.Reserved}, func() error {
		set[row.Slot] = row
		return nil
	})
	if err != nil {
		return nil, err
	}
	slots := make([]holds.SlotCounts, len(change.Names))
	for i, name := range change.Names {
		slots[i] = set[name]
		slots[i].Held = change.Held[i]
	}
	return slots, nil
}
