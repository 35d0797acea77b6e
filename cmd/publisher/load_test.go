package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/queries"
	"holdfast/internal/stack/stacktest"
)

// runWith runs the program with a context and standard input.
func runWith(ctx context.Context, in io.Reader, args ...string) result {
	var out, errOut bytes.Buffer
	p := newProgram(&out, &lockedWriter{w: &errOut})
	p.in = in
	err := p.run(ctx, args)
	if err != nil {
		errOut.WriteString(err.Error())
	}
	return result{exitCode(err), out.String(), errOut.String()}
}

// summaryOf parses the summary of -o json.
func summaryOf(t *testing.T, r result) (s summary) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.out), &s, json.RejectUnknownMembers(true)); err != nil {
		t.Fatalf("not one JSON value: %v\n%s%s", err, r.out, r.errOut)
	}
	if sum := s.Published + s.Duplicates + s.BadLines + s.Unacknowledged; sum != s.Lines {
		t.Errorf("%d lines, want the sum %d: %s", s.Lines, sum, r.out)
	}
	return s
}

// outcomes returns the counts of a summary by event and reason.
func (s summary) outcomes() map[string]int {
	counts := make(map[string]int)
	for _, o := range s.Outcomes {
		counts[strings.TrimSpace(o.Event+" "+o.Reason)] = o.Count
	}
	return counts
}

// expect checks the counts of a load, but not its outcomes. It adds published events and duplicates, because the
// duplicate window of JetStream is only 100 ms.
func (s summary) expect(t *testing.T, stored, badLines int) {
	t.Helper()
	if s.Published+s.Duplicates != stored || s.BadLines != badLines {
		t.Errorf("published %d, duplicates %d, bad lines %d, want the sum %d, and %d", s.Published, s.Duplicates, s.BadLines,
			stored, badLines)
	}
}

// fileOf writes a file of events and returns its path.
func fileOf(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "events.ndjson")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// shortRequest returns a request in the short form.
func shortRequest(resource, key string) string {
	return fmt.Sprintf(`{"event": "booking.requested", "data": {"request_key": %q, "user_id": %q, "resource_id": %q, "quantity": 1}}`, key, key, resource)
}

// wholeRequest returns a request as a CloudEvent.
func wholeRequest(source, id, resource, key string) string {
	return fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":%q,"type":"holdfast.booking.requested.v1","data":{"request_key":%q,"user_id":%q,"resource_id":%q,"quantity":1}}`,
		id, source, key, key, resource)
}

// fresh returns a new name for each run of a test.
func fresh(name string) string { return name + "-" + uuid.NewString()[:8] }

// stock sets the capacity of resources.
func stock(t *testing.T, capacity int, resources ...string) {
	t.Helper()
	for _, resource := range resources {
		publisher(t, words(fmt.Sprintf("inventory set --resource-id %s --capacity %d --wait", resource,
			capacity))...).want(t, exitOK)
	}
}

// heldQuantity returns the held quantity of a resource.
func heldQuantity(t testing.TB, resource string) int64 {
	t.Helper()
	return publisher(t, words("inventory show -o json --resource-id "+resource)...).held(t)
}

// held returns the held quantity in the availability of a stock.
func (r result) held(t testing.TB) int64 {
	t.Helper()
	var a queries.Availability
	if err := json.Unmarshal([]byte(r.want(t, exitOK).out), &a); err != nil || len(a.Slots) != 1 {
		t.Fatalf("%v: %s", err, r.out)
	}
	return a.Slots[0].Held
}

// storedOf returns the number of messages of a stream on a subject, which may have wildcards.
func storedOf(t *testing.T, url, stream, subject string) int {
	t.Helper()
	js := stacktest.ConnectNATS(t, url)
	defer js.Conn().Close() // a test may count often
	found, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	info, err := found.Info(t.Context(), jetstream.WithSubjectFilter(subject))
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, n := range info.State.Subjects {
		count += int(n)
	}
	return count
}

// TestLoad_SameFileTwice_ChangesNothing loads a mixed file of thousands of lines twice: no event is processed twice,
// and every outcome is the same.
func TestLoad_SameFileTwice_ChangesNothing(t *testing.T) {
	t.Parallel()
	const rooms, each, capacity = 4, 500, 300
	var file strings.Builder
	bad, resources := 0, make([]string, rooms)
	for room := range rooms {
		resource := fresh("mixed")
		resources[room] = resource
		for i := range each {
			// Two sources use the same ids, and some of their requests are equal.
			key := fmt.Sprintf("k%d", i)
			switch i % 5 {
			case 0:
				file.WriteString(wholeRequest("/shop", fmt.Sprintf("%s-%d", resources[0], room*each+i), resource, key) + "\r\n")
			case 1:
				file.WriteString(wholeRequest("/app", fmt.Sprintf("%s-%d", resources[0], room*each+i-1), resource, key) + "\n\n")
			default:
				file.WriteString("  " + shortRequest(resource, key) + "\n")
			}
			if i%100 == 0 {
				bad++
				file.WriteString(strings.Replace(shortRequest(resource, key), `"quantity": 1`, `"quantity": 1.0`, 1) + "\n")
			}
		}
		fmt.Fprintf(&file, `{"event":"booking.cancelled","data":{"resource_id":"%s","request_key":"never"}}`+"\n", resource)
		fmt.Fprintf(&file, `{"event":"payment.confirmed","data":{"hold_id":"%s.0192f5c4d0b07cc3a5d0f2f5a1b2c3d4","payment_id":"p"}}`+"\n", resource)
		fmt.Fprintf(&file, `{"event":"booking.requested","data":{"request_key":"zero","user_id":"u","resource_id":"%s","quantity":0}}`+"\n", resource)
		stock(t, capacity, resource)
	}
	path := fileOf(t, strings.TrimSuffix(file.String(), "\n"))
	const good = rooms * (each + 3)
	want := map[string]int{
		"hold.created": rooms * capacity, "hold.rejected sold_out": rooms * (each - capacity), "hold.rejected invalid_request": rooms,
		"booking.cancelled": rooms, "hold.confirm_rejected unknown_hold": rooms,
	}

	first := publisher(t, "load", "-f", path, "--wait", "-o", "json").want(t, exitDeadLettered,
		"malformed: data.quantity: must be an integer such as 2, found a number with a fraction or an exponent")
	s := summaryOf(t, first)
	s.expect(t, good, bad)
	if got := s.outcomes(); fmt.Sprint(got) != fmt.Sprint(want) || !s.Complete || s.Unanswered != 0 {
		t.Errorf("got %v, want %v: %s", got, want, first.out)
	}
	url := serverFlags(t)[1]
	answers := storedOf(t, url, "HOLDFAST_OUT", "holdfast.out.*.*."+resources[0])

	second := publisher(t, "load", "-f", path, "--wait", "-o", "json").want(t, exitDeadLettered)
	s = summaryOf(t, second)
	s.expect(t, good, bad)
	if got := s.outcomes(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("second load: %v, want %v", got, want)
	}
	for _, resource := range resources {
		if n := heldQuantity(t, resource); n != capacity {
			t.Errorf("%s: %d are held, want %d", resource, n, capacity)
		}
	}
	if again := storedOf(t, url, "HOLDFAST_OUT", "holdfast.out.*.*."+resources[0]); again != answers {
		t.Errorf("%d outcomes are stored after the first load, %d after the second: some differ", answers, again)
	}
}

// TestLoad_SameContent_IsSameEvent loads an event that JetStream no longer remembers and the worker does: their ids are
// equal. Another batch makes another event.
func TestLoad_SameContent_IsSameEvent(t *testing.T) {
	t.Parallel()
	resource := fresh("ids")
	stock(t, 1, resource)
	path := fileOf(t, `{"event":"inventory.set","data":{"resource_id":"`+resource+`","capacity":7}}`)
	spaced := fileOf(t, ` { "event" :"inventory.set", "data":{"resource_id": "`+resource+`","capacity":7 }}`+"\r\n")
	load := func(file string, args ...string) summary {
		return summaryOf(t, publisher(t, append([]string{"load", "-o", "json", "--wait", "-f", file},
			args...)...).want(t, exitOK))
	}
	load(path).expect(t, 1, 0)
	load(spaced).expect(t, 1, 0)
	publisher(t, words("inventory set --resource-id "+resource+" --capacity 3 --wait")...).want(t, exitOK)
	load(path).expect(t, 1, 0)
	publisher(t, words("inventory show -o json --resource-id "+resource)...).want(t, exitOK, `"capacity":3`)
	load(path, "--batch", "again").expect(t, 1, 0)
	publisher(t, words("inventory show -o json --resource-id "+resource)...).want(t, exitOK, `"capacity":7`)

	// Two events with the same id and different sources differ, also for JetStream.
	path = fileOf(t, wholeRequest("/shop", resource, resource, "a")+"\n"+wholeRequest("/app", resource, resource, "b"))
	summaryOf(t, publisher(t, "load", "-o", "json", "-f", path).want(t, exitOK)).expect(t, 2, 0)
	stacktest.Eventually(t, "both to be held", func() bool { return heldQuantity(t, resource) == 2 })
}

// TestLoad_Interrupted_SecondLoadCompletes stops a load half-way and loads the file again.
func TestLoad_Interrupted_SecondLoadCompletes(t *testing.T) {
	t.Parallel()
	const count, capacity = 2000, 1500
	resource := fresh("half")
	stock(t, capacity, resource)
	lines := make([]string, count)
	for i := range lines {
		lines[i] = shortRequest(resource, fmt.Sprintf("k%d", i)) + "\n"
	}
	url := serverFlags(t)[1]
	for round := range 2 {
		args := []string{"load", "-f", "-", "-o", "json"}
		if round == 1 { // --wait publishes duplicates again
			args = append(args, "--wait")
		}
		in, file := io.Pipe()
		ctx, interrupt := context.WithCancel(t.Context())
		stopped := make(chan result, 1)
		go func() { stopped <- runWith(ctx, in, args...) }()
		if _, err := io.WriteString(file, strings.Join(lines[:count/2], "")); err != nil {
			t.Fatal(err)
		}
		stacktest.Eventually(t, "half of the file to be stored", func() bool {
			return storedOf(t, url, "HOLDFAST_IN", "holdfast.in.booking.requested."+resource) == (round+1)*count/2
		})
		interrupt()
		r := (<-stopped).want(t, exitFailed, "stopped after line 1000 of stdin: interrupted", "load the same file again")
		if s := summaryOf(t, r); s.Complete || s.Lines != count/2 {
			t.Errorf("%s", r.out)
		}
		_ = in.Close() // ends the reading goroutine; never fails
	}
	path := fileOf(t, strings.Join(lines, ""))
	s := summaryOf(t, publisher(t, "load", "-f", path, "--wait", "-o", "json").want(t, exitRejected))
	s.expect(t, count, 0)
	if want := map[string]int{"hold.created": capacity,
		"hold.rejected sold_out": count - capacity}; fmt.Sprint(s.outcomes()) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", s.outcomes(), want)
	}
	if n := heldQuantity(t, resource); n != capacity {
		t.Errorf("%d are held, want %d", n, capacity)
	}
}

// TestLoad_OverSeveralLines_ReadsWhatValidateReads loads an event over several lines, and lines whose first one is
// malformed.
func TestLoad_OverSeveralLines_ReadsWhatValidateReads(t *testing.T) {
	t.Parallel()
	room := fresh("room")
	pretty := "\n{\n  \"event\": \"inventory.set\",\n  \"data\": {\n    \"resource_id\": \"" + room + "\",\n    \"capacity\": 5\n  }\n}\n"
	path := fileOf(t, pretty)
	publisher(t, "validate", "-f", path).want(t, exitOK, "2: ok inventory.set "+room)
	s := summaryOf(t, publisher(t, "load", "-f", path, "--wait", "-o", "json").want(t, exitOK))
	s.expect(t, 1, 0)
	publisher(t, words("inventory show -o json --resource-id "+room)...).want(t, exitOK, `"capacity":5`)
	bad := strings.Replace(pretty, `"capacity": 5`, `"capacity": "5"`, 1)
	rejects := filepath.Join(t.TempDir(), "rejects")
	publisher(t, "load", "-f", fileOf(t, bad), "--rejects", rejects).want(t, exitDeadLettered,
		":2: malformed: data.capacity: must be an integer")
	if kept, err := os.ReadFile(rejects); err != nil || strings.TrimSpace(string(kept)) != strings.TrimSpace(bad) {
		t.Errorf("the rejects are %q, %v", kept, err)
	}
	line := shortRequest(room, "k1")
	s = summaryOf(t, publisher(t, "load", "-f", fileOf(t, line[:20]+"\n"+line), "-o", "json").want(t, exitDeadLettered,
		":1: malformed: body: the JSON text ends too early"))
	s.expect(t, 1, 1)
}

// TestLoad_FirstLineBroken_OthersPublished loads a file whose first lines are broken, and which is longer than any
// event may be.
func TestLoad_FirstLineBroken_OthersPublished(t *testing.T) {
	t.Parallel()
	room, broken := fresh("room"), `{"event":"booking.requested","data":{"request_key":"k1",`
	for name, bad := range map[string][]string{
		"a blank line follows":     {broken, ""},
		"an indented line follows": {broken, "  broken"},
		"a short line follows":     {broken, `"quantity": 1`},
	} {
		file := strings.Join(bad, "\n") + "\n"
		good := 0
		for ; len(file) < 2*joinMax; good++ {
			file += "  " + shortRequest(room, fmt.Sprintf("k%d", good)) + "\n"
		}
		rejects := filepath.Join(t.TempDir(), "rejects")
		s := summaryOf(t, publisher(t, "load", "-f", fileOf(t, file), "--rejects", rejects, "-o", "json").want(t,
			exitDeadLettered, ":1: malformed: body: the JSON text ends too early"))
		want := strings.TrimSuffix(strings.Join(bad, "\n"), "\n") + "\n"
		s.expect(t, good, strings.Count(want, "\n"))
		if kept, err := os.ReadFile(rejects); err != nil || string(kept) != want {
			t.Errorf("%s: the rejects are %.300q, %v, want %q", name, kept, err, want)
		}
	}
}

// TestLoad_BadLines_ReportedOthersPublished checks messages, counts and --rejects of bad lines.
func TestLoad_BadLines_ReportedOthersPublished(t *testing.T) {
	t.Parallel()
	nowhere := fresh("nowhere")
	long := `{"event":"booking.requested","data":{"pad":"` + strings.Repeat("x", 3*lineMax) + `"}}`
	bad := []string{
		`{"specversion":"1.0"`, `["` + "\x1b[2J" + `"]`, long, `{"event":"booking.requested","Data":{}}`,
		`{"event":"booking.requested","data":{"pad":"` + strings.Repeat("x", events.BodyMax) + `"}}`, `{"event":7}`, "\xff",
	}
	var file strings.Builder
	for i, text := range bad {
		fmt.Fprintf(&file, "%s\r\n%s\r\n\r\n", text, shortRequest(nowhere, fmt.Sprintf("bad%d", i)))
	}
	path, rejects := fileOf(t, file.String()), filepath.Join(t.TempDir(), "rejects")
	r := publisher(t, "load", "-f", path, "--wait", "--rejects", rejects, "-o", "json").want(t, exitDeadLettered,
		path+":1: malformed: body: the JSON text ends too early\n",
		path+":4: malformed: body: must be a JSON object, found a list\n",
		path+":7: too_large: the line is longer than 128 KiB\n",
		path+":10: malformed: Data: unknown member, the short form of an event has event and data\n",
		path+":13: too_large: the body is larger than 64 KiB\n",
		path+":16: malformed: event: must be a string, found a number\n",
		path+":19: malformed: body: not one JSON text in UTF-8, at byte 0\n")
	s := summaryOf(t, r)
	s.expect(t, len(bad), len(bad))
	if got := s.outcomes()["hold.rejected unknown_resource"]; got != len(bad) {
		t.Errorf("%d good lines have outcomes, want %d: %s", got, len(bad), r.out)
	}
	kept, err := os.ReadFile(rejects)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Join(bad, "\n") + "\n"; string(kept) != want {
		t.Errorf("the rejects are %.300q, want %.300q", kept, want)
	}

	// With --strict nothing after the first bad line is published.
	path = fileOf(t, shortRequest(nowhere, "strict1")+"\n\nnonsense\n"+shortRequest(nowhere, "strict2")+"\n")
	strict := publisher(t, "load", "-f", path, "--strict", "-o", "json").want(t, exitDeadLettered, ":3: malformed",
		"--strict")
	s = summaryOf(t, strict)
	s.expect(t, 1, 1)
	if s.Complete {
		t.Errorf("%s", strict.out)
	}
	s = summaryOf(t, publisher(t, "load", "-f", path, "-o", "json").want(t, exitDeadLettered))
	s.expect(t, 2, 1)

	publisher(t, "load", "-f", path, "--rejects", path).want(t, exitUsage, "the input file")
	if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), "nonsense") {
		t.Errorf("the file was overwritten: %v, %q", err, text)
	}
}

// TestLoad_ServerAway_KeepsRejects loads the rejects of an earlier load while NATS is away, and then with NATS.
func TestLoad_ServerAway_KeepsRejects(t *testing.T) {
	t.Parallel()
	rejects, path := fileOf(t, "rejects of an earlier load\n"), fileOf(t, shortRequest(fresh("nowhere"), "k1"))
	publisher(t, "load", "-f", path, "--rejects", rejects, "--nats-url", "nats://127.0.0.1:1", "--timeout",
		"1s").want(t, exitFailed, "connect to nats")
	if kept, err := os.ReadFile(rejects); err != nil || string(kept) != "rejects of an earlier load\n" {
		t.Errorf("%v: the rejects are %q", err, kept)
	}
	publisher(t, "load", "-f", path, "--rejects", rejects).want(t, exitOK)
	if kept, err := os.ReadFile(rejects); err != nil || len(kept) > 0 {
		t.Errorf("%v: the rejects are %q after a load without bad lines", err, kept)
	}
	publisher(t, "load", "-f", path, "--rejects", os.DevNull).want(t, exitOK) // it cannot be emptied
}

// TestLoad_MessageRefused_IsBadLine loads a line that JetStream refuses, in another namespace.
func TestLoad_MessageRefused_IsBadLine(t *testing.T) {
	t.Parallel()
	namespace := stacktest.Namespace(t)
	js := migrated(t, namespace)
	stream, err := js.Stream(t.Context(), events.Namespace(namespace).InStream())
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.MaxMsgSize = 1024
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	large := strings.Replace(shortRequest("loft", "large"), `"quantity"`,
		`"metadata":{"a":"`+strings.Repeat("x", 1024)+`"},"quantity"`, 1)
	path, rejects := fileOf(t, large+"\n"+shortRequest("loft", "small")), filepath.Join(t.TempDir(), "rejects")
	r := publisher(t, "load", "-f", path, "--rejects", rejects, "-o", "json", "--namespace",
		namespace).want(t, exitDeadLettered, path+":1: JetStream refuses the message")
	summaryOf(t, r).expect(t, 1, 1)
	if kept, err := os.ReadFile(rejects); err != nil || string(kept) != large+"\n" {
		t.Errorf("%v: the rejects are %.300q", err, kept)
	}
	strict := publisher(t, "load", "-f", path, "--strict", "--in-flight", "1", "-o", "json", "--namespace",
		namespace).want(t, exitDeadLettered, "--strict")
	if s := summaryOf(t, strict); s.Complete || s.BadLines != 1 {
		t.Errorf("%s", strict.out)
	}

	// The load waits for a full stream, for a limited time.
	config.MaxMsgs = 1
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	path = fileOf(t, shortRequest("loft", "full"))
	full := publisher(t, "load", "-f", path, "--give-up-after", "5s", "-o", "json", "--namespace", namespace).
		want(t, exitFailed, "retrying for up to 5s", "maximum messages exceeded", "stopped after line 1",
			"load the same file again")
	if s := summaryOf(t, full); s.Complete || s.Unacknowledged != 1 {
		t.Errorf("%s", full.out)
	}
	// The load also gives up while it waits for standard input.
	in, file := io.Pipe()
	defer func() { _ = file.Close() }() // ends the reading goroutine
	ended := make(chan result, 1)
	go func() {
		ended <- runWith(t.Context(), in, "load", "-f", "-", "--give-up-after", "100ms", "--namespace", namespace)
	}()
	if _, err := io.WriteString(file, shortRequest("loft", "full")+"\n"); err != nil {
		t.Fatal(err)
	}
	(<-ended).want(t, exitFailed, "nothing was stored for 100ms")
}

func TestLoad_EachOutcome_ExitCode(t *testing.T) {
	t.Parallel()
	resource, quiet := fresh("codes"), stacktest.Namespace(t)
	stock(t, 1, resource)
	good, refused := fileOf(t, shortRequest(resource, "a")), fileOf(t, shortRequest(resource,
		"a")+"\n"+shortRequest(resource, "b"))
	publisher(t, "load", "-f", good, "--wait").want(t, exitOK, "hold.created")
	publisher(t, "load", "-f", refused, "--wait").want(t, exitRejected, "sold_out")
	publisher(t, "load", "-f", refused).want(t, exitOK)
	migrated(t, quiet)
	publisher(t, "load", "-f", good, "--wait", "--timeout", "5s", "--namespace", quiet).want(t, exitReplyTimeout,
		"namespace "+quiet)
	publisher(t, "load", "-f", good, "--namespace", "absent").want(t, exitFailed, "worker migrate")
	publisher(t, "load", "-f", good, "--nats-url", "nats://127.0.0.1:1", "--timeout", "1s").want(t, exitFailed,
		"connect to nats")
	for line, text := range map[string]string{
		"load": "--file", "load -f nowhere.ndjson": "nowhere.ndjson", "load -f .": "not a readable file",
		"load -f - --in-flight 0": "--in-flight", "load -f - --in-flight 4097": "--in-flight",
		"load -f - --rate=-1": "--rate", "load -f - --rate=NaN": "--rate", "load -f - --rate=Inf": "--rate", "load -f - --give-up-after 0s": "--give-up-after", "load -f " + good + " --rejects /nowhere/at/all": "--rejects",
	} {
		publisher(t, words(line)...).want(t, exitUsage, text)
	}
	// The first code that applies. A worker dead-letters none of these lines, so a fake summary does.
	for name, c := range map[string]struct {
		summary summary
		stopped error
		code    int
	}{
		"all":          {summary{BadLines: 1, Unanswered: 1, rejected: 1, deadLettered: 1}, context.Canceled, exitFailed},
		"dead letters": {summary{Unanswered: 1, rejected: 1, deadLettered: 1}, nil, exitDeadLettered},
		"bad lines":    {summary{BadLines: 1, Unanswered: 1, rejected: 1}, nil, exitDeadLettered},
		"unanswered":   {summary{Unanswered: 1, rejected: 1}, nil, exitReplyTimeout},
		"rejected":     {summary{rejected: 1}, nil, exitRejected},
		"none":         {summary{}, nil, exitOK},
	} {
		l := &loading{load: &load{}, program: newProgram(io.Discard, io.Discard), summary: &c.summary}
		if code := exitCode(l.finish(c.stopped)); code != c.code {
			t.Errorf("%s: %d, want %d", name, code, c.code)
		}
	}
}

// rememberMessageIDs makes the inbound stream drop a message with the id of an earlier one for as long as a test takes.
func (h *harness) rememberMessageIDs() {
	h.t.Helper()
	stream, err := h.js.Stream(h.t.Context(), h.ns.InStream())
	if err != nil {
		h.t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.Duplicates = time.Hour
	if _, err := h.js.UpdateStream(h.t.Context(), config); err != nil {
		h.t.Fatal(err)
	}
}

// TestLoad_SameIDOtherContent_CountsAsPublished loads two CloudEvents with the same source and id, and other content: they
// are two events, and NATS drops the second message first.
func TestLoad_SameIDOtherContent_CountsAsPublished(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.rememberMessageIDs()
	file := fileOf(t, wholeRequest("/s", "e-1", "loft", "k1")+"\n"+wholeRequest("/s", "e-1", "loft", "k2")+"\n")
	s := summaryOf(t, h.run("load", "-f", file, "-o", "json").want(t, exitOK))
	if s.Published != 2 || s.Duplicates != 0 {
		t.Errorf("published %d, duplicates %d, want 2 and 0", s.Published, s.Duplicates)
	}
	stream, err := h.js.Stream(t.Context(), h.ns.InStream())
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 2 {
		t.Errorf("%d events are stored, want 2", n)
	}
}

// TestLoad_ReplyCannotBeParsed_IsUnanswered loads a CloudEvent twice, and waits for outcomes that cannot be parsed. Both
// are stored and have no outcome.
func TestLoad_ReplyCannotBeParsed_IsUnanswered(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.rememberMessageIDs()
	answers, err := h.nc.Subscribe(h.ns.AllIn(), func(m *nats.Msg) {
		if inbox := m.Header.Get(events.HeaderReplyTo); inbox != "" {
			_ = h.nc.Publish(inbox, []byte("no JSON")) // it may fail after the test; before, its effect would be missing
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answers.Unsubscribe() }()
	file := fileOf(t, wholeRequest("/s", "e-1", "loft", "k1"))
	for range 2 {
		r := h.run("load", "-f", file, "--wait", "-o", "json").want(t, exitReplyTimeout, "parse the reply")
		if s := summaryOf(t, r); s.Published != 1 || s.Unanswered != 1 || s.Unacknowledged != 0 {
			t.Errorf("%+v, want 1 published and unanswered", s)
		}
	}
}

func TestLoad_Summary_IsPrinted(t *testing.T) {
	t.Parallel()
	s := newSummary("events.ndjson", true)
	s.Complete, s.Lines, s.BadLines = true, 1205, 1
	for range 1200 {
		s.add(client.BulkResult{Stored: true, Reply: ptr(newReply("hold.created", `{}`))})
	}
	s.add(client.BulkResult{Stored: true, Duplicate: true, Reply: ptr(newReply("hold.rejected",
		`{"reason":"sold_out\u001b"}`))})
	s.add(client.BulkResult{Stored: true, Reply: &client.Reply{DeadLetter: &events.DeadLetterReply{Error: "poison"}}})
	s.add(client.BulkResult{Stored: true})
	s.add(client.BulkResult{})
	const want = `loaded events.ndjson
  lines           1205
  published       1202
  duplicates      1
  bad lines       1
  unacknowledged  1
  unanswered      1

OUTCOME        REASON        COUNT
──────────────────────────────────
dead-lettered  poison            1
hold.created                  1200
hold.rejected  sold_out\x1b      1
`
	var out bytes.Buffer
	p := newProgram(&out, io.Discard)
	if err := p.printSummary(s); err != nil || out.String() != want {
		t.Errorf("%v: got\n%s\nwant\n%s", err, out.String(), want)
	}
}

func ptr[T any](v T) *T { return &v }

func TestLoad_Rate_IsNotExceeded(t *testing.T) {
	t.Parallel()
	var file strings.Builder
	nowhere := fresh("nowhere")
	for i := range 31 {
		file.WriteString(shortRequest(nowhere, fmt.Sprintf("pace%d", i)) + "\n")
	}
	began := time.Now()
	r := runWith(t.Context(), strings.NewReader(file.String()), "load", "-f", "-", "--rate", "100", "-o",
		"json").want(t, exitOK)
	// Ten at once, then one every 10 ms. The test allows more time, but not less.
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("31 events at 100 a second took %s", took)
	}
	summaryOf(t, r).expect(t, 31, 0)
}

// Absolute paths of documents: the tests change to a directory of their own.
var (
	readmePath, _   = filepath.Abs("../../README.md")
	settingsPath, _ = filepath.Abs("../../docs/settings.md")
)

// TestLoad_READMEExample_PrintsWhatItShows runs the commands of README.md for a file of events and compares the output.
func TestLoad_READMEExample_PrintsWhatItShows(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(readmePath)
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(readme), "A file has one event a line")
	blocks := strings.Split(strings.ReplaceAll(section, "sauna", fresh("sauna")), "```\n")
	if len(blocks) < 6 {
		t.Fatalf("%d blocks", len(blocks))
	}
	path := fileOf(t, blocks[1])
	if r := publisher(t, "validate", "-f", path).want(t, exitDeadLettered); r.out != blocks[3] {
		t.Errorf("validate prints\n%s\nREADME.md says\n%s", r.out, blocks[3])
	}
	r := publisher(t, "load", "-f", path, "--wait", "--in-flight", "1").want(t, exitDeadLettered)
	if got := strings.ReplaceAll(r.errOut+r.out, path, "events.ndjson"); got != blocks[5] {
		t.Errorf("load prints\n%s\nREADME.md says\n%s", got, blocks[5])
	}
}
