package main

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/stack/endpoints"
	"holdfast/internal/stack/stacktest"
)

// asPublisher is the environment variable with which the binary of these tests is the program.
const asPublisher = "HOLDFAST_TEST_AS_PUBLISHER"

func init() {
	if os.Getenv(asPublisher) != "" {
		main()
	}
}

// serverFlags are the flags that name the servers of the worker beside which the tests run.
func serverFlags(t *testing.T) []string {
	t.Helper()
	found, err := endpoints.Read(endpointsPath)
	if err != nil {
		t.Fatal(err)
	}
	return []string{
		"--nats-url", found["HOLDFAST_NATS_URL"], "--redis-url", found["HOLDFAST_REDIS_URL"], "--postgres-url", found["HOLDFAST_POSTGRES_URL"],
	}
}

// migrated creates the streams of a namespace that has no worker.
func migrated(t *testing.T, namespace string) jetstream.JetStream {
	t.Helper()
	flags := serverFlags(t)
	if out, err := exec.Command(workerBinary, append([]string{"migrate", "--namespace", namespace}, flags...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	nc, err := nats.Connect(flags[1])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// runWorker runs another worker until the test is over. Flags that come later win.
func runWorker(t *testing.T, namespace string, flags ...string) {
	t.Helper()
	worker := exec.Command(workerBinary, append([]string{"run", "--http-addr", "127.0.0.1:0", "--log-level", "error", "--namespace", namespace}, flags...)...)
	var log bytes.Buffer
	worker.Stderr = &log
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := worker.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := worker.Wait(); err != nil {
			t.Errorf("worker run: %v", err)
		}
		if t.Failed() {
			t.Logf("the worker has logged:\n%s", log.String())
		}
	})
	stacktest.Eventually(t, "the worker to answer", func() bool {
		return publisher(t, append(words("cancel --resource-id any --request-key any --wait --timeout 1s --namespace "+namespace), "--nats-url", flags[1])...).code == exitOK
	})
}
