package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/contract"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// exampleHold is the hold id that the examples of docs/asyncapi.yaml use.
const exampleHold = "deluxe.0192f5c4d0b07cc3a5d0f2f5a1b2c3d4"

// TestAsyncAPI_EveryExample_AnsweredAsDocumented publishes every inbound example of
// docs/asyncapi.yaml to a real worker. Each answer, in the inbox and in the stream, is the one in
// the document. checkOutbound validates what is stored against its schema.
func TestAsyncAPI_EveryExample_AnsweredAsDocumented(t *testing.T) {
	t.Parallel()
	doc, err := contract.ReadAsyncAPI("../../docs/asyncapi.yaml")
	stacktest.Must(t, err)
	s := newHarness(t)
	s.startWorker()
	played := 0
	play := func(event string) {
		message := doc.Components.Messages["in."+event]
		for _, example := range message.Examples {
			played++
			s.publishExample(event, example, message.Answers[example.Name])
		}
	}
	play(events.InventorySet) // the other examples need the inventory
	for key := range doc.Components.Messages {
		event, inbound := strings.CutPrefix(key, "in.")
		if inbound && event != events.InventorySet {
			play(event)
		}
	}
	if played < 7 {
		t.Errorf("only %d examples were published", played)
	}
}

// publishExample publishes an example and compares its answer with the document. An example about a
// hold gets a new hold, and one that cancels a reservation a paid hold.
func (s *harness) publishExample(event string, example contract.Example, answer string) {
	s.t.Helper()
	body, err := example.JSON()
	stacktest.Must(s.t, err)
	// The dates in the document are fixed, so they can have passed.
	text := strings.ReplaceAll(string(body), `"2027-`, fmt.Sprintf(`"%d-`, time.Now().Year()+1))
	if strings.Contains(text, exampleHold) {
		key := strings.ReplaceAll(event+example.Name, " ", "-")
		hold := s.answer(s.book("deluxe", key, key, holds.SlotSelection{Slots: []string{s.seat(key)}}, 600))
		if hold.Subject == "" {
			s.t.Fatalf("a hold for %s: %s %s", example.Name, hold.Type, hold.Data)
		}
		if event == events.ReservationCancelled {
			s.answer(s.pay(hold.Subject, key))
		}
		text = strings.ReplaceAll(text, exampleHold, hold.Subject)
	}
	m := nats.NewMsg(s.subjects.In(event, "deluxe"))
	for name, value := range example.Headers {
		m.Header.Set(name, value)
	}
	m.Data = []byte(text)
	got, err := s.client.Request(stacktest.WaitContext(s.t), m)
	if err != nil {
		s.t.Fatalf("%s: example %s: %v", event, example.Name, err)
	}
	if got.DeadLetter != nil || got.Envelope.Type != events.Type(answer) {
		s.t.Errorf("%s: example %s is answered with %s, want %s", event, example.Name, got.Body, answer)
		return
	}
	if stored := s.answer(got.Envelope.CausationID); stored.ID != got.Envelope.ID ||
		string(stored.Data) != string(got.Envelope.Data) {
		s.t.Errorf("%s: example %s: the inbox got %s, the stream has %s", event, example.Name, got.Body, stored.Data)
	}
}

// seat creates another seat and returns its name.
func (s *harness) seat(name string) string {
	s.t.Helper()
	seat := "seat-" + strings.ReplaceAll(name, ".", "-")[:min(len(name), 27)]
	s.setInventory("deluxe", holds.SlotSelection{Slots: []string{seat}}, 1)
	return seat
}
