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
	"time"

	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// Worker is one worker process, started again whenever it has ended, with proxies of its own
// between it and each server.
type Worker struct {
	name            string
	binary          string
	servers         *Servers
	log             *log
	redis, postgres *stacktest.Proxy
	nats            []*stacktest.Proxy

	mu      sync.Mutex
	args    []string
	env     []string // of the next start
	process *stack.Server
	its     []string // environment of solo
	wanted  bool     // it is to run
	exits   int      // times that it has ended by itself
	changed chan struct{}
	ended   chan struct{} // closed when nobody keeps it any more
}

// log is what a worker says, in a file, and how much of it tells of a data race or a panic.
type log struct {
	mu     sync.Mutex
	file   *os.File
	alarms []string
	rest   []byte
}

var alarming = []string{"DATA RACE", "panicked", "panic:", "fatal error:"}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		i := bytes.IndexByte(l.rest, '\n')
		if i < 0 {
			break
		}
		line := string(l.rest[:i])
		l.rest = l.rest[i+1:]
		if slices.ContainsFunc(alarming, func(word string) bool { return strings.Contains(line, word) }) {
			l.alarms = append(l.alarms, line)
		}
	}
	return l.file.Write(p)
}

// started reports whether a worker has said so since it was started.
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

// BuildWorker builds the worker program, with its failpoints, into dir, with the race detector if
// that is wanted.
func BuildWorker(ctx context.Context, dir string, race bool) (binary string, err error) {
	binary = filepath.Join(dir, "worker")
	args := []string{"build", "-tags", "failpoint", "-o", binary}
	if race {
		args = append(args, "-race")
	}
	build := exec.CommandContext(ctx, "go", append(args, "holdfast/cmd/worker")...) //nolint:gosec // our own program
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return binary, nil
}

// newWorker returns a worker that does not run yet. It says what it says to a file in dir.
func newWorker(s *Servers, binary, name, dir string) (w *Worker, err error) {
	file, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, err
	}
	w = &Worker{name: name, binary: binary, servers: s, log: &log{file: file}, changed: make(chan struct{}, 1), ended: make(chan struct{})}
	var errs []error
	add := func(k *serverProcess) *stacktest.Proxy {
		p, err := k.proxy()
		errs = append(errs, err)
		return p
	}
	w.redis, w.postgres = add(s.redis), add(s.postgres)
	for _, node := range s.nats {
		w.nats = append(w.nats, add(node))
	}
	return w, errors.Join(errs...)
}

// proxies are all that the worker talks through.
func (w *Worker) proxies() []*stacktest.Proxy {
	return append([]*stacktest.Proxy{w.redis, w.postgres}, w.nats...)
}

// flags are where its servers are.
func (w *Worker) flags() []string {
	var nodes []string
	for _, p := range w.nats {
		nodes = append(nodes, p.Addr())
	}
	return []string{"--nats-url", natsURL(nodes), "--redis-url", "redis://" + w.redis.Addr() + "/0", "--postgres-url", postgresURL(w.postgres.Addr())}
}

// run keeps the worker running with these arguments until ctx is over.
func (w *Worker) run(ctx context.Context, args ...string) {
	w.mu.Lock()
	w.wanted, w.args = true, append(append([]string{"run", "--http-addr", "127.0.0.1:0"}, w.flags()...), args...)
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
				// A server that it needs is away: as whoever supervises it does, it is tried again.
				select {
				case <-time.After(pause):
				case <-ctx.Done():
				}
				pause = min(2*pause, 2*time.Second)
				continue
			}
			pause = 100 * time.Millisecond
			select {
			case <-process.Exited():
				w.gone(process)
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
	its := env
	if w.servers.clock != 0 { // which the preflight refuses
		its = append(slices.Clone(env), "HOLDFAST_PREFLIGHT=warn")
	}
	program := stack.Program{Path: w.binary, Args: w.args, Env: its, Log: out, Ready: func(ctx context.Context) error {
		select {
		case <-out.ready:
			return nil
		default:
			return errors.New("it has not said that it has started")
		}
	}}
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	process, err := stack.StartProgram(ctx, program)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.process, w.its = process, env
	w.mu.Unlock()
	return process, nil
}

func (w *Worker) gone(process *stack.Server) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.process == process {
		w.process = nil
		w.exits++
	}
}

// running returns the process, nil while there is none.
func (w *Worker) running() *stack.Server {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.process
}

// kill kills the process if there is one. It is started again, with env in its environment.
func (w *Worker) kill(env ...string) error {
	w.mu.Lock()
	w.env = env
	w.mu.Unlock()
	if process := w.running(); process != nil {
		return process.Kill()
	}
	return nil
}

// restart ends the process as an operator does. It is started again.
func (w *Worker) restart() error {
	process := w.running()
	if process == nil {
		return nil
	}
	return process.Stop(stopWithin)
}

// reset lets a paused process go on, and ends one that has a failpoint.
func (w *Worker) reset() error {
	w.mu.Lock()
	process, marked := w.process, len(w.its) > 0
	w.env = nil
	w.mu.Unlock()
	switch {
	case process == nil:
		return nil
	case marked:
		return process.Kill()
	default:
		return process.Resume()
	}
}

// want says whether the worker is to run.
func (w *Worker) want(wanted bool) {
	w.mu.Lock()
	w.wanted = wanted
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// close ends the worker as an operator does, for good, and returns an error unless it ended with 0
// in time.
func (w *Worker) close(cancel context.CancelFunc) error {
	w.want(false)
	err := w.restart()
	cancel()
	<-w.ended
	if process := w.running(); process != nil { // it was just being started
		err = errors.Join(err, process.Kill())
	}
	return errors.Join(err, w.log.file.Close())
}

// stopWithin is what is promised of a worker, with something for a busy machine.
const stopWithin = 30 * time.Second

// alarms are the lines of the log that no fault excuses.
func (w *Worker) alarms() []string {
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	return slices.Clone(w.log.alarms)
}
