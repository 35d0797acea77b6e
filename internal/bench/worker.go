package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"holdfast/internal/stack"
)

const (
	startWithin = 30 * time.Second // until a worker is ready
	stopWithin  = 15 * time.Second
)

// worker is a process of the worker program.
type worker struct {
	*stack.Server
	addr     chan string // receives the address of its HTTP server once
	httpAddr string      // that address, set by ready
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
			return fmt.Errorf("start worker: %w; %s", err, w.Log())
		}
	}
	return nil
}

// startWorker starts the worker program. It does not wait until the worker is ready.
func startWorker(program string, environ []string, args ...string) (w *worker, err error) {
	w = &worker{addr: make(chan string, 1)}
	w.Server, err = stack.StartProgram(context.Background(), stack.Program{
		Path: program, Args: args, Env: environ, Log: &stack.LineWriter{Each: w.readLine},
		Ready: func(context.Context) error { return nil },
	})
	return w, err
}

// readLine sends the address in the line "worker started" of the log to addr.
func (w *worker) readLine(text string) {
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

// ready waits until the worker is ready, but for a pause of its consumers: some parts start workers before they let
// events through.
func (w *worker) ready(ctx context.Context) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: startWithin}
	select {
	case w.httpAddr = <-w.addr:
	case <-w.Exited():
		return w.ExitError()
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

// alive returns an error when a worker has ended.
func (s *cluster) alive() error {
	for _, w := range s.workers {
		select {
		case <-w.Exited():
			return w.ExitError()
		default:
		}
	}
	return nil
}

// stopAll stops the workers. It is no error if a worker had ended before.
func (s *cluster) stopAll() error {
	errs := make([]error, len(s.workers))
	var stopping sync.WaitGroup
	for i, w := range s.workers {
		select {
		case <-w.Exited():
		default:
			stopping.Go(func() { errs[i] = w.Stop(stopWithin) })
		}
	}
	stopping.Wait()
	s.workers = nil
	return errors.Join(errs...)
}
