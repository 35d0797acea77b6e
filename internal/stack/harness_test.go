package stack_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// partVariable is the environment variable with the role of a process that a test has started.
const partVariable = "HOLDFAST_STACK_TEST_PART"

// TestMain runs the tests or, in a process that a test has started, its role.
func TestMain(m *testing.M) {
	switch part := os.Getenv(partVariable); part {
	case "":
		stacktest.MainAlone(func() (int, error) {
			stack.InitdbBy = "" // these tests are of initdb itself too
			return m.Run(), nil
		})
	case "parent":
		if err := parent(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, "unknown role:", part)
		os.Exit(2)
	}
}

// parentStack describes the stack of a parent.
type parentStack struct {
	RedisPID, PostgresPID int
	RedisURL, PostgresURL string
	NATSURL               string
}

// parent starts a stack in the directory of HOLDFAST_STACK_TEST_DIR, writes its parentStack to standard
// output, and runs until it is killed or its standard input ends.
func parent() error {
	o := all
	o.Dir = os.Getenv("HOLDFAST_STACK_TEST_DIR")
	s, err := stack.Start(context.Background(), o)
	if err != nil {
		return err
	}
	started := parentStack{s.RedisPID(), s.PostgresPID(), s.RedisURL, s.PostgresURL, s.NATSURL}
	if err := json.NewEncoder(os.Stdout).Encode(started); err != nil {
		return errors.Join(err, s.Close())
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, s.Close())
}

// startParent starts this test binary as a parent and returns it with its stack. A cleanup stops it.
func startParent(t *testing.T, env ...string) (*exec.Cmd, parentStack) {
	t.Helper()
	exe, err := os.Executable()
	stacktest.Must(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(append(os.Environ(), partVariable+"=parent"), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	stacktest.Must(t, err)
	stdout, err := cmd.StdoutPipe()
	stacktest.Must(t, err)
	stacktest.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close() // already closed if the test has killed the parent
		_ = cmd.Wait()    // fails if the test has killed the parent
	})
	var started parentStack
	if err := json.NewDecoder(stdout).Decode(&started); err != nil {
		_ = cmd.Process.Kill() // the test fails anyway
		_ = cmd.Wait()
		t.Fatalf("parent: %v\n%s", err, &stderr)
	}
	return cmd, started
}
