package main

import (
	"context"
	"slices"
	"strconv"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/queries"
	"holdfast/internal/terminal"
)

// inventory is the commands for capacity.
type inventory struct {
	Set  inventorySet  `cmd:"" help:"Set the capacity of slots."`
	Show inventoryShow `cmd:"" help:"Show availability."`
	List inventoryList `cmd:"" help:"List resources."`
}

func (*inventory) Help() string {
	return `Examples:

  publisher inventory set --resource-id deluxe --check-in 2028-12-01 --check-out 2029-01-01 --capacity 12 --wait
  publisher inventory show --resource-id deluxe --check-in 2028-12-01 --check-out 2028-12-05`
}

// inventorySet publishes inventory.set.
type inventorySet struct {
	ResourceID string       `required:"" placeholder:"R" help:"The resource."`
	Slots      slotFlags    `embed:""`
	Capacity   int64        `required:"" placeholder:"N" help:"Capacity of each slot: the total that may be sold."`
	Publish    publishFlags `embed:""`
}

func (*inventorySet) Help() string {
	return `Publishes inventory.set, which sets the capacity of all given slots or, if one is not possible, of
none. The outcome is inventory.updated or inventory.rejected.

Examples:

  publisher inventory set --resource-id deluxe --check-in 2028-12-01 --check-out 2029-01-01 --capacity 12 --wait
  publisher inventory set --resource-id hamlet --slot A-12,A-13 --capacity 1 --wait
  publisher inventory set --resource-id book --capacity 500 --wait`
}

// Run sets the capacity.
func (c *inventorySet) Run(ctx context.Context, p *program) error {
	return p.publish(ctx, c.Publish, events.InventorySet, c.ResourceID, events.InventorySetData{
		ResourceID: c.ResourceID, SlotSelection: c.Slots.selection(), Capacity: c.Capacity,
	})
}

// inventoryShow requests the availability from a worker.
type inventoryShow struct {
	ResourceID string    `required:"" placeholder:"R" help:"The resource."`
	Slots      slotFlags `embed:""`
}

func (*inventoryShow) Help() string {
	return `Shows capacity, reserved, held and available quantity of each slot. A worker answers the query. Only
live holds count as held. A slot whose capacity was never set has no inventory row and is not
available.

Examples:

  publisher inventory show --resource-id deluxe --check-in 2028-12-01 --check-out 2028-12-05
  publisher inventory show --resource-id book -o json`
}

// Run prints the availability.
func (c *inventoryShow) Run(ctx context.Context, p *program) error {
	return ask(ctx, p, func(ctx context.Context, cl *client.Client) (queries.KnownAvailability, []byte, error) {
		return cl.Availability(ctx, c.ResourceID, c.Slots.selection())
	}, func(found queries.KnownAvailability, _ []byte) error {
		return p.print(availabilityTable(found.Slots))
	})
}

// inventoryList lists resources.
type inventoryList struct {
	Prefix string `placeholder:"P" help:"Only resources whose ids begin with this."`
	Limit  int    `default:"50" help:"Number of resources of a page, 1 to 500."`
	After  string `placeholder:"R" help:"List the page after this resource: the last one of the previous page."`
}

func (*inventoryList) Help() string {
	return `Lists the resources that have inventory, each with the sums over its slots and its number of live
holds. A worker answers the query. -o json prints {resources, next}.

Example:

  publisher inventory list --prefix room-`
}

// Run prints a page of the resources.
func (c *inventoryList) Run(ctx context.Context, p *program) error {
	return ask(ctx, p, func(ctx context.Context, cl *client.Client) (queries.ResourcesPage, []byte, error) {
		return cl.Resources(ctx, queries.ResourcesQuery{Prefix: c.Prefix, Limit: c.Limit, After: c.After})
	}, func(found queries.ResourcesPage, _ []byte) error {
		out := p.newList([]string{"resource", "slots", "capacity", "reserved", "live holds"}, nil)
		for _, r := range found.Resources {
			out.addRow(r.ResourceID, r.Slots, r.Capacity, r.Reserved, r.LiveHolds)
		}
		if err := out.end("no resources"); err != nil {
			return err
		}
		if found.Next != "" {
			p.reportf("there are more, see --after %s", found.Next)
		}
		return nil
	})
}

// availabilityTable returns a table with a row per slot. A slot without an inventory row shows only the held quantity.
func availabilityTable(slots []queries.SlotAvailability) string {
	unknown := func(slot queries.SlotAvailability) bool { return slot.Known != nil && !*slot.Known }
	headers := []string{"SLOT", "CAPACITY", "RESERVED", "HELD", "AVAILABLE"}
	if slices.ContainsFunc(slots, unknown) {
		headers = append(headers, "")
	}
	rows := make([][]string, len(slots))
	for i, slot := range slots {
		number := func(n int64) string { return strconv.FormatInt(n, 10) }
		rows[i] = []string{
			terminal.Printable(slot.Slot), number(slot.Capacity), number(slot.Reserved), number(slot.Held), number(slot.Available), "",
		}
		if unknown(slot) {
			rows[i] = []string{terminal.Printable(slot.Slot), "-", "-", number(slot.Held), "-", "no inventory row"}
		}
		rows[i] = rows[i][:len(headers)]
	}
	return terminal.Table(headers, rows)
}
