package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/events"
	"holdfast/internal/stack/endpoints"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// plainEnviron returns the environment without the variables of other servers or of another output
// format.
func plainEnviron() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "HOLDFAST_") && !strings.HasPrefix(variable, "HOLDFAST_INSTALL=")
	})
}

// TestDev_SecondInDirectory_Refused starts a second worker with its own servers in a directory that
// a worker uses. The second one exits at once, names the address of the first, and leaves the
// endpoints file unchanged.
func TestDev_SecondInDirectory_Refused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "endpoints.env")
	first := launch(t, false, []string{"dev", "--http-addr", "127.0.0.1:0", "--data-dir", dir})
	var found map[string]string
	first.eventually(t, "the endpoints of the first worker", func() (ok bool) {
		var err error
		found, err = endpoints.Read(file)
		return err == nil
	})
	before, err := os.ReadFile(file)
	stacktest.Must(t, err)
	for _, command := range [][]string{{"dev", "--once"}, {"run", "--embedded"}} {
		args := append(command, "--http-addr", "127.0.0.1:0", "--data-dir", dir)
		if code, out := execute(t.Context(), args...); code != exitFailed ||
			!strings.Contains(out, "http://"+found["HOLDFAST_HTTP_ADDR"]) ||
			!strings.Contains(out, "--data-dir") {
			t.Errorf("a second worker %v: %d\n%s", command, code, out)
		}
	}
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Errorf("the endpoints of the first worker are now: %v\n%s", err, after)
	}
	first.stop(t)
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the endpoints file after its worker has stopped: %v", err)
	}
}

// TestDev_ServersGiven_UsesOwnNamespace runs the demo on given servers. Without --namespace it uses
// a new namespace, removes it afterwards and leaves namespace holdfast empty. With --namespace it
// uses that one and keeps it.
func TestDev_ServersGiven_UsesOwnNamespace(t *testing.T) {
	t.Parallel()
	binary, err := workerBinary()
	stacktest.Must(t, err)
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
	own := regexp.MustCompile(`into the new namespace (holdfast_dev_[0-9a-f]{8}), which is removed`).FindStringSubmatch(reported)
	if own == nil || !strings.Contains(reported, "Namespace "+own[1]+" was removed from your servers.") {
		t.Fatalf("the output does not name the namespace that is used and removed:\n%s", reported)
	}
	given := stacktest.Namespace(t)
	if reported := dev("--namespace", given); strings.Contains(reported, "removed") {
		t.Errorf("with --namespace it prints:\n%s", reported)
	}
	for namespace, want := range map[string]bool{own[1]: false, "holdfast": false, given: true} {
		streams, keys, tables := contents(t, namespace)
		if want != (streams > 0) || want != (keys > 0) || want != tables {
			t.Errorf("namespace %s: %d streams, %d keys, schema exists: %v; want any: %v", namespace, streams, keys, tables,
				want)
		}
	}
}

// contents returns how many streams and keys a namespace has on the shared servers, and whether it
// has a schema.
func contents(t *testing.T, namespace string) (streams, keys int, schema bool) {
	t.Helper()
	shared := stacktest.Shared()
	js := stacktest.ConnectNATS(t, shared.NATSURL)
	for _, config := range events.Namespace(namespace).Streams(events.Retention{}) {
		if _, err := js.Stream(t.Context(), config.Name); err == nil {
			streams++
		}
	}
	found := stacktest.ConnectRedis(t, shared.RedisURL).Scan(t.Context(), 0, namespace+":*", 1000).Iterator()
	for found.Next(t.Context()) {
		keys++
	}
	db, err := store.Open(t.Context(), shared.PostgresURL, namespace)
	stacktest.Must(t, err)
	defer db.Close()
	_, err = db.Epochs(t.Context())
	return streams, keys, err == nil
}

// TestDev_Once_PlaysStoryAndEnds runs `worker dev --once` as a process: with the defaults, with lock servers, and
// with policies under which the story cannot have its usual nights and deadlines.
func TestDev_Once_PlaysStoryAndEnds(t *testing.T) {
	t.Parallel()
	binary, err := workerBinary()
	stacktest.Must(t, err)
	for name, more := range map[string][]string{
		"plain":   nil,
		"redlock": {"--lock-strategy", "redlock"},
		"policies": {"--late-payment", "accept_if_free", "--hold-ttl", "20s", "--hold-ttl-max", "30s", "--nights-max", "2",
			"--horizon", "5", "--holds-per-user", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(binary,
				append([]string{"dev", "--once", "--http-addr", "127.0.0.1:0", "--data-dir", t.TempDir()}, more...)...)
			out, err := cmd.CombinedOutput()
			for _, want := range []string{"Do not use this setup in production", "Ana pays", "his room is free again",
				"One of them holds it, 199", "dead letter", "malformed"} {
				if !strings.Contains(string(out), want) {
					t.Errorf("the output lacks %q", want)
				}
			}
			if n := strings.Count(string(out), "locks     redis://"); name == "redlock" && n != lockServersMin {
				t.Errorf("the output lists %d lock servers", n)
			}
			if err != nil || t.Failed() {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestDev_OtherPlaces_NextCommandsNameThem starts worker dev as from the archive of a release, with another data
// directory, and with /v1 on an address of its own behind a token. The commands that it prints work.
func TestDev_OtherPlaces_NextCommandsNameThem(t *testing.T) {
	t.Parallel()
	binary, err := workerBinary()
	stacktest.Must(t, err)
	archive, dir, token := t.TempDir(), t.TempDir(), fileOf(t, "api-token", "a token for this test")
	publisher := filepath.Join(archive, "publisher")
	err = errors.Join(os.Link(binary, filepath.Join(archive, "worker")), os.WriteFile(publisher, nil, 0o600))
	stacktest.Must(t, err)
	worker := exec.Command(filepath.Join(archive, "worker"), "dev", "--http-addr", "127.0.0.1:0",
		"--api-addr", "127.0.0.1:0", "--api-token-file", token, "--data-dir", dir)
	worker.Env = append(plainEnviron(), "PATH=/usr/bin:/bin") // without a publisher
	running, err := stacktest.StartProgram(worker)
	stacktest.Must(t, err)
	t.Cleanup(running.Kill)
	if _, err := running.AwaitLine("Ctrl-C stops"); err != nil {
		t.Fatal(err)
	}
	_, next, _ := strings.Cut(running.Output(), "Try next")
	for _, want := range []string{"  export HOLDFAST_DATA_DIR=" + dir + "\n", "  " + publisher + " watch\n"} {
		if !strings.Contains(next, want) {
			t.Errorf("no %q in:\n%s", want, next)
		}
	}
	query := `curl -H "Authorization: Bearer \$\(cat ` + token + `\)" '(http://[^']+)'`
	curl := regexp.MustCompile(query).FindStringSubmatch(next)
	if curl == nil {
		t.Fatalf("no query with the token:\n%s", next)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, curl[1], nil)
	stacktest.Must(t, err)
	request.Header.Set("Authorization", "Bearer a token for this test")
	response, err := http.DefaultClient.Do(request)
	stacktest.Must(t, err)
	_ = response.Body.Close() // only the status matters
	http.DefaultClient.CloseIdleConnections()
	if response.StatusCode != http.StatusOK {
		t.Errorf("%s: %s", curl[1], response.Status)
	}
	checkState(t, dir, token)
	stacktest.Must(t, running.Stop())
}

// checkState reads the state of a worker with its own endpoints file, with that of no worker, and with its operations
// address alone, which does not serve /v1.
func checkState(t *testing.T, dir, token string) {
	t.Helper()
	found, err := endpoints.Read(filepath.Join(dir, "endpoints.env"))
	stacktest.Must(t, err)
	with, alone := []string{"--data-dir", dir}, []string{"--data-dir", t.TempDir(), "--http-addr", found["HOLDFAST_HTTP_ADDR"]}
	for want, where := range map[string][]string{
		"1 dead letter": with, "dead letter": append(alone, "--api-addr", found["HOLDFAST_API_ADDR"]), "Give its --api-addr": alone,
	} {
		_, out := execute(t.Context(), append([]string{"nagios", "--api-token-file", token}, where...)...)
		if !strings.Contains(out, want) {
			t.Errorf("worker nagios %v prints no %q: %s", where, want, out)
		}
	}
}

// TestDev_SettingRefused_RemovesNothing gives a URL that cannot be used. Nothing was created, so nothing is to be removed.
func TestDev_SettingRefused_RemovesNothing(t *testing.T) {
	t.Parallel()
	shared := stacktest.Shared()
	code, out := execute(t.Context(), "dev", "--once", "--data-dir", t.TempDir(), "--http-addr", "127.0.0.1:0",
		"--nats-url", shared.NATSURL, "--redis-url", "bogus://x", "--postgres-url", shared.PostgresURL)
	if code == exitOK || !strings.Contains(out, "--redis-url") || strings.Contains(out, "remove namespace") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// TestDev_StoppedDuringStart_ExitsWithZero sends SIGTERM to worker dev while it starts its servers, and while it waits
// for a server that it was given.
func TestDev_StoppedDuringStart_ExitsWithZero(t *testing.T) {
	t.Parallel()
	silent, connected := silentServers(t, 1)
	shared := stacktest.Shared()
	for name, given := range map[string][]string{
		"starting": {"--nats-url", shared.NATSURL, "--redis-url", shared.RedisURL},
		"waiting":  {"--nats-url", silent, "--redis-url", shared.RedisURL, "--postgres-url", shared.PostgresURL},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			worker := launch(t, false, append([]string{"dev", "--http-addr", "127.0.0.1:0", "--data-dir", dir}, given...))
			if name == "waiting" {
				<-connected
			} else {
				stacktest.Eventually(t, "the lock of the directory", func() bool {
					_, err := os.Stat(filepath.Join(dir, "lock"))
					return err == nil
				})
			}
			worker.stop(t)
		})
	}
}

// cancelling is a writer that cancels a context when a text is written.
type cancelling struct {
	lockedBuffer
	wanted string
	cancel context.CancelFunc
}

func (c *cancelling) Write(part []byte) (int, error) {
	if strings.Contains(string(part), c.wanted) {
		c.cancel()
	}
	return c.lockedBuffer.Write(part)
}

// TestDev_OnceInterrupted_Fails stops worker dev --once before its demo, and during it.
func TestDev_OnceInterrupted_Fails(t *testing.T) {
	t.Parallel()
	shared := stacktest.Shared()
	for _, text := range []string{"On your servers all data", "Ana"} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := &cancelling{wanted: text, cancel: cancel}
			code := run(ctx, []string{
				"dev", "--once", "--http-addr", "127.0.0.1:0", "--data-dir", t.TempDir(), "--preflight", "warn",
				"--nats-url", shared.NATSURL, "--redis-url", shared.RedisURL, "--postgres-url", shared.PostgresURL,
			}, streams{out, out})
			if code != exitFailed || !strings.Contains(out.String(), "interrupted before the end of the demo") {
				t.Errorf("exit code %d: %s", code, out)
			}
		})
	}
}
