package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// contractRow is an inbound event and its expected outcome. In data, $H1 is the hold that was
// created as H1, and ~ stands for a double quote.
type contractRow struct {
	event, data string
	outcome     string // event, reason and field
	creates     string // names the hold
}

const (
	requestData = "~resource_id~:~hall~,~quantity~:1,"
	tooMany     = "~ttl_seconds~:7200"
)

// contractRows has every event of the contract with each of its outcomes and reasons, in the
// contract's order. The worker of this table allows a user three holds.
var contractRows = []contractRow{
	{"inventory.set", "{~resource_id~:~hall~,~slots~:[~A~,~B~,~C~,~D~,~E~],~capacity~:1}", "inventory.updated", ""},
	{"inventory.set", "{~resource_id~:~hall~,~slots~:[~A~],~capacity~:-1}", "inventory.rejected invalid_request capacity", ""},

	{"booking.requested", "{~request_key~:~1~,~user_id~:~ana~," + requestData + "~slots~:[~A~,~B~],~metadata~:{~cart~:7}}", "hold.created", "H1"},
	{"booking.requested", "{~request_key~:~x~,~user_id~:~ana~," + requestData + "~check_in~:~2027-02-02~,~check_out~:~2027-02-02~}", "hold.rejected invalid_request check_out", ""},
	{"booking.requested", "{~request_key~:~x~,~user_id~:~ana~," + requestData + "~slots~:[~A~]," + tooMany + "}", "hold.rejected invalid_request ttl_seconds", ""},
	{"booking.requested", "{~request_key~:~1~,~user_id~:~ben~," + requestData + "~slots~:[~A~]}", "hold.rejected request_key_reused", ""},
	{"booking.requested", "{~request_key~:~2~,~user_id~:~ana~," + requestData + "~slots~:[~B~,~A~]}", "hold.rejected already_holding", ""},
	{"booking.requested", "{~request_key~:~3~,~user_id~:~ben~," + requestData + "~slots~:[~A~,~C~]}", "hold.rejected sold_out", ""},
	{"booking.requested", "{~request_key~:~4~,~user_id~:~ben~," + requestData + "~slots~:[~Z~]}", "hold.rejected unknown_resource", ""},
	{"booking.requested", "{~request_key~:~5~,~user_id~:~ana~," + requestData + "~slots~:[~C~]}", "hold.created", "H2"},
	{"booking.requested", "{~request_key~:~6~,~user_id~:~ana~," + requestData + "~slots~:[~D~],~ttl_seconds~:5}", "hold.created", "H3"},
	{"booking.requested", "{~request_key~:~7~,~user_id~:~ana~," + requestData + "~slots~:[~E~]}", "hold.rejected hold_limit", ""},
	{"", "", "hold.expired", "H3"},

	{"booking.extended", "{~hold_id~:~$H1~,~ttl_seconds~:3600}", "hold.extended", ""},
	{"booking.extended", "{~hold_id~:~$H1~,~ttl_seconds~:7200}", "hold.extension_rejected invalid_request ttl_seconds", ""},
	{"booking.extended", "{~hold_id~:~$H3~,~ttl_seconds~:60}", "hold.extension_rejected expired", ""},
	{"payment.started", "{~hold_id~:~$H1~}", "hold.extended", ""},
	{"payment.started", "{~hold_id~:~$H1~}", "hold.extension_rejected already_started", ""},
	{"payment.started", "{~hold_id~:~$H3~}", "hold.extension_rejected expired", ""},

	{"booking.cancelled", "{~hold_id~:~$H2~}", "hold.released", ""},
	{"booking.cancelled", "{~resource_id~:~hall~,~request_key~:~5~}", "hold.release_rejected released", ""},
	{"booking.cancelled", "{~resource_id~:~hall~,~request_key~:~3~}", "hold.release_rejected unknown_hold", ""},
	{"booking.cancelled", "{~hold_id~:~$H3~}", "hold.release_rejected expired", ""},
	{"booking.cancelled", "{~resource_id~:~hall~,~request_key~:~8~}", "booking.cancelled", ""},
	{"booking.requested", "{~request_key~:~8~,~user_id~:~ana~," + requestData + "~slots~:[~E~]}", "hold.rejected cancelled", ""},
	{"booking.extended", "{~hold_id~:~$H2~,~ttl_seconds~:60}", "hold.extension_rejected released", ""},

	{"payment.confirmed", "{~hold_id~:~$H1~,~payment_id~:~p1~,~amount~:~99.50~,~currency~:~EUR~}", "hold.confirmed", ""},
	{"payment.confirmed", "{~hold_id~:~$H1~,~payment_id~:~p2~}", "hold.confirm_rejected already_confirmed", ""},
	{"payment.confirmed", "{~hold_id~:~$H2~,~payment_id~:~p1~}", "hold.confirm_rejected released", ""},
	{"payment.confirmed", "{~hold_id~:~$H3~,~payment_id~:~p1~}", "hold.confirm_rejected expired", ""},
	{"payment.confirmed", "{~hold_id~:~hall.00000000000000000000000000000000~,~payment_id~:~p1~}", "hold.confirm_rejected unknown_hold", ""},
	{"booking.requested", "{~request_key~:~9~,~user_id~:~ben~," + requestData + "~slots~:[~E~]}", "hold.created", "H4"},
	{"inventory.set", "{~resource_id~:~hall~,~slots~:[~E~],~capacity~:0}", "inventory.updated", ""}, // under a live hold
	{"payment.confirmed", "{~hold_id~:~$H4~,~payment_id~:~p1~}", "hold.confirm_rejected sold_out", ""},
	{"inventory.set", "{~resource_id~:~hall~,~slots~:[~A~],~capacity~:0}", "inventory.rejected below_reserved capacity", ""},
	{"booking.extended", "{~hold_id~:~$H1~,~ttl_seconds~:60}", "hold.extension_rejected confirmed", ""},
	{"booking.extended", "{~hold_id~:~hall.00000000000000000000000000000000~,~ttl_seconds~:60}", "hold.extension_rejected unknown_hold", ""},
	{"booking.cancelled", "{~hold_id~:~$H1~}", "hold.release_rejected confirmed", ""},

	{"reservation.cancelled", "{~hold_id~:~$H1~,~reason~:~changed\\u0000plans~}", "reservation.cancelled", ""},
	{"reservation.cancelled", "{~hold_id~:~$H1~}", "reservation.cancel_rejected already_cancelled", ""},
	{"reservation.cancelled", "{~hold_id~:~$H2~}", "reservation.cancel_rejected unknown_reservation", ""},
}

// contractLimits has the events of a hold whose ttl is the maximum lifetime, so it cannot be
// extended. The end of another hold shows that time has passed.
var contractLimits = []contractRow{
	{"inventory.set", "{~resource_id~:~hall~,~slots~:[~A~,~B~],~capacity~:1}", "inventory.updated", ""},
	{"booking.requested", "{~request_key~:~1~,~user_id~:~ana~," + requestData + "~slots~:[~A~],~ttl_seconds~:30}", "hold.created", "H1"},
	{"booking.requested", "{~request_key~:~2~,~user_id~:~ben~," + requestData + "~slots~:[~B~],~ttl_seconds~:1}", "hold.created", "H2"},
	{"", "", "hold.expired", "H2"},
	{"booking.extended", "{~hold_id~:~$H1~,~ttl_seconds~:30}", "hold.extension_rejected limit_reached", ""},
	{"payment.started", "{~hold_id~:~$H1~}", "hold.extension_rejected limit_reached", ""},
}

// contractLate has payments for expired holds, with HOLDFAST_LATE_PAYMENT=accept_if_free.
var contractLate = []contractRow{
	{"inventory.set", "{~resource_id~:~hall~,~slots~:[~A~],~capacity~:1}", "inventory.updated", ""},
	{"booking.requested", "{~request_key~:~1~,~user_id~:~ana~," + requestData + "~slots~:[~A~],~ttl_seconds~:1}", "hold.created", "H1"},
	{"", "", "hold.expired", "H1"},
	{"payment.confirmed", "{~hold_id~:~$H1~,~payment_id~:~p1~}", "hold.confirmed late", ""},
	{"payment.confirmed", "{~hold_id~:~$H1~,~payment_id~:~p2~}", "hold.confirm_rejected already_confirmed", ""},
	{"reservation.cancelled", "{~hold_id~:~$H1~}", "reservation.cancelled", ""},
	{"booking.requested", "{~request_key~:~2~,~user_id~:~ben~," + requestData + "~slots~:[~A~],~ttl_seconds~:1}", "hold.created", "H2"},
	{"", "", "hold.expired", "H2"},
	{"booking.requested", "{~request_key~:~3~,~user_id~:~cyd~," + requestData + "~slots~:[~A~]}", "hold.created", "H3"},
	{"payment.confirmed", "{~hold_id~:~$H2~,~payment_id~:~p3~}", "hold.confirm_rejected sold_out", ""},
}

// contractMembers lists what the data of each outbound event must have, besides resource_id.
var contractMembers = map[string][]string{
	holds.EventHoldCreated:          {"hold_id", "request_key", "user_id", "slots", "quantity", "created_at", "expires_at"},
	holds.EventHoldRejected:         {"request_key", "user_id", "quantity", "reason", "message"},
	holds.EventHoldExtended:         {"hold_id", "request_key", "user_id", "slots", "quantity", "extended_at", "expires_at"},
	holds.EventExtensionRejected:    {"hold_id", "reason"},
	holds.EventHoldReleased:         {"hold_id", "request_key", "user_id", "slots", "quantity", "released_at"},
	holds.EventReleaseRejected:      {"reason"},
	holds.EventHoldExpired:          {"hold_id", "request_key", "user_id", "slots", "quantity", "expires_at", "restored_at"},
	holds.EventHoldConfirmed:        {"hold_id", "request_key", "user_id", "slots", "quantity", "payment_id", "confirmed_at"},
	holds.EventConfirmRejected:      {"hold_id", "payment_id", "reason", "refund_required"},
	holds.EventReservationCancelled: {"hold_id", "request_key", "user_id", "slots", "quantity", "cancelled_at"},
	holds.EventCancelRejected:       {"hold_id", "reason"},
	holds.EventInventoryUpdated:     {"slots"},
	holds.EventInventoryRejected:    {"reason", "field"},
	holds.EventBookingCancelled:     {"request_key"},
}

// contractReasons lists all reasons of the contract.
var contractReasons = map[string][]string{
	holds.EventHoldRejected:      {"invalid_request", "request_key_reused", "cancelled", "already_holding", "hold_limit", "unknown_resource", "sold_out"},
	holds.EventExtensionRejected: {"invalid_request", "limit_reached", "already_started", "expired", "released", "confirmed", "unknown_hold"},
	holds.EventReleaseRejected:   {"expired", "released", "confirmed", "unknown_hold"},
	holds.EventConfirmRejected:   {"expired", "released", "unknown_hold", "already_confirmed", "sold_out"},
	holds.EventCancelRejected:    {"unknown_reservation", "already_cancelled"},
	holds.EventInventoryRejected: {"invalid_request", "below_reserved"},
}

// TestContract_EveryRow_HasItsOutcome publishes the events of the contract's tables to a worker. It
// checks every outcome, every reason, the members of its data, the trace of its event, and that no
// event has two outcomes.
func TestContract_EveryRow_HasItsOutcome(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	run := func(rows []contractRow, env ...string) {
		s := newHarness(t)
		s.startWorker(env...)
		s.goThrough(rows, seen)
	}
	run(contractRows, "HOLDFAST_HOLDS_PER_USER=3")
	run(contractLimits, "HOLDFAST_HOLD_TTL=30s", "HOLDFAST_HOLD_TTL_MAX=30s", "HOLDFAST_HOLD_LIFETIME_MAX=30s", "HOLDFAST_PAYMENT_WINDOW=30s")
	run(contractLate, "HOLDFAST_LATE_PAYMENT=accept_if_free")
	for event := range contractMembers {
		if !seen[event] {
			t.Errorf("%s did not occur", event)
		}
		for _, reason := range contractReasons[event] {
			if !seen[event+" "+reason] {
				t.Errorf("%s %s did not occur", event, reason)
			}
		}
	}
}

func (s *harness) goThrough(rows []contractRow, seen map[string]bool) {
	s.t.Helper()
	named := []string{"~", `"`}
	var ids []string // of the events
	for i, row := range rows {
		var o events.Envelope
		if row.event == "" {
			o = s.expiredOutcome(strings.NewReplacer(named...).Replace("$" + row.creates))
		} else {
			o = s.answerTraced("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", row.event, "hall",
				jsontext.Value(strings.NewReplacer(named...).Replace(row.data)))
			ids = append(ids, o.CausationID)
		}
		event := strings.TrimSuffix(strings.TrimPrefix(o.Type, "holdfast."), ".v1")
		var data map[string]any
		stacktest.Must(s.t, json.Unmarshal(o.Data, &data))
		words := []string{event}
		for _, name := range []string{"reason", "field"} {
			if word, reported := data[name].(string); reported {
				words = append(words, word)
			}
		}
		if data["late"] == true {
			words = append(words, "late")
		}
		if got := strings.Join(words, " "); got != row.outcome {
			s.t.Fatalf("row %d: %s %s\n\tgot  %s %s\n\twant %s", i, row.event, row.data, got, o.Data, row.outcome)
		}
		seen[event] = true
		seen[strings.Join(words[:min(2, len(words))], " ")] = true
		for _, name := range append(contractMembers[event], "resource_id") {
			if _, reported := data[name]; !reported {
				s.t.Errorf("row %d: %s has no %s: %s", i, event, name, o.Data)
			}
		}
		if words[len(words)-1] == holds.ReasonSoldOut && event == holds.EventHoldRejected && (data["unavailable"] == nil || data["retry_at"] == nil) {
			s.t.Errorf("row %d: sold_out lacks unavailable or retry_at: %s", i, o.Data)
		}
		if row.creates != "" {
			named = append(named, "$"+row.creates, o.Subject)
		}
	}
	for _, id := range ids {
		s.wantOneOutcome(id)
	}
	s.wantNoDeadLetters()
}

// expiredOutcome waits for the hold.expired of a hold.
func (s *harness) expiredOutcome(hold string) (o events.Envelope) {
	s.t.Helper()
	s.await(fmt.Sprintf("%s of %s", holds.EventHoldExpired, hold), func(outcomes []events.Envelope, _ []nats.Header) bool {
		i := slices.IndexFunc(outcomes, func(e events.Envelope) bool {
			return e.Type == events.Type(holds.EventHoldExpired) && e.Subject == hold
		})
		if i >= 0 {
			o = outcomes[i]
		}
		return i >= 0
	})
	return o
}
