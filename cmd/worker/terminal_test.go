package main

import (
	"os"
	"strings"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// TestPrintJSON_OutputFails_IsError prints to a file that is closed.
func TestPrintJSON_OutputFails_IsError(t *testing.T) {
	t.Parallel()
	_, to, err := os.Pipe()
	stacktest.Must(t, err)
	stacktest.Must(t, to.Close())
	if err := printJSON(to, 1); err == nil {
		t.Error("a value that was not written is no error")
	}
}

// TestRun_OutputFails_ExitsWithError runs commands whose standard output is closed.
func TestRun_OutputFails_ExitsWithError(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	for _, args := range [][]string{
		s.auditFlags(), s.auditFlags("-o", "json"), append([]string{"preflight"}, s.serversAs("worker")...),
		append([]string{"migrate"}, s.serversAs("migrator")...),
		{"top", "--once", "--http-addr", worker.http}, {"locks", "--http-addr", worker.http},
		{"healthcheck", "--http-addr", worker.http}, // its result is the exit code
	} {
		_, to, err := os.Pipe()
		stacktest.Must(t, err)
		stacktest.Must(t, to.Close())
		var messages strings.Builder
		wantCode, wantMessages := exitFailed, 1
		if args[0] == "healthcheck" {
			wantCode, wantMessages = exitOK, 0
		}
		code := run(t.Context(), args, streams{to, &messages})
		if code != wantCode || strings.Count(messages.String(), "file already closed") != wantMessages {
			t.Errorf("worker %s: exit code %d, %s", args[0], code, &messages)
		}
	}
}
