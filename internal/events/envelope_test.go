package events

import (
	"bytes"
	"net/url"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

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

// TestOutcomeMessage_AnyOutcome_IsWhatReflectionWrites compares the body of an outcome with its
// Envelope as json.Marshal writes it.
func TestOutcomeMessage_AnyOutcome_IsWhatReflectionWrites(t *testing.T) {
	texts := rapid.OneOf(rapid.SampledFrom([]string{"", "e1", `a"b\`, "tab\t", "not\xffUTF-8", "日本"}), rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		id, cause := texts.Draw(t, "id"), texts.Draw(t, "cause")
		o := holds.Outcome{
			Event: holds.EventHoldReleased, Resource: "room",
			Hold: holds.HoldID{Resource: texts.Draw(t, "resource"), UUID: texts.Draw(t, "uuid")},
			Data: holds.HoldReleased{HoldData: holds.HoldData{ResourceID: texts.Draw(t, "resource")}},
		}
		if rapid.Bool().Draw(t, "decided at") {
			o.At = holds.TimeFromMillis(rapid.Int64Range(0, 4e12).Draw(t, "ms"))
		}
		want, wantErr := json.Marshal(struct {
			Envelope
			Data any `json:"data"`
		}{Envelope{
			SpecVersion: "1.0", ID: id, Source: "/holdfast/" + string(ns), Type: Type(o.Event),
			Subject: o.Hold.String(), Time: o.At, DataContentType: ContentTypeJSON, CausationID: cause,
		}, o.Data})
		m, err := ns.outcomeMessage(o, id, cause)
		if (err != nil) != (wantErr != nil) || err == nil && !bytes.Equal(m.Data, want) {
			t.Fatalf("%v %v, want %s %v", m, err, want, wantErr)
		}
	})
}

// TestIsURIReference_AnyText_IsAsParsed compares the short check with the whole one.
func TestIsURIReference_AnyText_IsAsParsed(t *testing.T) {
	t.Parallel()
	texts := rapid.OneOf(rapid.String(), rapid.StringMatching(`[-A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%]{0,12}`), rapid.StringMatching(`[-a-z0-9._~/]{0,8}`))
	rapid.Check(t, func(t *rapid.T) {
		text := texts.Draw(t, "text")
		_, err := url.Parse(text)
		if want := err == nil && uriReference.MatchString(text); isURIReference(text) != want {
			t.Fatalf("%q is %v, want %v", text, !want, want)
		}
	})
}

// TestDecode_QuotedHeaders_AreUnquoted decodes binary mode with headers in the forms that a receiver must accept.
func TestDecode_QuotedHeaders_AreUnquoted(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		`plain`: "plain", `"quoted"`: "quoted", `"a \"b\" \\c"`: `a "b" \c`, `"per%20cent"`: "per cent", `"`: `"`, `"open`: `"open`,
		`"closed\"`: `"closed\"`, `in"side"`: `in"side"`,
	} {
		header := nats.Header{
			"ce-specversion": {`"1.0"`}, "ce-id": {given}, "ce-source": {"/s"}, "ce-type": {`"` + Type(BookingRequested) + `"`},
			HeaderContentType: {ContentTypeJSON}, "ce-datacontenttype": {`"application/json"`},
		}
		in, err := ns.Decode(ns.In(BookingRequested, "room"), header, []byte(requestData("k")), storedAt)
		if err != nil || in.ID != want {
			t.Errorf("%s: %v, %+v, want the id %s", given, err, in, want)
		}
		header.Set("ce-datacontenttype", "text/xml")
		if _, err := ns.Decode(ns.In(BookingRequested, "room"), header, []byte(requestData("k")), storedAt); err == nil {
			t.Errorf("%s: data of the type text/xml is accepted", given)
		}
	}
}
