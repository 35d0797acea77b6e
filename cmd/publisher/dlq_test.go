package main

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/stack/endpoints"
	"holdfast/internal/stack/stacktest"
)

// harness is a namespace of its own, with its dead letters, beside the one of the worker dev.
type harness struct {
	t    testing.TB
	ns   events.Namespace
	nc   *nats.Conn
	js   jetstream.JetStream
	args []string // of a worker there

	restricted *stacktest.RestrictedServers // its own servers, nil = those of all
}

func newHarness(t testing.TB) *harness {
	t.Helper()
	if stacktest.LeastPrivilege() {
		return newRestrictedHarness(t)
	}
	found, err := endpoints.Read(endpointsPath)
	if err != nil {
		t.Fatal(err)
	}
	m := &harness{t: t, ns: events.Namespace(stacktest.Namespace(t))}
	m.args = []string{"--namespace", string(m.ns), "--nats-url", found[nameNATSURL], "--redis-url", found["HOLDFAST_REDIS_URL"], "--postgres-url", found["HOLDFAST_POSTGRES_URL"]}
	if out, err := exec.Command(workerBinary, append([]string{"migrate"}, m.args...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	m.connect(found[nameNATSURL])
	return m
}

// newRestrictedHarness returns a morgue on servers of its own, whose users are those of deployments.
func newRestrictedHarness(t testing.TB) *harness {
	t.Helper()
	m := &harness{t: t, ns: stacktest.RestrictedNamespace, restricted: stacktest.NewRestrictedServers(t)}
	if err := migrateRestricted(t.Context(), m.restricted); err != nil {
		t.Fatal(err)
	}
	m.args = append(workerFlags(m.restricted, "worker"), "--no-migrate")
	url, _, _ := m.restricted.URLs("admin")
	m.connect(url)
	return m
}

// connect connects as somebody who may do everything.
func (m *harness) connect(url string) {
	m.t.Helper()
	var err error
	if m.nc, err = events.Connect(url, m.t.Name(), m.t.Logf); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(m.nc.Close)
	if m.js, err = jetstream.New(m.nc); err != nil {
		m.t.Fatal(err)
	}
}

// command are the arguments of the program in the namespace.
func (m *harness) command(args []string) []string {
	return asItsUser(m.restricted, append([]string{"--namespace", string(m.ns)}, args...))
}

// startWorker runs a worker in the namespace until the test ends.
func (m *harness) startWorker() {
	m.t.Helper()
	worker := exec.Command(workerBinary, append([]string{"run", "--http-addr", "127.0.0.1:0"}, m.args...)...)
	stderr, err := worker.StderrPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	if err := worker.Start(); err != nil {
		m.t.Fatal(err)
	}
	started, exited := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(exited)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			var line struct {
				Message string `json:"message"`
			}
			if err := json.Unmarshal(lines.Bytes(), &line); err == nil && line.Message == "worker started" {
				close(started)
			}
			if !strings.Contains(lines.Text(), "event dead-lettered") { // there are thousands
				fmt.Fprintf(m.t.Output(), "[worker] %s\n", lines.Bytes())
			}
		}
	}()
	m.t.Cleanup(func() {
		_ = worker.Process.Kill() // it may have ended
		<-exited
		_ = worker.Wait() // killed
	})
	select {
	case <-started:
	case <-exited:
		m.t.Fatal("the worker ended at its start")
	}
}

// run runs the program in the namespace.
func (m *harness) run(args ...string) result {
	m.t.Helper()
	return publisher(m.t, m.command(args)...)
}

// send stores an event as some publisher does.
func (m *harness) send(subject string, header nats.Header, body string) {
	m.t.Helper()
	if _, err := m.js.PublishMsg(m.t.Context(), &nats.Msg{Subject: subject, Header: header, Data: []byte(body)}); err != nil {
		m.t.Fatal(err)
	}
}

// storeDeadLetter stores a dead letter as a worker would have, and returns its sequence.
func (m *harness) storeDeadLetter(reason, detail, subject, body string) uint64 {
	m.t.Helper()
	deadLetter := nats.NewMsg(m.ns.DLQ(reason))
	deadLetter.Data = []byte(body)
	deadLetter.Header.Set(events.HeaderDLQReason, reason)
	deadLetter.Header.Set(events.HeaderDLQDetail, detail)
	deadLetter.Header.Set(events.HeaderDLQSubject, subject)
	deadLetter.Header.Set(events.HeaderDLQStreamSeq, "7")
	deadLetter.Header.Set(events.HeaderDLQDeliveries, "1")
	deadLetter.Header.Set(events.HeaderDLQTime, "2026-11-21T09:00:00.123Z")
	ack, err := m.js.PublishMsg(m.t.Context(), deadLetter)
	if err != nil {
		m.t.Fatal(err)
	}
	return ack.Sequence
}

// booking is a request for one of a resource's stock.
func booking(resource, user string) string {
	return `{"specversion":"1.0","id":"e-` + user + `","source":"/s","type":"holdfast.booking.requested.v1","data":` +
		`{"request_key":"k-` + user + `","user_id":"` + user + `","resource_id":"` + resource + `","quantity":1}}`
}

// deadLetters are the dead letters that there are.
func (m *harness) deadLetters() (list []events.DeadLetter) {
	m.t.Helper()
	r := m.run("dlq", "list", "-o", "json").want(m.t, exitOK)
	if err := json.Unmarshal([]byte(r.out), &list); err != nil {
		m.t.Fatalf("%v: %s", err, r.out)
	}
	return list
}

// lastRun is the run that was recorded last, with its results.
func (m *harness) lastRun() (run client.Run) {
	m.t.Helper()
	var list []client.Run
	r := m.run("dlq", "runs", "-o", "json").want(m.t, exitOK)
	if err := json.Unmarshal([]byte(r.out), &list); err != nil || len(list) == 0 {
		m.t.Fatalf("%v: %s", err, r.out)
	}
	r = m.run("dlq", "runs", list[len(list)-1].ID, "-o", "json").want(m.t, exitOK)
	if err := json.Unmarshal([]byte(r.out), &run); err != nil {
		m.t.Fatalf("%v: %s", err, r.out)
	}
	return run
}

// outcomes counts the outcomes of each inbound event.
func (m *harness) outcomes() map[string]int {
	m.t.Helper()
	stream, err := m.js.Stream(m.t.Context(), m.ns.OutStream())
	if err != nil {
		m.t.Fatal(err)
	}
	counts := make(map[string]int)
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		stored, err := stream.GetMsg(m.t.Context(), seq)
		if err != nil {
			m.t.Fatal(err)
		}
		var e events.Envelope
		if err := json.Unmarshal(stored.Data, &e); err != nil {
			m.t.Fatal(err)
		}
		counts[e.CausationID]++
	}
	return counts
}

// TestDLQ_FromDeathToReplay_EachVerb follows letters from their death to their replay, with a worker.
func TestDLQ_FromDeathToReplay_EachVerb(t *testing.T) {
	t.Parallel()
	m := newHarness(t)
	m.run("dlq", "list").want(t, exitOK, "no dead letters")
	m.run("dlq", "stats", "-o", "json").want(t, exitOK, "[]")
	m.run("dlq", "show", "1").want(t, exitFailed, "letter 1: no such dead letter")
	m.run("dlq", "replay", "1", "--yes").want(t, exitFailed, "letter 1: no such dead letter")
	m.run("dlq", "replay", "--all", "--yes").want(t, exitOK, "nothing to do")
	if r := m.run("dlq", "discard", "--all", "--note", "n", "--yes", "-o", "json").want(t, exitOK); !strings.Contains(r.out, `"letters":0`) {
		t.Errorf("discarded nothing: %s", r.out)
	}
	m.run("dlq", "runs").want(t, exitOK, "no runs")

	m.startWorker()
	m.run(words("inventory set --resource-id loft --capacity 5 --wait")...).want(t, exitOK)
	in := m.ns.In(events.BookingRequested, "loft")
	bad := strings.Replace(booking("loft", "ann"), `"quantity":1`, `"quantity":"2"`, 1)
	m.send(in, nats.Header{"X-Team": {"new\u009b", "team"}, "traceparent": {"00-1-2-01"}}, bad)
	m.send(in, nil, "\x1b[2J\xff no JSON")
	stacktest.Eventually(t, "two dead letters", func() bool { return len(m.deadLetters()) == 2 })
	m.send(m.ns.In(events.BookingRequested, "attic"), nil, booking("loft", "ben")) // another resource: it would not wait
	stacktest.Eventually(t, "three dead letters", func() bool { return len(m.deadLetters()) == 3 })

	// What the contract says of -o json, to the letter.
	deadLetters := m.deadLetters()
	first := deadLetters[0]
	if text, err := first.JSON(); err != nil || first.Seq != 1 || first.Reason != "malformed" || first.Detail != "data.quantity: must be an integer such as 2, found a string" ||
		first.EventID != "e-ann" || first.Subject != in || first.Deliveries != 1 || first.StreamSeq != 2 || !strings.Contains(string(text), `"event_id":"e-ann"`) {
		t.Errorf("%v: letter %+v", err, first)
	}
	if r := m.run("dlq", "ls", "-o", "json"); !strings.HasPrefix(r.out, `[{"seq":1,"reason":"malformed","detail":"data.quantity`) || !strings.HasSuffix(r.out, "}]\n") {
		t.Errorf("not one JSON array: %s", r.out)
	}
	if r := m.run("dlq", "list", "-o", "ndjson", "--limit", "2"); strings.Count(r.out, "\n") != 2 || strings.HasPrefix(r.out, "[") {
		t.Errorf("ndjson: %s", r.out)
	}
	m.run("dlq", "list").want(t, exitOK, "SEQ  REASON", "booking.requested", "loft", "data.quantity")
	m.run("dlq", "list", "-o", "wide").want(t, exitOK, "EVENT_ID", "e-ann", in, "STREAM_SEQ")
	m.run("dlq", "list", "--reason", "subject_mismatch", "-o", "json").want(t, exitOK, `[{"seq":3,`)
	m.run("dlq", "list", "--user-id", "ben", "--type", "booking.requested", "--since", "1h", "--contains", "belongs", "-o", "json").want(t, exitOK, `[{"seq":3,`)
	m.run("dlq", "list", "--until", "1h").want(t, exitOK, "no dead letters")
	m.run("dlq", "stats").want(t, exitOK, "malformed             2", "subject_mismatch      1", "3 dead letters in all")
	m.run("dlq", "stats", "-o", "json").want(t, exitOK, `[{"reason":"malformed","count":2,"oldest":"20`, `"first":{"seq":1,"detail":"data.quantity: must be an integer such as 2, found a string"}}`)

	m.run("dlq", "show", "1").want(t, exitOK, "dead letter 1: malformed", `"quantity": "2"`, "X-Team", `new\u009b`, "data.quantity", "stream_seq  2", "deliveries  1")
	m.run("dlq", "show", "2").want(t, exitOK, `\x1b[2J\xff no JSON`)
	m.run("dlq", "show", "2", "-o", "json").want(t, exitOK, `"body_base64":"`+base64.StdEncoding.EncodeToString([]byte("\x1b[2J\xff no JSON")))
	for _, r := range []result{m.run("dlq", "show", "1"), m.run("dlq", "show", "2"), m.run("dlq", "list", "-o", "wide")} {
		if strings.ContainsAny(r.out, "\x1b\u009b") {
			t.Errorf("it prints control characters: %q", r.out)
		}
	}

	// It dies again: a letter of its own, and the exit code says so.
	m.run("dlq", "replay", "2", "--yes", "--note", "to see").want(t, exitDeadLettered, "replay of 1 dead letter: done", "dead_lettered: malformed", "to see")
	if seqs := m.seqs(); !slices.Equal(seqs, []uint64{1, 3, 4}) {
		t.Errorf("letters %v", seqs)
	}
	if run := m.lastRun(); run.State != client.RunDone || run.Note != "to see" || run.Operator == "" || len(run.Results) != 1 || run.Results[0].Reason != "malformed" {
		t.Errorf("run %+v", run)
	}

	// A corrected copy is published; the letter stays.
	file := filepath.Join(t.TempDir(), "corrected.json")
	if err := os.WriteFile(file, []byte(strings.Replace(bad, `"2"`, `2`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	m.run("dlq", "edit", "1", "--body", endpointsPath, "--yes").want(t, exitFailed, "malformed: body:")
	m.run("dlq", "edit", "1", "--subject", in, "--yes").want(t, exitFailed, "unchanged")
	m.run("dlq", "edit", "1", "--body", file, "--subject", m.ns.In(events.BookingRequested, "attic"), "--yes").want(t, exitFailed, "subject_mismatch")
	m.run("dlq", "edit", "1", "--body", file, "--set-header", "X-Team=", "--set-header", "X-Fixed=yes", "--yes", "--who", "ann").want(t, exitOK, "hold.created", "ann")
	if got := m.outcomes()["e-ann"]; got != 1 {
		t.Errorf("the corrected copy has %d outcomes", got)
	}
	stored, err := m.js.Stream(t.Context(), m.ns.InStream())
	if err != nil {
		t.Fatal(err)
	}
	copied, err := stored.GetLastMsgForSubject(t.Context(), in)
	if err != nil || copied.Header.Get("X-Team") != "" || copied.Header.Get("X-Fixed") != "yes" || copied.Header.Get("traceparent") != "00-1-2-01" || copied.Header.Get(events.HeaderDLQReason) != "" {
		t.Errorf("%v: the copy has the headers %v", err, copied.Header)
	}
	// The same copy again is not stored, within the duplicate window, or has the same outcome.
	m.run("dlq", "edit", "1", "--body", file, "--set-header", "X-Team=", "--set-header", "X-Fixed=yes", "--yes").want(t, exitOK)
	if got := m.outcomes()["e-ann"]; got != 1 {
		t.Errorf("the corrected copy has %d outcomes after another edit", got)
	}
	m.run("dlq", "edit", "3", "--subject", in, "--yes").want(t, exitOK, "hold.created")

	m.run("dlq", "discard", "1", "3", "--note", "corrected", "--yes").want(t, exitOK, "discard of 2 dead letters: done", "discarded")
	m.run("dlq", "discard", "3", "--note", "corrected", "--yes").want(t, exitFailed, "letter 3: no such dead letter")
	if seqs := m.seqs(); !slices.Equal(seqs, []uint64{4}) {
		t.Errorf("letters %v", seqs)
	}
	m.run("dlq", "runs").want(t, exitOK, "discard", "edit", "replay", "corrected")
	m.run("dlq", "runs", "-o", "wide").want(t, exitOK, "2 discarded")
	m.run("dlq", "runs", "0198f0c2-a1b4-7c3d-8e4f-5a6b7c8d9e0f").want(t, exitFailed, "no such run")
}

func (m *harness) seqs() (seqs []uint64) {
	m.t.Helper()
	for _, l := range m.deadLetters() {
		seqs = append(seqs, l.Seq)
	}
	return seqs
}

// TestDLQExport_StdoutAndFile_WritesWhole writes letters whole, to stdout and to a file that is there only when it is whole.
func TestDLQExport_StdoutAndFile_WritesWhole(t *testing.T) {
	t.Parallel()
	m := newHarness(t)
	bodies := []string{booking("loft", "ann"), "\xff\x00", "", "line\nbreak \u009b"}
	for _, body := range bodies {
		m.storeDeadLetter("malformed", "x", m.ns.In(events.BookingRequested, "loft"), body)
	}
	r := m.run("dlq", "export").want(t, exitOK, "exported 4 dead letters")
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
		if e.Seq != uint64(i+1) || body != bodies[i] || (e.Body == nil) != (i == 1) || e.Headers[events.HeaderDLQSubject][0] != m.ns.In(events.BookingRequested, "loft") {
			t.Errorf("exported %s", line)
		}
	}
	file := filepath.Join(t.TempDir(), "letters.ndjson")
	m.run("dlq", "export", "-f", file).want(t, exitOK)
	if text, err := os.ReadFile(file); err != nil || string(text) != r.out {
		t.Errorf("%v: the file differs: %s", err, text)
	}
	m.run("dlq", "export", "-f", file).want(t, exitUsage, "is there already")
	m.run("dlq", "export", "-o", "json").want(t, exitUsage, "ndjson")

	// A letter that points to what is gone is exported without a body, and that is told.
	deadLetter := nats.NewMsg(m.ns.DLQ("too_large"))
	deadLetter.Header = nats.Header{events.HeaderClaimCheckStream: {m.ns.InStream()}, events.HeaderClaimCheckSeq: {"9"}, events.HeaderClaimCheckSHA256: {"00"}}
	if _, err := m.js.PublishMsg(t.Context(), deadLetter); err != nil {
		t.Fatal(err)
	}
	whole := filepath.Join(t.TempDir(), "all.ndjson")
	m.run("dlq", "export", "-f", whole).want(t, exitFailed, "1 dead letter: exported without body")
	if text, err := os.ReadFile(whole); err != nil || strings.Count(string(text), "\n") != 5 || !strings.Contains(string(text), `"error":"no event: `) {
		t.Errorf("%v: %s", err, text)
	}
	m.run("dlq", "show", "5").want(t, exitOK, "body: no event", "is gone", "sequence 9 of "+m.ns.InStream())
	m.run("dlq", "replay", "5", "--yes").want(t, exitFailed, "1 dead letter failed")
	if entries, err := os.ReadDir(filepath.Dir(whole)); err != nil || len(entries) != 1 {
		t.Errorf("%v: left behind: %v", err, entries)
	}
}

// TestDLQ_WrongUsage_ExitsUsage makes the mistakes that people make at night.
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
		"dlq show":                          "seq",
		"dlq show one":                      "seq",
		"dlq replay":                        "--all",
		"dlq replay 1 --all":                "not both",
		"dlq replay 1 --reason poison":      "not both",
		"dlq replay --reason poison":        "--all",
		"dlq replay --all":                  "--yes",
		"dlq replay 1 --rate -1":            "--rate",
		"dlq replay 1 --stop-on-failures x": "--stop-on-failures",
		"dlq replay --run 1 --yes":          "no id of a run",
		"dlq replay --run 1 --all":          "--run",
		"dlq discard 1 --yes":               "--note",
		"dlq discard --note n":              "--all",
		"dlq edit 1":                        "--body",
		"dlq edit 1 --set-header x":         "NAME=VALUE",
		"dlq runs 1":                        "no id of a run",
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
		publisher(t, append(words(line), "--namespace", "nobody")...).want(t, exitFailed, "worker migrate")
	}
}

// TestMoment_TimesAndAges_AreParsed reads times as people write them.
func TestMoment_TimesAndAges_AreParsed(t *testing.T) {
	t.Parallel()
	for text, ago := range map[string]time.Duration{"90m": 90 * time.Minute, "2d": 48 * time.Hour, "0s": 0} {
		var m moment
		if err := m.UnmarshalText([]byte(text)); err != nil || time.Since(m.Time) < ago || time.Since(m.Time) > ago+time.Minute {
			t.Errorf("%s: %v %v", text, m.Time, err)
		}
	}
	var m moment
	if err := m.UnmarshalText([]byte("2026-11-21T10:00:00+01:00")); err != nil || m.String() != "2026-11-21 09:00:00 +0000 UTC" {
		t.Errorf("%v %v", m, err)
	}
	for _, text := range []string{"", "soon", "-1h", "d", "1.5d", "-1d", "99999d"} {
		if err := m.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %v", text, m)
		}
	}
}

// TestEditable_WrittenAndParsed_RoundTrips writes an event for an editor and reads it back.
func TestEditable_WrittenAndParsed_RoundTrips(t *testing.T) {
	t.Parallel()
	m := nats.NewMsg("holdfast.in.x.y")
	m.Header = nats.Header{"Subject": {"mine"}, "X": {"a", "b: c"}, "Empty": {""}}
	for _, body := range []string{`{"a":1.0,"b":[]}`, "no JSON\n\n# not a comment", ""} {
		m.Data = []byte(body)
		text := append(editorComments(7, "it died: \x1b\nof a comment"), editable(m)...)
		if strings.Contains(string(text), "\x1b") {
			t.Errorf("control characters: %q", text)
		}
		read, err := parseEditable(withoutComments(text), m)
		if err != nil || read.Subject != m.Subject || string(read.Data) != body || !maps.EqualFunc(read.Header, m.Header, slices.Equal) {
			t.Errorf("%v: %+v", err, read)
		}
	}
	for _, text := range []string{"", "Subject: x", "Subject: x\nno header\n\n"} {
		if read, err := parseEditable([]byte(text), m); err == nil {
			t.Errorf("%q is %+v", text, read)
		}
	}
}
