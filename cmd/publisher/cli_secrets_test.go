package main

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

// TestOutput_EveryCommand_NothingSecret plants words in metadata, user ids and passwords of the servers, runs every
// command and searches its output for them. Metadata and user ids may appear on stdout as part of an event.
func TestOutput_EveryCommand_NothingSecret(t *testing.T) {
	t.Parallel()
	h := newRestrictedHarness(t)
	h.startWorker()
	metadata, user := "metadata"+rand.Text(), "user"+rand.Text()
	seen := 0
	check := func(what, text string, words ...string) {
		t.Helper()
		seen++
		for _, word := range append(words, stacktest.Passwords()...) {
			if strings.Contains(text, word) {
				t.Errorf("publisher %s prints %s:\n%s", what, word, text)
			}
		}
	}
	// try runs a command. With isEvent, stdout is an event.
	try := func(isEvent bool, args ...string) result {
		t.Helper()
		r := h.run(args...)
		check(strings.Join(args, " ")+" on stderr", r.errOut, metadata, user)
		if isEvent {
			check(strings.Join(args, " ")+" on stdout", r.out)
		} else {
			check(strings.Join(args, " ")+" on stdout", r.out, metadata, user)
		}
		return r
	}
	try(true, "inventory", "set", "--resource-id", "loft", "--capacity", "1", "--wait")
	try(true, "inventory", "show", "--resource-id", "loft")
	request := []string{"request", "--resource-id", "loft", "--user-id", user, "--request-key", "k", "--metadata",
		`{"` + metadata + `":"` + metadata + `"}`}
	if r := try(true, append(request, "--wait")...); !strings.Contains(r.out, metadata) {
		t.Errorf("the outcome lacks the metadata: %s", r.out)
	}
	try(true, append(request, "--wait", "-o", "json")...)
	try(true, append(request, "--explain")...)
	try(false, "request", "--resource-id", "loft", "--user-id", user+" "+user, "--metadata", `{"a":"`+metadata+`"}`)
	try(false, "request", "--resource-id", "loft", "--user-id", "ann", "--metadata", `{"`+metadata+`":1,"`+metadata+`":2}`)
	try(false, "request", "--resource-id", "loft", "--user-id", "ann", "--metadata", `["`+metadata+`"]`)
	try(true, "cancel", "--resource-id", "loft", "--request-key", "k", "--wait")

	// Files of events, most of them malformed.
	var lines []string
	for _, data := range []string{
		`{"request_key":"f1","user_id":"` + user + `","resource_id":"loft","quantity":1,"metadata":{"a":"` + metadata + `"}}`,
		`{"request_key":"f2","user_id":"` + user + `","resource_id":"loft","quantity":1.0,"metadata":{"a":"` + metadata + `"}}`,
		`{"request_key":"f3","user_id":"` + user + ` x","resource_id":"loft","quantity":1,"metadata":{"a":"` + metadata + `"}}`,
		`{"request_key":"f4","user_id":"` + user + `","resource_id":"loft","quantity":1,"metadata":"` + metadata + `"}`,
		`{"request_key":"f5","user_id":"` + user + `","resource_id":"loft","quantity":1,"metadata":{"` + metadata + `":1,"` + metadata + `":1}}`,
	} {
		lines = append(lines, `{"event":"booking.requested","data":`+data+`}`)
	}
	lines = append(lines, metadata, `{"event":"no event","data":{"metadata":"`+metadata+`"}}`)
	file := filepath.Join(t.TempDir(), "events.ndjson")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	try(false, "validate", "-f", file)
	try(false, "load", "-f", file, "--wait")

	// Dead letters.
	for i, body := range []string{"no JSON " + metadata, inData("booking.requested", "x",
		`{"user_id":"`+user+`","metadata":{"a":"`+metadata+`"}}`), inData("booking.imagined", "y", `{"metadata":{"a":"`+metadata+`"}}`)} {
		h.send(h.ns.In(events.BookingRequested, fmt.Sprint("r", i)), nats.Header{}, body)
	}
	stacktest.Eventually(t, "the dead letters", func() bool { return h.deadLetterCount() == 3 })
	for _, args := range []string{
		"dlq list", "dlq list -o json", "dlq list -o wide", "dlq list -o ndjson", "dlq stats", "dlq stats -o json", "dlq replay --all --dry-run", "dlq replay --all --dry-run -o json",
		"dlq replay 1 --yes", "dlq replay --all --yes", "dlq runs", "dlq runs -o json", "dlq discard 999 --yes", "dlq show 999", "dlq discard --all --yes --reason unknown_type",
	} {
		try(false, words(args)...)
	}
	for _, seq := range h.seqs() {
		try(false, "dlq", "show", fmt.Sprint(seq))
	}
	try(true, "dlq", "list", "-o", "wide", "--reveal")
	try(true, "dlq", "show", fmt.Sprint(h.seqs()[0]), "--reveal")
	try(true, "dlq", "export", "-o", "json")
	try(true, "dlq", "edit", fmt.Sprint(h.seqs()[0]), "--body", file, "--yes")

	// Servers that refuse the login, and malformed URLs.
	password := stacktest.Passwords()[0]
	for _, url := range []string{
		"nats://ann:" + password + "@127.0.0.1:1", "nats://ann:" + password + "@127.0.0.1:bad", "nats://" + password + "@127.0.0.1:1", "nats://ann:" + password + "@[::1", "nats://ann:%zz" + password + "@h",
		"nats://127.0.0.1:1,nats://ann:" + password + "@127.0.0.1:1", strings.Replace(h.nc.ConnectedUrl(), "holdfast_admin",
			"stranger", 1),
	} {
		for _, line := range []string{"cancel --resource-id loft --request-key k",
			"cancel --resource-id loft --request-key k --explain", "load -f " + file, "watch", "dlq list"} {
			var r result
			args := append(words(line), "--nats-url", url, "--timeout", "1s")
			r = publisher(t, args...)
			check(line+" at a wrong URL", r.out+r.errOut, metadata, user)
			if r.code == exitOK && !strings.Contains(line, "--explain") {
				t.Errorf("publisher %s --nats-url %s: exit code 0", line, url)
			}
		}
	}
	// A user without permission for the command.
	url, _, _ := h.restricted.URLs("booking")
	refused := publisher(t, append(words("pay --hold-id loft.0192f5c4d0b07cc3a5d0f2f5a1b2c3d4 --payment-id p --timeout 2s --namespace holdfast"), "--nats-url", url)...)
	check("pay as booking", refused.out+refused.errOut)
	refused.want(t, exitFailed, `permissions violation`, "holdfast.in.payment.confirmed.loft")
	if seen < 80 {
		t.Errorf("only %d outputs were checked", seen)
	}
}
