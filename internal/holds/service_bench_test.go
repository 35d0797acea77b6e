package holds_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// The shape of the work of BenchmarkRedis.
const (
	benchResources = 1000
	benchCalendar  = 60 // nights of each resource
	benchNights    = 3  // of a hold
	benchRounds    = 5  // of each of the two works that are compared
)

// redisBench measures the share of Redis in the work of a service.
type redisBench struct {
	*harness
	least    *redis.Script
	names    []string // of the nights
	syncedAt time.Time
}

// BenchmarkRedis measures the processor time and the commands of Redis for a hold of three nights,
// alone and in batches of different resources, beside the least script that places a hold, in
// alternating rounds; the same for a payment; and the bytes of a live hold. b.N is the number of
// holds:
//
//	go test ./internal/holds -run xxx -bench BenchmarkRedis -benchtime 20000x
func BenchmarkRedis(b *testing.B) {
	own := stacktest.StartRedis(b)
	r := &redisBench{harness: newHarnessOn(b, own.RedisURL)}
	source, err := os.ReadFile("../bench/ceiling.lua")
	stacktest.Must(b, err)
	r.least = redis.NewScript(string(source))
	stacktest.Must(b, r.least.Load(b.Context(), r.client).Err())
	r.execute(b, fmt.Sprintf(`INSERT INTO inventory (resource_id, slot, capacity)
		SELECT 'r' || r, to_char(current_date + n, 'YYYY-MM-DD'), 1000000
		FROM generate_series(0, %d) AS r, generate_series(0, %d) AS n`, benchResources-1, benchCalendar-1))
	for n := range benchCalendar {
		r.names = append(r.names, time.Now().UTC().AddDate(0, 0, n).Format(time.DateOnly))
	}
	var all []holds.PlaceRequest
	for i := range benchResources {
		all = append(all, r.request(i, benchCalendar/4, benchCalendar/2))
	}
	for some := range slices.Chunk(all, 50) { // so few that the rows of all nights are read, and cached
		r.decide(b, some)
	}
	for _, batch := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("place/batch=%d", batch), func(b *testing.B) { r.benchmarkPlace(b, batch) })
	}
	for _, batch := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("pay/batch=%d", batch), func(b *testing.B) { r.benchmarkPay(b, batch) })
	}
	b.Run("bytes", r.benchmarkBytes)
}

func (r *redisBench) request(resource, from, nights int) holds.PlaceRequest {
	user := uuid.NewString()[24:]
	return holds.PlaceRequest{
		EventID: uuid.NewString(), RequestKey: user, User: user, Resource: "r" + strconv.Itoa(resource),
		Quantity: 1, StoredAt: time.Now(),
		Selection: holds.SlotSelection{CheckIn: r.names[from], CheckOut: r.names[from+nights]},
	}
}

// batch returns requests for different resources.
func (r *redisBench) batch(n int) []holds.PlaceRequest {
	requests := make([]holds.PlaceRequest, n)
	for i, resource := range rand.Perm(benchResources)[:n] {
		requests[i] = r.request(resource, rand.IntN(benchCalendar-benchNights), benchNights)
	}
	return requests
}

// decide places holds, all of which must be granted.
func (r *redisBench) decide(b *testing.B, requests []holds.PlaceRequest) []holds.HoldID {
	b.Helper()
	if time.Since(r.syncedAt) > 500*time.Millisecond {
		r.syncInventory(b, r.service)
		r.syncedAt = time.Now()
	}
	ids := make([]holds.HoldID, len(requests))
	for i, result := range r.service.Place(b.Context(), requests) {
		if result.Err != nil || result.Outcome.Event != holds.EventHoldCreated {
			b.Fatalf("hold: %+v", result)
		}
		ids[i] = result.Outcome.Hold
	}
	return ids
}

// leastBatch runs the least script for a batch of requests.
func (r *redisBench) leastBatch(b *testing.B, requests []holds.PlaceRequest) {
	b.Helper()
	pipe := r.client.Pipeline()
	for _, request := range requests {
		id, resource := request.EventID, r.namespace+":least:"+request.Resource+":"
		from := slices.Index(r.names, request.Selection.CheckIn)
		deadline, record := time.Now().Add(time.Hour).UnixMilli(), strings.Repeat("x", 150)
		args := []any{id, 1, 1_000_000, time.Hour.Milliseconds(), deadline, record}
		for _, name := range r.names[from : from+benchNights] {
			args = append(args, name)
		}
		keys := []string{resource + "request:" + id, resource + "hold:" + id, resource + "counts", resource + "due"}
		r.least.EvalSha(b.Context(), pipe, keys, args...)
	}
	if _, err := pipe.Exec(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// usage is what Redis has used since its start.
type usage struct{ us, commands float64 }

// usageOf returns what Redis uses for n pieces of work, on average.
func usageOf(b *testing.B, client *redis.Client, n int, work func()) usage {
	b.Helper()
	read := func() usage {
		info, err := client.InfoMap(b.Context(), "cpu", "stats").Result()
		stacktest.Must(b, err)
		number := func(section, name string) float64 {
			n, err := strconv.ParseFloat(info[section][name], 64)
			stacktest.Must(b, err)
			return n
		}
		return usage{
			us:       1e6 * (number("CPU", "used_cpu_sys") + number("CPU", "used_cpu_user")),
			commands: number("Stats", "total_commands_processed"),
		}
	}
	before := read()
	work()
	after := read()
	return usage{(after.us - before.us) / float64(n), (after.commands - before.commands) / float64(n)}
}

// median returns the usage of the middle round.
func median(rounds []usage) usage {
	slices.SortFunc(rounds, func(a, b usage) int { return cmp.Compare(a.us, b.us) })
	return rounds[len(rounds)/2]
}

func (r *redisBench) benchmarkPlace(b *testing.B, batch int) {
	batches := max(1, b.N/batch/benchRounds)
	var ours, least []usage
	for range benchRounds {
		requests := make([][]holds.PlaceRequest, batches)
		for i := range requests {
			requests[i] = r.batch(batch)
		}
		least = append(least, usageOf(b, r.client, batches*batch, func() {
			for _, some := range requests {
				r.leastBatch(b, some)
			}
		}))
		ours = append(ours, usageOf(b, r.client, batches*batch, func() {
			for _, some := range requests {
				r.decide(b, some)
			}
		}))
	}
	u, l := median(ours), median(least)
	b.ReportMetric(u.us, "redis-us/hold")
	b.ReportMetric(u.commands, "commands/hold")
	b.ReportMetric(l.us, "least-us/hold")
	b.ReportMetric(u.us/l.us, "x-least")
}

func (r *redisBench) benchmarkPay(b *testing.B, batch int) {
	batches := max(1, b.N/batch/benchRounds)
	var rounds []usage
	for range benchRounds {
		payments := make([][]holds.ConfirmRequest, batches)
		for i := range payments {
			for _, id := range r.decide(b, r.batch(batch)) {
				payments[i] = append(payments[i], holds.ConfirmRequest{Hold: id, PaymentID: uuid.NewString()})
			}
		}
		rounds = append(rounds, usageOf(b, r.client, batches*batch, func() {
			for _, some := range payments {
				for _, result := range r.service.Confirm(b.Context(), some) {
					if result.Err != nil || result.Outcome.Event != holds.EventHoldConfirmed {
						b.Fatalf("payment: %+v", result)
					}
				}
			}
		}))
	}
	u := median(rounds)
	b.ReportMetric(u.us, "redis-us/payment")
	b.ReportMetric(u.commands, "commands/payment")
}

// benchmarkBytes reports the memory of a live hold, and the share of each kind of key.
func (r *redisBench) benchmarkBytes(b *testing.B) {
	stacktest.Must(b, r.client.FlushDB(b.Context()).Err())
	if _, err := recovery.Initialise(b.Context(), r.namespace, r.client, record.AllPartitions, r.epoch); err != nil {
		b.Fatal(err)
	}
	r.decide(b, r.batch(1)) // the scripts are loaded
	before := r.memory(b)
	number := 0
	for ; number < b.N; number += 64 {
		r.decide(b, r.batch(64))
	}
	b.ReportMetric(float64(r.memory(b)-before)/float64(number), "bytes/hold")
	parts := make(map[string]int64)
	scan := r.client.Scan(b.Context(), 0, r.namespace+":*", 1000).Iterator()
	for scan.Next(b.Context()) {
		bytes, err := r.client.MemoryUsage(b.Context(), scan.Val(), 0).Result()
		stacktest.Must(b, err)
		_, rest, _ := strings.Cut(scan.Val(), "}:")
		if _, suffix, found := strings.Cut(rest, ":"); found {
			kind, _, _ := strings.Cut(suffix, ":")
			parts[kind] += bytes
		}
	}
	stacktest.Must(b, scan.Err())
	for kind, bytes := range parts {
		b.ReportMetric(float64(bytes)/float64(number), "bytes-"+kind)
	}
}

// memory returns the bytes that Redis uses, without the buffers of its clients.
func (r *redisBench) memory(b *testing.B) int64 {
	b.Helper()
	bytes, err := strconv.ParseInt(r.client.InfoMap(b.Context(), "memory").Item("Memory", "used_memory_dataset"), 10, 64)
	stacktest.Must(b, err)
	return bytes
}

// BenchmarkSoldOut rejects requests for a seat of a hall whose 1,000 seats are all held, each by another hold. The name says
// how many of them end before that of the seat: retry_at is the end of that hold.
//
//	go test ./internal/holds -run '^$' -bench SoldOut -benchtime 500x
func BenchmarkSoldOut(b *testing.B) {
	own := stacktest.StartRedis(b)
	w := newHarnessOn(b, own.RedisURL)
	const seats = 1000
	w.execute(b, fmt.Sprintf(`INSERT INTO inventory (resource_id, slot, capacity)
		SELECT 'hall', 's' || n, 1 FROM generate_series(0, %d) AS n`, seats-1))
	request := func(i int) holds.PlaceRequest {
		user := uuid.NewString()[24:]
		return holds.PlaceRequest{EventID: uuid.NewString(), RequestKey: user, User: user, Resource: "hall", Quantity: 1,
			Selection: holds.SlotSelection{Slots: []string{"s" + strconv.Itoa(i)}}}
	}
	place := func(i int, want string) {
		for _, r := range w.service.Place(b.Context(), []holds.PlaceRequest{request(i)}) {
			if r.Err != nil || r.Outcome.Event != want {
				b.Fatalf("%+v", r)
			}
		}
	}
	for i := range seats {
		place(i, holds.EventHoldCreated)
	}
	for _, seat := range []int{0, 10, 500, 999} {
		b.Run(strconv.Itoa(seat), func(b *testing.B) {
			for b.Loop() {
				place(seat, holds.EventHoldRejected)
			}
		})
	}
}
