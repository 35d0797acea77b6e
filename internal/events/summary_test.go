package events

import (
	"testing"

	"github.com/nats-io/nats.go"
)

// TestSummarize_MalformedEvents_ReadsWhatItCan summarizes malformed events.
func TestSummarize_MalformedEvents_ReadsWhatItCan(t *testing.T) {
	t.Parallel()
	const subject = "holdfast.in.booking.requested.room"
	for name, c := range map[string]struct {
		subject, body string
		header        nats.Header
		want          EventSummary
	}{
		"structured":    {subject: subject, body: request(``), want: EventSummary{"e1", "/s", BookingRequested, "room", "u"}},
		"other subject": {subject: "holdfast.in.payment.confirmed.hall", body: request(``), want: EventSummary{"e1", "/s", BookingRequested, "room", "u"}},
		"by hold":       {subject: onPayment, body: envelopeOf(PaymentConfirmed, "e1", `{"hold_id":"`+holdID+`"}`), want: EventSummary{"e1", "/s", PaymentConfirmed, "room", ""}},
		"binary": {
			subject: subject, body: `{"resource_id":"hall","user_id":"ann"}`,
			header: nats.Header{"Ce-Id": {"e7"}, "ce-source": {"/t"}, "ce-type": {"holdfast.payment.started.v1"}}, want: EventSummary{"e7", "/t", PaymentStarted, "hall", "ann"},
		},
		"other type":     {subject: subject, body: `{"id":"e1","type":"com.example.v2","data":{}}`, want: EventSummary{"e1", "", "com.example.v2", "room", ""}},
		"breaks off":     {subject: subject, body: `{"id":"e1","type":"holdfast.inventory.set.v1","data":{"user`, want: EventSummary{"e1", "", InventorySet, "room", ""}},
		"repeats":        {subject: subject, body: `{"id":"e1","id":"e2","data":{"user_id":"ann"}}`, want: EventSummary{"e2", "", BookingRequested, "room", "ann"}},
		"not UTF-8":      {subject: subject, body: "{\"id\":\"e\xff\"}", want: EventSummary{"e\uFFFD", "", BookingRequested, "room", ""}},
		"of wrong types": {subject: subject, body: `{"id":1,"type":[],"data":{"user_id":{},"resource_id":null}}`, want: EventSummary{"", "", BookingRequested, "room", ""}},
		"not JSON":       {subject: subject, body: "hello", want: EventSummary{"", "", BookingRequested, "room", ""}},
		"nothing":        {},
		"short subject":  {subject: "holdfast.in.room", want: EventSummary{"", "", "", "room", ""}},
	} {
		if got := Summarize(c.subject, c.header, []byte(c.body)); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
