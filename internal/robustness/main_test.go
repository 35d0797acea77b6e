package robustness

import (
	"fmt"
	"os"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// TestMain runs the tests, or is a node of NATS in a process of its own.
func TestMain(m *testing.M) {
	if IsNode() {
		if err := RunNode(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	stacktest.MainAlone(func() (int, error) { return m.Run(), nil })
}
