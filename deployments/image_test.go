package deployments

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/stack/stacktest"
)

// TestDockerfile_Image_RunsWithoutPrivileges runs the steps of the Dockerfile that need no registry: it builds the
// programs by its RUN line, copies them into an empty, read-only root, and starts a worker there as its
// USER with its ENTRYPOINT. The worker becomes ready.
func TestDockerfile_Image_RunsWithoutPrivileges(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	if os.Getuid() != 0 {
		t.Skip("chroot and mounts need root")
	}
	file := read(t, "Dockerfile")
	for _, line := range []string{"USER 65532:65532\n", "FROM scratch\n", "ENTRYPOINT [\"worker\"]\n",
		"CMD [\"run\", \"--no-migrate\"]\n", "COPY --from=build /out/worker /out/publisher /usr/local/bin/\n"} {
		if !strings.Contains(file, "\n"+line) {
			t.Fatalf("the Dockerfile has no line %q", line)
		}
	}
	root := t.TempDir()
	if err := os.Chmod(filepath.Dir(root), 0o755); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(root, "usr", "local", "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	build := ""
	for line := range strings.Lines(file) {
		if strings.HasPrefix(line, "RUN ") && strings.Contains(line, "go build") {
			build = strings.ReplaceAll(strings.TrimPrefix(line, "RUN "), "/out/", bin+"/")
		}
	}
	command := exec.CommandContext(t.Context(), "sh", "-ec", build)
	command.Dir = ".."
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, out)
	}
	if err := syscall.Mount(root, root, "", syscall.MS_BIND, ""); err != nil {
		t.Skipf("no mounts here: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(root, syscall.MNT_DETACH) })
	if err := syscall.Mount("", root, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "written"), nil, 0o600); err == nil {
		t.Fatal("the root is writable")
	}
	startInImage(t, root)
}

// startInImage runs worker migrate and worker run in the root until the worker is ready, then stops it.
func startInImage(t *testing.T, root string) {
	t.Helper()
	s := stacktest.Shared()
	ports := stacktest.QuietPorts(t, 1)
	address, namespace := fmt.Sprint("127.0.0.1:", ports[0]), stacktest.Namespace(t)
	worker := func(ctx context.Context, args ...string) *exec.Cmd {
		c := exec.CommandContext(ctx, "/usr/local/bin/worker", args...)
		c.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532},
			Pdeathsig: syscall.SIGKILL}
		c.Dir = "/"
		c.Env = []string{"PATH=/usr/local/bin", "HOLDFAST_INSTALL=never", "HOLDFAST_HTTP_ADDR=" + address,
			"HOLDFAST_NATS_URL=" + s.NATSURL, "HOLDFAST_REDIS_URL=" + s.RedisURL, "HOLDFAST_POSTGRES_URL=" + s.PostgresURL,
			"HOLDFAST_NAMESPACE=" + namespace, "HOLDFAST_PREFLIGHT=warn"}
		return c
	}
	if out, err := worker(t.Context(), "migrate").CombinedOutput(); err != nil {
		t.Fatalf("worker migrate: %v\n%s", err, out)
	}
	run := worker(t.Context(), "run", "--no-migrate")
	output := &strings.Builder{}
	run.Stdout, run.Stderr = output, output
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- run.Wait() }()
	deadline := time.After(time.Minute)
	for {
		if response, err := http.Get("http://" + address + "/readyz"); err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				break
			}
		}
		select {
		case err := <-ended:
			t.Fatalf("the worker ended: %v\n%s", err, output)
		case <-deadline:
			t.Fatal("the worker is not ready within a minute")
		case <-time.After(50 * time.Millisecond):
		}
	}
	if out, err := worker(t.Context(), "healthcheck").CombinedOutput(); err != nil {
		t.Errorf("worker healthcheck: %v\n%s", err, out)
	}
	if err := run.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("SIGTERM: %v\n%s", err, output)
	}
}

// TestWorkerUnit_ServersAreDown_IsRestartedForEver reads the limit of starts: a worker whose servers do not answer ends
// within a second, and systemd would give up after five starts in ten seconds.
func TestWorkerUnit_ServersAreDown_IsRestartedForEver(t *testing.T) {
	t.Parallel()
	unit := read(t, "systemd/holdfast-worker.service")
	for _, line := range []string{"\nRestart=always\n", "\nStartLimitIntervalSec=0\n"} {
		if !strings.Contains(unit, line) {
			t.Errorf("the unit has no line %q", line)
		}
	}
}

// TestUnits_Verify_NoFinding checks the units as systemd reads them, with a program that exists here and the example of a file.
func TestUnits_Verify_NoFinding(t *testing.T) {
	t.Parallel()
	stacktest.NeedTool(t, "systemd-analyze")
	units, err := filepath.Glob("systemd/*.service")
	if err != nil || len(units) != 2 {
		t.Fatalf("units %v, %v", units, err)
	}
	dir := t.TempDir()
	example := regexp.MustCompile(`#   \[Service\]\n#   LoadCredential=(\S+):\S+\n#   Environment=HOLDFAST_\S+_FILE=%d/(\S+)\n`)
	found := example.FindStringSubmatch(read(t, "systemd/holdfast-worker.service"))
	if found == nil || found[1] != found[2] {
		t.Fatalf("the example of a file is %q", found)
	}
	for i, unit := range units {
		text := strings.ReplaceAll(read(t, unit), "/usr/local/bin/worker", "/bin/true") + strings.ReplaceAll(found[0], "#   ", "")
		units[i] = filepath.Join(dir, filepath.Base(unit))
		if err := os.WriteFile(units[i], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "systemd-analyze", append([]string{"verify"}, units...)...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}
