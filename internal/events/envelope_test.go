package events

import (
	"testing"
	"time"

	"holdfast/internal/holds"
)

// BenchmarkDecode decodes a typical booking.
func BenchmarkDecode(b *testing.B) {
	m := inboundMessage(b, BookingRequested, "hotel-17", BookingRequestedData{
		RequestKey: "k-4711", UserID: "ana", ResourceID: "hotel-17", Quantity: 1,
		SlotSelection: holds.SlotSelection{CheckIn: "2026-12-01", CheckOut: "2026-12-04"},
	})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ns.Decode(m.Subject, m.Header, m.Data, storedAt); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOutcomeMessage encodes the outcome of a booking that was granted.
func BenchmarkOutcomeMessage(b *testing.B) {
	quantity := int64(1)
	id := holds.HoldID{Resource: "hotel-17", UUID: "01a2003e87aa7ab391aee4a6df3c96df"}
	at := holds.TimeFromMillis(storedAt.UnixMilli())
	o := holds.Outcome{Event: holds.EventHoldCreated, Resource: "hotel-17", Hold: id, At: at, Data: holds.HoldCreated{
		HoldData: holds.HoldData{
			ResourceID: "hotel-17", HoldID: id, RequestKey: "k-4711", UserID: "ana", Quantity: &quantity,
			SlotSelection: holds.SlotSelection{CheckIn: "2026-12-01", CheckOut: "2026-12-04"},
		},
		CreatedAt: at, ExpiresAt: holds.TimeFromMillis(storedAt.Add(time.Minute).UnixMilli()),
	}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ns.outcomeMessage(o, "e1", "c1"); err != nil {
			b.Fatal(err)
		}
	}
}
