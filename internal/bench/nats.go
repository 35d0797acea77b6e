package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"holdfast/internal/stack"
)

// ServeNATS runs a temporary NATS server and writes its URL as a line to out. It stops the server when
// in ends, for example because the process that writes to it has died.
func ServeNATS(in io.Reader, out io.Writer) error {
	s, err := stack.Start(context.Background(), stack.Options{NATS: true})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, s.NATSURL); err != nil {
		return errors.Join(err, s.Close())
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, in) // an error ends it as well
		close(ended)
	}()
	select {
	case err = <-s.Failed():
	case <-ended:
	}
	return errors.Join(err, s.Close())
}

// natsServer is a process that runs ServeNATS.
type natsServer struct {
	cmd *exec.Cmd
	in  io.Closer
	log bytes.Buffer
	url string
}

// startNATS starts a NATS server in its own process.
func startNATS(ctx context.Context, command []string) (*natsServer, error) {
	n := &natsServer{cmd: exec.Command(command[0], command[1:]...)} //nolint:gosec // this program itself
	n.cmd.Stderr = &n.log
	in, err := n.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := n.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	n.in = in
	stop := context.AfterFunc(ctx, func() { _ = in.Close() }) // the process exits, and ReadString returns
	defer stop()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", errors.Join(err, n.stop()))
	}
	n.url = strings.TrimSpace(line)
	return n, nil
}

func (n *natsServer) stop() error {
	_ = n.in.Close() // fails if the process has ended
	killing := time.AfterFunc(stopWithin, func() { _ = n.cmd.Process.Kill() })
	defer killing.Stop()
	if err := n.cmd.Wait(); err != nil {
		return fmt.Errorf("NATS: %w: %s", err, n.log.String())
	}
	return nil
}
