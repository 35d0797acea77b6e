package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// TestTop_DumbTerminal_PrintsOnePicture runs on a terminal that knows no escape sequences.
func TestTop_DumbTerminal_PrintsOnePicture(t *testing.T) {
	t.Parallel()
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/stats" {
			(&server{}).answer(w, http.StatusOK, workerStats{Namespace: "quay"})
		}
	}))
	defer worker.Close()
	binary, err := workerBinary()
	stacktest.Must(t, err)
	near, far := stacktest.Terminal(t)
	defer func() { _ = near.Close() }()
	c := exec.Command(binary, "top", "--http-addr", worker.Listener.Addr().String())
	c.Env = append(os.Environ(), "TERM=dumb")
	c.Stdin, c.Stdout, c.Stderr = far, far, far
	stacktest.Must(t, c.Start())
	_ = far.Close() // the program has it: reading ends with it
	var screen bytes.Buffer
	for part := make([]byte, 4096); !strings.Contains(screen.String(), "\x1b"); {
		n, err := near.Read(part)
		screen.Write(part[:n])
		if err != nil {
			break
		}
	}
	if strings.Contains(screen.String(), "\x1b") {
		_ = c.Process.Kill() // else it goes on until a key is pressed
	}
	err = c.Wait()
	if err != nil || !strings.Contains(screen.String(), "namespace quay") || strings.Contains(screen.String(), "\x1b") {
		t.Errorf("%v, screen %q", err, &screen)
	}
}
