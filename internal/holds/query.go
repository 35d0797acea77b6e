package holds

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/lua"
)

// SlotAvailability is the current availability of one slot.
type SlotAvailability struct {
	SlotCounts
	Available   int64 `json:"available"` // max(0, capacity - reserved - held)
	Known       bool  `json:"-"`         // the slot has an inventory row; without one its capacity is 0
	LostCommits bool  `json:"-"`         // as in InventoryRow
}

// Availability returns the availability of each selected slot. It counts live holds only. A slot
// without an inventory row has capacity 0. It returns an *InvalidError for a selection that is not
// valid.
func (s *Service) Availability(ctx context.Context, resource string, a SlotSelection) ([]SlotAvailability, error) {
	names, err := a.names(nightsWindow{max: InventorySlotsMax})
	if err != nil {
		return nil, err
	}
	w := s.beginWork()
	// Read held before reserved: a hold that is confirmed in between is counted twice. The other
	// order would not count it at all.
	held, err := w.heldCounts(ctx, resource, names)
	if err != nil {
		return nil, fmt.Errorf("availability of %s: %w", resource, err)
	}
	rows, err := s.inventory.InventoryRows(ctx, []string{resource}, [][]string{names})
	if err != nil {
		return nil, fmt.Errorf("availability of %s: %w", resource, err)
	}
	slots := make([]SlotAvailability, len(names))
	for i, row := range rows[0] {
		slots[i].SlotCounts = SlotCounts{Slot: names[i], Capacity: row.Capacity, Reserved: row.Reserved, Held: held[i]}
		slots[i].Available = max(0, row.Capacity-row.Reserved-held[i])
		slots[i].Known, slots[i].LostCommits = row.Known, row.LostCommits
	}
	return slots, nil
}

// heldCounts reads what live holds take of slots. Before that it expires all due holds of the
// resource.
func (w *work) heldCounts(ctx context.Context, resource string, names []string) ([]int64, error) {
	args := []any{w.requestKeyTTLMS(), sweepMax}
	for _, name := range names {
		args = append(args, name)
	}
	c := w.newCall(scriptAvailability, resource, args...)
	for w.run(ctx, c); c.Err == nil && c.Status == "more"; w.run(ctx, c) {
	}
	if err := c.Expect(len(names)); err != nil {
		return nil, err
	}
	counts := make([]int64, len(names))
	for i, text := range c.Reply {
		var err error
		if counts[i], err = parseCount(text); err != nil {
			return nil, fmt.Errorf("count of %s: %w", names[i], err)
		}
	}
	return counts, nil
}

// parseCount parses a number in a reply.
func parseCount(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, ErrCorrupt
	}
	return n, nil
}

// HoldView is the answer to a query for a hold.
type HoldView struct {
	ResourceID string `json:"resource_id"`
	HoldID     HoldID `json:"hold_id"`
	State      State  `json:"state"`
	RequestKey string `json:"request_key"`
	UserID     string `json:"user_id,omitzero"` // "" when it is hidden
	SlotSelection
	Quantity  int64          `json:"quantity"`
	Metadata  jsontext.Value `json:"metadata,omitzero"`
	CreatedAt Time           `json:"created_at"`
	ExpiresAt Time           `json:"expires_at"`
}

// GetHold returns a hold while it is remembered; after that, found is false. A hold whose deadline
// has come is expired in the answer, even if it was not swept yet.
func (s *Service) GetHold(ctx context.Context, id HoldID) (view HoldView, found bool, err error) {
	known, err := s.GetHolds(ctx, []HoldID{id})
	if err != nil || len(known) == 0 {
		return HoldView{}, false, err
	}
	return known[0], true, nil
}

// GetHolds returns those of the holds that are remembered, as GetHold does, in one round trip.
func (s *Service) GetHolds(ctx context.Context, ids []HoldID) (known []HoldView, err error) {
	w := s.beginWork()
	if err := w.epochs.Err(); err != nil {
		return nil, err
	}
	found, err := w.readHolds(ctx, ids)
	for _, hold := range found {
		if hold != nil {
			known = append(known, hold.view())
		}
	}
	return known, err
}

// readHolds reads holds in one round trip. One that is not remembered is nil. One that cannot be read is nil too, and
// err is the first of their errors.
func (w *work) readHolds(ctx context.Context, ids []HoldID) (found []*Hold, err error) {
	calls := make([]*lua.Call, len(ids))
	for i, id := range ids {
		calls[i] = w.newCall(scriptShow, id.Resource, id.UUID)
	}
	w.run(ctx, calls...)
	for i, id := range ids {
		hold, failed := holdOf(id, calls[i])
		found, err = append(found, hold), cmp.Or(err, failed)
	}
	return found, err
}

// holdOf returns the hold that a call has read, nil when it is not remembered.
func holdOf(id HoldID, c *lua.Call) (*Hold, error) {
	if err := c.Expect(2); err != nil {
		return nil, fmt.Errorf("get hold %s: %w", id, err)
	}
	if c.Reply[1] == "" {
		return nil, nil //nolint:nilnil // no hold and no error
	}
	hold, err := parseRecord(id, c.Reply[1])
	if err != nil {
		return nil, err
	}
	now, err := parseMillis(c.Reply[0])
	if err != nil {
		return nil, err
	}
	if hold.State == Held && !now.Before(hold.ExpiresAt.Time) {
		hold.State = Expired
	}
	return &hold, nil
}
