package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/stack/endpoints"
	"holdfast/internal/stack/stacktest"
)

// endpointsPath is the path of the endpoints file of the worker of TestMain.
var endpointsPath = filepath.Join(".holdfast", endpoints.FileName)

// TestMain runs the tests as a newcomer runs the program: in a directory in which `worker dev` runs,
// without any URL.
func TestMain(m *testing.M) {
	// The variables of the shell may name other servers.
	for _, name := range []string{nameNATSURL, "HOLDFAST_HTTP_ADDR", nameNamespace, "HOLDFAST_DATA_DIR",
		"HOLDFAST_REDIS_URL", "HOLDFAST_POSTGRES_URL"} {
		if err := os.Unsetenv(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	// The servers of worker dev are not durable, which the preflight of other workers refuses.
	if err := os.Setenv("HOLDFAST_PREFLIGHT", "warn"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	stacktest.MainAlone(func() (int, error) { return runBesideWorker(m) })
}

// workerBinary is the worker, and publisherBinary this program with failpoints, for tests that need a process of it.
var workerBinary, publisherBinary string

func runBesideWorker(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "holdfast-test-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	workerBinary, publisherBinary = filepath.Join(dir, "worker"), filepath.Join(dir, "publisher")
	if err := stacktest.BuildPrograms(dir, "failpoint", "worker", "publisher"); err != nil {
		return 1, err
	}
	if err := os.Chdir(dir); err != nil {
		return 1, err
	}
	if stacktest.LeastPrivilege() {
		return runBesideRestricted(m)
	}
	worker := exec.Command(workerBinary, "dev", "--http-addr", "127.0.0.1:0")
	running, err := stacktest.StartProgram(worker)
	if err != nil {
		return 1, err
	}
	if _, err := running.AwaitLine("Ctrl-C stops"); err != nil {
		running.Kill()
		return 1, fmt.Errorf("worker dev: %w", err)
	}
	code = m.Run()
	return code, running.Stop()
}

// result is the exit code and the output of one run of the program.
type result struct {
	code        int
	out, errOut string
}

// patience is the time limit for replies: a busy machine may be slow.
var patience = []string{"--timeout", "2m"}

// publisher runs the program, with patience unless args have a time limit.
func publisher(t testing.TB, args ...string) result {
	t.Helper()
	if _, err := os.Stat(besideRestricted); err == nil && !slices.Contains(args,
		"--namespace") { // a test may have changed the directory
		args = asItsUser(restricted, args)
	}
	if !slices.Contains(args, patience[0]) {
		args = append(slices.Clone(args), patience...)
	}
	var out, errOut bytes.Buffer
	code := run(t.Context(), args, &out, &errOut)
	return result{code, out.String(), errOut.String()}
}

// words splits a command line without quotes.
func words(line string) []string { return strings.Fields(line) }

// want checks the exit code, and that the output contains texts.
func (r result) want(t testing.TB, code int, texts ...string) result {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d\nout: %s\nerr: %s", r.code, code, r.out, r.errOut)
	}
	for _, text := range texts {
		if !strings.Contains(r.out+r.errOut, text) {
			t.Errorf("the output lacks %q\nout: %s\nerr: %s", text, r.out, r.errOut)
		}
	}
	return r
}

// serverFlags returns the flags for the servers of the worker of TestMain.
func serverFlags(t testing.TB) []string {
	t.Helper()
	found, err := endpoints.Read(endpointsPath)
	if err != nil {
		t.Fatal(err)
	}
	return []string{
		"--nats-url", found["HOLDFAST_NATS_URL"], "--redis-url", found["HOLDFAST_REDIS_URL"], "--postgres-url", found["HOLDFAST_POSTGRES_URL"],
	}
}

// migrate runs worker migrate.
func migrate(t testing.TB, flags ...string) {
	t.Helper()
	if out, err := exec.Command(workerBinary, append([]string{"migrate"}, flags...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// migrated creates the streams of a namespace that has no worker.
func migrated(t *testing.T, namespace string) jetstream.JetStream {
	t.Helper()
	flags := serverFlags(t)
	migrate(t, append(flags, "--namespace", namespace)...)
	return stacktest.ConnectNATS(t, flags[1])
}

// startWorker runs another worker until the test ends.
func startWorker(t testing.TB, flags ...string) {
	t.Helper()
	running, err := stacktest.StartProgram(exec.Command(workerBinary, append([]string{"run", "--http-addr", "127.0.0.1:0"}, flags...)...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		running.Kill()
		for line := range strings.Lines(running.Output()) {
			if !strings.Contains(line, "event dead-lettered") { // thousands of these
				fmt.Fprintf(t.Output(), "[worker] %s", line)
			}
		}
	})
	if _, err := running.AwaitLine(`"worker started"`); err != nil {
		t.Fatal(err)
	}
}

// harness is a namespace without a worker, on the servers of the worker of TestMain.
type harness struct {
	t    testing.TB
	ns   events.Namespace
	nc   *nats.Conn
	js   jetstream.JetStream
	args []string // flags of a worker of the namespace

	restricted *stacktest.RestrictedServers // its own servers; nil for the shared ones
}

func newHarness(t testing.TB) *harness {
	t.Helper()
	if stacktest.LeastPrivilege() {
		return newRestrictedHarness(t)
	}
	h := &harness{t: t, ns: events.Namespace(stacktest.Namespace(t))}
	servers := serverFlags(t)
	h.args = append(servers, "--namespace", string(h.ns))
	migrate(t, h.args...)
	h.connect(servers[1])
	return h
}

// newRestrictedHarness returns a harness on its own servers with the users of deployments.
func newRestrictedHarness(t testing.TB) *harness {
	t.Helper()
	h := &harness{t: t, ns: stacktest.RestrictedNamespace, restricted: stacktest.NewRestrictedServers(t)}
	if err := migrateRestricted(t.Context(), h.restricted); err != nil {
		t.Fatal(err)
	}
	h.args = append(workerFlags(h.restricted, "worker"), "--no-migrate")
	url, _, _ := h.restricted.URLs("admin")
	h.connect(url)
	return h
}

// connect connects as a user with all permissions.
func (h *harness) connect(url string) {
	h.t.Helper()
	var err error
	if h.nc, err = events.Connect(url, h.t.Name(), h.t.Logf); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(h.nc.Close)
	if h.js, err = jetstream.New(h.nc); err != nil {
		h.t.Fatal(err)
	}
}

// command returns args with the flags of the namespace.
func (h *harness) command(args []string) []string {
	return asItsUser(h.restricted, append([]string{"--namespace", string(h.ns)}, args...))
}

// startWorker runs a worker in the namespace until the test ends.
func (h *harness) startWorker() {
	h.t.Helper()
	startWorker(h.t, h.args...)
}

// run runs the program in the namespace.
func (h *harness) run(args ...string) result {
	h.t.Helper()
	return publisher(h.t, h.command(args)...)
}

// send publishes an event.
func (h *harness) send(subject string, header nats.Header, body string) {
	h.t.Helper()
	if _, err := h.js.PublishMsg(h.t.Context(), &nats.Msg{Subject: subject, Header: header, Data: []byte(body)}); err != nil {
		h.t.Fatal(err)
	}
}

// storeDeadLetter stores a dead letter in the form of a worker and returns its sequence.
func (h *harness) storeDeadLetter(reason, detail, subject, body string) uint64 {
	h.t.Helper()
	deadLetter := nats.NewMsg(h.ns.DLQ(reason))
	deadLetter.Data = []byte(body)
	deadLetter.Header.Set(events.HeaderDLQReason, reason)
	deadLetter.Header.Set(events.HeaderDLQDetail, detail)
	deadLetter.Header.Set(events.HeaderDLQSubject, subject)
	deadLetter.Header.Set(events.HeaderDLQStreamSeq, "7")
	deadLetter.Header.Set(events.HeaderDLQDeliveries, "1")
	deadLetter.Header.Set(events.HeaderDLQTime, "2026-11-21T09:00:00.123Z")
	ack, err := h.js.PublishMsg(h.t.Context(), deadLetter)
	if err != nil {
		h.t.Fatal(err)
	}
	return ack.Sequence
}

// booking returns a request for the stock of a resource.
func booking(resource, user string) string {
	return `{"specversion":"1.0","id":"e-` + user + `","source":"/s","type":"holdfast.booking.requested.v1","data":` +
		`{"request_key":"k-` + user + `","user_id":"` + user + `","resource_id":"` + resource + `","quantity":1}}`
}

// deadLetters returns all dead letters.
func (h *harness) deadLetters() (list []events.DeadLetter) {
	h.t.Helper()
	r := h.run("dlq", "list", "-o", "json").want(h.t, exitOK)
	if err := json.Unmarshal([]byte(r.out), &list); err != nil {
		h.t.Fatalf("%v: %s", err, r.out)
	}
	return list
}

// lastRun returns the last recorded run with its results.
func (h *harness) lastRun() (run client.Run) {
	h.t.Helper()
	var list []client.Run
	r := h.run("dlq", "runs", "-o", "json").want(h.t, exitOK)
	if err := json.Unmarshal([]byte(r.out), &list); err != nil || len(list) == 0 {
		h.t.Fatalf("%v: %s", err, r.out)
	}
	r = h.run("dlq", "runs", list[len(list)-1].ID, "-o", "json").want(h.t, exitOK)
	if err := json.Unmarshal([]byte(r.out), &run); err != nil {
		h.t.Fatalf("%v: %s", err, r.out)
	}
	return run
}

// storedOutcomes returns all outcomes in the order in which they were stored.
func (h *harness) storedOutcomes() []events.Envelope {
	h.t.Helper()
	stream, err := h.js.Stream(h.t.Context(), h.ns.OutStream())
	if err != nil {
		h.t.Fatal(err)
	}
	outcomes := make([]events.Envelope, stream.CachedInfo().State.LastSeq)
	for i := range outcomes {
		stored, err := stream.GetMsg(h.t.Context(), uint64(i)+1)
		if err != nil {
			h.t.Fatal(err)
		}
		if err := json.Unmarshal(stored.Data, &outcomes[i]); err != nil {
			h.t.Fatal(err)
		}
	}
	return outcomes
}

// outcomes counts the outcomes of each inbound event.
func (h *harness) outcomes() map[string]int {
	h.t.Helper()
	counts := make(map[string]int)
	for _, e := range h.storedOutcomes() {
		counts[e.CausationID]++
	}
	return counts
}

func (h *harness) seqs() (seqs []uint64) {
	h.t.Helper()
	for _, l := range h.deadLetters() {
		seqs = append(seqs, l.Seq)
	}
	return seqs
}
