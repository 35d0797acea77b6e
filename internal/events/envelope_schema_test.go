package events

import (
	stdjson "encoding/json"
	"errors"
	"flag"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/invopop/jsonschema"

	"holdfast/internal/holds"
	"holdfast/internal/record"
)

var update = flag.Bool("update", false, "write what is generated into docs/schemas")

const schemasDir = "../../docs/schemas"

// dataOf lists the data of each inbound event, and the largest number of slots that it may name.
var dataOf = map[string]struct {
	data     any
	slotsMax uint64
}{
	BookingRequested:     {BookingRequestedData{}, holds.SlotsMax},
	BookingExtended:      {BookingExtendedData{}, 0},
	BookingCancelled:     {BookingCancelledData{}, 0},
	PaymentStarted:       {PaymentStartedData{}, 0},
	PaymentConfirmed:     {PaymentConfirmedData{}, 0},
	ReservationCancelled: {ReservationCancelledData{}, 0},
	InventorySet:         {InventorySetData{}, holds.InventorySlotsMax},
}

// outcomeData lists the data of each outbound event and the members that each reason requires. The
// members in requires are always present. A reason requires its members in addition; a|b is one of
// the two.
var outcomeData = map[string]struct {
	data     any
	requires string
	reasons  map[string]string
}{
	holds.EventHoldCreated: {data: holds.HoldCreated{}, requires: wholeHold},
	holds.EventHoldRejected: {holds.HoldRejected{}, "request_key user_id quantity", map[string]string{
		holds.ReasonInvalidRequest:  "field",
		holds.ReasonKeyReused:       "",
		holds.ReasonCancelled:       "",
		holds.ReasonAlreadyHolding:  "hold_id",
		holds.ReasonHoldLimit:       "",
		holds.ReasonUnknownResource: "",
		holds.ReasonSoldOut:         "unavailable retry_at",
	}},
	holds.EventHoldExtended: {data: holds.HoldExtended{}, requires: wholeHold},
	holds.EventExtensionRejected: {holds.ExtensionRejected{}, "hold_id", map[string]string{
		holds.ReasonInvalidRequest: "field",
		holds.ReasonLimitReached:   wholeHold,
		holds.ReasonAlreadyStarted: wholeHold,
		holds.ReasonExpired:        wholeHold,
		holds.ReasonReleased:       wholeHold,
		holds.ReasonConfirmed:      wholeHold,
		holds.ReasonUnknownHold:    "",
	}},
	holds.EventHoldReleased: {data: holds.HoldReleased{}, requires: wholeHold},
	holds.EventReleaseRejected: {holds.ReleaseRejected{}, "", map[string]string{
		holds.ReasonExpired:     wholeHold,
		holds.ReasonReleased:    wholeHold,
		holds.ReasonConfirmed:   wholeHold,
		holds.ReasonUnknownHold: "hold_id|request_key", // as requested
	}},
	holds.EventHoldExpired:   {data: holds.HoldExpired{}, requires: wholeHold},
	holds.EventHoldConfirmed: {data: holds.HoldConfirmed{}, requires: wholeHold},
	holds.EventConfirmRejected: {holds.ConfirmRejected{}, "hold_id", map[string]string{
		holds.ReasonExpired:          wholeHold,
		holds.ReasonReleased:         wholeHold,
		holds.ReasonUnknownHold:      "",
		holds.ReasonAlreadyConfirmed: "", // the hold may be forgotten before its reservation
		holds.ReasonSoldOut:          wholeHold,
	}},
	holds.EventReservationCancelled: {data: holds.ReservationCancelled{}, requires: wholeHold},
	holds.EventCancelRejected: {holds.CancelRejected{}, "hold_id", map[string]string{
		holds.ReasonUnknownReservation: "",
		holds.ReasonAlreadyCancelled:   wholeHold,
	}},
	holds.EventInventoryUpdated: {data: holds.InventoryUpdated{}},
	holds.EventInventoryRejected: {holds.InventoryRejected{}, "", map[string]string{
		holds.ReasonInvalidRequest: "field",
		holds.ReasonBelowReserved:  "",
	}},
	holds.EventBookingCancelled: {data: holds.BookingCancelled{}},
}

// wholeHold lists the members of a hold that is known.
const wholeHold = "hold_id request_key user_id quantity"

// dataSchema returns the schema of the data of an event. It ignores unknown members.
func dataSchema(t *testing.T, value any, slotsMax uint64) *jsonschema.Schema {
	t.Helper()
	s := reflected(value)
	for pair := s.Properties.Oldest(); pair != nil; pair = pair.Next() {
		found, described := pair.Value, memberOf(pair.Key, slotsMax)
		if pair.Key == "slots" && found.Items.Type == "object" {
			described = stockList("The slots as they are after the change.")
		}
		if described.Type != "" && described.Type != found.Type {
			t.Errorf("%T: %s has the type %s, described as %s", value, pair.Key, found.Type, described.Type)
		}
		pair.Value = described
	}
	if _, nights := s.Properties.Get("check_in"); nights {
		s.DependentRequired = map[string][]string{"check_in": {"check_out"}, "check_out": {"check_in"}}
		s.Not = &jsonschema.Schema{Required: []string{"check_in", "slots"}}
	}
	return s
}

// inSchema returns the schema of an inbound event.
func inSchema(t *testing.T, event string) *jsonschema.Schema {
	data := dataSchema(t, dataOf[event].data, dataOf[event].slotsMax)
	if event == BookingCancelled {
		// A hold, or a resource and a key. Members beside a hold id are ignored, except a key.
		byKey := &jsonschema.Schema{Required: []string{"resource_id", "request_key"}, Properties: jsonschema.NewProperties()}
		for _, name := range byKey.Required {
			member, _ := data.Properties.Delete(name)
			byKey.Properties.Set(name, member)
		}
		data.If = &jsonschema.Schema{Required: []string{"hold_id"}}
		data.Then = &jsonschema.Schema{Not: &jsonschema.Schema{Required: []string{"request_key"}}}
		data.Else = byKey
	}
	s := envelopeSchema("in", event, data)
	attribute := func(description string) *jsonschema.Schema {
		return &jsonschema.Schema{Type: "string", Pattern: "^" + noControls + "+$", Description: description}
	}
	s.Properties.Set("id", attribute("Chosen by the publisher, a new one for each event. The same source, id and body are the same event."))
	s.Properties.Set("source", &jsonschema.Schema{
		Type: "string", Format: "uri-reference", Pattern: uriReference.String(), Description: "Who publishes, as a URI reference: /booking-service",
	})
	s.Properties.Set("subject", optional(attribute("Ignored.")))
	s.Properties.Set("time", optional(&jsonschema.Schema{Type: "string", Format: "date-time", Description: "Ignored; the time when JetStream stores the event counts."}))
	s.Properties.Set("datacontenttype", optional(&jsonschema.Schema{Type: "string", Pattern: jsonMedia, Description: "JSON, in UTF-8."}))
	s.Properties.Set("dataschema", optional(&jsonschema.Schema{Type: "string", Format: "uri-reference", Pattern: uriReference.String(), Description: "Ignored."}))
	s.AdditionalProperties = &jsonschema.Schema{
		Description: "Extension attributes are ignored, but must have the form of attributes.",
		AnyOf:       []*jsonschema.Schema{{Type: "string", Pattern: "^" + noControls + "*$"}, {Type: "boolean"}, {Type: "integer"}, {Type: "null"}},
	}
	s.Required = append(slices.Clone(requiredAttributes), "data")
	return s
}

// optional returns the schema of an attribute that may be missing. In CloudEvents null means the same.
func optional(attribute *jsonschema.Schema) *jsonschema.Schema {
	description := attribute.Description
	attribute.Description = ""
	return &jsonschema.Schema{Description: description, OneOf: []*jsonschema.Schema{attribute, {Type: "null"}}}
}

// outSchema returns the schema of an outbound event.
func outSchema(t *testing.T, event string) *jsonschema.Schema {
	answer := outcomeData[event]
	data := dataSchema(t, answer.data, holds.SlotsMax)
	data.Required = append(data.Required, strings.Fields(answer.requires)...)
	if quantity, found := data.Properties.Get("quantity"); found && event != holds.EventHoldRejected {
		quantity.Minimum, quantity.Maximum, quantity.Description = "1", stdjson.Number(strconv.Itoa(holds.QuantityMax)), "How many of each slot."
	}
	if reason, refuses := data.Properties.Get("reason"); refuses {
		for _, name := range slices.Sorted(maps.Keys(answer.reasons)) {
			reason.Enum = append(reason.Enum, name)
			if members := strings.Fields(answer.reasons[name]); len(members) > 0 {
				is := jsonschema.NewProperties()
				is.Set("reason", &jsonschema.Schema{Const: name})
				data.AllOf = append(data.AllOf, &jsonschema.Schema{If: &jsonschema.Schema{Properties: is}, Then: requiring(members)})
				// A member that is required in Go is required only if its part of the data is present.
				data.Required = slices.DeleteFunc(data.Required, func(member string) bool {
					return slices.Contains(members, member) && !slices.Contains(strings.Fields(answer.requires), member)
				})
			}
		}
	}
	s := envelopeSchema("out", event, data)
	s.Properties.Set("id", &jsonschema.Schema{Type: "string", Pattern: uuidPattern, Description: "The same whenever the same event is published again: drop an id that you have already processed."})
	s.Properties.Set("source", &jsonschema.Schema{Type: "string", Pattern: "^/holdfast/" + strings.TrimPrefix(record.NamespacePattern.String(), "^")})
	s.Properties.Set("subject", &jsonschema.Schema{Type: "string", Pattern: holdIDPattern, Description: "The id of the hold."})
	s.Properties.Set("time", &jsonschema.Schema{Type: "string", Format: "date-time", Pattern: timePattern, Description: "When it was decided, if that is remembered. " + redisClock})
	s.Properties.Set("datacontenttype", &jsonschema.Schema{Const: ContentTypeJSON})
	s.Properties.Set("causationid", &jsonschema.Schema{Type: "string", Pattern: "^" + noControls + "+$", Description: "The id of the inbound event that this answers."})
	s.Required = []string{"specversion", "id", "source", "type", "datacontenttype", "causationid", "data"}
	if slices.Contains(data.Required, "hold_id") {
		s.Required = append(s.Required, "subject")
	}
	if event == holds.EventHoldExpired {
		s.Properties.Set("causationid", jsonschema.FalseSchema) // it answers no event
		s.Required = slices.DeleteFunc(s.Required, func(name string) bool { return name == "causationid" })
	}
	return s
}

// requiring returns a schema that requires members; a|b is one of the two.
func requiring(members []string) *jsonschema.Schema {
	s := &jsonschema.Schema{}
	for _, member := range members {
		either := strings.Split(member, "|")
		if len(either) == 1 {
			s.Required = append(s.Required, member)
		}
		for _, one := range either[1:] {
			s.AnyOf = append(s.AnyOf, &jsonschema.Schema{Required: either[:1]}, &jsonschema.Schema{Required: []string{one}})
		}
	}
	return s
}

// envelopeSchema returns the schema of a CloudEvent in structured mode. The schema of its data is
// under $defs, for publishers in binary mode.
func envelopeSchema(direction, event string, data *jsonschema.Schema) *jsonschema.Schema {
	s := reflected(Envelope{})
	if direction == "in" {
		s.Properties.Delete("causationid")
		s.Properties.Set("dataschema", nil)
		_ = s.Properties.MoveAfter("dataschema", "datacontenttype") // both exist
		_ = s.Properties.MoveToBack("data")
	}
	s.Version, s.Title = jsonschema.Version, Type(event)
	s.ID = jsonschema.ID("urn:holdfast:schema:" + direction + ":" + event + ".v1")
	s.Properties.Set("specversion", &jsonschema.Schema{Const: "1.0"})
	s.Properties.Set("type", &jsonschema.Schema{Const: Type(event)})
	s.Properties.Set("data", &jsonschema.Schema{Ref: "#/$defs/data"})
	s.PropertyNames = &jsonschema.Schema{Pattern: "^[a-z0-9]+$"} // isAttributeName
	s.Definitions = jsonschema.Definitions{"data": data}
	return s
}

// deadLetteredSchema returns the schema of the reply, in place of an outcome, to the publisher of
// an event that was dead-lettered.
func deadLetteredSchema() *jsonschema.Schema {
	var reasons []any
	for _, reason := range DeadLetterReasons() {
		reasons = append(reasons, reason)
	}
	s := reflected(DeadLetterReply{})
	s.Version, s.ID, s.Title = jsonschema.Version, "urn:holdfast:schema:dead-lettered", "The event was dead-lettered"
	s.Properties.Set("error", &jsonschema.Schema{Enum: reasons})
	s.Properties.Set("detail", &jsonschema.Schema{Type: "string", Pattern: "^[ -~]*$", Description: "What is wrong, in printable ASCII."})
	return s
}

// schemas returns all files of docs/schemas, by name.
func schemas(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string]*jsonschema.Schema{"dead-lettered.json": deadLetteredSchema()}
	for event := range dataOf {
		files["in/"+event+".v1.json"] = inSchema(t, event)
	}
	for event := range outcomeData {
		files["out/"+event+".v1.json"] = outSchema(t, event)
	}
	written := make(map[string][]byte)
	for name, schema := range files {
		text, err := json.Marshal(schema)
		if err != nil {
			t.Fatal(err)
		}
		value := jsontext.Value(text)
		if err := value.Format(jsontext.PreserveRawStrings(false), jsontext.Multiline(true), jsontext.WithIndent("  ")); err != nil {
			t.Fatal(err)
		}
		written[name] = append(value, '\n')
	}
	return written
}

// TestSchemas_Files_MatchGoTypes compares docs/schemas with the Go types, and rewrites the files
// with -update.
func TestSchemas_Files_MatchGoTypes(t *testing.T) {
	t.Parallel()
	if got, want := slices.Sorted(maps.Keys(dataOf)), slices.Sorted(maps.Keys(decoders)); !slices.Equal(got, want) {
		t.Fatalf("schemas of %v, but decoders of %v", got, want)
	}
	want := schemas(t)
	if *update {
		for name, text := range want {
			if err := os.WriteFile(filepath.Join(schemasDir, name), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	err := filepath.WalkDir(schemasDir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() == "README.md" {
			return err
		}
		name, _ := filepath.Rel(schemasDir, path) // it is in schemasDir
		got, err := os.ReadFile(path)
		switch text, known := want[name]; {
		case err != nil:
			return err
		case !known:
			t.Errorf("%s is not a schema of an event", path)
		case string(got) != string(text):
			t.Errorf("%s differs from the Go types; run: go test ./internal/events -run Schemas -update", path)
		}
		delete(want, name)
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for name := range want {
		t.Errorf("%s is missing; run: go test ./internal/events -run Schemas -update", filepath.Join(schemasDir, name))
	}
}
