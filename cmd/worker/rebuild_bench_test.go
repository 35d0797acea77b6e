package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/recovery"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// BenchmarkRebuild rebuilds Redis with live holds of three nights each on 1,000 resources:
//
//	go test ./cmd/worker -run xxx -bench Rebuild -benchtime 1x -timeout 20m
//
// HOLDFAST_BENCH_HOLDS is the number of holds (default 1,000,000). It reports the time from the
// loss to the first decision, the memory and processor time of the process (with the NATS server in
// it), and the memory of Redis. With -benchtime 2x the second loss restores older data in Redis
// instead of removing all.
func BenchmarkRebuild(b *testing.B) {
	number := 1_000_000
	if text := os.Getenv("HOLDFAST_BENCH_HOLDS"); text != "" {
		var err error
		if number, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	own, err := stack.Start(b.Context(), stack.Options{Redis: true})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	shared := stacktest.Shared()
	s := newHarnessOn(b, urls{shared.NATSURL, own.RedisURL, shared.PostgresURL})
	for _, stop := range s.unfollow {
		stop()
	}
	s.storeCreated(b, number, 1000)
	db, err := store.Open(b.Context(), s.urls.postgres, s.namespace)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	config := s.benchConfig(b)
	if err := s.redis.FlushAll(b.Context()).Err(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		supervisor, _, err := newSupervisor(config, recovery.NewEpochTerm(), recovery.NewConnGuard(), db, s.js, s.subjects,
			zerolog.New(b.Output()))
		if err != nil {
			b.Fatal(err)
		}
		last, phase := time.Now(), ""
		r, err := supervisor.Rebuild(b.Context(), "a benchmark", false, func(progress string) {
			if now := strings.Trim(progress, " 0123456789"); !strings.HasPrefix(now, phase[:min(7, len(phase))]) || phase == "" {
				fmt.Fprintf(os.Stderr, "%6.1f s  %s\n", time.Since(last).Seconds(), progress)
				phase = now
			}
		})
		if err != nil || r.Live != number {
			b.Fatalf("%+v %v", r, err)
		}
		fmt.Fprintf(os.Stderr, "%6.1f s  done\n", r.Took.Seconds())
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		b.ReportMetric(r.Took.Seconds(), "s")
		b.ReportMetric(float64(memory.Sys)/1e6, "MB-worker")
		b.ReportMetric(usedMemory(b, s)/1e6, "MB-redis")
	}
}

// benchConfig returns the configuration of a worker of the harness.
func (s *harness) benchConfig(b *testing.B) Config {
	b.Helper()
	var c cli
	parser, err := kong.New(&c, tagVariables, kong.Vars{"version": ""})
	if err == nil {
		_, err = parser.Parse(append([]string{"run"}, s.flagsAs("worker")...))
	}
	if err != nil {
		b.Fatal(err)
	}
	return c.Run.Config
}

// BenchmarkResume restarts Redis with the append-only file of live holds as in BenchmarkRebuild, and with 2,000
// outcomes after the marker, whose changes it has lost:
//
//	go test ./cmd/worker -run xxx -bench Resume -benchtime 1x -timeout 20m
//
// It reports the time until Redis has loaded its file, the time from then until decisions go on, and the part
// of that in which the worker waited for outcomes in flight.
func BenchmarkResume(b *testing.B) {
	const lost = 2000
	number := 1_000_000
	if text := os.Getenv("HOLDFAST_BENCH_HOLDS"); text != "" {
		var err error
		if number, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	options := stack.Options{Redis: true, Dir: b.TempDir()}
	own, err := stack.Start(b.Context(), options)
	if err != nil {
		b.Fatal(err)
	}
	shared := stacktest.Shared()
	s := newHarnessOn(b, urls{shared.NATSURL, own.RedisURL, shared.PostgresURL})
	for _, stop := range s.unfollow {
		stop()
	}
	s.storeCreated(b, number, 1000)
	db, err := store.Open(b.Context(), s.urls.postgres, s.namespace)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	config, term := s.benchConfig(b), recovery.NewEpochTerm()
	supervisor := func() *recovery.Supervisor {
		k, _, err := newSupervisor(config, term, recovery.NewConnGuard(), db, s.js, s.subjects, zerolog.New(b.Output()))
		if err != nil {
			b.Fatal(err)
		}
		return k
	}
	first := supervisor()
	if _, err := first.Rebuild(b.Context(), "a benchmark", false, func(string) {}); err != nil {
		b.Fatal(err)
	}
	if _, err := first.Check(b.Context()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if own, err := recovery.NewMarker(first.SupervisorOptions).Mark(b.Context()); err != nil || !own {
			b.Fatal(own, err)
		}
		s.storeCreated(b, lost, 100)
		if err := own.Close(); err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		if own, err = stack.Start(b.Context(), options); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "s-loading")
		config.RedisURL = own.RedisURL
		began = time.Now()
		first = supervisor()
		if _, err := first.Check(b.Context()); err != nil {
			b.Fatal(err)
		}
		waited, since := time.Duration(0), time.Time{}
		r, err := first.Rebuild(b.Context(), "a benchmark", false, func(progress string) {
			if strings.HasPrefix(progress, "waiting") {
				since = time.Now()
			} else if !since.IsZero() {
				waited, since = waited+time.Since(since), time.Time{}
			}
		})
		if err == nil {
			_, err = first.Check(b.Context())
		}
		if err != nil || !r.Resumed || r.Outcomes < lost {
			b.Fatalf("%+v %v", r, err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "s")
		b.ReportMetric(waited.Seconds(), "s-waiting")
		b.ReportMetric(float64(r.Outcomes), "outcomes")
	}
	_ = own.Close()
}

func usedMemory(b *testing.B, s *harness) float64 {
	for line := range strings.Lines(s.redis.Info(b.Context(), "memory").Val()) {
		if text, found := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); found {
			n, err := strconv.ParseFloat(text, 64)
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
	b.Fatal("INFO of redis lacks used_memory")
	return 0
}

// storeCreated publishes outcomes of number holds, as if workers had just created them.
func (s *harness) storeCreated(b *testing.B, number, resources int) {
	b.Helper()
	js, err := jetstream.New(s.nc, jetstream.WithPublishAsyncMaxPending(10_000))
	if err != nil {
		b.Fatal(err)
	}
	now := holds.Time{Time: time.Now().UTC().Truncate(time.Millisecond)}
	quantity := int64(1)
	in := now.AddDate(0, 0, 9)
	for i := range number {
		resource := fmt.Sprintf("room-%d", i%resources)
		id, err := holds.NewHoldID(resource)
		if err != nil {
			b.Fatal(err)
		}
		from := in.AddDate(0, 0, i/resources%300)
		data, err := json.Marshal(holds.HoldCreated{
			HoldData: holds.HoldData{
				ResourceID: resource, HoldID: id, RequestKey: fmt.Sprintf("key-%d", i), UserID: fmt.Sprintf("user-%d", i),
				Quantity: &quantity,
				SlotSelection: holds.SlotSelection{CheckIn: from.Format(holds.DateFormat),
					CheckOut: from.AddDate(0, 0, 3).Format(holds.DateFormat)},
			},
			CreatedAt: now, ExpiresAt: holds.Time{Time: now.Add(time.Hour)},
		})
		if err != nil {
			b.Fatal(err)
		}
		body, err := json.Marshal(events.Envelope{
			SpecVersion: "1.0", ID: id.UUID[:8] + "-0000-8000-8000-" + id.UUID[20:], DataContentType: "application/json",
			Source: "/holdfast/" + s.namespace, Type: events.Type(holds.EventHoldCreated),
			Subject: id.String(), Time: now, CausationID: fmt.Sprintf("event-%d", i), Data: data,
		})
		if err != nil {
			b.Fatal(err)
		}
		m := nats.NewMsg(s.subjects.Out(holds.EventHoldCreated, resource))
		m.Data = body
		m.Header.Set("Content-Type", "application/cloudevents+json")
		m.Header.Set("Nats-Msg-Id", id.UUID[:8]+"-0000-8000-8000-"+id.UUID[20:])
		m.Header.Set("Holdfast-Fingerprint", strings.Repeat("f", 32))
		if _, err := js.PublishMsgAsync(m, jetstream.WithStallWait(time.Minute)); err != nil {
			b.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
}
