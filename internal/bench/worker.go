package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"holdfast/internal/stack"
)

const (
	startWithin = 30 * time.Second // until a worker is ready
	stopWithin  = 15 * time.Second
	logLinesMax = 20 // lines of a worker's log in memory
)

// worker is a process of the worker program.
type worker struct {
	cmd      *exec.Cmd
	addr     chan string // receives the address of its HTTP server once
	httpAddr string      // that address, set by ready
	log      lastLines
	exited   chan struct{}
	err      error // of the wait for the process; read it only after exited is closed
}

// lastLines keeps the last lines of a log.
type lastLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *lastLines) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines[max(0, len(l.lines)-logLinesMax+1):], line)
}

func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(strings.Join(l.lines, ""))
}

// start starts more workers, with more environment, and waits until they are ready.
func (s *cluster) start(ctx context.Context, number int, more ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startWithin, fmt.Errorf("not ready within %s", startWithin))
	defer cancel()
	first := len(s.workers)
	for range number {
		w, err := startWorker(s.Worker, s.environ(more...), "run", "--no-migrate")
		if err != nil {
			return err
		}
		s.workers = append(s.workers, w)
	}
	for _, w := range s.workers[first:] {
		if err := w.ready(ctx); err != nil {
			return fmt.Errorf("start worker: %w\n%s", err, &w.log)
		}
	}
	return nil
}

func startWorker(program string, environ []string, args ...string) (*worker, error) {
	w := &worker{
		cmd:  exec.Command(program, args...), //nolint:gosec // the user chooses the program
		addr: make(chan string, 1), exited: make(chan struct{}),
	}
	w.cmd.Env = environ
	out, in := io.Pipe()
	w.cmd.Stdout, w.cmd.Stderr = in, in
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start worker: %w", err)
	}
	var reading sync.WaitGroup
	reading.Go(func() { w.readLog(bufio.NewReader(out)) })
	go func() {
		w.err = w.cmd.Wait()
		_ = in.Close() // never fails
		reading.Wait()
		close(w.exited)
	}()
	return w, nil
}

// readLog reads the log, and sends the address from the line "worker started" to addr.
func (w *worker) readLog(log *bufio.Reader) {
	for {
		text, err := log.ReadString('\n')
		if err != nil {
			return
		}
		w.log.add(text)
		var line struct {
			Message  string `json:"message"`
			HTTPAddr string `json:"http_addr"`
		}
		if json.Unmarshal([]byte(text), &line) == nil && line.Message == "worker started" {
			select {
			case w.addr <- line.HTTPAddr:
			default:
			}
		}
	}
}

// ready waits until the worker is ready, but for a pause of its consumers: some parts start workers before they let
// events through.
func (w *worker) ready(ctx context.Context) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: startWithin}
	select {
	case w.httpAddr = <-w.addr:
	case <-w.exited:
		return w.ended()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return stack.Poll(ctx, 10*time.Millisecond, func() (bool, error) {
		answer, err := client.Get("http://" + w.httpAddr + "/readyz")
		if err != nil {
			return false, err
		}
		var ready struct {
			Reasons []string `json:"reasons"`
		}
		err = errors.Join(json.UnmarshalRead(answer.Body, &ready), answer.Body.Close())
		for _, reason := range ready.Reasons {
			if reason != "paused" {
				return false, err
			}
		}
		return err == nil, err
	})
}

// ended returns an error with the exit status of the worker and the end of its log. Call it only after
// exited is closed.
func (w *worker) ended() error {
	how := "exit status 0"
	if w.err != nil {
		how = w.err.Error()
	}
	return fmt.Errorf("worker exited: %s: %s", how, &w.log)
}

// alive returns an error when a worker has ended.
func (s *cluster) alive() error {
	for _, w := range s.workers {
		select {
		case <-w.exited:
			return w.ended()
		default:
		}
	}
	return nil
}

// stopAll stops the workers. It is no error if a worker had ended before.
func (s *cluster) stopAll() error {
	var errs []error
	for _, w := range s.workers {
		_ = w.cmd.Process.Signal(syscall.SIGTERM) // fails if the worker has ended
	}
	for _, w := range s.workers {
		select {
		case <-w.exited:
		case <-time.After(stopWithin):
			_ = w.cmd.Process.Kill() // likewise
			<-w.exited
			errs = append(errs, fmt.Errorf("worker did not stop within %s: %s", stopWithin, &w.log))
		}
	}
	s.workers = nil
	return errors.Join(errs...)
}
