package main

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

// TestLifecycle_EachStep_HasContractOutcome produces every outcome and reason of the contract for a hold after its
// creation, with a worker whose hold lifetime is an hour.
func TestLifecycle_EachStep_HasContractOutcome(t *testing.T) {
	t.Parallel()
	namespace := stacktest.Namespace(t)
	flags := serverFlags(t)
	startWorker(t, append(flags, "--namespace", namespace, "--hold-lifetime-max", "1h")...)
	there := " --namespace " + namespace + " --nats-url " + flags[1] + " --wait"
	do := func(line string, code int, texts ...string) result {
		t.Helper()
		return publisher(t, words(line+there)...).want(t, code, texts...)
	}
	slots := "A,B,C,D,E,F,G,H"
	do("inventory set --resource-id hall --slot "+slots+" --capacity 1", exitOK)
	// hold requests a slot of the hall and returns the hold id.
	hold := func(slot, ttl string) string {
		t.Helper()
		return outcome(t, do("request -o json --resource-id hall --user-id ann --slot "+slot+" --ttl "+ttl, exitOK)).Subject
	}
	holds := map[string]string{
		"held": hold("A", "30m"), "started": hold("B", "1m"), "lasting": hold("C", "30m"), "released": hold("D", "10m"),
		"confirmed": hold("E", "10m"), "expired": hold("F", "1s"), "unknown": "hall.0192f5c4d0b07cc3a5d0f2f5a1b2c3d4",
	}
	do("cancel --hold-id "+holds["released"], exitOK)
	do("pay --payment-id p1 --hold-id "+holds["confirmed"], exitOK)
	stacktest.Eventually(t, "the hold to expire", func() bool {
		subjects := events.Namespace(namespace)
		return storedOf(t, flags[1], subjects.OutStream(), subjects.Out("hold.expired", "hall")) == 1
	})
	reserved := func() string {
		t.Helper()
		var data struct {
			Slots []struct {
				Slot     string `json:"slot"`
				Reserved int    `json:"reserved"`
			} `json:"slots"`
		}
		e := outcome(t, do("inventory set -o json --resource-id hall --capacity 1 --slot "+slots, exitOK))
		if err := json.Unmarshal(e.Data, &data); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, slot := range data.Slots {
			if slot.Reserved > 0 {
				names = append(names, slot.Slot)
			}
		}
		return strings.Join(names, ",")
	}
	if got := reserved(); got != "E" {
		t.Errorf("reserved: %q, want E", got)
	}

	for _, row := range []struct {
		line, of      string
		code          int
		event, reason string
	}{
		// booking.extended
		{"extend --ttl 40m", "held", exitOK, "hold.extended", ""},
		{"extend --ttl 1m", "held", exitOK, "hold.extended", ""}, // the deadline does not move back
		{"extend --ttl 0s", "held", exitRejected, "hold.extension_rejected", "invalid_request"},
		{"extend --ttl 2h", "held", exitRejected, "hold.extension_rejected", "invalid_request"},
		{"extend --ttl 1h", "held", exitRejected, "hold.extension_rejected", "limit_reached"},
		{"extend --ttl 10m", "expired", exitRejected, "hold.extension_rejected", "expired"},
		{"extend --ttl 10m", "released", exitRejected, "hold.extension_rejected", "released"},
		{"extend --ttl 10m", "confirmed", exitRejected, "hold.extension_rejected", "confirmed"},
		{"extend --ttl 10m", "unknown", exitRejected, "hold.extension_rejected", "unknown_hold"},
		// payment.started
		{"start-payment", "started", exitOK, "hold.extended", ""},
		{"start-payment", "lasting", exitOK, "hold.extended", ""}, // the hold already lasted long enough
		{"start-payment", "started", exitRejected, "hold.extension_rejected", "already_started"},
		{"start-payment", "lasting", exitRejected, "hold.extension_rejected", "already_started"},
		{"start-payment", "expired", exitRejected, "hold.extension_rejected", "expired"},
		{"start-payment", "released", exitRejected, "hold.extension_rejected", "released"},
		{"start-payment", "confirmed", exitRejected, "hold.extension_rejected", "confirmed"},
		{"start-payment", "unknown", exitRejected, "hold.extension_rejected", "unknown_hold"},
		// reservation.cancelled
		{"cancel-reservation --reason rain", "confirmed", exitOK, "reservation.cancelled", ""},
		{"cancel-reservation", "held", exitRejected, "reservation.cancel_rejected", "unknown_reservation"},
		{"cancel-reservation", "unknown", exitRejected, "reservation.cancel_rejected", "unknown_reservation"},
		{"cancel-reservation", "confirmed", exitRejected, "reservation.cancel_rejected", "already_cancelled"},
	} {
		line := row.line + " --hold-id " + holds[row.of]
		e := outcome(t, do(line+" -o json", row.code))
		var data struct {
			Reason string `json:"reason"`
		}
		if err := json.Unmarshal(e.Data, &data); err != nil {
			t.Fatal(err)
		}
		// reservation.cancelled has the reason of the caller.
		if row.code == exitOK {
			data.Reason = ""
		}
		if e.Type != events.Type(row.event) || data.Reason != row.reason || e.Subject != holds[row.of] {
			t.Errorf("%s %s: %s %s %s, want %s %s", row.line, row.of, e.Type, e.Subject, e.Data, row.event, row.reason)
		}
	}
	if got := reserved(); got != "" {
		t.Errorf("reserved after the cancellation: %q", got)
	}

	// As text, and without --wait.
	words := map[string]string{
		"extend --ttl 45m --hold-id " + holds["held"]:      "hold.extended\n",
		"start-payment --hold-id " + hold("G", "1m"):       "hold.extended\n",
		"extend --ttl 10m --hold-id " + holds["unknown"]:   "hold.extension_rejected: unknown_hold",
		"cancel-reservation --hold-id " + holds["unknown"]: "reservation.cancel_rejected: unknown_reservation",
	}
	for line, text := range words {
		code := exitOK
		if strings.Contains(text, "rejected") {
			code = exitRejected
		}
		do(line, code, text)
	}
	publisher(t, strings.Fields("start-payment --namespace "+namespace+" --nats-url "+flags[1]+" --hold-id "+hold("H",
		"1m"))...).
		want(t, exitOK, "payment.started stored")
}
