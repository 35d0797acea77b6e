package main

import (
	"os"
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
