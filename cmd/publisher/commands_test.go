package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// outcome parses the output of -o json.
func outcome(t *testing.T, r result) (e events.Envelope) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.out), &e); err != nil {
		t.Fatalf("not one JSON value: %v\n%s%s", err, r.out, r.errOut)
	}
	return e
}

// TestCommands_WholeStay_PrintEachOutcome follows a stay through the commands, in tables and in JSON.
func TestCommands_WholeStay_PrintEachOutcome(t *testing.T) {
	t.Parallel()
	nights := "--resource-id loft --check-in 2027-05-01 --check-out 2027-05-03"
	publisher(t, words("inventory set "+nights+" --capacity 1 --wait")...).want(t, exitOK, "inventory.updated",
		"2027-05-02")
	held := publisher(t, words("request "+nights+" --user-id ana --ttl 10m --request-key k1 --wait -o json")...).want(t, exitOK)
	created := outcome(t, held)
	if created.Type != "holdfast.hold.created.v1" || !strings.HasSuffix(held.out, "}\n") {
		t.Errorf("printed %s", held.out)
	}
	publisher(t, words("request "+nights+" --user-id ben --wait")...).want(t, exitRejected, "hold.rejected", "sold_out",
		"retry_at", "2027-05-01", "CAPACITY")
	publisher(t, words("inventory show "+nights)...).want(t, exitOK, "2027-05-01", "AVAILABLE", "0")
	shown := publisher(t, words("inventory show "+nights+" -o json")...).want(t, exitOK, `"available":0`)
	var availability struct {
		ResourceID string                   `json:"resource_id"`
		Slots      []holds.SlotAvailability `json:"slots"`
	}
	if err := json.Unmarshal([]byte(shown.out), &availability); err != nil || len(availability.Slots) != 2 {
		t.Errorf("%v: %s", err, shown.out)
	}
	publisher(t, "pay", "--hold-id", created.Subject, "--payment-id", "p1", "--amount", "99.50", "--currency", "EUR",
		"--wait").want(t, exitOK, "hold.confirmed", "p1")
	publisher(t, "cancel", "--hold-id", created.Subject, "--wait").want(t, exitRejected, "hold.release_rejected",
		"confirmed")
	publisher(t, "pay", "--hold-id", created.Subject, "--payment-id", "p2", "--wait").want(t, exitRejected,
		"already_confirmed", "refund_required")
	publisher(t, words("cancel --resource-id loft --request-key never-seen --wait")...).want(t, exitOK,
		"booking.cancelled")
	publisher(t, words("inventory set "+nights+" --capacity 0 --wait")...).want(t, exitRejected, "below_reserved")
	publisher(t, words("request "+nights+" --user-id cleo")...).want(t, exitOK, "booking.requested stored", "request_key")
	stored := publisher(t, words("request --resource-id loft --slot A-1 --slot A-2 --quantity 2 --user-id cleo -o json")...).want(t, exitOK)
	if e := outcome(t, stored); !strings.Contains(string(e.Data), `"slots":["A-1","A-2"],"quantity":2}`) {
		t.Errorf("stored %s", stored.out)
	}
}

func TestCommands_WrongUsage_PublishesNothing(t *testing.T) {
	t.Parallel()
	const hold = "loft.0192f5c4d0b07cc3a5d0f2f5a1b2c3d4"
	for line, text := range map[string]string{
		"":                           "expected",
		"fly":                        "fly",
		"request --resource-id loft": "user-id",
		"request --resource-id l.f --user-id ana":                                                          "--resource-id",
		"request --resource-id loft --user-id ana --ttl 1500ms":                                            "--ttl",
		"request --resource-id loft --user-id ana --ttl soon":                                              "ttl",
		"request --resource-id loft --user-id ana --check-in 2027-05-01":                                   "check-out",
		"request --resource-id loft --user-id ana --check-in 2027-02-30 --check-out 2027-03-02":            "--check-in",
		"request --resource-id loft --user-id ana --slot A-1 --check-in 2027-05-01 --check-out 2027-05-02": "slot",
		"request --resource-id loft --user-id ana --slot A-1 --slot A-1":                                   "--slot",
		"request --resource-id loft --user-id ana --metadata [1]":                                          "metadata",
		"request --resource-id loft --user-id ana -o xml":                                                  "output",
		"pay --hold-id nonsense --payment-id p":                                                            "--hold-id",
		"pay --hold-id " + hold:                                                                            "payment-id",
		"pay --hold-id " + hold + " --payment-id p --amount 1e3":                                           "--amount",
		"cancel": "--hold-id",
		"cancel --hold-id " + hold + " --resource-id loft --request-key k":               "--hold-id",
		"cancel --resource-id loft":                                                      "request-key",
		"inventory set --resource-id loft":                                               "capacity",
		"inventory show --resource-id loft --check-in 2027-05-02 --check-out 2027-05-01": "--check-out: must be after",
		"inventory set --resource-id loft --capacity 1 --check-in= --check-out=":         "--check-in: is empty",
		"inventory set --resource-id loft --capacity 1 --slot=":                          "--slot: is empty",
		"inventory show --resource-id loft --check-in= --check-out=":                     "--check-in: is empty",
		"request --resource-id loft --user-id ana --slot=":                               "--slot: is empty; leave the flag out for the slot stock",
		"request --resource-id loft --user-id ana --request-key=":                        "--request-key: must be 1 to 128 printable ASCII characters without space, found an empty string",
		"request --resource-id loft --user-id ana --metadata=":                           "--metadata",
		"request --resource-id loft --user-id ana --ttl=":                                "--ttl",
		"cancel --resource-id= --request-key= --hold-id " + hold:                         "--resource-id: is empty",
		"pay --hold-id " + hold + " --payment-id p --amount=":                            "--amount: is empty",
		"pay --hold-id " + hold + " --payment-id p --amount 1 --currency=":               "--currency: is empty",
		"pay --hold-id " + hold + " --payment-id=":                                       "--payment-id",
		"cancel-reservation --reason= --hold-id " + hold:                                 "--reason: is empty",
		"load -f - --rejects=":                                                           "--rejects: is empty",
		"--namespace Bad watch":                                                          "--namespace",
		"--timeout 0s watch":                                                             "--timeout",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			publisher(t, words(line)...).want(t, exitUsage, text)
		})
	}
}

func TestHelp_Program_HasExamplesAndCodes(t *testing.T) {
	t.Parallel()
	publisher(t, "--help").want(t, exitOK, "Exit codes", "HOLDFAST_NATS_URL", "publisher watch")
}

func TestCommands_NoServerOrStreams_Fail(t *testing.T) {
	t.Parallel()
	publisher(t, words("request --resource-id loft --user-id ana --nats-url nats://127.0.0.1:1 --timeout 1s")...).want(t, exitFailed, "connect to nats at nats://127.0.0.1:1")
	publisher(t, words("request --resource-id loft --user-id ana --namespace absent")...).want(t, exitFailed,
		"worker migrate")
}

// TestCommands_NoWorker_ReplyTimeout publishes in a namespace that has streams and no worker.
func TestCommands_NoWorker_ReplyTimeout(t *testing.T) {
	t.Parallel()
	migrated(t, "idle")
	line := "request --resource-id loft --user-id ana --namespace idle --wait"
	release := "release the hold with\npublisher cancel --resource-id loft --request-key "
	publisher(t, words(line+" --timeout 5s")...).want(t, exitReplyTimeout, "is stored", release)

	ctx, interrupt := context.WithCancel(t.Context())
	interrupted := make(chan result, 1)
	go func() {
		var out, errOut bytes.Buffer
		code := run(ctx, words(line+" --timeout 1m"), &out, &errOut)
		interrupted <- result{code, out.String(), errOut.String()}
	}()
	stacktest.Eventually(t, "the second event to be stored", func() bool {
		return storedOf(t, serverFlags(t)[1], "IDLE_IN", "idle.in.booking.requested.loft") == 2
	})
	interrupt()
	(<-interrupted).want(t, exitFailed, "event ", "is stored", release) // interrupted, perhaps before the acknowledgement
}

// TestCommands_NoAcknowledgement_StoredOrNotUnknown publishes to a subscriber that never acknowledges.
func TestCommands_NoAcknowledgement_StoredOrNotUnknown(t *testing.T) {
	t.Parallel()
	nc := stacktest.ConnectNATS(t, serverFlags(t)[1]).Conn()
	if _, err := nc.SubscribeSync("mute.in.>"); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, wait := range []string{"", " --wait"} {
		line := "request --resource-id loft --user-id ana --request-key k --namespace mute --timeout 1s" + wait
		publisher(t, words(line)...).want(t, exitFailed, "no acknowledgement from NATS: it is unknown whether event ",
			"publisher cancel --resource-id loft --request-key k")
	}
}

// TestCommands_ConnectionLost_StoredOrNotUnknown loses the connection with the acknowledgement of a stored event.
func TestCommands_ConnectionLost_StoredOrNotUnknown(t *testing.T) {
	t.Parallel()
	if stacktest.TLS() {
		t.Skip("the proxy finds no words in what is encrypted")
	}
	migrated(t, "cut")
	url, proxy := stacktest.ProxyTo(t, serverFlags(t)[1])
	for i, wait := range []string{"", " --wait"} {
		proxy.Drop(stacktest.DropRule{Words: []string{"cut.in.booking.requested.loft"}})
		line := "request --resource-id loft --user-id ana --request-key k --namespace cut --timeout 1m --nats-url " + url + wait
		publisher(t, words(line)...).want(t, exitFailed, "no acknowledgement from NATS: it is unknown whether event ",
			"publisher cancel --resource-id loft --request-key k")
		if n := storedOf(t, serverFlags(t)[1], "CUT_IN", "cut.in.booking.requested.loft"); n != i+1 {
			t.Errorf("%d events are stored, want %d", n, i+1)
		}
	}
}

// TestDeliver_MalformedEvent_ExitsDeadLettered calls deliver, because no command publishes a malformed event.
func TestDeliver_MalformedEvent_ExitsDeadLettered(t *testing.T) {
	t.Parallel()
	var out, errOut bytes.Buffer
	p := newProgram(&out, &errOut)
	p.Timeout, p.Output = 2*time.Minute, "json" // a busy machine may be slow
	if err := p.setDefaults(); err != nil {
		t.Fatal(err)
	}
	m := nats.NewMsg("holdfast.in.booking.requested.loft")
	m.Data = []byte("no JSON")
	defer func() { p.disconnect() }()
	err := p.deliver(t.Context(), m, events.Envelope{}, true)
	if exitCode(err) != exitDeadLettered || !strings.Contains(out.String(), `"error":"malformed"`) {
		t.Errorf("%v: %s", err, out.String())
	}
}

// TestExplain_NoServer_PrintsMessage needs no connection.
func TestExplain_NoServer_PrintsMessage(t *testing.T) {
	t.Parallel()
	r := publisher(t, "request", "--resource-id", "loft", "--user-id", "o'hara", "--slot", "A-1", "--metadata",
		`{"note":"it's"}`,
		"--request-key", "k", "--explain", "--nats-url", "nats://127.0.0.1:1").want(t, exitOK,
		"holdfast.in.booking.requested.loft", "application/cloudevents+json", `"request_key": "k"`)
	_, line, found := strings.Cut(r.out, "nats pub ")
	if !found {
		t.Fatalf("no nats pub line: %s", r.out)
	}
	// A shell must parse the line to the same message: the last word is the body.
	out, err := exec.Command("sh", "-c", `nats() { for last; do :; done; printf %s "$last"; }; nats pub `+line).Output()
	var e events.Envelope
	if err != nil || json.Unmarshal(out, &e) != nil || !strings.Contains(string(e.Data), `"user_id":"o'hara"`) {
		t.Errorf("%v: the shell reads %s", err, out)
	}
}

func TestWatch_OutcomeAndDeadLetter_AreShown(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"table", "json", "ndjson"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			seen := &watched{wants: []string{"hold.rejected", "malformed"}, done: cancel}
			codes := make(chan int, 1)
			go func() { codes <- run(ctx, []string{"watch", "-o", format}, seen, seen) }()
			// watch does not see messages from before it follows the streams, so the test repeats them.
			for ctx.Err() == nil {
				publisher(t, words("request --resource-id nowhere --user-id ana --wait")...)
				p := newProgram(seen, seen)
				p.Timeout = 2 * time.Minute
				if err := p.setDefaults(); err != nil {
					t.Fatal(err)
				}
				cl, err := p.connect(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				bad := nats.NewMsg("holdfast.in.booking.requested.loft")
				bad.Data = []byte("\x1b[2J no JSON")
				if _, err := cl.Request(stacktest.WaitContext(t), bad); err != nil {
					t.Error(err)
				}
				p.disconnect()
			}
			if code := <-codes; code != exitOK {
				t.Errorf("watch ended with %d, want 0", code)
			}
			if strings.Contains(seen.text.String(), "\x1b") {
				t.Errorf("a dead letter's control characters were printed: %q", seen.text.String())
			}
		})
	}
}

// TestWatch_Since_ShowsStoredOutcomes starts watch after the outcomes were stored.
func TestWatch_Since_ShowsStoredOutcomes(t *testing.T) {
	t.Parallel()
	room := fresh("room")
	for _, key := range []string{"first", "second"} {
		publisher(t, words("request --resource-id "+room+" --user-id ana --request-key "+key+" --wait")...).want(t, exitRejected)
	}
	ctx, cancel := context.WithCancel(stacktest.WaitContext(t))
	defer cancel()
	seen := &watched{wants: []string{`"request_key":"first"`, `"request_key":"second"`}, done: cancel}
	args := asItsUser(restricted, words("watch -o ndjson --since 1h --resource-id "+room))
	if code := run(ctx, args, seen, seen); code != exitOK || !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("watch ended with %d, %v:\n%s", code, ctx.Err(), seen.text.String())
	}
	text := seen.text.String()
	if strings.Index(text, `"request_key":"first"`) > strings.Index(text, `"request_key":"second"`) {
		t.Errorf("the outcomes are not in the order of the stream:\n%s", text)
	}
}

// TestWatch_StreamsDoNotAnswer_ReportsEach follows the streams of a server whose JetStream then ends.
func TestWatch_StreamsDoNotAnswer_ReportsEach(t *testing.T) {
	t.Parallel()
	lone := stacktest.StartNATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	namespace := stacktest.Namespace(t)
	there := []string{"--namespace", namespace, "--nats-url", lone.ClientURL()}
	migrate(t, append(serverFlags(t), there...)...)
	ctx, cancel := context.WithCancel(t.Context()) // without a deadline, as the program has it
	defer cancel()
	end := sync.OnceFunc(func() {
		if err := lone.DisableJetStream(); err != nil {
			t.Error(err)
		}
	})
	ns := events.Namespace(namespace)
	seen := &watched{wants: []string{"follow stream " + ns.OutStream(), "follow stream " + ns.DLQStream()}, done: cancel}
	errOut := &lockedWriter{w: io.MultiWriter(&watched{wants: []string{"Ctrl-C stops"}, done: end}, seen)}
	code := run(ctx, append([]string{"watch"}, there...), io.Discard, errOut)
	if code != exitOK || !errors.Is(ctx.Err(), context.Canceled) || strings.Count(seen.text.String(), "; trying again") > 2 {
		t.Errorf("watch ended with %d, %v:\n%s", code, ctx.Err(), seen.text.String())
	}
}

// watched is a writer that keeps the output and calls done when the output contains all wanted texts.
type watched struct {
	mu    sync.Mutex
	text  bytes.Buffer
	wants []string
	done  func()
}

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(b)
	for _, want := range w.wants {
		if !strings.Contains(w.text.String(), want) {
			return len(b), nil
		}
	}
	w.done()
	return len(b), nil
}
