package main

import (
	"context"
	"slices"
	"strings"

	"holdfast/internal/client"
	"holdfast/internal/holds"
	"holdfast/internal/members"
	"holdfast/internal/queries"
	"holdfast/internal/terminal"
)

// hold is the commands that show holds.
type hold struct {
	Show    holdShow    `cmd:"" help:"Show a hold."`
	List    holdList    `cmd:"" outputs:"table,wide,json" help:"List the live holds of a resource."`
	History holdHistory `cmd:"" outputs:"table,wide,json" help:"Show what happened to a hold."`
}

func (*hold) Help() string {
	return `Examples:

  publisher hold list --resource-id deluxe
  publisher hold history --hold-id deluxe.0198f0c2a1b47c3d8e4f5a6b7c8d9e0f`
}

// revealFlag asks for private data.
type revealFlag struct {
	Reveal bool   `help:"Show the user and metadata, and in a history the whole data of events. The worker logs that."`
	Who    string `env:"HOLDFAST_WHO" placeholder:"NAME" help:"Operator name, which the worker logs with --reveal. Default: user@host."`
}

// holdShow shows one hold.
type holdShow struct {
	HoldID     holds.HoldID `required:"" placeholder:"H" help:"The hold."`
	revealFlag `embed:""`
}

func (*holdShow) Help() string {
	return `Shows a hold and its state while it is remembered, by default for a day after its end. A worker
answers the query.

Example:

  publisher hold show --hold-id deluxe.0198f0c2a1b47c3d8e4f5a6b7c8d9e0f`
}

func (c *holdShow) Run(ctx context.Context, p *program) error {
	query := client.HoldQuery{HoldID: c.HoldID, Reveal: c.Reveal, Who: terminal.Operator(c.Who)}
	return ask(ctx, p, queries.EndpointHold, query, func(found holds.HoldView, body []byte) error {
		data, err := members.Parse("the hold", body)
		if err != nil {
			return err
		}
		return p.print(page("hold "+string(found.State), data))
	})
}

// holdList lists live holds.
type holdList struct {
	ResourceID string `required:"" placeholder:"R" help:"The resource."`
	UserID     string `nonzero:"is empty; leave the flag out for all users" placeholder:"U" help:"Only holds of this user."`
	State      string `nonzero:"is empty; leave the flag out for all states" placeholder:"S" help:"Only holds in this state: held, or confirming while they are being paid for."`
	Limit      int    `default:"50" help:"Number of holds of a page, 1 to 500."`
	After      string `placeholder:"ID" help:"List the page after this place, which the previous page printed."`
	revealFlag `embed:""`
}

func (*holdList) Help() string {
	return `Lists the live holds of a resource in the order of their deadlines. A worker answers the query. On a
terminal that is too narrow for the table, a deadline is the time that is left; -o wide prints all
of it. -o json prints {resource_id, holds, next}: with next as --after follows the next page. A worker reads
at most 2,000 holds for a page, so with a filter one may be empty although another one follows.

Examples:

  publisher hold list --resource-id deluxe
  publisher hold list --resource-id deluxe --user-id ann --reveal -o json`
}

func (c *holdList) Run(ctx context.Context, p *program) error {
	query := client.HoldsQuery{HoldsQuery: queries.HoldsQuery{
		ResourceID: c.ResourceID, UserID: c.UserID, State: holds.State(c.State), Limit: c.Limit, After: c.After,
		Reveal: c.Reveal,
	}, Who: terminal.Operator(c.Who)}
	for again := true; again; {
		again = false
		err := ask(ctx, p, queries.EndpointHolds, query, func(found queries.HoldsPage, _ []byte) error {
			// A worker reads a limited number of holds for a page. None of these is one that was asked for.
			if again = len(found.Holds) == 0 && found.Next != "" && found.Partial == ""; again {
				query.After = found.Next
				return nil
			}
			return c.printPage(p, found)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *holdList) printPage(p *program, found queries.HoldsPage) error {
	columns := []string{"hold", "state", "expires_at", "quantity", "slots"}
	if c.Reveal {
		columns = append(columns, "user")
	}
	out := p.newList(columns, nil)
	for _, h := range found.Holds {
		row := []any{h.HoldID, h.State, h.ExpiresAt.Time, h.Quantity, slotsText(h.SlotSelection)}
		if c.Reveal {
			row = append(row, h.UserID)
		}
		out.addRow(row...)
	}
	return out.endPage("no live holds", found.Partial, found.Next)
}

// slotsText returns a slot selection as it is shown to people.
func slotsText(selection holds.SlotSelection) string {
	switch {
	case selection.CheckIn != "":
		return selection.CheckIn + ".." + selection.CheckOut
	case len(selection.Slots) > 0:
		return shownSlots(selection.Slots)
	default:
		return holds.StockSlot
	}
}

// holdHistory shows what happened to a hold.
type holdHistory struct {
	HoldID     holds.HoldID `required:"" placeholder:"H" help:"The hold."`
	revealFlag `embed:""`
}

func (*holdHistory) Help() string {
	return `Shows the events, outcomes and dead letters of a hold and its rows in Postgres, in the order of
time. A worker answers the query. The table has the main members of each, with --reveal all of them.
On a terminal that is too narrow for it, a time is an age, and members are cut; -o wide prints all of
it. -o json prints {hold_id, hold, entries, partial}.

Example:

  publisher hold history --hold-id deluxe.0198f0c2a1b47c3d8e4f5a6b7c8d9e0f`
}

func (c *holdHistory) Run(ctx context.Context, p *program) error {
	query := client.HoldQuery{HoldID: c.HoldID, Reveal: c.Reveal, Who: terminal.Operator(c.Who)}
	return ask(ctx, p, queries.EndpointHistory, query, func(found queries.History, _ []byte) error {
		out := p.newList([]string{"at", "what", "name", "reason", "data"}, nil)
		for _, e := range found.Entries {
			data := string(e.Data) // also of what is not an object
			if all, err := members.Parse("the data", e.Data); err == nil && !c.Reveal {
				all = slices.DeleteFunc(all, func(m members.Member) bool { return m.Name == "reason" }) // it has a column
				data = strings.Join(essentials(all, false), " ")
			}
			out.addRow(e.At.Time, e.Kind, e.Name, e.Reason, data)
		}
		return out.endPage("no event, outcome or row of this hold was found", found.Partial, "")
	})
}
