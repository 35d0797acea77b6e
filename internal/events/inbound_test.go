package events

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"holdfast/internal/contract"
	"holdfast/internal/holds"
)

// readCatalogue returns the inputs of the catalogue.
func readCatalogue(t testing.TB) []contract.Input {
	t.Helper()
	inputs, err := contract.ReadInputs(catalogueDir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return inputs
}

// TestDecode_Catalogue_EndsAsWanted decodes the catalogue. TestCatalogue_EveryInput_HasItsOutcome
// in cmd/worker sends it to a worker.
func TestDecode_Catalogue_EndsAsWanted(t *testing.T) {
	t.Parallel()
	outcomes, good := make(map[string]string), make(map[string]struct{})
	for _, input := range readCatalogue(t) {
		in, err := ns.Decode(input.Subject, input.Header, input.Body, storedAt)
		if input.IsDeadLetter() {
			var dead *UnprocessableError
			if !errors.As(err, &dead) || dead.Reason != input.Want || !strings.HasPrefix(dead.Detail, input.Detail) {
				t.Errorf("%s: %v, want %s: %s ...", input.Name, err, input.Want, input.Detail)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v, want no error", input.Name, err)
			continue
		}
		if other, taken := outcomes[in.OutcomeID]; taken {
			t.Errorf("%s is the same event as %s", input.Name, other)
		}
		outcomes[in.OutcomeID] = input.Name
		checkRoundTrip(t, input.Subject, input.Body, in)
		good[eventOfSubject(input.Subject)] = struct{}{}
	}
	if got, want := slices.Sorted(maps.Keys(good)), slices.Sorted(maps.Keys(decoders)); !slices.Equal(got, want) {
		t.Errorf("good inputs of %v, want some of %v", got, want)
	}
}

// eventOfSubject returns the inbound event of a subject, "" if it has none.
func eventOfSubject(subject string) string {
	tokens := strings.Split(subject, ".")
	if len(tokens) < 5 || tokens[1] != "in" {
		return ""
	}
	return tokens[2] + "." + tokens[3]
}

// schemaOf returns the schema of an inbound message on a subject: of the whole event, or of its
// data in binary mode.
func schemaOf(t testing.TB, subject string, header nats.Header) contract.Schema {
	t.Helper()
	fragment, structured := "", false
	for name, values := range header {
		switch name = strings.ToLower(name); {
		case strings.HasPrefix(name, attributePrefix):
			fragment = "#/$defs/data"
		case name == "content-type":
			media, _ := mediaType(values[0], ContentTypeJSON)
			structured = media == ContentTypeEvent
		}
	}
	if structured {
		fragment = ""
	}
	schema, err := contract.ReadSchema(schemasDir+"/in/"+eventOfSubject(subject)+".v1.json", fragment)
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// TestSchemas_Catalogue_AgreeWithDecode validates every input with the schema of its event. The
// schema accepts what decodes and refuses what is malformed, unless docs/schemas/README.md lists
// the rule as one that no schema can express.
func TestSchemas_Catalogue_AgreeWithDecode(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(schemasDir + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[string]struct{}) // the first cell of each row of a table, when it is code
	for line := range strings.Lines(string(readme)) {
		if rule, found := strings.CutPrefix(line, "| `"); found {
			rule, _, _ = strings.Cut(rule, "`")
			documented[rule] = struct{}{}
		}
	}
	shown := make(map[string]struct{})
	for _, input := range readCatalogue(t) {
		if input.IsDeadLetter() && input.Want != ReasonMalformed {
			continue // about size, type or subject
		}
		err := schemaOf(t, input.Subject, input.Header).Validate(input.Body)
		var notJSON *contract.NotJSONError
		switch {
		case !input.IsDeadLetter() && err != nil:
			t.Errorf("%s decodes, but its schema refuses it: %v", input.Name, err)
		case !input.IsDeadLetter():
		case input.Beyond == "" && (err == nil || errors.As(err, &notJSON)):
			t.Errorf("%s is malformed, but its schema accepts it: %v", input.Name, err)
		case input.Beyond != "" && err != nil && !errors.As(err, &notJSON):
			t.Errorf("%s is listed as beyond a schema, but its schema refuses it: %v", input.Name, err)
		case input.Beyond != "":
			shown[input.Beyond] = struct{}{}
		}
	}
	if got, want := slices.Sorted(maps.Keys(shown)), slices.Sorted(maps.Keys(documented)); !slices.Equal(got, want) {
		t.Errorf("rules beyond schemas are %v in the catalogue and %v in docs/schemas/README.md", got, want)
	}
}

// FuzzDecode searches for inputs that panic, for accepted inputs with invalid ids, a variable outcome
// id, or a schema that refuses them, and for accepted data that changes when it is encoded and
// decoded again.
func FuzzDecode(f *testing.F) {
	for _, input := range readCatalogue(f) {
		f.Add(strings.TrimPrefix(input.Subject, "holdfast.in."), headerText(input.Header), input.Body)
	}
	f.Fuzz(func(t *testing.T, subject, headers string, body []byte) {
		subject = "holdfast.in." + subject
		header := headerOf(headers)
		in, err := ns.Decode(subject, header, body, storedAt)
		if err != nil {
			var dead *UnprocessableError
			if !errors.As(err, &dead) || dead.Detail == "" {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		again, err := ns.Decode(subject, header, slices.Clone(body), storedAt)
		if err != nil || again.OutcomeID != in.OutcomeID {
			t.Fatalf("decoded again: %+v %v", again, err)
		}
		checkIDs(t, in)
		if err := schemaOf(t, subject, header).Validate(body); err != nil {
			t.Fatalf("it decodes, but its schema refuses it: %v", err)
		}
		checkRoundTrip(t, subject, body, in)
	})
}

// headerText and headerOf convert headers to a text that a fuzzer can change, and back.
func headerText(header nats.Header) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(header)) {
		for _, value := range header[name] {
			fmt.Fprintf(&text, "%s: %s\n", name, value)
		}
	}
	return text.String()
}

func headerOf(text string) nats.Header {
	header := make(nats.Header)
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		header[name] = append(header[name], value)
	}
	return header
}

// checkIDs checks that a request was decoded, and that all its ids are well-formed.
func checkIDs(t *testing.T, in *Inbound) {
	t.Helper()
	var resource string
	var hold holds.HoldID
	var names, optional []string
	var cause string
	switch r := in.Request.(type) {
	case *holds.PlaceRequest:
		cause = r.EventID
		resource, names = r.Resource, append(names, r.RequestKey, r.User)
	case *holds.ExtendRequest:
		cause = r.EventID
		hold = r.Hold
	case *holds.ReleaseRequest:
		cause = r.EventID
		resource, hold, optional = r.Resource, r.Hold, append(optional, r.RequestKey)
		if (r.Hold == holds.HoldID{}) == (r.RequestKey == "") {
			t.Fatalf("it has a hold and a key, or neither: %+v", r)
		}
	case *holds.ConfirmRequest:
		cause = in.OutcomeID // the event id of a payment is its payment id
		hold, names, optional = r.Hold, append(names, r.PaymentID), append(optional, r.Currency)
	case *holds.CancelRequest:
		cause = r.EventID
		hold = r.Hold
	case *holds.InventoryRequest:
		cause = r.EventID
		resource = r.Resource
	}
	if cause != in.OutcomeID || cause == "" {
		t.Fatalf("the event id is %q, want the outcome id %q", cause, in.OutcomeID)
	}
	for _, name := range optional {
		if name != "" {
			names = append(names, name)
		}
	}
	if hold != (holds.HoldID{}) {
		if parsed, err := holds.ParseHoldID(hold.String()); err != nil || parsed != hold {
			t.Fatalf("accepted the hold id %q: %v", hold, err)
		}
		if resource != "" && resource != hold.Resource {
			t.Fatalf("a hold of %s, on resource %s", hold.Resource, resource)
		}
		resource = hold.Resource
	}
	if !holds.ResourcePattern.MatchString(resource) {
		t.Fatalf("a %T on resource %q", in.Request, resource)
	}
	for _, name := range names {
		if !holds.ValidName(name) {
			t.Fatalf("accepted %q", name)
		}
	}
	for _, slot := range slotsOf(in) {
		if !holds.SlotPattern.MatchString(slot) {
			t.Fatalf("accepted the slot %q", slot)
		}
	}
}

func slotsOf(in *Inbound) []string {
	switch r := in.Request.(type) {
	case *holds.PlaceRequest:
		return r.Selection.Slots
	case *holds.InventoryRequest:
		return r.Selection.Slots
	}
	return nil
}

// inboundMessage writes an event in namespace holdfast as a publisher does: with an id of its own.
func inboundMessage(t testing.TB, event, resource string, data any) *nats.Msg {
	t.Helper()
	encoded, err := json.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	id := uuid.NewString()
	body, err := json.Marshal(Envelope{
		SpecVersion: "1.0", ID: id, Source: "/test", Type: Type(event), DataContentType: ContentTypeJSON, Data: encoded,
	})
	if err != nil {
		t.Fatal(err)
	}
	m := NewStructuredMsg(body)
	m.Subject = ns.In(event, resource)
	m.Header.Set(headerMsgID, MessageID("/test", id))
	return m
}

// checkRoundTrip encodes a decoded event as a publisher does. The result has every member of the
// body that Holdfast knows, with the same value, and decodes to the same event.
func checkRoundTrip(t *testing.T, subject string, body []byte, in *Inbound) {
	t.Helper()
	event := eventOfSubject(subject)
	var data any
	switch r := in.Request.(type) {
	case *holds.PlaceRequest:
		data = BookingRequestedData{r.RequestKey, r.User, r.Resource, r.Selection, r.Quantity, r.TTLSeconds, r.Metadata}
	case *holds.ExtendRequest:
		data = BookingExtendedData{r.Hold.String(), r.TTLSeconds}
		if r.PaymentStarted {
			data = PaymentStartedData{r.Hold.String()}
		}
	case *holds.ReleaseRequest:
		data = BookingCancelledData{HoldID: r.Hold.String()}
		if r.RequestKey != "" {
			data = BookingCancelledData{ResourceID: r.Resource, RequestKey: r.RequestKey}
		}
	case *holds.ConfirmRequest:
		data = PaymentConfirmedData{r.Hold.String(), r.PaymentID, r.Amount, r.Currency}
	case *holds.CancelRequest:
		data = ReservationCancelledData{r.Hold.String(), r.Reason}
	case *holds.InventoryRequest:
		data = InventorySetData{r.Resource, r.Selection, r.Capacity}
	}
	resource := subject[strings.LastIndex(subject, ".")+1:]
	message := inboundMessage(t, event, resource, data)
	var written Envelope
	if err := json.Unmarshal(message.Data, &written); err != nil {
		t.Fatal(err)
	}
	if got, want := known(t, event, written.Data), known(t, event, body); !maps.Equal(got, want) {
		if _, byHold := want["hold_id"]; event == BookingCancelled && byHold {
			delete(want, "resource_id") // ignored beside a hold id
		}
		if !maps.Equal(got, want) {
			t.Fatalf("encoded again it is %v, was %v", got, want)
		}
	}
	if len(message.Data) > BodyMax {
		return // its envelope is another one
	}
	again, err := ns.Decode(message.Subject, message.Header, message.Data, storedAt)
	if err != nil {
		t.Fatalf("decode it again: %v\n%s", err, message.Data)
	}
	if got, want := content(again), content(in); !reflect.DeepEqual(got, want) {
		t.Fatalf("decoded again it is\n%s\nwas\n%+v", message.Data, in)
	}
}

// known returns the members of the data of an event that Holdfast knows, in canonical form. text is
// an event in structured mode, or its data.
func known(t *testing.T, event string, text []byte) map[string]string {
	t.Helper()
	var outer, data map[string]jsontext.Value
	if err := json.Unmarshal(text, &outer); err != nil {
		t.Fatal(err)
	}
	if _, structured := outer["specversion"]; structured {
		text = outer["data"]
	}
	if err := json.Unmarshal(text, &data); err != nil {
		t.Fatal(err)
	}
	values := make(map[string]string)
	for _, field := range reflect.VisibleFields(reflect.TypeOf(dataOf[event].data)) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if value, found := data[name]; found && !field.Anonymous {
			value = value.Clone()
			if err := value.Canonicalize(); err != nil {
				t.Fatal(err)
			}
			values[name] = string(value)
		}
	}
	return values
}

// content returns the request of an event without its event id, which differs for each event.
func content(in *Inbound) any {
	in.OutcomeID = ""
	in.identify(storedAt)
	if r, is := in.Request.(*holds.PlaceRequest); is {
		// The value is the same, perhaps with other escapes.
		_ = r.Metadata.Format(jsontext.PreserveRawStrings(false)) // it was decoded as JSON
	}
	return in.Request
}

// TestOutcomeID_OtherEvents_AreDistinct checks that each event has an outcome id of its own, which
// is the same in all versions: their workers answer an event under one id.
func TestOutcomeID_OtherEvents_AreDistinct(t *testing.T) {
	t.Parallel()
	base := outcomeID("s", "1", []byte("body"))
	if want := "d77fc5dd-ca86-880b-acea-c829ef2097c8"; base != want {
		t.Errorf("the outcome id is %s, in previous versions it was %s", base, want)
	}
	ids := map[string]string{
		base:                                    "the event",
		outcomeID("t", "1", []byte("body")):     "another source",
		outcomeID("s", "2", []byte("body")):     "another id",
		outcomeID("s", "1", []byte("body2")):    "another body",
		outcomeID("s1", "", []byte("body")):     "a shifted boundary",
		outcomeID("s", "1", []byte("body"), ""): "binary mode",
	}
	if len(ids) != 6 {
		t.Errorf("two of these have the same outcome id: %v", ids)
	}
}

// TestOutcomeID_BinaryMode_DependsOnTypeAndResource decodes events with the same source, id and
// body in binary mode. Those of another type or resource are other events, and each has an outcome
// id of its own.
func TestOutcomeID_BinaryMode_DependsOnTypeAndResource(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	for name, c := range map[string]struct{ event, resource, body string }{
		"payment.started":          {PaymentStarted, "room", `{"hold_id":"` + holdID + `"}`},
		"booking.cancelled":        {BookingCancelled, "room", `{"hold_id":"` + holdID + `"}`},
		"of another hold":          {BookingCancelled, "hall", `{"hold_id":"hall` + holdID[4:] + `"}`},
		"reservation.cancelled":    {ReservationCancelled, "room", `{"hold_id":"` + holdID + `"}`},
		"reservation.cancelled, 2": {ReservationCancelled, "room", `{"hold_id":"` + holdID + `","x":1}`},
	} {
		header := nats.Header{
			"Content-Type": {"application/json"}, "ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {Type(c.event)},
		}
		in, err := ns.Decode(ns.In(c.event, c.resource), header, []byte(c.body), storedAt)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if other, taken := seen[in.OutcomeID]; taken {
			t.Errorf("%s is the same event as %s", name, other)
		}
		seen[in.OutcomeID] = name
		checkIDs(t, in)
	}
}

// TestDecode_EmptyContentType_IsStructuredMode decodes an event in structured mode with an empty
// content-type header.
func TestDecode_EmptyContentType_IsStructuredMode(t *testing.T) {
	t.Parallel()
	in, err := ns.Decode(onRequest, nats.Header{"Content-Type": {""}}, []byte(request("")), storedAt)
	if err != nil {
		t.Fatal(err)
	}
	if _, is := in.Request.(*holds.PlaceRequest); !is {
		t.Errorf("%+v", in)
	}
}

// TestDecode_SeveralErrors_ReportsSameOneEachTime decodes an event with several errors. Each time
// the same one is reported, in the detail of its dead letter.
func TestDecode_SeveralErrors_ReportsSameOneEachTime(t *testing.T) {
	t.Parallel()
	withAttribute := func(more string) string { return strings.Replace(request(``), `"id":"e1"`, `"id":"e1",`+more, 1) }
	body := withAttribute(`"zz-z":1,"a-a":1,"ext":{},"time":5`)
	for range 100 {
		if _, err := ns.Decode(onRequest, nil, []byte(body), time.Now()); err == nil || err.Error() != "malformed: a-a: must be within data: attributes have names of lower-case letters and digits" {
			t.Fatal(err)
		}
	}
	for range 100 {
		binary := nats.Header{"ce-specversion": {"1.0"}, "ce-zz-z": {"1"}, "ce-a-a": {"1"}, "Ce-Id": {"1", "2"}, "ce-source": {"1", "2"}}
		if _, err := ns.Decode(onRequest, binary, []byte("{}"), time.Now()); err == nil || err.Error() != "malformed: ce-id: must be given once, found it repeated" {
			t.Fatal(err)
		}
		delete(binary, "Ce-Id")
		delete(binary, "ce-source")
		if _, err := ns.Decode(onRequest, binary, []byte("{}"), time.Now()); err == nil || err.Error() != "malformed: ce-a-a: must have a name of lower-case letters and digits" {
			t.Fatal(err)
		}
	}
	_, err := ns.Decode(onRequest, nil, []byte(withAttribute(`"é\n`+strings.Repeat("x", 600)+`":1`)), time.Now())
	if dead, is := errors.AsType[*UnprocessableError](err); !is || dead.Detail != "??"+strings.Repeat("x", detailMax-2) {
		t.Errorf("%v", err)
	}
}
