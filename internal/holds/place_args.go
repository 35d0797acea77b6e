package holds

import (
	"slices"
	"strconv"
	"time"

	"holdfast/internal/lua"
	"holdfast/internal/record"
)

// placeCall returns a call of place.lua for a group whose rows were read. token is the value of its
// locks, and age the maximum age of the rows when it is decided. The arguments have the order of the
// script's header.
func (w *work) placeCall(g *group, token string, age time.Duration) *lua.Call {
	n, k := len(g.names), len(g.requests)
	call := w.newCall(scriptPlace, g.resource)
	args := slices.Grow(call.Args, 16+2*n+11*k) // enough for all
	args = append(args, g.read.rev, w.requestKeyTTLMS(), w.policy.HoldsPerUser, sweepMax, g.read.at.UnixMilli(),
		age.Milliseconds(), token, inventoryArg(g.rows), n, k)
	keyPrefix := w.service.keys.Prefix(g.resource) + "request:"
	for _, p := range g.requests {
		args = append(args, keyPrefix+p.RequestKey)
	}
	for _, name := range g.names {
		args = append(args, name)
	}
	for _, p := range g.requests {
		args = append(args, p.User, record.IndexField(p.User, p.slots))
	}
	for _, row := range g.rows {
		if row.Known {
			args = append(args, row.Capacity-row.Reserved)
		} else {
			args = append(args, "-")
		}
	}
	for _, p := range g.requests {
		args = p.appendArgs(args, g.names)
	}
	call.Args = args
	return call
}

// appendArgs appends the 8 arguments for a request of a group. A request gets the id of the hold
// that it may create, a late payment has the id of its own hold. union has the sorted slots of the
// group.
func (p *placing) appendArgs(args []any, union []string) []any {
	id := p.late
	if p.kind == kindRequest {
		id = NewHoldID(p.Resource).UUID
	}
	tail := record.Tail{
		User: p.User, RequestKey: p.RequestKey, Slots: p.slots, Selection: p.selectionJSON, Metadata: string(p.Metadata),
	}
	return append(args, string(p.kind), id, p.EventID, p.fingerprint, p.Quantity, p.ttl.Milliseconds(),
		slotRuns(union, p.names), tail.String())
}

// inventoryArg returns the argument inventory: capacity:reserved,... for each slot.
func inventoryArg(rows []InventoryRow) []byte {
	var text []byte
	for i, row := range rows {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(append(strconv.AppendInt(text, row.Capacity, 10), ':'), row.Reserved, 10)
	}
	return text
}

// slotRuns returns the positions of sorted names in the sorted union, counted from 1, as runs:
// 1:3,7:7.
func slotRuns(union, names []string) []byte {
	var runs []byte
	for i := 0; i < len(names); {
		from, _ := slices.BinarySearch(union, names[i])
		to := from
		for i++; i < len(names) && to+1 < len(union) && union[to+1] == names[i]; i++ {
			to++
		}
		if len(runs) > 0 {
			runs = append(runs, ',')
		}
		runs = strconv.AppendInt(append(strconv.AppendInt(runs, int64(from+1), 10), ':'), int64(to+1), 10)
	}
	return runs
}
