package robustness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/audit"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// Worker is one worker process, which restarts whenever it has ended, with its own proxies between
// it and each server.
type Worker struct {
	name    string
	binary  string
	servers *Servers
	log     *log

	redis, sentinels, postgres, nats []*stacktest.Proxy // one for each server

	mu         sync.Mutex
	args       []string
	env        []string // more environment for the next start
	process    *stack.Server
	processEnv []string      // the env with which process was started
	wanted     bool          // it must run
	exits      int           // how often a process has ended
	changed    chan struct{} // signals a change of wanted
	ended      chan struct{} // closed when the process is no longer restarted
}

// log writes the log of a worker to a file and collects its alarms.
type log struct {
	mu     sync.Mutex
	file   *os.File
	alarms []string // lines with one of alarmWords
	healed []string // lines about data that was inconsistent until the worker corrected it
	lines  stack.LineWriter
}

func newLog(file *os.File) *log {
	l := &log{file: file}
	l.lines.Each = l.note
	return l
}

var alarmWords = []string{"DATA RACE", "panicked", "panic:", "fatal error:"}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.lines.Write(p) // never fails
	return l.file.Write(p)
}

// note collects a line that is an alarm.
func (l *log) note(line string) {
	if slices.ContainsFunc(alarmWords, func(word string) bool { return strings.Contains(line, word) }) {
		l.alarms = append(l.alarms, line)
	}
	if strings.Contains(line, `"message":"data inconsistency found"`) && strings.Contains(line, `"result":"done"`) {
		l.healed = append(l.healed, line)
	}
}

// started closes ready when the log has the line "worker started".
type started struct {
	*log
	once  sync.Once
	ready chan struct{}
}

func (s *started) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(`"message":"worker started"`)) {
		s.once.Do(func() { close(s.ready) })
	}
	return s.log.Write(p)
}

// buildWorker builds the worker program with its failpoints into dir, optionally with the race detector,
// and returns its path.
func buildWorker(ctx context.Context, dir string, race bool) (binary string, err error) {
	binary = filepath.Join(dir, "worker")
	args := []string{"build", "-tags", "failpoint", "-o", binary}
	if race {
		args = append(args, "-race")
	}
	build := exec.CommandContext(ctx, "go", append(args, "holdfast/cmd/worker")...)
	if race {
		build.Env = append(os.Environ(), "CGO_ENABLED=1") // CI runs the suite without cgo, which the race detector needs
	}
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return binary, nil
}

// newWorker returns a worker that does not run yet. Its log is a file in dir.
func newWorker(s *Servers, binary, name, dir string) (w *Worker, err error) {
	file, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, err
	}
	w = &Worker{
		name: name, binary: binary, servers: s, log: newLog(file),
		changed: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	var errs []error
	add := func(server *serverProcess) *stacktest.Proxy {
		p, err := server.proxy()
		errs = append(errs, err)
		return p
	}
	for _, server := range s.redis {
		w.redis = append(w.redis, add(server.serverProcess))
	}
	for _, server := range s.sentinels {
		w.sentinels = append(w.sentinels, add(server))
	}
	for _, server := range s.postgres {
		w.postgres = append(w.postgres, add(server.serverProcess))
	}
	for _, node := range s.nats {
		w.nats = append(w.nats, add(node))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s.rewriteAddresses(w)
	s.rewriteSentinels(w)
	return w, nil
}

// proxies returns the proxies to all servers.
func (w *Worker) proxies() []*stacktest.Proxy {
	return slices.Concat(w.redis, w.sentinels, w.postgres, w.nats)
}

// flags returns the flags with the URLs of its servers, through the proxies.
func (w *Worker) flags() []string {
	addrs := func(proxies []*stacktest.Proxy) (addrs []string) {
		for _, p := range proxies {
			addrs = append(addrs, p.Addr())
		}
		return addrs
	}
	return []string{
		"--nats-url", natsURL(addrs(w.nats)), "--redis-url", w.servers.redisURL(addrs(w.redis), addrs(w.sentinels)),
		"--postgres-url", postgresURL(addrs(w.postgres)...),
	}
}

// run starts the worker with these arguments, and restarts it while it is wanted and ctx is not done.
func (w *Worker) run(ctx context.Context, args ...string) {
	w.mu.Lock()
	w.wanted, w.args = true, slices.Concat([]string{"run", "--http-addr", "127.0.0.1:0"}, w.flags(), args)
	w.mu.Unlock()
	go func() {
		defer close(w.ended)
		pause := 100 * time.Millisecond
		for ctx.Err() == nil {
			if !w.isWanted() {
				select {
				case <-w.changed:
				case <-ctx.Done():
				}
				continue
			}
			process, err := w.startOnce(ctx)
			if err != nil {
				// A server that it needs may be down: retry, as a process supervisor does.
				wait(ctx, pause)
				pause = min(2*pause, 2*time.Second)
				continue
			}
			pause = 100 * time.Millisecond
			select {
			case <-process.Exited():
				w.exited(process)
			case <-ctx.Done():
			}
		}
	}()
}

func (w *Worker) isWanted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wanted
}

func (w *Worker) startOnce(ctx context.Context) (*stack.Server, error) {
	w.mu.Lock()
	out, env := &started{log: w.log, ready: make(chan struct{})}, w.env
	ready := func(context.Context) error {
		select {
		case <-out.ready:
			return nil
		default:
			return errors.New("worker started not logged")
		}
	}
	program := stack.Program{Path: w.binary, Args: w.args, Env: env, Log: out, Ready: ready}
	if w.servers.clock != 0 { // the preflight check of the clocks would fail
		program.Env = append(slices.Clone(env), "HOLDFAST_PREFLIGHT=warn")
	}
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	process, err := stack.StartProgram(ctx, program)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.process, w.processEnv = process, env
	w.mu.Unlock()
	return process, nil
}

// exited records that a process has ended.
func (w *Worker) exited(process *stack.Server) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.process == process {
		w.process = nil
		w.exits++
	}
}

// running returns the process, or nil while none runs.
func (w *Worker) running() *stack.Server {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.process
}

// kill kills the process, if one runs. The worker restarts with env added to its environment.
func (w *Worker) kill(env ...string) error {
	w.mu.Lock()
	w.env = env
	w.mu.Unlock()
	if process := w.running(); process != nil {
		return process.Kill()
	}
	return nil
}

// stop stops the process with SIGTERM, if one runs, and returns an error unless it exits with 0 in
// time. The worker restarts unless it is not wanted any more.
func (w *Worker) stop() error {
	process := w.running()
	if process == nil {
		return nil
	}
	return process.Stop(stopWithin)
}

// reset resumes a paused process, and kills one that was started with more environment.
func (w *Worker) reset() error {
	w.mu.Lock()
	process, hasEnv := w.process, len(w.processEnv) > 0
	w.env = nil
	w.mu.Unlock()
	switch {
	case process == nil:
		return nil
	case hasEnv:
		return process.Kill()
	default:
		return process.Resume()
	}
}

// want sets whether the worker must run.
func (w *Worker) want(wanted bool) {
	w.mu.Lock()
	w.wanted = wanted
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// close stops the worker for good, and returns an error unless it exits with 0 in time. cancel ends
// the context of run.
func (w *Worker) close(cancel context.CancelFunc) error {
	w.want(false)
	err := w.stop()
	cancel()
	<-w.ended
	if process := w.running(); process != nil { // it started at the same time
		err = errors.Join(err, process.Kill())
	}
	return errors.Join(err, w.log.file.Close())
}

// stopWithin bounds a stop: the promised time of a worker, and a reserve for a busy machine.
const stopWithin = 30 * time.Second

// alarms returns the lines of the log that report a data race or a panic, and, unless counters were overwritten, what the worker
// has healed: it is consistent again before an audit can see it.
func (w *Worker) alarms(overwritten bool) []string {
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	if overwritten {
		return slices.Clone(w.log.alarms)
	}
	return slices.Concat(w.log.alarms, w.log.healed)
}

// TestAlarms_Healed_AreViolations lets a worker heal a difference. Nothing but its log shows that afterwards.
func TestAlarms_Healed_AreViolations(t *testing.T) {
	t.Parallel()
	file, err := os.Create(filepath.Join(t.TempDir(), "worker.log"))
	stacktest.Must(t, err)
	defer func() { _ = file.Close() }()
	w := &Worker{log: newLog(file)}
	const line = `{"level":"error","kind":"counter","found":"1","expected":"-","result":%q,"message":"data inconsistency found"}` + "\n"
	for _, result := range []audit.Result{audit.Done, audit.Gone, audit.Unsafe} { // Gone: it was one of a moment
		_, err := fmt.Fprintf(w.log, line, result)
		stacktest.Must(t, err)
	}
	if all, rest := w.alarms(false), w.alarms(true); len(all) != 1 || len(rest) != 0 {
		t.Errorf("alarms %v, and %v when counters were overwritten", all, rest)
	}
}
