package console

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

// TestSetInventory_DeadLettered_SaysSo sets a capacity, and answers the event as a worker does that has dead-lettered it.
func TestSetInventory_DeadLettered_SaysSo(t *testing.T) {
	t.Parallel()
	ns := events.Namespace(stacktest.Namespace(t))
	c, _ := newTestConsole(t, Options{Mode: Act, Namespace: ns})
	js := stacktest.ConnectNATS(t, stacktest.NATSWithMaxPayload(t, 1<<20))
	nc := js.Conn()
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: ns.InStream(), Subjects: []string{ns.AllIn()}})
	if err != nil {
		t.Fatal(err)
	}
	if c.Client, err = client.New(nc, ns); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Subscribe(ns.AllIn(), func(m *nats.Msg) {
		answer := nats.NewMsg(m.Header.Get(events.HeaderReplyTo))
		answer.Header.Set(events.HeaderContentType, events.ContentTypeJSON)
		answer.Data = []byte(`{"error":"poison","detail":"too large an outcome"}`)
		_ = nc.PublishMsg(answer) // else there is no answer
	}); err != nil {
		t.Fatal(err)
	}
	r := newRequest(t, http.MethodPost, "inventory", url.Values{"note": {"renovated"}})
	if err := r.ParseForm(); err != nil {
		t.Fatal(err)
	}
	var d inventoryData
	set := events.InventorySetData{ResourceID: "hall", Capacity: 1}
	if err := c.setInventory(t.Context(), &request{Request: r}, set, &d); err != nil {
		t.Fatal(err)
	}
	if want := "dead letter (poison: too large an outcome) for event "; !strings.HasPrefix(d.Outcome, want) || !d.Refused {
		t.Errorf("%+v, want %s", d, want)
	}
}

// TestHits_FormOfOlderPage_ExceedMeansMoreInAnySlot compares what a capacity hits with what a form sends back.
func TestHits_FormOfOlderPage_ExceedMeansMoreInAnySlot(t *testing.T) {
	t.Parallel()
	now := hits{{10, 1}, {10, 0}}
	for shown, want := range map[string]bool{
		now.String(): false, "[[10,2],[10,0]]": false, "[[12,1],[10,0]]": true, "[[10,0],[10,1]]": true, "[[9,1],[10,0]]": true, "[[10,1]]": true, "": true, "null": true,
	} {
		if got := now.exceed(shown, 5); got != want {
			t.Errorf("%s: %t, want %t", shown, got, want)
		}
	}
	if now.exceed("[[12,1],[10,0]]", 10) {
		t.Error("the capacity that was set before, by the same form, counts as changed")
	}
}
