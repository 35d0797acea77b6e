package robustness

import (
	"fmt"
	"os"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// TestMain runs the tests or, in a child process, a node of NATS.
func TestMain(m *testing.M) {
	if isNode() {
		if err := runNode(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	stacktest.MainOnDisk(func() (int, error) { return m.Run(), nil })
}
