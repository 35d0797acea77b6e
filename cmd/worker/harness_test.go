package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/client"
	"holdfast/internal/connect"
	"holdfast/internal/contract"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/queries"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

func TestMain(m *testing.M) {
	// The servers of tests do not keep their data, which fails the preflight.
	if err := os.Setenv("HOLDFAST_PREFLIGHT", "warn"); err != nil {
		panic(err)
	}
	stacktest.Main(m, func() { _ = os.RemoveAll(binaryDir) })
}

var binaryDir string // the directory of workerBinary

// workerBinary builds this program with its failpoints, once for all tests, and returns its path.
var workerBinary = sync.OnceValues(func() (binary string, err error) {
	if binaryDir, err = os.MkdirTemp("", "holdfast-test-"); err != nil {
		return "", err
	}
	return filepath.Join(binaryDir, "worker"), stacktest.BuildPrograms(binaryDir, "failpoint", "worker")
})

// harness is a namespace on the shared servers with its worker processes and their outcomes.
type harness struct {
	t          testing.TB
	urls       urls                         // as an administrator
	restricted *stacktest.RestrictedServers // nil unless users have least privileges
	mayLack    bool                         // workers may lack permissions
	logLevel   string                       // of workers; info when empty
	locks      []string                     // URLs for redlock, set on first use
	namespace  string
	subjects   events.Namespace
	nc         *nats.Conn
	js         jetstream.JetStream
	client     *client.Client
	redis      *redis.Client
	store      *store.Store // opened on first use

	mu          sync.Mutex
	outcomes    []events.Envelope // everything in the outbound stream
	traces      map[string]string // traceparents by outcome id
	deadLetters []nats.Header     // of everything in the dead-letter stream
	changed     chan struct{}     // closed and replaced when one of the above changes

	following []jetstream.ConsumeContext
}

// newHarness prepares a new namespace and follows its outcomes. With least privileges it starts
// servers with the users of deployments/.
func newHarness(t testing.TB) *harness {
	t.Helper()
	if stacktest.LeastPrivilege() {
		return newRestrictedHarness(t)
	}
	shared := stacktest.Shared()
	return newHarnessOn(t, urls{shared.NATSURL, shared.RedisURL, shared.PostgresURL})
}

// urls are the URLs of the servers of a harness.
type urls struct{ nats, redis, postgres string }

// newHarnessOn prepares a new namespace on servers other than the shared ones.
func newHarnessOn(t testing.TB, at urls) *harness {
	t.Helper()
	return attach(t, at, stacktest.Namespace(t))
}

// attach follows the outcomes of a namespace, and prepares it when it is not prepared yet.
func attach(t testing.TB, at urls, namespace string) *harness {
	t.Helper()
	s := &harness{t: t, urls: at, namespace: namespace}
	s.begin()
	return s
}

// newRestrictedHarness prepares a new namespace on its own servers, where a worker has only the
// permissions that it needs.
func newRestrictedHarness(t testing.TB) *harness {
	t.Helper()
	s := &harness{t: t, restricted: stacktest.NewRestrictedServers(t), namespace: stacktest.RestrictedNamespace}
	s.urls = s.urlsAs("admin")
	s.begin()
	return s
}

// urlsAs returns the URLs with the login of a user.
func (s *harness) urlsAs(user string) urls {
	if s.restricted == nil {
		return s.urls
	}
	nats, redis, postgres := s.restricted.URLs(user)
	return urls{nats, redis, postgres}
}

// begin runs worker migrate and follows the outcomes.
func (s *harness) begin() {
	t := s.t
	t.Helper()
	s.changed, s.traces, s.subjects = make(chan struct{}), make(map[string]string), events.Namespace(s.namespace)
	s.migrate()
	// The first worker stores its own policy, which is in force at once. With least privileges workers do not
	// store a policy, and each uses its own.
	s.sql("DELETE FROM " + s.namespace + ".policies")
	if s.restricted != nil {
		stacktest.Must(t, s.restricted.Grant(t.Context()))
	}
	var err error
	s.nc, err = events.Connect(s.urls.nats, t.Name(), t.Logf)
	stacktest.Must(t, err)
	t.Cleanup(s.nc.Close)
	if s.js, err = jetstream.New(s.nc); err != nil {
		t.Fatal(err)
	}
	if s.client, err = client.New(s.nc, s.subjects); err != nil {
		t.Fatal(err)
	}
	options, err := connect.RedisOptions(s.urls.redis, connect.TLSFiles{})
	stacktest.Must(t, err)
	s.redis = redis.NewClient(options)
	t.Cleanup(func() { _ = s.redis.Close() })
	s.follow(s.subjects.OutStream(), func(m jetstream.Msg) {
		var e events.Envelope
		if err := json.Unmarshal(m.Data(), &e); err != nil {
			t.Errorf("outbound: %v: %s", err, m.Data())
		}
		checkOutbound(t, e, m)
		s.outcomes = append(s.outcomes, e)
		s.traces[e.ID] = m.Headers().Get("traceparent")
	})
	s.follow(s.subjects.DLQStream(), func(m jetstream.Msg) { s.deadLetters = append(s.deadLetters, m.Headers()) })
}

// execute runs a command of the program in this process and returns its exit code and what it prints.
func execute(ctx context.Context, args ...string) (code int, out string) {
	var text strings.Builder
	code = run(ctx, args, streams{&text, &text})
	return code, text.String()
}

// migrate runs worker migrate with additional flags.
func (s *harness) migrate(more ...string) {
	s.t.Helper()
	args := append(append([]string{"migrate"}, s.serversAs("migrator")...), more...)
	if code := run(s.t.Context(), args, streams{s.t.Output(), s.t.Output()}); code != exitOK {
		s.t.Fatalf("worker migrate: exit code %d", code)
	}
}

// serversAs returns the flags that every command has for the servers, with the login of a user.
func (s *harness) serversAs(user string) []string {
	at := s.urlsAs(user)
	flags := []string{"--namespace", s.namespace, "--nats-url", at.nats, "--redis-url", at.redis, "--postgres-url",
		at.postgres}
	if s.restricted != nil && s.restricted.CAFile() != "" {
		flags = append(flags, "--nats-ca-file", s.restricted.CAFile(), "--redis-ca-file", s.restricted.CAFile())
	}
	return flags
}

// flagsAs returns the flags of worker run with the login of a user.
func (s *harness) flagsAs(user string) []string {
	flags := append(s.serversAs(user), "--log-level", cmp.Or(s.logLevel, "info"))
	if strategy := os.Getenv("HOLDFAST_LOCK_STRATEGY"); strategy != "" {
		flags = append(flags, "--lock-strategy", strategy)
		if strategy == redlockStrategy {
			if s.locks == nil && s.restricted != nil {
				s.locks = stacktest.RestrictedLockServers(s.t, lockServersMin)
			} else if s.locks == nil {
				s.locks = stacktest.LockServers(s.t, lockServersMin)
			}
			flags = append(flags, "--lock-redis-urls", strings.Join(s.locks, ","))
		}
	}
	return flags
}

func (s *harness) follow(stream string, keep func(jetstream.Msg)) {
	s.t.Helper()
	consumer, err := s.js.OrderedConsumer(s.t.Context(), stream, jetstream.OrderedConsumerConfig{})
	stacktest.Must(s.t, err)
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		s.mu.Lock()
		defer s.mu.Unlock()
		keep(m)
		close(s.changed)
		s.changed = make(chan struct{})
	})
	stacktest.Must(s.t, err)
	s.t.Cleanup(consuming.Stop)
	s.following = append(s.following, consuming)
}

// unfollow stops following, for tests that store more than they read. Nothing that is stored afterwards is seen.
func (s *harness) unfollow() {
	for _, consuming := range s.following {
		consuming.Stop()
		<-consuming.Closed() // Stop alone unsubscribes later
	}
}

// await waits until so returns true for the outcomes and dead letters so far.
func (s *harness) await(what string, so func(outcomes []events.Envelope, deadLetters []nats.Header) bool) {
	s.t.Helper()
	bound := time.After(stacktest.WaitBound)
	for {
		s.mu.Lock()
		done, changed := so(s.outcomes, s.deadLetters), s.changed
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-bound:
			// In another goroutine than the test's this ends that goroutine.
			s.t.Fatalf("timeout waiting for %s; %d outcomes and %d dead letters came",
				what, len(s.outcomes), len(s.deadLetters))
		}
	}
}

// answers returns the outcomes of an inbound event.
func answers(outcomes []events.Envelope, eventID string) (its []events.Envelope) {
	for _, o := range outcomes {
		if o.CausationID == eventID {
			its = append(its, o)
		}
	}
	return its
}

// answer waits for the outcome of an event and returns it.
func (s *harness) answer(eventID string) (o events.Envelope) {
	s.t.Helper()
	s.await("the outcome of "+eventID, func(outcomes []events.Envelope, _ []nats.Header) bool {
		i := slices.IndexFunc(outcomes, func(e events.Envelope) bool { return e.CausationID == eventID })
		if i >= 0 {
			o = outcomes[i]
		}
		return i >= 0
	})
	return o
}

// wantAnswer waits for the outcome of an event, which must be of a type, and returns it.
func (s *harness) wantAnswer(eventID, want string) events.Envelope {
	s.t.Helper()
	o := s.answer(eventID)
	if o.Type != events.Type(want) {
		s.t.Fatalf("answered with %s %s, want %s", o.Type, o.Data, want)
	}
	return o
}

// awaitMarker waits until a partition has a marker of all outcomes that are stored now.
func (s *harness) awaitMarker(client *redis.Client, partition int) {
	s.t.Helper()
	stream, err := s.js.Stream(s.t.Context(), s.subjects.OutStream())
	stacktest.Must(s.t, err)
	want := fmt.Sprintf("%d.%d", stream.CachedInfo().Created.UnixNano(), stream.CachedInfo().State.LastSeq)
	stacktest.Eventually(s.t, "a marker", func() bool {
		found, err := client.Get(s.t.Context(), record.Keyspace(s.namespace).Applied(partition)).Result()
		return err == nil && strings.Contains(found, " "+want+".")
	})
}

// wantOneOutcome fails the test unless an event has one outcome, although it may have been decided twice.
func (s *harness) wantOneOutcome(eventID string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if its := answers(s.outcomes, eventID); len(its) != 1 {
		s.t.Errorf("event %s has %d outcomes: %+v", eventID, len(its), its)
	}
}

// wantNoDeadLetters fails the test if an event was dead-lettered.
func (s *harness) wantNoDeadLetters() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.deadLetters) > 0 {
		s.t.Errorf("%d events were dead-lettered: %v", len(s.deadLetters), s.deadLetters)
	}
}

// ofType returns the followed outcomes of an event type.
func (s *harness) ofType(event string) []events.Envelope {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ofType(s.outcomes, event)
}

func ofType(outcomes []events.Envelope, event string) (some []events.Envelope) {
	for _, o := range outcomes {
		if o.Type == events.Type(event) {
			some = append(some, o)
		}
	}
	return some
}

// publish publishes an event, with more headers (name, value), and returns its id.
func (s *harness) publish(event, resource string, data any, headers ...string) string {
	s.t.Helper()
	m, e, err := client.NewEvent(s.subjects, event, resource, "/test", data)
	stacktest.Must(s.t, err)
	for i := 0; i+1 < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // NATS may be slow on a busy machine
	defer cancel()
	stacktest.Must(s.t, s.client.Publish(ctx, m))
	return e.ID
}

// setInventory sets a capacity, waits for the outcome and returns its slots.
func (s *harness) setInventory(resource string, selection holds.SlotSelection, capacity int64) []holds.SlotCounts {
	s.t.Helper()
	o := s.wantAnswer(s.publish(events.InventorySet, resource,
		events.InventorySetData{ResourceID: resource, SlotSelection: selection, Capacity: capacity}), holds.EventInventoryUpdated)
	return decoded[holds.InventoryUpdated](s.t, o).Slots
}

// book publishes a booking request, and returns its event id.
func (s *harness) book(resource, user, key string, selection holds.SlotSelection, ttl int64) (eventID string) {
	s.t.Helper()
	return s.publish(events.BookingRequested, resource, bookingData(resource, user, key, selection, ttl))
}

// pay publishes the payment of a hold, and returns its event id.
func (s *harness) pay(hold, payment string) (eventID string) {
	s.t.Helper()
	resource, _, _ := strings.Cut(hold, ".")
	return s.publish(events.PaymentConfirmed, resource, events.PaymentConfirmedData{HoldID: hold, PaymentID: payment})
}

// bookingData returns the data of a booking request.
func bookingData(resource, user, key string, selection holds.SlotSelection, ttl int64) events.BookingRequestedData {
	return events.BookingRequestedData{RequestKey: key, UserID: user, ResourceID: resource, SlotSelection: selection,
		Quantity: 1, TTLSeconds: &ttl}
}

// soon is a ttl in seconds, longer than a worker takes to stop and another one to start.
const soon = 15

// awaitDeadline waits until the first deadline of a hold has passed by Redis' clock.
func (s *harness) awaitDeadline(t *testing.T, created events.Envelope) {
	t.Helper()
	deadline := decoded[holds.HoldCreated](t, created).ExpiresAt
	stacktest.Eventually(t, "the deadline", func() bool { return s.redis.Time(t.Context()).Val().After(deadline.Time) })
}

// decoded returns the data of an outcome.
func decoded[T any](t testing.TB, e events.Envelope) (data T) {
	t.Helper()
	if err := json.Unmarshal(e.Data, &data); err != nil {
		t.Fatalf("%s: %v: %s", e.Type, err, e.Data)
	}
	return data
}

// counts returns the counters of a resource in Redis.
func (s *harness) counts(resource string) map[string]string {
	s.t.Helper()
	key := fmt.Sprintf("%s:{%d}:%s:counts", s.namespace, record.Partition(resource), resource)
	counts, err := s.redis.HGetAll(context.Background(), key).Result()
	stacktest.Must(s.t, err)
	return counts
}

// lockByOther makes another owner hold the lock of a slot until release is called, which waits until a
// worker waits for it. That worker then locks before it reads from Postgres; otherwise it decides in one
// step. Only the strategy range has this lock; with the others lockByOther does nothing.
func (s *harness) lockByOther(resource, slot string) (release func()) {
	s.t.Helper()
	if strategy := os.Getenv("HOLDFAST_LOCK_STRATEGY"); strategy != "" && strategy != "range" {
		return func() {}
	}
	ctx := context.Background()
	prefix := fmt.Sprintf("%s:{%d}:%s:", s.namespace, record.Partition(resource), resource)
	until := s.redis.Time(ctx).Val().Add(time.Hour).UnixMilli()
	stacktest.Must(s.t, s.redis.HSet(ctx, prefix+"locks", slot, fmt.Sprintf("another:1.x %d", until)).Err())
	s.redis.PExpire(ctx, prefix+"locks", time.Hour)
	return func() {
		s.t.Helper()
		stacktest.Eventually(s.t, "a worker to wait for the lock", func() bool {
			return s.redis.Exists(ctx, prefix+"waited_for").Val() == 1
		})
		s.redis.HDel(ctx, prefix+"locks", slot)
		s.redis.SPublish(ctx, prefix+"released", slot)
	}
}

// forbidden matches what servers and clients report when a permission is missing.
var forbidden = regexp.MustCompile(`(?i)permission|NOPERM|user executing the script can't|SQLSTATE 42501`)

// process is a worker process.
type process struct {
	cmd     *exec.Cmd
	log     lockedBuffer
	started chan string   // receives its operations address
	http    string        // the operations address, after awaitStarted
	exited  chan struct{} // closed when it has exited
	err     error         // how it exited, valid after exited is closed
}

// startWorker starts a worker process and waits until the worker has started.
func (s *harness) startWorker(env ...string) *process {
	s.t.Helper()
	p := s.launch(env...)
	p.awaitStarted(s.t)
	return p
}

// launch starts a worker process.
func (s *harness) launch(env ...string) *process {
	s.t.Helper()
	return launch(s.t, s.mayLack, s.runArgs(), env...)
}

// runArgs returns the arguments of a worker process.
func (s *harness) runArgs() []string {
	args := []string{"run", "--http-addr", "127.0.0.1:0"}
	if s.restricted != nil {
		args = append(args, "--no-migrate")
	}
	return append(args, s.flagsAs("worker")...)
}

// launch starts a process of the program. Unless mayLack is true, the test fails when the process
// logs that a permission is missing.
func launch(t testing.TB, mayLack bool, args []string, env ...string) *process {
	t.Helper()
	binary, err := workerBinary()
	stacktest.Must(t, err)
	return launchBinary(t, binary, mayLack, args, env...)
}

// launchBinary is launch with another build of the program.
func launchBinary(t testing.TB, binary string, mayLack bool, args []string, env ...string) *process {
	t.Helper()
	p := &process{started: make(chan string, 1), exited: make(chan struct{})}
	p.cmd = exec.Command(binary, args...)
	p.cmd.Env = append(os.Environ(), env...)
	stderr, err := p.cmd.StderrPipe()
	stacktest.Must(t, err)
	stacktest.Must(t, p.cmd.Start())
	go func() {
		defer close(p.exited)
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			var line struct {
				Message  string `json:"message"`
				HTTPAddr string `json:"http_addr"`
			}
			if err := json.Unmarshal(lines.Bytes(), &line); err == nil && line.Message == "worker started" {
				p.started <- line.HTTPAddr
			}
			fmt.Fprintf(&p.log, "%s\n", lines.Bytes())
			if !mayLack && forbidden.Match(lines.Bytes()) &&
				!bytes.Contains(lines.Bytes(), []byte("keyspace notifications unavailable")) {
				t.Errorf("the worker lacks a permission: %s", lines.Bytes())
			}
			fmt.Fprintf(t.Output(), "[%d] %s\n", p.cmd.Process.Pid, lines.Bytes())
		}
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have exited
		<-p.exited
	})
	return p
}

// stop sends SIGTERM, as a deployment does, and waits until the process has exited. It must exit with 0.
func (p *process) stop(t testing.TB) {
	t.Helper()
	p.stopWithin(t, 2*time.Minute)
}

// stopWithin is stop with a bound that a test is about: a worker promises to stop within 10 s.
func (p *process) stopWithin(t testing.TB, bound time.Duration) {
	t.Helper()
	stacktest.Must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-p.exited:
		if p.err != nil {
			t.Errorf("SIGTERM ended the process with %v, want exit code 0", p.err)
		}
	case <-time.After(bound):
		t.Errorf("the process still runs %v after SIGTERM", bound)
	}
}

// silentServers returns the URLs of NATS servers that accept connections and do not answer, and a channel that
// receives when one has a connection.
func silentServers(t *testing.T, number int) (urls string, connected <-chan struct{}) {
	t.Helper()
	accepted := make(chan struct{}, 1)
	addrs := make([]string, number)
	for i := range addrs {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		stacktest.Must(t, err)
		t.Cleanup(func() { _ = l.Close() })
		addrs[i] = "nats://" + l.Addr().String()
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				t.Cleanup(func() { _ = conn.Close() })
				select {
				case accepted <- struct{}{}:
				default:
				}
			}
		}()
	}
	return strings.Join(addrs, ","), accepted
}

// awaitStarted waits until the worker has started.
func (p *process) awaitStarted(t testing.TB) {
	t.Helper()
	select {
	case p.http = <-p.started:
	case <-p.exited:
		t.Fatalf("the worker exited during its start: %v", p.err)
	case <-time.After(stacktest.WaitBound):
		t.Fatalf("the worker has not logged its start:\n%s", &p.log)
	}
}

// awaitLog waits until the process has logged a text, in upper or lower case.
func (p *process) awaitLog(t testing.TB, text string) {
	t.Helper()
	p.eventually(t, "the log to contain "+strconv.Quote(text), func() bool {
		return strings.Contains(strings.ToLower(p.log.String()), strings.ToLower(text))
	})
}

// eventually is stacktest.Eventually, but it fails the test as soon as the process has exited.
func (p *process) eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	stacktest.Eventually(t, what, func() bool {
		select {
		case <-p.exited:
			if !condition() {
				t.Fatalf("the worker exited (%v) before %s:\n%s", p.err, what, &p.log)
			}
			return true
		default:
			return condition()
		}
	})
}

// awaitExit waits until the process has exited, for whatever reason.
func (p *process) awaitExit(t testing.TB) {
	t.Helper()
	select {
	case <-p.exited:
	case <-time.After(stacktest.WaitBound):
		t.Fatalf("the process still runs:\n%s", &p.log)
	}
}

// killed waits until the process has killed itself at its failpoint.
func (p *process) killed(t testing.TB) {
	t.Helper()
	p.awaitExit(t)
	var exit *exec.ExitError
	if !errors.As(p.err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the process exited with %v, want killed", p.err)
	}
}

// get requests a path of the operations address of a worker.
func (p *process) get(t testing.TB, path string) (status int, body string) {
	t.Helper()
	response, err := http.Get("http://" + p.http + path)
	stacktest.Must(t, err)
	defer func() { _ = response.Body.Close() }()
	defer http.DefaultClient.CloseIdleConnections()
	text, err := io.ReadAll(response.Body)
	stacktest.Must(t, err)
	return response.StatusCode, string(text)
}

// readiness returns the answer of /readyz, whose status must say the same.
func (p *process) readiness(t testing.TB) (r queries.Readiness) {
	t.Helper()
	status, body := p.get(t, "/readyz")
	if err := json.Unmarshal([]byte(body), &r); err != nil || r.Ready != (status == http.StatusOK) || r.Ready != (len(r.Reasons) == 0) {
		t.Fatalf("/readyz: %d %s, %v", status, body, err)
	}
	return r
}

// awaitReady waits until the worker is ready.
func (p *process) awaitReady(t testing.TB) {
	t.Helper()
	p.eventually(t, "the worker to be ready", func() bool { return p.readiness(t).Ready })
}

// fileOf returns the path of a new file with a text, in a directory of its own.
func fileOf(t testing.TB, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	stacktest.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// lockedBuffer is a buffer for concurrent use.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// checkOutbound validates an outbound event against its schema. Every event that a worker publishes
// in these tests goes through it.
func checkOutbound(t testing.TB, e events.Envelope, m jetstream.Msg) {
	t.Helper()
	schema, err := contract.ReadSchema("../../docs/schemas/out/"+strings.TrimPrefix(e.Type, "holdfast.")+".json", "")
	if err == nil {
		err = schema.Validate(m.Data())
	}
	if err != nil {
		t.Errorf("%s does not match its schema: %v\n%s", e.Type, err, m.Data())
	}
	if m.Headers().Get("Content-Type") != "application/cloudevents+json" || m.Headers().Get("Nats-Msg-Id") != e.ID {
		t.Errorf("%s has the headers %v", e.Type, m.Headers())
	}
}
