package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/events"
)

// inventorySet publishes inventory.set.
type inventorySet struct {
	ResourceID string     `required:"" placeholder:"R" help:"The resource."`
	Slots      slotFlags  `embed:""`
	Capacity   int64      `required:"" placeholder:"N" help:"How many of each slot may be sold, all together."`
	Publishing publishing `embed:""`
}

// Help implements kong's detailed help.
func (*inventorySet) Help() string {
	return `Publishes inventory.set, which sets the capacity of all these slots or of none. The outcome is inventory.updated or inventory.rejected.

Examples:

  publisher inventory set --resource-id deluxe --check-in 2026-12-01 --check-out 2027-01-01 --capacity 12 --wait
  publisher inventory set --resource-id hamlet --slot A-12,A-13 --capacity 1 --wait
  publisher inventory set --resource-id book --capacity 500 --wait`
}

// Run sets the capacity.
func (v *inventorySet) Run(ctx context.Context, p *program) error {
	return p.publish(ctx, v.Publishing, events.InventorySet, v.ResourceID, events.InventorySetData{
		ResourceID: v.ResourceID, Asked: v.Slots.asked(), Capacity: v.Capacity,
	})
}

// availabilityBytesMax bounds an answer of the operations address: 1,100 slots take a tenth of it.
const availabilityBytesMax = 1 << 20

// inventoryShow asks a worker what can be had.
type inventoryShow struct {
	ResourceID string    `required:"" placeholder:"R" help:"The resource."`
	Slots      slotFlags `embed:""`
}

// Help implements kong's detailed help.
func (*inventoryShow) Help() string {
	return `Asks the worker's operations address (--http-addr), not NATS. Only live holds count as held.

Examples:

  publisher inventory show --resource-id deluxe --check-in 2026-12-01 --check-out 2026-12-05
  publisher inventory show --resource-id book -o json`
}

// Run shows what can be had.
func (v *inventoryShow) Run(ctx context.Context, p *program) error {
	addr, err := p.httpAddr()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	where := url.URL{Scheme: "http", Host: addr, Path: "/v1/availability", RawQuery: v.Slots.query(v.ResourceID).Encode()}
	body, err := get(ctx, where.String())
	if err != nil {
		return err
	}
	if p.json() {
		if !jsontext.Value(body).IsValid() {
			return fmt.Errorf("%s did not answer as a worker does: not JSON", addr)
		}
		return p.printJSON(bytes.TrimRight(body, "\r\n"))
	}
	members, err := membersOf(body)
	if err != nil {
		return fmt.Errorf("%s did not answer as a worker does: %w", addr, err)
	}
	for _, m := range members {
		if m.isList() {
			headers, rows := m.rows()
			return p.print(table(headers, rows))
		}
	}
	return fmt.Errorf("%s did not answer as a worker does: no slots", addr)
}

// get returns what the operations address answers. A query that it finds bad is wrong usage.
func get(ctx context.Context, where string) ([]byte, error) {
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return nil, misused("--http-addr: %v", err)
	}
	ask.Close = true // there is only one question
	answer, err := http.DefaultClient.Do(ask)
	if err != nil {
		return nil, fmt.Errorf("ask the worker: %w (does one run there? else give --http-addr)", err)
	}
	defer func() { _ = answer.Body.Close() }() // only read
	body, err := io.ReadAll(io.LimitReader(answer.Body, availabilityBytesMax))
	if err != nil {
		return nil, fmt.Errorf("ask the worker: %w", err)
	}
	switch answer.StatusCode {
	case http.StatusOK:
		return body, nil
	case http.StatusBadRequest:
		return nil, misused("%s", problemIn(body))
	default:
		return nil, fmt.Errorf("the worker answers %s: %s", answer.Status, problemIn(body))
	}
}

// problemIn returns what a refusal of the operations address says.
func problemIn(body []byte) string {
	var problem struct {
		Error  string `json:"error"`
		Detail string `json:"detail"`
	}
	if err := json.Unmarshal(body, &problem); err != nil || problem.Error == "" {
		return string(bytes.TrimSpace(body[:min(len(body), 200)]))
	}
	return problem.Error + ": " + problem.Detail
}
