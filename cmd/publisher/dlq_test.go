package main

import (
	"encoding/base64"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

// TestDLQ_EachCommand_ProcessesDeadLetters follows dead letters from a worker through every command.
func TestDLQ_EachCommand_ProcessesDeadLetters(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.run("dlq", "list").want(t, exitOK, "no dead letters")
	h.run("dlq", "stats", "-o", "json").want(t, exitOK, "[]")
	h.run("dlq", "show", "1").want(t, exitFailed, "dead letter 1: no such dead letter")
	h.run("dlq", "show", "0").want(t, exitFailed, "dead letter 0: no such dead letter")
	h.run("dlq", "discard", "0", "--note", "n", "--yes").want(t, exitFailed, "dead letter 0: no such dead letter")
	h.run("dlq", "replay", "1", "--yes").want(t, exitFailed, "dead letter 1: no such dead letter")
	h.run("dlq", "replay", "--all", "--yes").want(t, exitOK, "no matching dead letters")
	if r := h.run("dlq", "discard", "--all", "--note", "n", "--yes", "-o",
		"json").want(t, exitOK); !strings.Contains(r.out, `"letters":0`) {
		t.Errorf("discard without dead letters: %s", r.out)
	}
	h.run("dlq", "runs").want(t, exitOK, "no runs")

	h.startWorker()
	h.run(words("inventory set --resource-id loft --capacity 5 --wait")...).want(t, exitOK)
	in := h.ns.In(events.BookingRequested, "loft")
	bad := strings.Replace(booking("loft", "ann"), `"quantity":1`, `"quantity":"2"`, 1)
	h.send(in, nats.Header{"X-Team": {"new\u009b", "team"}, "traceparent": {"00-1-2-01"}}, bad)
	h.send(in, nil, "\x1b[2J\xff no JSON")
	stacktest.Eventually(t, "two dead letters", func() bool { return len(h.deadLetters()) == 2 })
	h.send(h.ns.In(events.BookingRequested, "attic"), nil, booking("loft", "ben")) // not the resource of the event
	stacktest.Eventually(t, "three dead letters", func() bool { return len(h.deadLetters()) == 3 })

	// The contract of -o json.
	deadLetters := h.deadLetters()
	first := deadLetters[0]
	if text, err := encode(first); err != nil || first.Seq != 1 || first.Reason != "malformed" ||
		first.Detail != "data.quantity: must be an integer such as 2, found a string" ||
		first.EventID != "e-ann" || first.Subject != in || first.Deliveries != 1 || first.StreamSeq != 2 ||
		!strings.Contains(string(text), `"event_id":"e-ann"`) {
		t.Errorf("%v: dead letter %+v", err, first)
	}
	if r := h.run("dlq", "ls", "-o", "json"); !strings.HasPrefix(r.out,
		`[{"seq":1,"reason":"malformed","detail":"data.quantity`) || !strings.HasSuffix(r.out, "}]\n") {
		t.Errorf("not one JSON array: %s", r.out)
	}
	if r := h.run("dlq", "list", "-o", "ndjson", "--limit", "2"); strings.Count(r.out, "\n") != 2 ||
		strings.HasPrefix(r.out, "[") {
		t.Errorf("ndjson: %s", r.out)
	}
	h.run("dlq", "list").want(t, exitOK, "SEQ  REASON", "booking.requested", "loft", "data.quantity")
	h.run("dlq", "list", "-o", "wide").want(t, exitOK, "EVENT_ID", "e-ann", in, "STREAM_SEQ")
	h.run("dlq", "list", "-o", "wide", "--reveal").want(t, exitOK, "USER", " ben ")
	h.run("dlq", "list", "--reason", "subject_mismatch", "-o", "json").want(t, exitOK, `[{"seq":3,`)
	h.run("dlq", "list", "--user-id", "ben", "--type", "booking.requested", "--since", "1h", "--contains", "belongs", "-o",
		"json").want(t, exitOK, `[{"seq":3,`)
	h.run("dlq", "list", "--until", "1h").want(t, exitOK, "no dead letters")
	h.run("dlq", "stats").want(t, exitOK, "malformed             2", "subject_mismatch      1", "3 dead letters in total")
	h.run("dlq", "stats", "--by", "resource", "--reason", "malformed").want(t, exitOK, "RESOURCE  COUNT",
		"loft          2")
	h.run("dlq", "stats", "--by", "type").want(t, exitOK, "booking.requested      3")
	h.run("dlq", "stats", "--by", "subject", "-o", "json").want(t, exitOK, `{"group":"`+in+`","count":2,`)
	h.run("dlq", "stats", "-o", "json").want(t, exitOK, `[{"reason":"malformed","count":2,"oldest":"20`,
		`"first":{"seq":1,"detail":"data.quantity: must be an integer such as 2, found a string"}}`)

	h.run("dlq", "show", "1").want(t, exitOK, "dead letter 1: malformed", `"quantity": "‹a string of 1 characters›"`, "X-Team",
		"data.quantity", "stream_seq     2", "deliveries     1")
	if r := h.run("dlq", "show", "1").want(t, exitOK, `"user_id": "‹a string of 3 characters›"`); strings.Contains(r.out, `new\u009b`) {
		t.Errorf("an unknown header is shown: %s", r.out)
	}
	h.run("dlq", "show", "1", "--reveal").want(t, exitOK, `"user_id": "ann"`, `"quantity": "2"`, "X-Team", `new\u009b`)
	h.run("dlq", "show", "2").want(t, exitOK, "body (13 B): no JSON object, --reveal shows it")
	h.run("dlq", "show", "2", "--reveal").want(t, exitOK, `\x1b[2J\xff no JSON`)
	h.run("dlq", "show", "2", "-o", "json").want(t, exitOK,
		`"body_base64":"`+base64.StdEncoding.EncodeToString([]byte("\x1b[2J\xff no JSON")))
	for _, r := range []result{h.run("dlq", "show", "1", "--reveal"), h.run("dlq", "show", "2", "--reveal"), h.run("dlq", "list", "-o", "wide")} {
		if strings.ContainsAny(r.out, "\x1b\u009b") {
			t.Errorf("printed control characters: %q", r.out)
		}
	}

	// The event becomes a new dead letter, and the exit code reports it.
	h.run("dlq", "replay", "2", "--yes", "--note", "to see").want(t, exitDeadLettered, "replay of 1 dead letter: done",
		"dead_lettered: malformed", "to see")
	if seqs := h.seqs(); !slices.Equal(seqs, []uint64{1, 3, 4}) {
		t.Errorf("dead letters %v", seqs)
	}
	if run := h.lastRun(); run.State != client.RunDone || run.Note != "to see" || run.Operator == "" ||
		len(run.Results) != 1 || run.Results[0].Reason != "malformed" {
		t.Errorf("run %+v", run)
	}

	// A corrected copy is published; the dead letter stays.
	file := filepath.Join(t.TempDir(), "corrected.json")
	if err := os.WriteFile(file, []byte(strings.Replace(bad, `"2"`, `2`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	h.run("dlq", "edit", "1", "--body", endpointsPath, "--yes").want(t, exitFailed, "malformed: body:")
	h.run("dlq", "edit", "1", "--subject", in, "--yes").want(t, exitFailed, "unchanged")
	h.run("dlq", "edit", "1", "--body", file, "--subject", h.ns.In(events.BookingRequested, "attic"),
		"--yes").want(t, exitFailed, "subject_mismatch")
	h.run("dlq", "edit", "1", "--body", file, "--set-header", "X-Team=", "--set-header", "X-Fixed=yes", "--set-header",
		"tracestate=a=1,b=2", "--yes", "--who", "ann").want(t, exitOK, "hold.created", "ann")
	if got := h.outcomes()["e-ann"]; got != 1 {
		t.Errorf("the corrected copy has %d outcomes", got)
	}
	stored, err := h.js.Stream(t.Context(), h.ns.InStream())
	if err != nil {
		t.Fatal(err)
	}
	copied, err := stored.GetLastMsgForSubject(t.Context(), in)
	if err != nil || copied.Header.Get("X-Team") != "" || copied.Header.Get("X-Fixed") != "yes" ||
		copied.Header.Get("tracestate") != "a=1,b=2" || copied.Header.Get("b") != "" ||
		copied.Header.Get("traceparent") != "00-1-2-01" || copied.Header.Get(events.HeaderDLQReason) != "" {
		t.Errorf("%v: headers of the copy: %v", err, copied.Header)
	}
	// A second identical copy is a duplicate, or after the duplicate window has the same outcome.
	h.run("dlq", "edit", "1", "--body", file, "--set-header", "X-Team=", "--set-header", "X-Fixed=yes",
		"--set-header", "tracestate=a=1,b=2", "--yes").want(t, exitOK)
	if got := h.outcomes()["e-ann"]; got != 1 {
		t.Errorf("the corrected copy has %d outcomes after a second edit", got)
	}
	h.run("dlq", "edit", "3", "--subject", in, "--yes").want(t, exitOK, "hold.created")

	h.run("dlq", "discard", "1", "3", "--note", "corrected", "--yes").want(t, exitOK, "discard of 2 dead letters: done",
		"discarded")
	h.run("dlq", "runs", h.lastRun().ID, "-o", "wide").want(t, exitOK, "e-ann", "discarded: malformed")
	h.run("dlq", "discard", "3", "--note", "corrected", "--yes").want(t, exitFailed, "dead letter 3: no such dead letter")
	if seqs := h.seqs(); !slices.Equal(seqs, []uint64{4}) {
		t.Errorf("dead letters %v", seqs)
	}
	h.run(words("dlq discard --all --reason malformed --limit 1 --note tested --yes")...).want(t, exitOK,
		"all reason=malformed limit=1")
	h.run("dlq", "runs").want(t, exitOK, "discard", "edit", "replay", "corrected")
	h.run("dlq", "runs", "-o", "wide").want(t, exitOK, "2 discarded")
	h.run("dlq", "runs", "0198f0c2-a1b4-7c3d-8e4f-5a6b7c8d9e0f").want(t, exitFailed, "no such run")
}

// TestDLQExport_StdoutAndFile_WritesAll exports to stdout and, atomically, to a file.
func TestDLQExport_StdoutAndFile_WritesAll(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	bodies := []string{booking("loft", "ann"), "\xff\x00", "", "line\nbreak \u009b"}
	for _, body := range bodies {
		h.storeDeadLetter("malformed", "x", h.ns.In(events.BookingRequested, "loft"), body)
	}
	r := h.run("dlq", "export").want(t, exitOK, "exported 4 dead letters")
	lines := strings.Split(strings.TrimSuffix(r.out, "\n"), "\n")
	if len(lines) != len(bodies) {
		t.Fatalf("%d lines: %s", len(lines), r.out)
	}
	for i, line := range lines {
		var e struct {
			events.DeadLetter
			Headers map[string][]string `json:"headers"`
			Body    *string             `json:"body"`
			Base64  []byte              `json:"body_base64"`
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		body := string(e.Base64)
		if e.Body != nil {
			body = *e.Body
		}
		if e.Seq != uint64(i+1) || body != bodies[i] || (e.Body == nil) != (i == 1) ||
			e.Headers[events.HeaderDLQSubject][0] != h.ns.In(events.BookingRequested, "loft") {
			t.Errorf("exported %s", line)
		}
	}
	if to := h.run("dlq", "export", "-f", "-").want(t, exitOK); to.out != r.out {
		t.Errorf("-f - exports %s", to.out)
	}
	file := filepath.Join(t.TempDir(), "dead-letters.ndjson")
	h.run("dlq", "export", "-f", file).want(t, exitOK)
	if text, err := os.ReadFile(file); err != nil || string(text) != r.out {
		t.Errorf("%v: the file differs: %s", err, text)
	}
	h.run("dlq", "export", "-f", file).want(t, exitUsage, " exists")
	array := h.run("dlq", "export", "-o", "json").want(t, exitOK, "exported 4 dead letters").out
	if want := "[" + strings.Join(lines, ",\n") + "]\n"; array != want {
		t.Errorf("-o json exports %s, want %s", array, want)
	}
	h.run("dlq", "export", "--reason", "poison", "-o", "json").want(t, exitOK, "[]\n")
	h.run("dlq", "export", "-o", "wide").want(t, exitUsage, "ndjson")

	// A dead letter whose claim check points to a deleted event is exported without a body, with an error.
	deadLetter := nats.NewMsg(h.ns.DLQ("too_large"))
	deadLetter.Header = nats.Header{events.HeaderClaimCheckStream: {h.ns.InStream()}, events.HeaderClaimCheckSeq: {"9"},
		events.HeaderClaimCheckSHA256: {"00"}}
	if _, err := h.js.PublishMsg(t.Context(), deadLetter); err != nil {
		t.Fatal(err)
	}
	whole := filepath.Join(t.TempDir(), "all.ndjson")
	h.run("dlq", "export", "-f", whole).want(t, exitFailed, "1 dead letter: exported without body")
	if text, err := os.ReadFile(whole); err != nil || strings.Count(string(text), "\n") != 5 ||
		!strings.Contains(string(text), `"error":"no event: `) {
		t.Errorf("%v: %s", err, text)
	}
	h.run("dlq", "show", "5").want(t, exitOK, "body: no event", "is gone", "sequence 9 of "+h.ns.InStream())
	h.run("dlq", "replay", "5", "--yes").want(t, exitFailed, "1 dead letter failed")
	if entries, err := os.ReadDir(filepath.Dir(whole)); err != nil || len(entries) != 1 {
		t.Errorf("%v: remaining files: %v", err, entries)
	}
}

func TestDLQ_WrongUsage_ExitsUsage(t *testing.T) {
	t.Parallel()
	for line, text := range map[string]string{
		"dlq":                               "expected",
		"dlq list -o xml":                   "--output",
		"dlq show 1 -o wide":                "--output",
		"request -o wide":                   "--user-id",
		"dlq list --reason hunger":          "--reason",
		"dlq list --since soon":             "--since",
		"dlq list --since 1h --until 2h":    "--since",
		"dlq list --limit -1":               "--limit",
		"dlq list --limit 0":                "--limit: must be at least 1",
		"dlq show":                          "seq",
		"dlq show one":                      "seq",
		"dlq replay":                        "--all",
		"dlq replay 1 --all":                "not both",
		"dlq replay 0x10 --yes":             "expected an integer such as 2 but got \"0x10\"",
		"dlq replay 1 --reason poison":      "not both",
		"dlq replay --reason poison":        "--all",
		"dlq replay --all":                  "--yes",
		"dlq replay 999":                    "--yes",
		"dlq replay 1 --rate -1":            "--rate",
		"dlq replay 1 --rate NaN":           "--rate",
		"dlq replay 1 --rate=+Inf":          "--rate",
		"dlq replay 1 --stop-on-failures x": "--stop-on-failures",
		"dlq replay --run 1 --yes":          "not a run id",
		"dlq replay --run 1 --all":          "--run",
		"dlq discard 1 --yes":               "--note",
		"dlq discard 999 --note n":          "--yes",
		"dlq discard --note n":              "--all",
		"dlq edit 999":                      "--body",
		"dlq edit 1 --set-header x":         "NAME=VALUE",
		"dlq edit 1 --set-header a:b=x":     "NAME=VALUE",
		"dlq runs 1":                        "not a run id",
		// An unset variable of a shell must not select everything.
		"dlq discard --all --yes --note n --reason=":      "--reason: is empty; leave the flag out for all reasons",
		"dlq discard --all --yes --note n --type=":        "--type: is empty; leave the flag out for all types",
		"dlq discard --all --yes --note n --resource-id=": "--resource-id: is empty; leave the flag out for all resources",
		"dlq discard --all --yes --note n --user-id=":     "--user-id: is empty; leave the flag out for all users",
		"dlq discard --all --yes --note n --contains=":    "--contains: is empty; leave the flag out for all details",
		"dlq discard --all --yes --note n --since=":       "--since",
		"dlq discard --all --yes --note n --limit 0":      "--limit: must be at least 1",
		// Neither must the time that programs write for no time.
		"dlq discard --all --yes --note n --until 0001-01-01T00:00:00Z": "--until",
		"dlq replay --all --yes --resource-id=":                         "--resource-id: is empty",
		"dlq list --reason=":                                            "--reason: is empty",
		"dlq list --namespace=":                                         "--namespace: is empty",
		"dlq export --user-id=":                                         "--user-id: is empty",
		"dlq stats --contains=":                                         "--contains: is empty",
		"watch --resource-id=":                                          "--resource-id: is empty",
		"validate -f - --subject=":                                      "--subject: is empty",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			publisher(t, words(line)...).want(t, exitUsage, text)
		})
	}
	for _, verb := range []string{"list", "stats", "show", "replay", "edit", "discard", "export", "runs"} {
		publisher(t, "dlq", verb, "--help").want(t, exitOK, "Example", "publisher dlq "+verb)
	}
	for _, line := range []string{"dlq list", "dlq runs"} {
		publisher(t, append(words(line), "--namespace", "absent")...).want(t, exitFailed, "worker migrate")
	}
}

func TestMoment_TimesAndAges_AreParsed(t *testing.T) {
	t.Parallel()
	for text, ago := range map[string]time.Duration{"90m": 90 * time.Minute, "2d": 48 * time.Hour, "0s": 0} {
		var m moment
		if err := m.UnmarshalText([]byte(text)); err != nil || time.Since(m.Time) < ago ||
			time.Since(m.Time) > ago+time.Minute {
			t.Errorf("%s: %v %v", text, m.Time, err)
		}
	}
	var m moment
	if err := m.UnmarshalText([]byte("2026-11-21T10:00:00+01:00")); err != nil ||
		m.String() != "2026-11-21 09:00:00 +0000 UTC" {
		t.Errorf("%v %v", m, err)
	}
	for _, text := range []string{"", "soon", "-1h", "d", "1.5d", "-1d", "99999d"} {
		if err := m.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %v", text, m)
		}
	}
}

// TestEdit_OtherSubject_PublishesOnTheNewOne replays and edits dead letters whose subjects are not those of their
// events: one with a * inside, on which JetStream stores events, and one that is not inbound.
func TestEdit_OtherSubject_PublishesOnTheNewOne(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.startWorker()
	h.run(words("inventory set --resource-id loft --capacity 5 --wait")...).want(t, exitOK)
	h.storeDeadLetter(events.ReasonSubjectMismatch, "", h.ns.In(events.BookingRequested, "lo*ft"), booking("loft", "ann"))
	h.storeDeadLetter(events.ReasonSubjectMismatch, "", "elsewhere.in.x.y", booking("loft", "ben"))
	h.run("dlq", "replay", "1", "--keep", "--yes").want(t, exitDeadLettered, "subject_mismatch")
	h.run("dlq", "replay", "2", "--yes").want(t, exitFailed, "is not below", "publisher dlq edit --subject")
	for _, seq := range []string{"1", "2"} {
		h.run("dlq", "edit", seq, "--set-header", "X-Fixed=yes", "--yes").want(t, exitFailed, "would be dead-lettered again")
		h.run("dlq", "edit", seq, "--subject", h.ns.In(events.BookingRequested, "loft"), "--yes").want(t, exitOK, "hold.created")
	}
}

func TestEditable_WrittenAndParsed_RoundTrips(t *testing.T) {
	t.Parallel()
	m := nats.NewMsg("holdfast.in.x.y")
	m.Header = nats.Header{"Subject": {"mine"}, "X": {"a", "b: c"}, "Empty": {""}}
	for _, body := range []string{`{"a":1.0,"b":[]}`, "no JSON\n\n# not a comment", ""} {
		m.Data = []byte(body)
		text := append(editorComments(7, "dead-lettered: \x1b\nof a comment"), editable(m)...)
		if strings.Contains(string(text), "\x1b") {
			t.Errorf("control characters in the editor: %q", text)
		}
		read, err := parseEditable(withoutComments(text), m)
		if err != nil || read.Subject != m.Subject || string(read.Data) != body ||
			!maps.EqualFunc(read.Header, m.Header, slices.Equal) {
			t.Errorf("%v: %+v", err, read)
		}
	}
	m.Data = []byte(`{"a":1}`)
	text := strings.ReplaceAll(string(editable(m)), "\n", "\r\n")
	if read, err := parseEditable([]byte(text), m); err != nil || read.Subject != m.Subject || string(read.Data) != string(m.Data) {
		t.Errorf("with lines that end as in Windows: %v: %+v", err, read)
	}
	for _, text := range []string{"", "Subject: x", "Subject: x\nno header\n\n"} {
		if read, err := parseEditable([]byte(text), m); err == nil {
			t.Errorf("%q is %+v", text, read)
		}
	}
}
