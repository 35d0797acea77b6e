package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"

	"holdfast/internal/stack"
)

// ServeNATS runs a temporary NATS server and writes its URL as a line to out. It stops the server at SIGTERM.
func ServeNATS(out io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	s, err := stack.Start(ctx, stack.Options{NATS: true})
	if err != nil {
		return err
	}
	if _, err = fmt.Fprintln(out, s.NATSURL); err == nil {
		select {
		case err = <-s.Failed():
		case <-ctx.Done():
		}
	}
	return errors.Join(err, s.Close())
}

// startNATS starts a NATS server in its own process by a command that calls ServeNATS, and returns its URL.
func startNATS(ctx context.Context, command []string) (n *stack.Server, url string, err error) {
	lines := make(chan string, 1)
	n, err = stack.StartProgram(ctx, stack.Program{
		Path: command[0], Args: command[1:], Log: &stack.LineWriter{Each: func(line string) {
			select {
			case lines <- line:
			default: // only the first is the URL
			}
		}},
		Ready: func(context.Context) error {
			select {
			case url = <-lines:
				return nil
			default:
				return errors.New("it has not written its URL")
			}
		},
	})
	if err != nil {
		return nil, "", fmt.Errorf("start NATS: %w", err)
	}
	return n, url, nil
}
