package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// recoveryBench is a worker process on a Redis that has many holds and answers, and loses them.
type recoveryBench struct {
	*harness
	worker *process
	probes [record.Partitions]string // a resource in each partition
	asked  int
}

// The outcomes of a recoveryBench.
const (
	benchResources = 1000
	benchLost      = 2000 // outcomes after the marker
)

// BenchmarkRecovery measures how a worker recovers Redis after it has lost its data: all of it, that of one shard of
// three, and the last writes, by a restart with the append-only file and by a failover to a replica, with 2,000
// outcomes after the last marker.
//
//	go test ./cmd/worker -run xxx -bench Recovery -benchtime 1x -timeout 60m
//
// HOLDFAST_BENCH_HOLDS is the number of live holds, of three nights each on 1,000 resources (default 10,000).
// HOLDFAST_BENCH_ANSWERS is how many answers are remembered for each of them beside its own (default 10): one is of a
// hold that was released, the others are refusals.
//
// From the moment at which the server can be written again it reports the time to the first grant, the time until
// each lost partition has granted, the processor time of the worker process, and the most memory that was resident in
// it; after FLUSHALL also the processor time of Redis. The worker detects the loss itself.
func BenchmarkRecovery(b *testing.B) {
	live, answers := benchNumber(b, "HOLDFAST_BENCH_HOLDS", 10_000), benchNumber(b, "HOLDFAST_BENCH_ANSWERS", 10)
	options := stack.Options{Redis: true, Dir: stacktest.DataDir(b), StopWithin: time.Minute}
	first, err := stack.Start(b.Context(), options)
	stacktest.Must(b, err)
	defer func() { _ = first.Close() }() // it may be closed
	url, proxy := stacktest.ProxyTo(b, first.RedisURL)
	s := &recoveryBench{harness: newHarnessOn(b, urls{stacktest.Shared().NATSURL, url, stacktest.Shared().PostgresURL})}
	s.prepare()
	s.storeOutcomes(live, answers)
	s.start()
	b.Run("FLUSHALL", func(b *testing.B) {
		for b.Loop() {
			before := s.redisTime(b)
			s.measure(b, record.AllPartitions, func() {
				stacktest.Must(b, s.redis.FlushAll(b.Context()).Err())
			})
			b.ReportMetric(s.redisTime(b)-before, "redis-cpu-s")
		}
	})
	b.Run("restart with AOF", func(b *testing.B) {
		for b.Loop() {
			s.measure(b, record.AllPartitions, func() {
				s.awaitMarkers(b)
				stacktest.Must(b, first.Close())
				s.storeOutcomes(benchLost, 0)
				began := time.Now()
				if first, err = stack.Start(b.Context(), options); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(time.Since(began).Seconds(), "s-loading")
				switchTo(b, proxy, first.RedisURL)
			})
		}
	})
	b.Run("replica promoted", func(b *testing.B) {
		for b.Loop() {
			s.measure(b, record.AllPartitions, func() { first = s.promoteReplica(b, first, proxy) })
		}
	})
	b.Run("one shard lost", func(b *testing.B) {
		cluster := stacktest.StartRedisCluster(b, 3, 0)
		s.restartOn(b, cluster.URL())
		lost := cluster.NodeOf(record.Keyspace(s.namespace).Epoch(0))
		for b.Loop() {
			s.measure(b, s.partitionsOn(cluster, lost), func() {
				node := cluster.Client(lost)
				defer func() { _ = node.Close() }() // no command is in progress
				stacktest.Must(b, node.FlushAll(b.Context()).Err())
			})
		}
	})
}

func benchNumber(b *testing.B, name string, number int) int {
	if text := os.Getenv(name); text != "" {
		var err error
		if number, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	return number
}

// prepare sets the capacity of the probes, and stops following the outcomes.
func (s *recoveryBench) prepare() {
	setUp := s.startWorker()
	for i, found := 0, 0; found < record.Partitions; i++ {
		resource := fmt.Sprintf("probe-%d", i)
		if p := record.Partition(resource); s.probes[p] == "" {
			s.probes[p] = resource
			s.setInventory(resource, holds.SlotSelection{}, 1_000_000)
			found++
		}
	}
	setUp.stop(s.t)
	s.unfollow()
}

// start starts the worker, and waits until each partition grants.
func (s *recoveryBench) start() {
	s.worker = s.startWorker()
	s.ask(record.AllPartitions)
}

// restartOn starts the worker on another Redis, which is empty: it rebuilds it.
func (s *recoveryBench) restartOn(b *testing.B, url string) {
	b.Helper()
	s.worker.stop(b)
	s.urls.redis = url
	s.start()
}

// promoteReplica kills a Redis that has a replica, stores outcomes, and promotes the replica.
func (s *recoveryBench) promoteReplica(b *testing.B, master *stack.Stack, proxy *stacktest.Proxy) *stack.Stack {
	b.Helper()
	replica := stacktest.StartRedis(b)
	from, to := stacktest.ConnectRedis(b, master.RedisURL), stacktest.ConnectRedis(b, replica.RedisURL)
	s.awaitMarkers(b)
	stacktest.ReplicaOf(b, to, from)
	stacktest.KillRedis(b, from)
	s.storeOutcomes(benchLost, 0)
	stacktest.Promote(b, to)
	switchTo(b, proxy, replica.RedisURL)
	return replica
}

// awaitMarkers waits until each partition has a marker of its epoch.
func (s *recoveryBench) awaitMarkers(b *testing.B) {
	b.Helper()
	var keys []string
	for p := range record.Partitions {
		keys = append(keys, record.Keyspace(s.namespace).Applied(p))
	}
	stacktest.Eventually(b, "each partition to have a marker", func() bool {
		return s.redis.Exists(b.Context(), keys...).Val() == record.Partitions
	})
}

// partitionsOn returns the partitions of one server of a cluster.
func (s *recoveryBench) partitionsOn(cluster *stacktest.RedisCluster, node int) (on record.PartitionSet) {
	for p := range record.Partitions {
		if cluster.NodeOf(record.Keyspace(s.namespace).Epoch(p)) == node {
			on.Add(p)
		}
	}
	return on
}

// measure reports how the worker recovers from a loss of some partitions. lose returns when Redis can be written
// again.
func (s *recoveryBench) measure(b *testing.B, lost record.PartitionSet, lose func()) {
	b.Helper()
	pid := s.worker.cmd.Process.Pid
	lose()
	stacktest.Must(b, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)) // the peak begins again
	before := processorTime(b, pid)
	first, last := s.ask(lost)
	b.ReportMetric(first.Seconds(), "s-first-grant")
	b.ReportMetric(last.Seconds(), "s-last-partition")
	b.ReportMetric((processorTime(b, pid) - before).Seconds(), "cpu-s")
	b.ReportMetric(residentPeak(b, pid)/(1<<20), "MiB-peak")
	b.ReportMetric(0, "ns/op")
	lines := strings.Split(strings.TrimSpace(s.worker.log.String()), "\n")
	for _, line := range lines[max(0, len(lines)-20):] {
		if strings.Contains(line, "outcomes_read") || strings.Contains(line, "not resumed") {
			fmt.Fprintln(os.Stderr, line)
		}
	}
}

// ask requests a hold in each of some partitions, and returns when the first and the last are granted.
func (s *recoveryBench) ask(partitions record.PartitionSet) (first, last time.Duration) {
	began := time.Now()
	s.asked++
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	var failed error
	for p := range partitions.Each() {
		asking.Go(func() {
			key := fmt.Sprintf("probe-%d-%d", s.asked, p)
			err := s.askOne(ctx, s.probes[p], key)
			took := time.Since(began)
			mu.Lock()
			defer mu.Unlock()
			if failed = errors.Join(failed, err); first == 0 || took < first {
				first = took
			}
			last = max(last, took)
		})
	}
	asking.Wait()
	if failed != nil {
		s.t.Fatalf("%v\n%s", failed, &s.worker.log)
	}
	return first, last
}

func (s *recoveryBench) askOne(ctx context.Context, resource, key string) error {
	m, _, err := client.NewEvent(s.subjects, events.BookingRequested, resource, "/bench",
		bookingData(resource, key, key, holds.SlotSelection{}, 60))
	if err != nil {
		return err
	}
	reply, err := s.client.Request(ctx, m)
	if err == nil && reply.Envelope.Type != events.Type(holds.EventHoldCreated) {
		err = fmt.Errorf("%s was answered with %s", key, reply.Body)
	}
	return err
}

// redisTime returns how long Redis has used processors, in s, without the processes that rewrite its append-only file.
func (s *recoveryBench) redisTime(b *testing.B) (used float64) {
	b.Helper()
	for line := range strings.Lines(s.redis.Info(b.Context(), "cpu").Val()) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			n, err := strconv.ParseFloat(text, 64)
			stacktest.Must(b, err)
			used += n
		}
	}
	return used
}

// processorTime returns how long a process has used processors, from /proc.
func processorTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	stacktest.Must(b, err)
	_, rest, _ := strings.Cut(string(stat), ") ")
	words := strings.Fields(rest)
	const ticks = time.Second / 100 // of all Linux systems
	total := 0
	for _, word := range words[11:13] { // utime and stime
		n, err := strconv.Atoi(word)
		stacktest.Must(b, err)
		total += n
	}
	return time.Duration(total) * ticks
}

// residentPeak returns the most memory of a process that was resident, in bytes.
func residentPeak(b *testing.B, pid int) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	stacktest.Must(b, err)
	for line := range strings.Lines(string(status)) {
		if text, found := strings.CutPrefix(line, "VmHWM:"); found {
			kB, err := strconv.ParseFloat(strings.Fields(text)[0], 64)
			stacktest.Must(b, err)
			return kB * 1024
		}
	}
	b.Fatal("no VmHWM")
	return 0
}

// storeOutcomes publishes the outcomes of a number of live holds, and for each of them those of some answers more, as
// if workers had just decided them: of a hold that was released, and of refusals.
func (s *recoveryBench) storeOutcomes(live, answers int) {
	s.t.Helper()
	js, err := jetstream.New(s.nc, jetstream.WithPublishAsyncMaxPending(10_000))
	stacktest.Must(s.t, err)
	before, published := s.lastOutcome(), uint64(0)
	publish := func(event string, id holds.HoldID, data any) {
		published++
		stacktest.Must(s.t, s.storeOutcome(js, event, id, data))
	}
	now := holds.Time{Time: time.Now().UTC().Truncate(time.Millisecond)}
	deadline := holds.Time{Time: now.Add(110 * time.Minute)}
	for i := range live {
		hold := newHoldData(s.t, i, "")
		publish(holds.EventHoldCreated, hold.HoldID, holds.HoldCreated{HoldData: hold, CreatedAt: now, ExpiresAt: deadline})
		if answers > 0 {
			ended := newHoldData(s.t, i, "ended")
			publish(holds.EventHoldCreated, ended.HoldID, holds.HoldCreated{HoldData: ended, CreatedAt: now, ExpiresAt: deadline})
			publish(holds.EventHoldReleased, ended.HoldID, holds.HoldReleased{HoldData: ended, ReleasedAt: now})
		}
		for n := range max(0, answers-1) {
			refused := newHoldData(s.t, i, strconv.Itoa(n))
			id := refused.HoldID
			refused.HoldID = holds.HoldID{}
			publish(holds.EventHoldRejected, id, holds.HoldRejected{
				HoldData: refused, Reason: holds.ReasonSoldOut, Message: "not enough is left",
				SoldOut: &holds.SoldOut{Unavailable: []holds.SlotCounts{{Slot: refused.CheckIn, Capacity: 9, Held: 9}}, RetryAt: &deadline},
			})
		}
	}
	<-js.PublishAsyncComplete()
	if stored := s.lastOutcome() - before; stored != published {
		s.t.Fatalf("%d outcomes are stored, want %d", stored, published)
	}
}

// lastOutcome returns the sequence of the last outcome.
func (s *recoveryBench) lastOutcome() uint64 {
	s.t.Helper()
	stream, err := s.js.Stream(s.t.Context(), s.subjects.OutStream())
	stacktest.Must(s.t, err)
	return stream.CachedInfo().State.LastSeq
}

// newHoldData returns a hold of three nights.
func newHoldData(t testing.TB, i int, kind string) holds.HoldData {
	id := holds.NewHoldID(fmt.Sprintf("room-%d", i%benchResources))
	quantity, from := int64(1), time.Now().AddDate(0, 0, 9+i/benchResources%300)
	return holds.HoldData{
		ResourceID: id.Resource, HoldID: id, RequestKey: "key-" + id.UUID, UserID: "user-" + id.UUID[20:] + kind,
		Quantity: &quantity, SlotSelection: holds.SlotSelection{
			CheckIn: from.Format(holds.DateFormat), CheckOut: from.AddDate(0, 0, 3).Format(holds.DateFormat),
		},
	}
}

func (s *recoveryBench) storeOutcome(js jetstream.JetStream, event string, id holds.HoldID, of any) error {
	data, err := json.Marshal(of)
	if err != nil {
		return err
	}
	eventID := uuid.NewString()
	body, err := json.Marshal(events.Envelope{
		SpecVersion: "1.0", ID: eventID, DataContentType: "application/json", Source: "/holdfast/" + s.namespace,
		Type: events.Type(event), Subject: id.String(), Time: holds.Time{Time: time.Now().UTC().Truncate(time.Millisecond)},
		CausationID: eventID, Data: data,
	})
	if err != nil {
		return err
	}
	m := nats.NewMsg(s.subjects.Out(event, id.Resource))
	m.Data = body
	m.Header.Set("Content-Type", "application/cloudevents+json")
	m.Header.Set(jetstream.MsgIDHeader, eventID)
	m.Header.Set("Holdfast-Fingerprint", strings.Repeat("f", 32))
	_, err = js.PublishMsgAsync(m, jetstream.WithStallWait(time.Minute))
	return err
}
