package main

import (
	"context"
	"slices"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/queries"
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

// Run prints the availability. Of a slot without an inventory row the table shows only the held quantity, and of one whose
// resource has lost commits no capacity.
func (c *inventoryShow) Run(ctx context.Context, p *program) error {
	query := client.AvailabilityQuery{ResourceID: c.ResourceID, SlotSelection: c.Slots.selection()}
	return ask(ctx, p, queries.EndpointAvailability, query, func(found queries.KnownAvailability, _ []byte) error {
		columns := []string{"slot", "capacity", "reserved", "held", "available"}
		noted := func(slot queries.SlotAvailability) bool { return !slot.Known || slot.LostCommits }
		if slices.ContainsFunc(found.Slots, noted) {
			columns = append(columns, "")
		}
		out := p.newList(columns, nil)
		for _, s := range found.Slots {
			row := []any{s.Slot, s.Capacity, s.Reserved, s.Held, s.Available, ""}
			switch {
			case !s.Known:
				row = []any{s.Slot, "-", "-", s.Held, "-", "no inventory row"}
			case s.LostCommits:
				row = []any{s.Slot, "-", s.Reserved, s.Held, s.Available, "lost commits, nothing is granted: see worker audit"}
			}
			out.addRow(row[:len(columns)]...)
		}
		return out.end("no slots")
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

func (c *inventoryList) Run(ctx context.Context, p *program) error {
	query := queries.ResourcesQuery{Prefix: c.Prefix, Limit: c.Limit, After: c.After}
	return ask(ctx, p, queries.EndpointResources, query, func(found queries.ResourcesPage, _ []byte) error {
		out := p.newList([]string{"resource", "slots", "capacity", "reserved", "live holds"}, nil)
		for _, r := range found.Resources {
			out.addRow(r.ResourceID, r.Slots, r.Capacity, r.Reserved, r.LiveHolds)
		}
		empty := "no resources"
		if found.Next != "" {
			empty += " on this page"
		}
		return out.endPage(empty, "", found.Next)
	})
}
