package events

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast/internal/contract"
	"holdfast/internal/holds"
)

// outcomesOf lists the events that answer each inbound event.
var outcomesOf = map[string][]string{
	BookingRequested:     {holds.EventHoldCreated, holds.EventHoldRejected},
	BookingExtended:      {holds.EventHoldExtended, holds.EventExtensionRejected},
	BookingCancelled:     {holds.EventHoldReleased, holds.EventReleaseRejected, holds.EventBookingCancelled},
	PaymentStarted:       {holds.EventHoldExtended, holds.EventExtensionRejected},
	PaymentConfirmed:     {holds.EventHoldConfirmed, holds.EventConfirmRejected},
	ReservationCancelled: {holds.EventReservationCancelled, holds.EventCancelRejected},
	InventorySet:         {holds.EventInventoryUpdated, holds.EventInventoryRejected},
}

// TestAsyncAPI_Document_MatchesCode compares docs/asyncapi.yaml with the code. Every event has its
// channel, its operation, its schema, and an example that its schema accepts. Every event lists its
// answers and the reasons of refusals.
func TestAsyncAPI_Document_MatchesCode(t *testing.T) {
	t.Parallel()
	doc, err := contract.ReadAsyncAPI("../../docs/asyncapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	channels, messages := []string{"dlq", "inbox"}, []string{"dead-letter", "dead-lettered"}
	operations := []string{"dlq"}
	for event := range decoders {
		key := "in." + event
		channels, messages, operations = append(channels, key), append(messages, key), append(operations, key)
		checkChannel(t, doc, "receive", "in", event)
		var got []string
		for _, ref := range doc.Operations[key].Reply.Messages {
			got = append(got, ref.To)
		}
		var want []string
		for _, outcome := range append(slices.Clone(outcomesOf[event]), "dead-lettered") {
			want = append(want, "#/channels/inbox/messages/"+outcome)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s is answered with %v, want %v", event, got, want)
		}
		checkInboundExamples(t, doc.Components.Messages[key], event)
	}
	inbox := map[string]string{"dead-lettered": "dead-lettered"}
	for event := range outcomeData {
		key := "out." + event
		channels, messages, operations = append(channels, key), append(messages, key), append(operations, key)
		checkChannel(t, doc, "send", "out", event)
		checkReasons(t, doc.Components.Messages[key], event, slices.Collect(maps.Keys(outcomeData[event].reasons)))
		if event != holds.EventHoldExpired {
			inbox[event] = key
		}
	}
	for name, ref := range doc.Channels["inbox"].Messages {
		if ref.To != "#/components/messages/"+inbox[name] {
			t.Errorf("the message to the inbox %s is %s", name, ref.To)
		}
		delete(inbox, name)
	}
	if len(inbox) > 0 {
		t.Errorf("missing messages to an inbox: %v", slices.Sorted(maps.Keys(inbox)))
	}
	checkReasons(t, doc.Components.Messages["dead-letter"], "dead-letter", DeadLetterReasons())
	if got := doc.Components.Parameters["reason"].Enum; !slices.Equal(got, DeadLetterReasons()) {
		t.Errorf("the reasons of dead letters are %v", got)
	}
	wantHeaders := []string{HeaderDLQReason, HeaderDLQDetail, HeaderDLQSubject, HeaderDLQStreamSeq, HeaderDLQDeliveries, HeaderDLQTime, HeaderDLQWorker, headerMsgID}
	if got := doc.Components.Messages["dead-letter"].Headers.Required; !slices.Equal(got, wantHeaders) {
		t.Errorf("the headers of dead letters are %v", got)
	}
	for name, lists := range map[string][2][]string{
		"channels":   {slices.Sorted(maps.Keys(doc.Channels)), channels},
		"operations": {slices.Sorted(maps.Keys(doc.Operations)), operations},
		"messages":   {slices.Sorted(maps.Keys(doc.Components.Messages)), messages},
	} {
		if slices.Sort(lists[1]); !slices.Equal(lists[0], lists[1]) {
			t.Errorf("%s are %v, want %v", name, lists[0], lists[1])
		}
	}
	for name, m := range doc.Components.Messages {
		checkExamples(t, name, m)
	}
}

// checkChannel checks that an event has its subject, its operation and its schema.
func checkChannel(t *testing.T, doc contract.AsyncAPI, action, direction, event string) {
	t.Helper()
	key := direction + "." + event
	channel, operation, message := doc.Channels[key], doc.Operations[key], doc.Components.Messages[key]
	if want := "{namespace}." + direction + "." + event + ".{resource_id}"; channel.Address != want {
		t.Errorf("%s is on %q, want %s", key, channel.Address, want)
	}
	if len(channel.Messages) != 1 || channel.Messages[event].To != "#/components/messages/"+key {
		t.Errorf("the channel of %s carries %v", key, channel.Messages)
	}
	if operation.Action != action || operation.Channel.To != "#/channels/"+key ||
		len(operation.Messages) != 1 || operation.Messages[0].To != "#/channels/"+key+"/messages/"+event {
		t.Errorf("the operation of %s is %+v", key, operation)
	}
	trait := map[string]string{"in": "inbound", "out": "outbound"}[direction]
	if message.Name != Type(event) || message.Payload.Schema.To != "./schemas/"+key[:len(direction)]+"/"+event+".v1.json" ||
		len(message.Traits) != 1 || message.Traits[0].To != "#/components/messageTraits/"+trait {
		t.Errorf("the message of %s is %+v", key, message)
	}
}

// checkExamples checks that a message has examples, and that its schema accepts them.
func checkExamples(t *testing.T, name string, m contract.Message) {
	t.Helper()
	if len(m.Examples) == 0 {
		t.Errorf("%s has no example", name)
	}
	if m.Payload.Schema.To == "" {
		return // any value is allowed
	}
	schema, err := contract.ReadSchema("../../docs/"+m.Payload.Schema.To, "")
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	for _, example := range m.Examples {
		text, err := example.JSON()
		if err == nil {
			err = schema.Validate(text)
		}
		if err != nil {
			t.Errorf("%s: example %s: %v", name, example.Name, err)
		}
	}
}

// checkInboundExamples checks that the examples of an inbound event decode, and that each names one
// of its outcomes as its answer.
func checkInboundExamples(t *testing.T, m contract.Message, event string) {
	t.Helper()
	names := make(map[string]struct{})
	for _, example := range m.Examples {
		names[example.Name] = struct{}{}
		text, err := example.JSON()
		if err != nil {
			t.Error(err)
			continue
		}
		in, err := ns.Decode(ns.In(event, "deluxe"), headersOf(example), text, time.Now())
		if err != nil || MessageID(in.Source, in.ID) != example.Headers[headerMsgID] {
			t.Errorf("%s: example %s: %v", event, example.Name, err)
		}
		if !slices.Contains(outcomesOf[event], m.Answers[example.Name]) {
			t.Errorf("%s: example %s is answered with %q", event, example.Name, m.Answers[example.Name])
		}
	}
	if got, want := slices.Sorted(maps.Keys(m.Answers)), slices.Sorted(maps.Keys(names)); !slices.Equal(got, want) {
		t.Errorf("%s: answers to %v, examples are %v", event, got, want)
	}
}

func headersOf(example contract.Example) map[string][]string {
	header := make(map[string][]string)
	for name, value := range example.Headers {
		header[name] = []string{value}
	}
	return header
}

// checkReasons checks that a message lists exactly these reasons, each in an item of a list.
func checkReasons(t *testing.T, m contract.Message, name string, want []string) {
	t.Helper()
	var got []string
	for line := range strings.Lines(m.Description) {
		if item, found := strings.CutPrefix(line, "- `"); found {
			reason, _, _ := strings.Cut(item, "`")
			got = append(got, reason)
		}
	}
	want = slices.Sorted(slices.Values(want))
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("%s lists the reasons %v, want %v", name, got, want)
	}
}

// TestSchemaTables_EventsAndReasons_AreComplete checks that the tables which generate the schemas
// contain all events and reasons of the code.
func TestSchemaTables_EventsAndReasons_AreComplete(t *testing.T) {
	t.Parallel()
	inbound := constants(t, "subjects.go", "")
	outbound, reasons := constants(t, "../holds/outcome.go", "Event"), constants(t, "../holds/outcome.go", "Reason")
	dlq := constants(t, "subjects.go", "Reason")
	inbound = slices.DeleteFunc(inbound, func(value string) bool { return slices.Contains(dlq, value) })
	given := make(map[string]struct{})
	for _, answer := range outcomeData {
		for reason := range answer.reasons {
			given[reason] = struct{}{}
		}
	}
	for what, lists := range map[string][2][]string{
		"inbound events":          {inbound, slices.Collect(maps.Keys(dataOf))},
		"outcomes":                {inbound, slices.Collect(maps.Keys(outcomesOf))},
		"outbound events":         {outbound, slices.Collect(maps.Keys(outcomeData))},
		"reasons":                 {reasons, slices.Collect(maps.Keys(given))},
		"reasons of dead letters": {dlq, DeadLetterReasons()},
	} {
		slices.Sort(lists[0])
		if slices.Sort(lists[1]); !slices.Equal(lists[0], lists[1]) {
			t.Errorf("%s: the code has %v, the tables have %v", what, lists[0], lists[1])
		}
	}
}

// constants returns the values of the exported string constants of a file whose names begin with
// a prefix.
func constants(t *testing.T, path, prefix string) (values []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, isValue := n.(*ast.ValueSpec)
		if !isValue || len(spec.Values) != 1 || !spec.Names[0].IsExported() || !strings.HasPrefix(spec.Names[0].Name, prefix) {
			return true
		}
		literal, isLiteral := spec.Values[0].(*ast.BasicLit)
		if !isLiteral || literal.Kind != token.STRING {
			return true
		}
		value, err := strconv.Unquote(literal.Value)
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, value)
		return true
	})
	if len(values) == 0 {
		t.Fatalf("%s has no constant %s...", path, prefix)
	}
	return values
}
