package events

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/stack/stacktest"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

const ns = Subjects("holdfast")

// envelopeOf wraps data into a CloudEvent in structured mode.
func envelopeOf(event, data string) string {
	return `{"specversion":"1.0","id":"e1","source":"/s","type":"holdfast.` + event + `.v1","data":` + data + `}`
}

func request(members string) string {
	return envelopeOf(BookingRequested, `{"request_key":"k","user_id":"u","resource_id":"room","quantity":1`+members+`}`)
}

func inventory(members string) string {
	return envelopeOf(InventorySet, `{"resource_id":"room","capacity":1`+members+`}`)
}

const (
	onRequest   = "holdfast.in.booking.requested.room"
	onInventory = "holdfast.in.inventory.set.room"
	onPayment   = "holdfast.in.payment.confirmed.room"
	onCancel    = "holdfast.in.booking.cancelled.room"
	holdID      = "room.0192f5c4d0b07cc3a5d0f2f5a1b2c3d4"
)

// catalogue is what may come in, and its fate: "" is processed, everything else a reason of a
// dead letter and what its detail begins with.
var catalogue = map[string]struct {
	subject, body string
	header        nats.Header
	fate, detail  string
}{
	"stock":                       {subject: onRequest, body: request(``)},
	"nights":                      {subject: onRequest, body: request(`,"check_in":"2026-12-01","check_out":"2026-12-03"`)},
	"nights out of order":         {subject: onRequest, body: request(`,"check_in":"2026-12-03","check_out":"2026-12-01"`)},
	"slots":                       {subject: onRequest, body: request(`,"slots":["A-1","A-2"]`)},
	"fifty slots":                 {subject: onRequest, body: request(`,"slots":[` + manySlots(50) + `]`)},
	"unknown members":             {subject: onRequest, body: request(`,"Quantity":7,"x":{"y":[1e999]}`)},
	"metadata":                    {subject: onRequest, body: request(`,"metadata":{"a":[1.5,null,"é"]}`)},
	"ttl":                         {subject: onRequest, body: request(`,"ttl_seconds":-5`)},
	"largest number":              {subject: onRequest, body: strings.Replace(request(``), `"quantity":1`, `"quantity":9223372036854775807`, 1)},
	"with charset":                {subject: onRequest, body: request(``), header: nats.Header{"Content-Type": {"application/cloudevents+json; charset=utf-8"}}},
	"white space":                 {subject: onRequest, body: "\n " + request(``) + " \n"},
	"inventory of 1,100 slots":    {subject: onInventory, body: inventory(`,"slots":[` + manySlots(1100) + `]`)},
	"inventory of negative":       {subject: onInventory, body: strings.Replace(inventory(``), `"capacity":1`, `"capacity":-1`, 1)},
	"payment":                     {subject: onPayment, body: envelopeOf(PaymentConfirmed, `{"hold_id":"`+holdID+`","payment_id":"p","amount":"12.50","currency":"EUR"}`)},
	"cancel by id":                {subject: onCancel, body: envelopeOf(BookingCancelled, `{"hold_id":"`+holdID+`"}`)},
	"cancel by id with resource":  {subject: onCancel, body: envelopeOf(BookingCancelled, `{"hold_id":"`+holdID+`","resource_id":"room"}`)},
	"cancel by key":               {subject: onCancel, body: envelopeOf(BookingCancelled, `{"resource_id":"room","request_key":"k"}`)},
	"binary mode":                 {subject: onCancel, body: `{"hold_id":"` + holdID + `"}`, header: binaryMode("holdfast.booking.cancelled.v1")},
	"binary mode, no type of it":  {subject: onCancel, body: `{"hold_id":"` + holdID + `"}`, header: without(binaryMode("holdfast.booking.cancelled.v1"), "Content-Type")},
	"binary mode, canonical case": {subject: onCancel, body: `{"hold_id":"` + holdID + `"}`, header: nats.Header{"Content-Type": {"application/json"}, "Ce-Id": {"e1"}, "Ce-Source": {"/s"}, "Ce-Type": {"holdfast.booking.cancelled.v1"}, "Ce-Specversion": {"1.0"}}},

	"too large":             {subject: onRequest, body: request(`,"x":"` + strings.Repeat("x", BodyMax) + `"`), fate: ReasonTooLarge},
	"too large and no JSON": {subject: onRequest, body: strings.Repeat("x", BodyMax+1), fate: ReasonTooLarge},

	"empty":                               {subject: onRequest, body: ``, fate: ReasonMalformed, detail: "body"},
	"not JSON":                            {subject: onRequest, body: `hello`, fate: ReasonMalformed, detail: "body"},
	"null":                                {subject: onRequest, body: `null`, fate: ReasonMalformed, detail: "body"},
	"a list":                              {subject: onRequest, body: `[]`, fate: ReasonMalformed, detail: "body"},
	"two texts":                           {subject: onRequest, body: request(``) + request(``), fate: ReasonMalformed, detail: "body"},
	"trailing bytes":                      {subject: onRequest, body: request(``) + "x", fate: ReasonMalformed, detail: "body"},
	"duplicate attribute":                 {subject: onRequest, body: strings.Replace(request(``), `"id":"e1"`, `"id":"e1","id":"e2"`, 1), fate: ReasonMalformed, detail: "body"},
	"duplicate member":                    {subject: onRequest, body: request(`,"quantity":2`), fate: ReasonMalformed, detail: "body"},
	"duplicate member, escaped":           {subject: onRequest, body: request(`,"quant\u0069ty":2`), fate: ReasonMalformed, detail: "body"},
	"duplicate in metadata":               {subject: onRequest, body: request(`,"metadata":{"a":1,"a":2}`), fate: ReasonMalformed, detail: "body"},
	"invalid UTF-8":                       {subject: onRequest, body: request(",\"metadata\":{\"a\":\"\xff\"}"), fate: ReasonMalformed, detail: "body"},
	"lone surrogate":                      {subject: onRequest, body: request(`,"metadata":{"a":"\ud800"}`), fate: ReasonMalformed, detail: "body"},
	"too deep":                            {subject: onRequest, body: request(`,"x":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000)), fate: ReasonMalformed, detail: "body"},
	"no specversion":                      {subject: onRequest, body: strings.Replace(request(``), `"specversion":"1.0",`, ``, 1), fate: ReasonMalformed, detail: "specversion"},
	"other specversion":                   {subject: onRequest, body: strings.Replace(request(``), `"1.0"`, `"0.3"`, 1), fate: ReasonMalformed, detail: "specversion"},
	"no id":                               {subject: onRequest, body: strings.Replace(request(``), `"id":"e1",`, ``, 1), fate: ReasonMalformed, detail: "id"},
	"empty id":                            {subject: onRequest, body: strings.Replace(request(``), `"e1"`, `""`, 1), fate: ReasonMalformed, detail: "id"},
	"id with control characters":          {subject: onRequest, body: strings.Replace(request(``), `"e1"`, `"e\u001b[2J"`, 1), fate: ReasonMalformed, detail: "id"},
	"id of another type":                  {subject: onRequest, body: strings.Replace(request(``), `"e1"`, `1`, 1), fate: ReasonMalformed, detail: "id"},
	"no source":                           {subject: onRequest, body: strings.Replace(request(``), `"source":"/s",`, ``, 1), fate: ReasonMalformed, detail: "source"},
	"time is no time":                     {subject: onRequest, body: strings.Replace(request(``), `"id"`, `"time":"today","id"`, 1), fate: ReasonMalformed, detail: "time"},
	"no data":                             {subject: onRequest, body: `{"specversion":"1.0","id":"e1","source":"/s","type":"holdfast.booking.requested.v1"}`, fate: ReasonMalformed, detail: "data"},
	"data is a list":                      {subject: onRequest, body: envelopeOf(BookingRequested, `[]`), fate: ReasonMalformed, detail: "data"},
	"data is null":                        {subject: onRequest, body: envelopeOf(BookingRequested, `null`), fate: ReasonMalformed, detail: "data"},
	"no request key":                      {subject: onRequest, body: strings.Replace(request(``), `"request_key":"k",`, ``, 1), fate: ReasonMalformed, detail: "data.request_key"},
	"key in another case":                 {subject: onRequest, body: strings.Replace(request(``), `"request_key"`, `"Request_Key"`, 1), fate: ReasonMalformed, detail: "data.request_key"},
	"key with a space":                    {subject: onRequest, body: strings.Replace(request(``), `"k"`, `"k 1"`, 1), fate: ReasonMalformed, detail: "data.request_key"},
	"empty key":                           {subject: onRequest, body: strings.Replace(request(``), `"k"`, `""`, 1), fate: ReasonMalformed, detail: "data.request_key"},
	"long key":                            {subject: onRequest, body: strings.Replace(request(``), `"k"`, `"`+strings.Repeat("k", 129)+`"`, 1), fate: ReasonMalformed, detail: "data.request_key"},
	"user is null":                        {subject: onRequest, body: strings.Replace(request(``), `"u"`, `null`, 1), fate: ReasonMalformed, detail: "data.user_id"},
	"user with a line break":              {subject: onRequest, body: strings.Replace(request(``), `"u"`, `"u\n"`, 1), fate: ReasonMalformed, detail: "data.user_id"},
	"resource with a dot":                 {subject: onRequest, body: strings.Replace(request(``), `"room"`, `"ro.om"`, 1), fate: ReasonMalformed, detail: "data.resource_id"},
	"resource with a brace":               {subject: onRequest, body: strings.Replace(request(``), `"room"`, `"{1}"`, 1), fate: ReasonMalformed, detail: "data.resource_id"},
	"resource with a line break":          {subject: onRequest, body: strings.Replace(request(``), `"room"`, `"room\n"`, 1), fate: ReasonMalformed, detail: "data.resource_id"},
	"quantity 1.0":                        {subject: onRequest, body: strings.Replace(request(``), `"quantity":1`, `"quantity":1.0`, 1), fate: ReasonMalformed, detail: "data.quantity"},
	"quantity 1e3":                        {subject: onRequest, body: strings.Replace(request(``), `"quantity":1`, `"quantity":1e3`, 1), fate: ReasonMalformed, detail: "data.quantity"},
	"quantity is text":                    {subject: onRequest, body: strings.Replace(request(``), `"quantity":1`, `"quantity":"2"`, 1), fate: ReasonMalformed, detail: "data.quantity"},
	"quantity 2^63":                       {subject: onRequest, body: strings.Replace(request(``), `"quantity":1`, `"quantity":9223372036854775808`, 1), fate: ReasonMalformed, detail: "data.quantity"},
	"quantity is true":                    {subject: onRequest, body: strings.Replace(request(``), `"quantity":1`, `"quantity":true`, 1), fate: ReasonMalformed, detail: "data.quantity"},
	"ttl is null":                         {subject: onRequest, body: request(`,"ttl_seconds":null`), fate: ReasonMalformed, detail: "data.ttl_seconds"},
	"metadata is a list":                  {subject: onRequest, body: request(`,"metadata":[]`), fate: ReasonMalformed, detail: "data.metadata"},
	"metadata too large":                  {subject: onRequest, body: request(`,"metadata":{"a":"` + strings.Repeat("x", 4<<10) + `"}`), fate: ReasonMalformed, detail: "data.metadata"},
	"check_in alone":                      {subject: onRequest, body: request(`,"check_in":"2026-12-01"`), fate: ReasonMalformed, detail: "data.check_out"},
	"check_out alone":                     {subject: onRequest, body: request(`,"check_out":"2026-12-01"`), fate: ReasonMalformed, detail: "data.check_in"},
	"not in the calendar":                 {subject: onRequest, body: request(`,"check_in":"2026-02-28","check_out":"2026-02-30"`), fate: ReasonMalformed, detail: "data.check_out"},
	"date and time":                       {subject: onRequest, body: request(`,"check_in":"2026-12-01T00:00:00Z","check_out":"2026-12-02"`), fate: ReasonMalformed, detail: "data.check_in"},
	"nights and slots":                    {subject: onRequest, body: request(`,"check_in":"2026-12-01","check_out":"2026-12-02","slots":["A-1"]`), fate: ReasonMalformed, detail: "data.slots"},
	"no slots":                            {subject: onRequest, body: request(`,"slots":[]`), fate: ReasonMalformed, detail: "data.slots"},
	"repeated slots":                      {subject: onRequest, body: request(`,"slots":["A-1","A-1"]`), fate: ReasonMalformed, detail: "data.slots"},
	"51 slots":                            {subject: onRequest, body: request(`,"slots":[` + manySlots(51) + `]`), fate: ReasonMalformed, detail: "data.slots"},
	"slot with a comma":                   {subject: onRequest, body: request(`,"slots":["A,1"]`), fate: ReasonMalformed, detail: "data.slots"},
	"slot is a number":                    {subject: onRequest, body: request(`,"slots":[1]`), fate: ReasonMalformed, detail: "data.slots"},
	"1,101 slots of inventory":            {subject: onInventory, body: inventory(`,"slots":[` + manySlots(1101) + `]`), fate: ReasonMalformed, detail: "data.slots"},
	"hold id in upper case":               {subject: onPayment, body: envelopeOf(PaymentConfirmed, `{"hold_id":"`+strings.ToUpper(holdID)+`","payment_id":"p"}`), fate: ReasonMalformed, detail: "data.hold_id"},
	"hold id with more":                   {subject: onPayment, body: envelopeOf(PaymentConfirmed, `{"hold_id":"`+holdID+`0","payment_id":"p"}`), fate: ReasonMalformed, detail: "data.hold_id"},
	"amount is a number":                  {subject: onPayment, body: envelopeOf(PaymentConfirmed, `{"hold_id":"`+holdID+`","payment_id":"p","amount":12.5}`), fate: ReasonMalformed, detail: "data.amount"},
	"amount is no decimal":                {subject: onPayment, body: envelopeOf(PaymentConfirmed, `{"hold_id":"`+holdID+`","payment_id":"p","amount":"1e3"}`), fate: ReasonMalformed, detail: "data.amount"},
	"cancel by id and key":                {subject: onCancel, body: envelopeOf(BookingCancelled, `{"hold_id":"`+holdID+`","request_key":"k"}`), fate: ReasonMalformed, detail: "data.request_key"},
	"cancel by nothing":                   {subject: onCancel, body: envelopeOf(BookingCancelled, `{}`), fate: ReasonMalformed, detail: "data.resource_id"},
	"a batch of events":                   {subject: onRequest, body: `[]`, header: nats.Header{"Content-Type": {"application/cloudevents-batch+json"}}, fate: ReasonMalformed},
	"content type is no type":             {subject: onRequest, body: request(``), header: nats.Header{"Content-Type": {"/;"}}, fate: ReasonMalformed, detail: "content-type"},
	"plain JSON, no attributes":           {subject: onRequest, body: `{}`, header: nats.Header{"Content-Type": {"application/json"}}, fate: ReasonMalformed, detail: "specversion"},
	"binary mode without id":              {subject: onCancel, body: `{"hold_id":"` + holdID + `"}`, header: without(binaryMode("holdfast.booking.cancelled.v1"), "ce-id"), fate: ReasonMalformed, detail: "id"},
	"attributes of every kind":            {subject: onRequest, body: withAttribute(`"subject":"s","dataschema":"urn:x","datacontenttype":"application/json","time":"2026-11-21t09:00:00.1z","ext":"1","flag":true,"n":-5`)},
	"binary mode without type, canonical": {subject: onCancel, body: `{"hold_id":"` + holdID + `"}`, header: nats.Header{"Ce-Id": {"e1"}, "Ce-Source": {"/s"}, "Ce-Type": {"holdfast.booking.cancelled.v1"}, "Ce-Specversion": {"1.0"}}},
	"subject is a number":                 {subject: onRequest, body: withAttribute(`"subject":5`), fate: ReasonMalformed, detail: "subject"},
	"subject is empty":                    {subject: onRequest, body: withAttribute(`"subject":""`), fate: ReasonMalformed, detail: "subject"},
	"dataschema is a number":              {subject: onRequest, body: withAttribute(`"dataschema":7`), fate: ReasonMalformed, detail: "dataschema"},
	"data of another type":                {subject: onRequest, body: withAttribute(`"datacontenttype":"text/xml"`), fate: ReasonMalformed, detail: "datacontenttype"},
	"data in base64":                      {subject: onRequest, body: withAttribute(`"data_base64":"e30="`), fate: ReasonMalformed, detail: "data_base64"},
	"extension with a dash":               {subject: onRequest, body: withAttribute(`"foo-bar":"x"`), fate: ReasonMalformed, detail: "foo-bar"},
	"extension is an object":              {subject: onRequest, body: withAttribute(`"foo":{}`), fate: ReasonMalformed, detail: "foo"},
	"extension is a fraction":             {subject: onRequest, body: withAttribute(`"foo":1.5`), fate: ReasonMalformed, detail: "foo"},
	"source is no URI":                    {subject: onRequest, body: strings.Replace(request(``), `"/s"`, `"a b <c>"`, 1), fate: ReasonMalformed, detail: "source"},
	"time with a comma":                   {subject: onRequest, body: withAttribute(`"time":"2026-11-21T09:00:00,1Z"`), fate: ReasonMalformed, detail: "time"},
	"another charset":                     {subject: onRequest, body: request(``), header: nats.Header{"Content-Type": {"application/cloudevents+json; charset=utf-16"}}, fate: ReasonMalformed, detail: "content-type"},
	"two content types":                   {subject: onRequest, body: request(``), header: nats.Header{"Content-Type": {"application/json", "application/json"}}, fate: ReasonMalformed, detail: "content-type"},
	"content type in lower case":          {subject: onRequest, body: request(``), header: nats.Header{"content-type": {"text/xml"}}, fate: ReasonMalformed, detail: "content-type"},
	"binary mode, id not UTF-8":           {subject: onCancel, body: `{"hold_id":"` + holdID + `"}`, header: with(binaryMode("holdfast.booking.cancelled.v1"), "ce-id", "%FF"), fate: ReasonMalformed, detail: "id"},
	"binary mode, raw surrogate":          {subject: onCancel, body: `{"hold_id":"` + holdID + `"}`, header: with(binaryMode("holdfast.booking.cancelled.v1"), "ce-source", "%ED%A0%80"), fate: ReasonMalformed, detail: "source"},
	"binary mode, no JSON":                {subject: onCancel, body: `x`, header: binaryMode("holdfast.booking.cancelled.v1"), fate: ReasonMalformed, detail: "body"},

	"another's type":              {subject: onRequest, body: strings.Replace(request(``), "holdfast.booking.requested.v1", "com.example.x", 1), fate: ReasonUnknownType},
	"another version":             {subject: onRequest, body: strings.Replace(request(``), ".v1", ".v2", 1), fate: ReasonUnknownType},
	"another event":               {subject: onRequest, body: strings.Replace(request(``), "requested", "imagined", 1), fate: ReasonUnknownType},
	"another resource's subject":  {subject: onRequest + "2", body: request(``), fate: ReasonSubjectMismatch},
	"another event's subject":     {subject: onPayment, body: request(``), fate: ReasonSubjectMismatch},
	"a subject with more":         {subject: onRequest + ".more", body: request(``), fate: ReasonSubjectMismatch},
	"unknown type, wrong subject": {subject: "holdfast.in.x", body: strings.Replace(request(``), "requested", "imagined", 1), fate: ReasonUnknownType},
}

func manySlots(n int) string {
	names := make([]string, n)
	for i := range names {
		names[i] = `"s` + strings.Repeat("x", i%20) + string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676)) + `"`
	}
	return strings.Join(names, ",")
}

func binaryMode(ceType string) nats.Header {
	return nats.Header{"Content-Type": {"application/json"}, "ce-specversion": {"1.0"}, "ce-id": {"e%201"}, "ce-source": {"/s"}, "ce-type": {ceType}}
}

// withAttribute is a good request with more attributes.
func withAttribute(more string) string {
	return strings.Replace(request(``), `"id":"e1"`, `"id":"e1",`+more, 1)
}

func with(h nats.Header, name, value string) nats.Header { h[name] = []string{value}; return h }

func without(h nats.Header, name string) nats.Header { delete(h, name); return h }

// TestDecode decodes the catalogue. TestCatalogueThroughTheServers sends it to a consumer.
func TestDecode(t *testing.T) {
	t.Parallel()
	for name, c := range catalogue {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in, err := ns.Decode(c.subject, c.header, []byte(c.body), time.Now())
			if c.fate == "" {
				if err != nil {
					t.Fatalf("%v, want it processed", err)
				}
				if in.OutcomeID == "" {
					t.Fatal("no outcome id")
				}
				return
			}
			var dead *UnprocessableError
			if !errors.As(err, &dead) || dead.Reason != c.fate || !strings.HasPrefix(dead.Detail, c.detail) {
				t.Errorf("%v, want %s: %s ...", err, c.fate, c.detail)
			}
		})
	}
}

// FuzzDecode looks for inputs that panic, and for an accepted one whose ids could be more than
// one token of a subject or word of a record.
func FuzzDecode(f *testing.F) {
	for _, c := range catalogue {
		f.Add(c.subject, []byte(c.body), len(c.header) > 0)
	}
	f.Fuzz(func(t *testing.T, subject string, body []byte, binary bool) {
		var header nats.Header
		if binary {
			header = binaryMode("holdfast.booking.requested.v1")
		}
		in, err := ns.Decode(subject, header, body, time.Now())
		var dead *UnprocessableError
		if err != nil && !errors.As(err, &dead) {
			t.Fatalf("%T: %v", err, err)
		}
		if err == nil && in.Place != nil && strings.ContainsAny(in.Place.Resource+in.Place.User+in.Place.RequestKey, " \n\r\t\x00") {
			t.Fatalf("accepted %+v", in.Place)
		}
	})
}

// TestOutcomeID shows that an event's outcome has an id of its own, and always the same.
func TestOutcomeID(t *testing.T) {
	t.Parallel()
	base := outcomeID("s", "1", []byte("body"))
	if again := outcomeID("s", "1", []byte("body")); again != base {
		t.Errorf("%s, then %s", base, again)
	}
	for name, other := range map[string]string{
		"source": outcomeID("t", "1", []byte("body")), "id": outcomeID("s", "2", []byte("body")),
		"body": outcomeID("s", "1", []byte("body2")), "a shifted boundary": outcomeID("s1", "", []byte("body")),
	} {
		if other == base {
			t.Errorf("another %s has the same outcome id", name)
		}
	}
}
