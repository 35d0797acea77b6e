package queries

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// forgottenHolds is a Querier and a Ledger that know no hold.
type forgottenHolds struct {
	Querier
	Ledger
}

func (forgottenHolds) GetHold(context.Context, holds.HoldID) (holds.HoldView, bool, error) {
	return holds.HoldView{}, false, nil
}

func (forgottenHolds) HoldRows(context.Context, holds.HoldID, int) (*holds.ReservationRow, []holds.PaymentRow, error) {
	return nil, nil, nil
}

// TestHistory_MoreEntriesThanFit_SaysThatItIsPartial publishes more events about a hold than a history has.
func TestHistory_MoreEntriesThanFit_SaysThatItIsPartial(t *testing.T) {
	t.Parallel()
	s := stacktest.StartNATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	js, ns := newStreams(t, s.ClientURL())
	inquiry := NewInquiry(js, ns, forgottenHolds{}, forgottenHolds{})
	publish := func(number int) {
		for range number {
			body := []byte(`{"hold_id":"` + holdID + `","ttl_seconds":60}`)
			if _, err := js.Publish(t.Context(), ns.In(events.BookingExtended, "room"), body); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish(historyEntriesMax)
	history, err := inquiry.History(t.Context(), holdID, false)
	if err != nil || len(history.Entries) != historyEntriesMax || history.Partial != "" {
		t.Errorf("%v: as many events as fit: %d entries, partial %q", err, len(history.Entries), history.Partial)
	}
	publish(1)
	history, err = inquiry.History(t.Context(), holdID, false)
	if err != nil || len(history.Entries) != historyEntriesMax || !strings.Contains(history.Partial, "more than 500 entries") {
		t.Errorf("%v: one more event: %d entries, partial %q", err, len(history.Entries), history.Partial)
	}
}

// TestHistory_ClockOfWorkerAhead_FindsOutcome has a hold that was granted by a worker whose clock was ahead of that of NATS.
func TestHistory_ClockOfWorkerAhead_FindsOutcome(t *testing.T) {
	t.Parallel()
	s := stacktest.StartNATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	js, ns := newStreams(t, s.ClientURL())
	granted := time.Now().Add(events.ClockSkewMax + 100*time.Millisecond)
	id, ms := uuid.Must(uuid.NewV7()), granted.UnixMilli()
	for i := range 6 { // the time in the id
		id[i] = byte(ms >> (40 - 8*i))
	}
	hold := "room." + hex.EncodeToString(id[:])
	body := fmt.Sprintf(`{"specversion":"1.0","id":"x","source":"/w","type":"holdfast.hold.created.v1","subject":%q,"data":{"hold_id":%q}}`, hold, hold)
	if _, err := js.Publish(t.Context(), ns.Out(holds.EventHoldCreated, "room"), []byte(body)); err != nil {
		t.Fatal(err)
	}
	stacktest.Eventually(t, "the server not to be asked for what is stored later", func() bool {
		return time.Now().After(granted.Add(-events.ClockSkewMax))
	})
	history, err := NewInquiry(js, ns, forgottenHolds{}, forgottenHolds{}).History(t.Context(), hold, false)
	if err != nil || len(history.Entries) != 1 {
		t.Errorf("%d entries, %v; want the outcome", len(history.Entries), err)
	}
}

// TestHistorian_RequestKeyIsEscaped_EventIsFound reads a request whose key has characters that JSON escapes, or may.
func TestHistorian_RequestKeyIsEscaped_EventIsFound(t *testing.T) {
	t.Parallel()
	hold, err := holds.ParseHoldID(holdID)
	stacktest.Must(t, err)
	h := &historian{hold: hold, requestKey: `a"<`}
	for body, want := range map[string]bool{
		`{"data":{"request_key":"a\"<","resource_id":"room"}}`:      true,
		`{"data":{"request_key":"a\"\u003c","resource_id":"room"}}`: true,
		`{"data":{"request_key":"a\"","resource_id":"room"}}`:       false,
		`{"data":{"request_key":"a\"<","resource_id":"hall"}}`:      false,
	} {
		if got := h.names([]byte(body)); got != want {
			t.Errorf("%s names the request: %v, want %v", body, got, want)
		}
	}
}
