package events

import (
	"reflect"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestOutcomeLogCommits_AfterPosition_ReturnsWhatPostgresDecided publishes outcomes of Redis and of Postgres, and
// reads those of Postgres that follow a position, with what their data lacks.
func TestOutcomeLogCommits_AfterPosition_ReturnsWhatPostgresDecided(t *testing.T) {
	t.Parallel()
	js, ns := newJetStream(t), Namespace(stacktest.Namespace(t))
	setup(t, js, ns)
	publish := func(id string, o holds.Outcome) {
		t.Helper()
		o.Resource = "room"
		m, err := ns.outcomeMessage(o, id, "cause")
		if err == nil {
			_, err = js.PublishMsg(t.Context(), m)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	hold := holds.NewHoldID("room")
	quantity, at := int64(1), holds.TimeFromMillis(1_700_000_000_123)
	data := holds.HoldData{ResourceID: "room", HoldID: hold, RequestKey: "k", UserID: "u", Quantity: &quantity}
	confirmed := holds.Outcome{Event: holds.EventHoldConfirmed, Hold: hold, At: at,
		Data:            holds.HoldConfirmed{HoldData: data, PaymentID: "p", ConfirmedAt: at},
		RebuildMetadata: holds.RebuildMetadata{Amount: "1.50", Currency: "EUR"}}
	set := holds.Outcome{Event: holds.EventInventoryUpdated,
		Data: holds.InventoryUpdated{ResourceID: "room", Slots: []holds.SlotCounts{{Slot: "A", Capacity: 2}}},
		RebuildMetadata: holds.RebuildMetadata{Position: holds.StreamPosition{
			At: at.Time, StreamCreatedAt: at.Add(-time.Hour), Seq: 7}}}
	publish("before", confirmed)
	log := NewOutcomeLog(js, ns, zerolog.Nop())
	position, err := log.Position(t.Context())
	if err != nil || position.Seq != 1 {
		t.Fatalf("position %+v: %v", position, err)
	}
	publish("confirmed", confirmed)
	publish("created", holds.Outcome{Event: holds.EventHoldCreated, Hold: hold, At: at,
		Data: holds.HoldCreated{HoldData: data, CreatedAt: at, ExpiresAt: at}})
	publish("set", set)
	read := func(after holds.LogPosition) (ids []string, outcomes []holds.StoredOutcome) {
		t.Helper()
		last, err := log.Commits(t.Context(), after, func(some []holds.StoredOutcome) error {
			for _, o := range some {
				ids, outcomes = append(ids, o.ID), append(outcomes, o)
			}
			return nil
		})
		if err != nil || last.Seq != 4 {
			t.Errorf("last %+v: %v", last, err)
		}
		return ids, outcomes
	}
	position.Created = position.Created.Truncate(time.Microsecond) // as Postgres stores it
	ids, outcomes := read(position)
	if !reflect.DeepEqual(ids, []string{"confirmed", "set"}) {
		t.Fatalf("after the position are %q", ids)
	}
	for i, want := range []holds.Outcome{confirmed, set} {
		got := outcomes[i].Outcome
		if !reflect.DeepEqual(got.Data, want.Data) || !reflect.DeepEqual(got.RebuildMetadata, want.RebuildMetadata) ||
			!got.At.Equal(want.At.Time) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	position.Created = position.Created.Add(-time.Hour) // of an earlier stream of that name
	if ids, _ := read(position); !reflect.DeepEqual(ids, []string{"before", "confirmed", "set"}) {
		t.Errorf("of another stream are %q", ids)
	}
}
