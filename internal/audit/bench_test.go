package audit_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"holdfast/internal/audit"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// BenchmarkAudit audits 100,000 live holds: on a thousand resources, and on one.
func BenchmarkAudit(b *testing.B) {
	const number = 100_000
	for _, resources := range []int{1000, 1} {
		b.Run(fmt.Sprintf("resources=%d", resources), func(b *testing.B) {
			w := newHarness(b)
			w.startWorkers(2)
			first := time.Now().UTC().AddDate(0, 0, 7)
			stay := func(from, nights int) holds.SlotSelection {
				in := first.AddDate(0, 0, from)
				return holds.SlotSelection{CheckIn: in.Format(holds.DateFormat), CheckOut: in.AddDate(0, 0, nights).Format(holds.DateFormat)}
			}
			for r := range resources {
				name := fmt.Sprintf("room-%d", r)
				w.publish(events.InventorySet, name, events.InventorySetData{ResourceID: name, SlotSelection: stay(0, 30), Capacity: 1_000_000})
			}
			ttl := int64(3600)
			for i := range number {
				name, user := fmt.Sprintf("room-%d", i%resources), fmt.Sprintf("u%d", i)
				m := w.message(events.BookingRequested, name, events.BookingRequestedData{
					RequestKey: user, UserID: user, ResourceID: name, SlotSelection: stay(i%20, 1+i%7), Quantity: 1, TTLSeconds: &ttl,
				})
				if _, err := w.js.PublishMsgAsync(m); err != nil {
					b.Fatal(err)
				}
				if i%1000 == 999 {
					<-w.js.PublishAsyncComplete()
				}
			}
			stacktest.Eventually(b, "all to be granted", func() bool {
				stream, err := w.js.Stream(b.Context(), w.subjects.OutStream())
				return err == nil && stream.CachedInfo().State.Msgs == uint64(number+resources)
			})
			w.stopWorkers()
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			peak, reported := uint64(0), 0
			options := audit.Options{Progress: func(string, float64) {
				if reported++; reported%100 != 0 { // ReadMemStats stops the world
					return
				}
				var now runtime.MemStats
				runtime.ReadMemStats(&now)
				peak = max(peak, now.HeapAlloc)
			}}
			for b.Loop() {
				report := w.audit(options)
				if len(report.Findings) > 0 || report.Stats.Records != number {
					b.Fatalf("checked %+v, found %v", report.Stats, report.Counts)
				}
			}
			b.StopTimer()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(number)*float64(b.N)/b.Elapsed().Seconds(), "holds/s")
			b.ReportMetric(float64(peak-before.HeapAlloc)/(1<<20), "MiB-peak")
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(b.N)/number, "B-allocated/hold")
		})
	}
}
