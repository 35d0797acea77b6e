package docs_test

import (
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/go-json-experiment/json"

	"holdfast/internal/stack/stacktest"
)

// TestSamples_OnServersWithUsers_RunAsTheTeams tries everything on docs/upstream.md where NATS has the users of
// deployments/nats/accounts.conf, beside a worker that is one of them. The operator has created the durable
// consumers of the teams with consumers.sh, and nothing else.
func TestSamples_OnServersWithUsers_RunAsTheTeams(t *testing.T) {
	t.Parallel()
	stacktest.NeedTool(t, "nats")
	s := guardedSite(t, serversWithUsers(t))
	admin := s.command(t, s.dir, "sh", stacktest.Deployment("nats", "consumers.sh"))
	address, err := url.Parse(s.admin)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := address.User.Password()
	admin.Env = append(admin.Env, "HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir(), "NATS_TIMEOUT="+commandLimit.String(),
		"NATS_URL="+s.natsURL, "NATS_USER="+address.User.Username(), "NATS_PASSWORD="+password)
	if out, err := admin.CombinedOutput(); err != nil {
		t.Fatalf("consumers.sh: %v\n%s", err, out)
	}
	// One after the other: they read the same consumers.
	t.Run("nats", func(t *testing.T) { checkNATSCommand(t, s) })
	t.Run("go", func(t *testing.T) { checkGo(t, s) })
	t.Run("node", func(t *testing.T) { checkNode(t, s) })
}

// serversWithUsers starts servers with the users of deployments, in the long form as many as compose.yaml.
func serversWithUsers(t *testing.T) *stacktest.RestrictedServers {
	t.Helper()
	if stacktest.Long(t.Name()) {
		return stacktest.NewComposeServers(t)
	}
	return stacktest.NewRestrictedServers(t)
}

// guardedSite migrates servers with users, and runs a worker as holdfast_worker.
func guardedSite(t *testing.T, g *stacktest.RestrictedServers) site {
	t.Helper()
	flags := func(user string) []string {
		nats, redis, postgres := g.URLs(user)
		return []string{"--namespace", stacktest.RestrictedNamespace, "--nats-url", nats, "--redis-url", redis, "--postgres-url", postgres}
	}
	environment := append(os.Environ(), "HOLDFAST_PREFLIGHT=warn") // its Postgres does not sync
	migrate := exec.CommandContext(t.Context(), binary, append([]string{"migrate"}, flags("migrator")...)...)
	migrate.Env = environment
	if out, err := migrate.CombinedOutput(); err != nil {
		t.Fatalf("worker migrate: %v\n%s", err, out)
	}
	if err := g.Grant(t.Context()); err != nil {
		t.Fatal(err)
	}
	worker := exec.Command(binary, append([]string{"run", "--no-migrate", "--http-addr", "127.0.0.1:0"}, flags("worker")...)...)
	worker.Env = environment
	running, err := stacktest.StartProgram(worker)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(running.Kill)
	started, err := running.AwaitLine(`"worker started"`)
	if err != nil {
		t.Fatalf("worker run: %v", err)
	}
	t.Cleanup(func() {
		if err := running.Stop(); err != nil {
			t.Error(err)
		}
	})
	s := site{dir: t.TempDir(), guarded: true}
	if err := json.Unmarshal([]byte(started), &struct {
		HTTPAddr *string `json:"http_addr"`
	}{&s.httpAddr}); err != nil || s.httpAddr == "" {
		t.Fatalf("%v: no address in %s", err, started)
	}
	s.admin, _, _ = g.URLs("admin")
	address, err := url.Parse(s.admin)
	if err != nil {
		t.Fatal(err)
	}
	address.User = nil
	s.natsURL = address.String()
	endpoints := filepath.Join(s.dir, ".holdfast", "endpoints.env")
	err = errors.Join(os.Mkdir(filepath.Dir(endpoints), 0o755), os.WriteFile(endpoints, []byte("HOLDFAST_NATS_URL="+s.natsURL+"\n"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return s
}
