package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/events"
	"holdfast/internal/stack/endpoints"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// plainEnviron is the environment without what a shell has set for other servers, or for another output.
func plainEnviron() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "HOLDFAST_") && !strings.HasPrefix(variable, "HOLDFAST_INSTALL=")
	})
}

// TestDev_SecondInDirectory_Refused starts a second worker with servers of its own where one runs. It ends at once, names
// the address of the first, and leaves the first one's endpoints file.
func TestDev_SecondInDirectory_Refused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "endpoints.env")
	first := launch(t, false, []string{"dev", "--http-addr", "127.0.0.1:0", "--data-dir", dir})
	var found map[string]string
	stacktest.Eventually(t, "the first one's endpoints", func() (ok bool) {
		var err error
		found, err = endpoints.Read(file)
		return err == nil
	})
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"dev", "--once"}, {"run", "--embedded"}} {
		var out strings.Builder
		args := append(command, "--http-addr", "127.0.0.1:0", "--data-dir", dir)
		if code := run(t.Context(), args, streams{&out, &out}); code != exitFailed ||
			!strings.Contains(out.String(), "http://"+found["HOLDFAST_HTTP_ADDR"]) || !strings.Contains(out.String(), "--data-dir") {
			t.Errorf("a second worker %v: %d\n%s", command, code, out.String())
		}
	}
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Errorf("the first one's endpoints are now: %v\n%s", err, after)
	}
	first.end(t)
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the endpoints file after the end of its worker: %v", err)
	}
}

// TestDev_ServersGiven_UsesOwnNamespace plays the story on servers that exist already: in a namespace of its own,
// which is gone afterwards. Nothing is in namespace holdfast. A namespace that is given is used, and stays.
func TestDev_ServersGiven_UsesOwnNamespace(t *testing.T) {
	t.Parallel()
	binary, err := workerBinary()
	if err != nil {
		t.Fatal(err)
	}
	shared := stacktest.Shared()
	dev := func(more ...string) string {
		t.Helper()
		cmd := exec.Command(binary, append([]string{
			"dev", "--once", "--http-addr", "127.0.0.1:0", "--data-dir", t.TempDir(),
			"--nats-url", shared.NATSURL, "--redis-url", shared.RedisURL, "--postgres-url", shared.PostgresURL,
		}, more...)...)
		cmd.Env = append(plainEnviron(), "HOLDFAST_PREFLIGHT=warn")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	reported := dev()
	own := regexp.MustCompile(`namespace of its own, (holdfast_dev_[0-9a-f]{8}), which is removed`).FindStringSubmatch(reported)
	if own == nil || !strings.Contains(reported, "The namespace "+own[1]+" is removed from your servers.") {
		t.Fatalf("it does not say which namespace it uses and removes:\n%s", reported)
	}
	given := stacktest.Namespace(t)
	if reported := dev("--namespace", given); strings.Contains(reported, "removed") {
		t.Errorf("with --namespace it says:\n%s", reported)
	}
	for namespace, want := range map[string]bool{own[1]: false, "holdfast": false, given: true} {
		streams, keys, tables := contents(t, namespace)
		if want != (streams > 0) || want != (keys > 0) || want != tables {
			t.Errorf("namespace %s: %d streams, %d keys, a schema %v; want any: %v", namespace, streams, keys, tables, want)
		}
	}
}

// contents is what a namespace has on the shared servers.
func contents(t *testing.T, namespace string) (streams, keys int, schema bool) {
	t.Helper()
	shared := stacktest.Shared()
	nc, err := nats.Connect(shared.NATSURL)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, config := range events.Namespace(namespace).Streams(events.Retention{}) {
		if _, err := js.Stream(t.Context(), config.Name); err == nil {
			streams++
		}
	}
	client := redis.NewClient(stacktest.RedisOptions(shared.RedisURL))
	defer func() { _ = client.Close() }()
	found := client.Scan(t.Context(), 0, namespace+":*", 1000).Iterator()
	for found.Next(t.Context()) {
		keys++
	}
	db, err := store.Open(t.Context(), shared.PostgresURL, namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	_, err = db.Epoch(t.Context())
	return streams, keys, err == nil
}
