package events

import (
	"context"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
)

// BenchmarkConsumer takes requests through a consumer, from the fetch to the ack, with a Service
// that grants them at once. The NATS server runs in this process, so the processor time
// (cpu-us/op) and the memory are those of both. Profile it with -cpuprofile and -memprofile.
func BenchmarkConsumer(b *testing.B) {
	for name, synced := range map[string]bool{"unsynced": false, "synced": true} {
		b.Run(name, func(b *testing.B) { benchmarkConsumer(b, synced) })
	}
}

// storedAtOnce is the number of requests that are published before the benchmark waits for them.
const storedAtOnce = 2048

func benchmarkConsumer(b *testing.B, synced bool) {
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, JetStream: true, StoreDir: b.TempDir(), SyncAlways: synced,
	})
	if err != nil {
		b.Fatal(err)
	}
	s.Start()
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	if !s.ReadyForConnections(time.Minute) {
		b.Fatal("the server is not ready")
	}
	nc, err := Connect(s.ClientURL(), b.Name(), b.Logf)
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	js, err := NewJetStream(nc, ns)
	if err != nil {
		b.Fatal(err)
	}
	setup(b, js, ns)
	for i := range b.N {
		message := &nats.Msg{Subject: ns.In(BookingRequested, "room"), Data: []byte(resourceKeyed("room", i))}
		if _, err := js.PublishMsgAsync(message); err != nil {
			b.Fatal(err)
		}
		if i%storedAtOnce == 0 {
			<-js.PublishAsyncComplete()
		}
	}
	<-js.PublishAsyncComplete()
	service := &echo{seen: make(map[string]int), grant: true}
	c, err := NewConsumer(b.Context(), ConsumerRequests, ns, service, nc, js, NewProcess("w1", nil, zerolog.Nop()))
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	b.ReportAllocs()
	b.ResetTimer()
	before := processorTime(b)
	running.Go(func() { _ = c.Run(ctx) })
	for {
		info := consumerOf(b, js, ns, ConsumerRequests).CachedInfo()
		if info.NumPending == 0 && info.NumAckPending == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
	b.StopTimer()
	if stored := streamOf(b, js, ns.OutStream()).CachedInfo().State.Msgs; stored != uint64(b.N) {
		b.Fatalf("%d outcomes of %d events", stored, b.N)
	}
}

// processorTime returns the processor time that this process has used.
func processorTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
