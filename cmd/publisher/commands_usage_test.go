package main

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"holdfast/internal/events"
)

func TestLifecycle_WrongUsage_ExitsUsage(t *testing.T) {
	t.Parallel()
	for line, text := range map[string]string{
		"extend":                                                                  "--hold-id",
		"extend --hold-id " + someHold:                                            "--ttl",
		"extend --hold-id loft --ttl 10m":                                         "--hold-id",
		"extend --ttl soon --hold-id " + someHold:                                 "--ttl",
		"extend --ttl 1500ms --hold-id " + someHold:                               "whole seconds",
		"start-payment":                                                           "--hold-id",
		"start-payment --hold-id " + strings.ToUpper(someHold):                    "--hold-id",
		"start-payment --ttl 5m --hold-id " + someHold:                            "--ttl",
		"cancel-reservation":                                                      "--hold-id",
		"cancel-reservation --hold-id " + someHold + " --payment-id p":            "--payment-id",
		"cancel-reservation --hold-id " + someHold + "0":                          "--hold-id",
		"extend --wait --timeout 0s --ttl 10m --hold-id " + someHold:              "--timeout",
		"extend --explain --output wide --ttl 10m --hold-id " + someHold:          "--output",
		"start-payment --namespace Bad --hold-id " + someHold + " --explain":      "--namespace",
		"cancel-reservation --hold-id " + someHold + " --resource-id loft --wait": "--resource-id",
	} {
		publisher(t, words(line)...).want(t, exitUsage, text)
	}
}

// TestLifecycle_Explain_PublishesNothing needs no connection.
func TestLifecycle_Explain_PublishesNothing(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][2]string{
		"extend --ttl 10m": {"booking.extended", `{"hold_id":"` + someHold + `","ttl_seconds":600}`},
		"extend --ttl=-1s": {"booking.extended",
			`{"hold_id":"` + someHold + `","ttl_seconds":-1}`}, // only the worker rejects it
		"start-payment":      {"payment.started", `{"hold_id":"` + someHold + `"}`},
		"cancel-reservation": {"reservation.cancelled", `{"hold_id":"` + someHold + `"}`},
		"cancel-reservation --reason it's-over": {"reservation.cancelled",
			`{"hold_id":"` + someHold + `","reason":"it's-over"}`},
	} {
		line += " --explain --nats-url nats://127.0.0.1:1 --hold-id " + someHold
		publisher(t, words(line)...).want(t, exitOK, "Subject: holdfast.in."+want[0]+".loft\n",
			"nats pub --jetstream holdfast.in."+want[0]+".loft ")
		var message struct {
			Subject string          `json:"subject"`
			Body    events.Envelope `json:"body"`
		}
		if r := publisher(t, words(line+" -o json")...).want(t, exitOK); json.Unmarshal([]byte(r.out), &message) != nil {
			t.Fatalf("%s: not JSON: %s", line, r.out)
		}
		e := message.Body
		if message.Subject != "holdfast.in."+want[0]+".loft" || e.Type != "holdfast."+want[0]+".v1" ||
			string(e.Data) != want[1] {
			t.Errorf("%s: %s %s, want %s", line, e.Type, e.Data, want[1])
		}
	}
}
