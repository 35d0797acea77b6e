package holds_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// The parameters of the simulated year.
const (
	yearStep   = 5 * 24 * time.Hour
	yearSteps  = 73
	yearSteady = 20 // steps after which no number grows any more
	yearKept   = 60 // days for which answers and past nights are kept
)

// TestYear_EveryKindOfEventAllTheTime_NothingGrows simulates a year. Each step uses a new resource
// and a new night and produces every kind of event. At the end Redis and Postgres contain no more
// than in spring, except for the record of sales.
func TestYear_EveryKindOfEventAllTheTime_NothingGrows(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setPolicy(t, func(p *holds.Policy) { p.LatePayment = holds.LateAcceptedIfFree })
	began := w.now
	var steady map[string]int
	for step := range yearSteps {
		w.runYearStep(t, step)
		w.pass(t, time.Hour)
		w.sweep(t)
		w.pass(t, began.Add(time.Duration(step+1)*yearStep).Sub(w.now))
		w.sweep(t)
		w.ageTTLs(t, yearStep)
		if _, err := w.store.DropAnswers(t.Context(), yearKept*24*time.Hour, 1000); err != nil {
			t.Fatal(err)
		}
		days := int(w.now.Sub(began) / (24 * time.Hour)) // Postgres' clock stands still, so "long ago" comes nearer
		if _, err := w.store.DropElapsedNights(t.Context(), time.Now(), yearKept-days, 1000); err != nil {
			t.Fatal(err)
		}
		if step == yearSteady {
			steady = w.countStored(t)
		}
	}
	last := w.countStored(t)
	steady["key fence"] = record.Partitions // one in each that has had a lock
	steady["key primary"] = record.Partitions
	for _, kind := range slices.Sorted(maps.Keys(last)) {
		if last[kind] > steady[kind] {
			t.Errorf("%s has grown from %d to %d", kind, steady[kind], last[kind])
		}
	}
	for _, kind := range []string{"table event_answers", "table inventory", "key epoch"} {
		if last[kind] == 0 {
			t.Errorf("%s is missing: %v", kind, last)
		}
	}
	t.Logf("at the end: %v", last)
}

// runYearStep produces every kind of event on a resource and a night that were not used before.
func (w *harness) runYearStep(t *testing.T, step int) {
	t.Helper()
	resource, night := fmt.Sprintf("show-%d", step), holds.SlotSelection{
		CheckIn: w.now.AddDate(0, 0, 1).Format(time.DateOnly), CheckOut: w.now.AddDate(0, 0, 2).Format(time.DateOnly),
	}
	w.setInventory(t, resource, night, 4)
	request := func(user string, quantity int64) holds.Outcome {
		return w.place(t, holds.PlaceRequest{
			Resource: resource, User: user, Selection: night, Quantity: quantity, StoredAt: w.now, RequestKey: user,
		})[0]
	}
	expires := created(t, request("ana", 1)).HoldID
	released := created(t, request("ben", 1)).HoldID
	paid := created(t, request("cleo", 1)).HoldID
	rejected(t, request("dora", 2), holds.ReasonSoldOut)
	w.extend(t, holds.ExtendRequest{Hold: paid, PaymentStarted: true})
	w.release(t, holds.ReleaseRequest{Hold: released})
	w.release(t, holds.ReleaseRequest{Resource: resource, RequestKey: "never-seen"})
	w.pay(t, paid, "p-"+resource)
	w.pay(t, paid, "another-"+resource)
	w.cancelReservation(t, holds.CancelRequest{Hold: paid})
	w.pass(t, time.Hour)
	w.sweep(t)
	if late := w.pay(t, expires, "late-"+resource); late.Event != holds.EventHoldConfirmed {
		t.Fatalf("the late payment: %+v", late)
	}
	w.cancelReservation(t, holds.CancelRequest{Hold: expires})
}

// ageTTLs lets time pass for keys with a TTL and for rows, whose clocks a test cannot move.
func (w *harness) ageTTLs(t *testing.T, by time.Duration) {
	t.Helper()
	ctx := t.Context()
	for _, key := range w.scanKeys(ctx, t) {
		if left := w.client.PTTL(ctx, key).Val(); left > 0 {
			w.client.PExpire(ctx, key, left-by) // deletes an expired key
		}
	}
	w.execute(t, fmt.Sprintf(`UPDATE event_answers SET decided_at = decided_at - interval '%d seconds'`, int(by.Seconds())))
}

func (w *harness) scanKeys(ctx context.Context, t *testing.T) (keys []string) {
	t.Helper()
	all := w.client.Scan(ctx, 0, w.namespace+":*", 1000).Iterator()
	for all.Next(ctx) {
		keys = append(keys, all.Val())
	}
	stacktest.Must(t, all.Err())
	return keys
}

// countStored counts the stored data of each kind: keys, their entries, and rows of the tables that
// do not record sales.
func (w *harness) countStored(t *testing.T) map[string]int {
	t.Helper()
	ctx, stored := t.Context(), make(map[string]int)
	for _, key := range w.scanKeys(ctx, t) {
		_, name, _ := strings.Cut(key, "}:")
		parts := strings.Split(name, ":")
		kind := parts[0]
		if len(parts) > 1 && parts[0] != "epoch" {
			kind = parts[1]
		}
		stored["key "+kind]++
		var size *redis.IntCmd
		switch w.client.Type(ctx, key).Val() {
		case "hash":
			size = w.client.HLen(ctx, key)
		case "zset":
			size = w.client.ZCard(ctx, key)
		default:
			continue
		}
		stored["entry of "+kind] += int(size.Val())
	}
	conn := w.connect(t)
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, `SELECT table_name FROM information_schema.tables WHERE table_schema = $1`, w.namespace)
	stacktest.Must(t, err)
	var tables []string
	for rows.Next() {
		var table string
		stacktest.Must(t, rows.Scan(&table))
		tables = append(tables, table)
	}
	for _, table := range tables {
		if table == "reservations" || table == "payments" {
			continue
		}
		var number int
		stacktest.Must(t, conn.QueryRow(ctx, `SELECT count(*) FROM `+table).Scan(&number))
		stored["table "+table] = number
	}
	return stored
}
