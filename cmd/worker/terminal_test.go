package main

import (
	"os"
	"testing"
)

// TestPrintJSON_OutputFails_IsError prints to a file that is closed.
func TestPrintJSON_OutputFails_IsError(t *testing.T) {
	t.Parallel()
	_, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	if err := printJSON(to, 1); err == nil {
		t.Error("a value that was not written is no error")
	}
}
