package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

func TestMain(m *testing.M) {
	// The servers of tests keep nothing, which a preflight refuses.
	if err := os.Setenv("HOLDFAST_PREFLIGHT", "warn"); err != nil {
		panic(err)
	}
	stacktest.Main(m, func() { _ = os.RemoveAll(binaryDir) })
}

var binaryDir string // where workerBinary is

// workerBinary is this program, built once for all tests, with its failpoints.
var workerBinary = sync.OnceValues(func() (binary string, err error) {
	if binaryDir, err = os.MkdirTemp("", "holdfast-test-"); err != nil {
		return "", err
	}
	binary = filepath.Join(binaryDir, "worker")
	out, err := exec.Command("go", "build", "-tags", "failpoint", "-o", binary, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return binary, nil
})

// harness is a namespace on the shared servers, its worker processes, and all that they answer.
type harness struct {
	t          testing.TB
	urls       urls                         // of somebody who may do everything
	restricted *stacktest.RestrictedServers // nil = anybody may do everything
	mayLack    bool                         // workers may lack permissions
	logLevel   string                       // of workers, "" = info
	locks      []string                     // of redlock, once they were asked for
	namespace  string
	subjects   events.Namespace
	nc         *nats.Conn
	js         jetstream.JetStream
	client     *client.Client
	redis      *redis.Client
	store      *store.Store // nil until somebody needs it

	mu          sync.Mutex
	outcomes    []events.Envelope // everything in the outbound stream
	traces      map[string]string // their traceparents, by their ids
	deadLetters []nats.Header     // of everything in the dead-letter stream
	changed     chan struct{}     // closed and replaced when one of them grows

	unfollow []func() // stop following, for those who store more than they look at
}

// newHarness makes a namespace ready and follows what will be answered in it. With least privileges
// it is on servers of its own, whose users are those of deployments.
func newHarness(t testing.TB) *harness {
	t.Helper()
	if stacktest.LeastPrivilege() {
		return newRestrictedHarness(t)
	}
	shared := stacktest.Shared()
	return newHarnessOn(t, urls{shared.NATSURL, shared.RedisURL, shared.PostgresURL})
}

// urls are the servers of a system.
type urls struct{ nats, redis, postgres string }

// newHarnessOn makes a namespace ready on other servers than the shared ones.
func newHarnessOn(t testing.TB, at urls) *harness {
	t.Helper()
	return attach(t, at, stacktest.Namespace(t))
}

// attach follows what is answered in a namespace, and makes it ready if it is not.
func attach(t testing.TB, at urls, namespace string) *harness {
	t.Helper()
	s := &harness{t: t, urls: at, namespace: namespace}
	s.begin()
	return s
}

// newRestrictedHarness makes a namespace ready on servers of its own, where workers may do no more than they need.
func newRestrictedHarness(t testing.TB) *harness {
	t.Helper()
	s := &harness{t: t, restricted: stacktest.NewRestrictedServers(t), namespace: stacktest.RestrictedNamespace}
	s.urls = s.urlsAs("admin")
	s.begin()
	return s
}

// urlsAs are the servers as a user knows them.
func (s *harness) urlsAs(user string) urls {
	if s.restricted == nil {
		return s.urls
	}
	nats, redis, postgres := s.restricted.URLs(user)
	return urls{nats, redis, postgres}
}

// begin migrates and follows.
func (s *harness) begin() {
	t := s.t
	t.Helper()
	s.changed, s.traces, s.subjects = make(chan struct{}), make(map[string]string), events.Namespace(s.namespace)
	s.migrate()
	s.dropPolicy()
	if s.restricted != nil {
		if err := s.restricted.Grant(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	s.nc, err = events.Connect(s.urls.nats, t.Name(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.nc.Close)
	if s.js, err = jetstream.New(s.nc); err != nil {
		t.Fatal(err)
	}
	if s.client, err = client.New(s.nc, s.subjects); err != nil {
		t.Fatal(err)
	}
	options, err := redis.ParseURL(s.urls.redis)
	if err != nil {
		t.Fatal(err)
	}
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

// migrate runs worker migrate with more flags.
func (s *harness) migrate(more ...string) {
	s.t.Helper()
	args := append(append([]string{"migrate"}, s.serversAs("migrator")...), more...)
	if code := run(s.t.Context(), args, streams{s.t.Output(), s.t.Output()}); code != exitOK {
		s.t.Fatalf("worker migrate ended with %d", code)
	}
}

// dropPolicy lets the first worker store its own policy, which then is in force at once. Where workers
// do not migrate each of them has its own.
func (s *harness) dropPolicy() {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.urls.postgres)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(s.t.Context(), "DELETE FROM "+pgx.Identifier{s.namespace, "policies"}.Sanitize()); err != nil {
		s.t.Fatal(err)
	}
}

// serversAs are the flags that name the servers to a user: those that each command knows.
func (s *harness) serversAs(user string) []string {
	at := s.urlsAs(user)
	return []string{"--namespace", s.namespace, "--nats-url", at.nats, "--redis-url", at.redis, "--postgres-url", at.postgres}
}

// flagsAs are the flags of worker run as a user.
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
	if err != nil {
		s.t.Fatal(err)
	}
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		s.mu.Lock()
		defer s.mu.Unlock()
		keep(m)
		close(s.changed)
		s.changed = make(chan struct{})
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(consuming.Stop)
	s.unfollow = append(s.unfollow, consuming.Stop)
}

// await waits until what was answered is as so wants it.
func (s *harness) await(what string, so func(outcomes []events.Envelope, deadLetters []nats.Header) bool) {
	s.t.Helper()
	bound := time.After(2 * time.Minute)
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
			// Not Fatalf: it may be called from goroutines of the test.
			s.t.Errorf("waited in vain for %s; %d outcomes and %d dead letters came", what, len(s.outcomes), len(s.deadLetters))
			runtime.Goexit()
		}
	}
}

// answers are the outcomes of an inbound event.
func answers(outcomes []events.Envelope, eventID string) (its []events.Envelope) {
	for _, o := range outcomes {
		if o.CausationID == eventID {
			its = append(its, o)
		}
	}
	return its
}

// answer waits for the outcome of an event.
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

// ofType returns the outcomes of an event type.
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

// publish stores an event and returns its id.
func (s *harness) publish(event, resource string, data any) string {
	s.t.Helper()
	r, err := client.NewEvent(s.subjects, event, resource, "/test", data)
	if err != nil {
		s.t.Fatal(err)
	}
	m, err := r.Message()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.client.Publish(context.Background(), m); err != nil {
		s.t.Fatal(err)
	}
	return r.Envelope.ID
}

// setInventory sets a capacity, waits until it is set and returns what is known of the slots then.
func (s *harness) setInventory(resource string, selection holds.SlotSelection, capacity int64) []holds.SlotCounts {
	s.t.Helper()
	o := s.answer(s.publish(events.InventorySet, resource, events.InventorySetData{ResourceID: resource, SlotSelection: selection, Capacity: capacity}))
	if o.Type != events.Type(holds.EventInventoryUpdated) {
		s.t.Fatalf("inventory.set was answered with %s", o.Type)
	}
	return decoded[holds.InventoryUpdated](s.t, o).Slots
}

// bookingData returns the data of a request.
func bookingData(resource, user, key string, selection holds.SlotSelection, ttl int64) events.BookingRequestedData {
	return events.BookingRequestedData{RequestKey: key, UserID: user, ResourceID: resource, SlotSelection: selection, Quantity: 1, TTLSeconds: &ttl}
}

// soon is a TTL in s, longer than a worker takes to end and another to start.
const soon = 15

// awaitDeadline waits until the first deadline of a hold is over.
func (s *harness) awaitDeadline(t *testing.T, created events.Envelope) {
	t.Helper()
	deadline := decoded[holds.HoldCreated](t, created).ExpiresAt
	stacktest.Eventually(t, "the deadline", func() bool { return s.redis.Time(t.Context()).Val().After(deadline.Time) })
}

// decoded is the data of an outcome.
func decoded[T any](t testing.TB, e events.Envelope) (data T) {
	t.Helper()
	if err := json.Unmarshal(e.Data, &data); err != nil {
		t.Fatalf("%s: %v: %s", e.Type, err, e.Data)
	}
	return data
}

// counts is what Redis holds of a resource.
func (s *harness) counts(resource string) map[string]string {
	s.t.Helper()
	key := fmt.Sprintf("%s:{%d}:%s:counts", s.namespace, holds.Partition(resource), resource)
	counts, err := s.redis.HGetAll(context.Background(), key).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	return counts
}

// forbidden is how the servers, and those who ask them, tell that something is not permitted.
var forbidden = regexp.MustCompile(`(?i)permission|NOPERM|user executing the script can't|SQLSTATE 42501`)

// process is a worker process.
type process struct {
	cmd     *exec.Cmd
	log     lockedBuffer
	started chan string   // tells its operations address
	http    string        // that, once it was asked for
	exited  chan struct{} // closed when it has ended
	err     error         // how, once it has
}

// startWorker starts a worker process and waits until it has started.
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

// runArgs are the arguments of a worker process.
func (s *harness) runArgs() []string {
	args := []string{"run", "--http-addr", "127.0.0.1:0"}
	if s.restricted != nil {
		args = append(args, "--no-migrate")
	}
	return append(args, s.flagsAs("worker")...)
}

// launch starts a process of the program. mayLack says that it may tell of a permission that it lacks.
func launch(t testing.TB, mayLack bool, args []string, env ...string) *process {
	t.Helper()
	binary, err := workerBinary()
	if err != nil {
		t.Fatal(err)
	}
	return launchBinary(t, binary, mayLack, args, env...)
}

// launchBinary starts a process of some build of the program.
func launchBinary(t testing.TB, binary string, mayLack bool, args []string, env ...string) *process {
	t.Helper()
	p := &process{started: make(chan string, 1), exited: make(chan struct{})}
	p.cmd = exec.Command(binary, args...)
	p.cmd.Env = append(os.Environ(), env...)
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
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
			if !mayLack && forbidden.Match(lines.Bytes()) && !bytes.Contains(lines.Bytes(), []byte("keyspace notifications cannot be switched on")) {
				t.Errorf("the worker lacks a permission: %s", lines.Bytes())
			}
			fmt.Fprintf(t.Output(), "[%d] %s\n", p.cmd.Process.Pid, lines.Bytes())
		}
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.exited
	})
	return p
}

// stop stops the process as an operator does.
func (p *process) stop(t testing.TB) error {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.exited
	return p.err
}

// awaitStarted waits until a worker has started.
func (p *process) awaitStarted(t testing.TB) {
	t.Helper()
	select {
	case p.http = <-p.started:
	case <-p.exited:
		t.Fatalf("the worker ended at its start: %v", p.err)
	}
}

// end stops a process and waits for its end.
func (p *process) end(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.exited
}

// killed waits until the process has been killed, by itself at its failpoint.
func (p *process) killed(t testing.TB) {
	t.Helper()
	select {
	case <-p.exited:
	case <-time.After(2 * time.Minute):
		t.Fatal("the process did not come to its failpoint")
	}
	var exit *exec.ExitError
	if !errors.As(p.err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the process ended with %v, want it killed", p.err)
	}
}
