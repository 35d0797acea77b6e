package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Sets of flags, as several commands have them.
const (
	theServers   = " nats-url redis-url postgres-url namespace"
	theLifetimes = " hold-lifetime-max request-key-ttl"
	thePolicies  = " hold-ttl" + theLifetimes + " hold-ttl-max payment-window late-payment holds-per-user nights-max horizon"
	theLocks     = " lock-strategy lock-redis-urls lock-lease lock-renew-max lock-fair lock-wait"
	theRest      = " inbound-keep http-addr reconcile nats-monitor-urls stream-replicas preflight log-level no-notifications no-timer"
)

// TestFlags_EachCommand_ShowsWhatItUses has in the help of each command what it uses and no more, its own flags first. A new setting
// belongs here, in the row of each command that reads it.
func TestFlags_EachCommand_ShowsWhatItUses(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"dev":         "once data-dir install" + theServers + thePolicies + theLocks + theRest,
		"run":         "embedded no-migrate data-dir install" + theServers + thePolicies + theLocks + theRest,
		"migrate":     theServers + thePolicies + " nats-monitor-urls stream-replicas preflight log-level",
		"healthcheck": "http-addr timeout data-dir",
		"preflight":   "no-migrate output data-dir" + theServers + theLifetimes + " lock-strategy lock-redis-urls nats-monitor-urls stream-replicas",
		"locks":       "http-addr output data-dir",
		"audit":       "resource-id capacity-by-events repair yes output data-dir" + theServers + " request-key-ttl",
		"rebuild":     "yes output data-dir" + theServers + " hold-ttl" + theLifetimes,
		"completion":  "",
	}
	for _, command := range commandsFrom("run") {
		var flags []string
		grouped := false
		for _, flag := range command.Flags {
			flags = append(flags, flag.Name)
			if grouped = grouped || flag.Group != nil; grouped && flag.Group == nil && !flag.Hidden {
				t.Errorf("worker %s: --%s is its own, and comes after those of a group", command.Name, flag.Name)
			}
		}
		if expected, known := want[command.Name]; !known || !slices.Equal(flags, strings.Fields(expected)) {
			t.Errorf("worker %s has the flags %v\nwant %v", command.Name, flags, strings.Fields(expected))
		}
		var help strings.Builder
		if code := run(t.Context(), []string{command.Name, "--help"}, streams{&help, &help}); code != exitOK ||
			!strings.Contains(help.String(), "Example") || !strings.Contains(help.String(), "  worker "+command.Name) {
			t.Errorf("worker %s --help: %d, without an example of itself:\n%s", command.Name, code, help.String())
		}
	}
}

// TestSettings_FlagAndEnvironment_FlagWins gives settings in both ways.
func TestSettings_FlagAndEnvironment_FlagWins(t *testing.T) {
	t.Setenv("HOLDFAST_HOLD_TTL", "20s")
	t.Setenv("HOLDFAST_LOCK_WAIT", "1s")
	t.Setenv("HOLDFAST_DATA_DIR", "")
	var out strings.Builder
	parsed, err := newParser(streams{&out, &out}, func(int) {}).Parse([]string{"run", "--hold-ttl", "30s"})
	if err != nil {
		t.Fatal(err)
	}
	set := parsed.Selected().Target.Addr().Interface().(*runCommand)
	if set.HoldTTL.String() != "30s" || set.LockWait.String() != "1s" || set.DataDir != defaultDataDir || set.Namespace != defaultNamespace {
		t.Errorf("hold-ttl %s, lock-wait %s, data-dir %s, namespace %s", set.HoldTTL, set.LockWait, set.DataDir, set.Namespace)
	}
}

// TestHealthcheck_LiveEndedAndForeign_ExitCodes asks a worker that lives, one that has ended, and what is none.
func TestHealthcheck_LiveEndedAndForeign_ExitCodes(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it takes connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	check := func(want int, text string, args ...string) {
		t.Helper()
		var out strings.Builder
		if code := run(t.Context(), append([]string{"healthcheck"}, args...), streams{&out, &out}); code != want || !strings.Contains(out.String(), text) {
			t.Errorf("worker healthcheck %v: %d, %s\nwant %d with %s", args, code, out.String(), want, text)
		}
	}
	worker := newHarness(t).startWorker()
	_, port, err := net.SplitHostPort(worker.http)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "endpoints.env"), []byte("HOLDFAST_HTTP_ADDR="+worker.http+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check(exitOK, "alive: http://"+worker.http, "--http-addr", worker.http, "--timeout", "1m")
	check(exitOK, "alive: http://"+worker.http, "--http-addr", "0.0.0.0:"+port, "--timeout", "1m")
	check(exitOK, "alive: http://"+worker.http, "--data-dir", dir, "--timeout", "1m")
	check(exitFailed, "404", "--http-addr", other.Listener.Addr().String(), "--timeout", "1m")
	check(exitFailed, "no worker answers", "--http-addr", silent.Addr().String(), "--timeout", "50ms")
	worker.end(t)
	check(exitFailed, "no worker answers", "--data-dir", dir, "--timeout", "1m")
}

// TestCompletion_Prefix_PrintsCandidates asks as a shell does what could come next. Nothing else is printed.
func TestCompletion_Prefix_PrintsCandidates(t *testing.T) {
	t.Parallel()
	binary, err := workerBinary()
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string][]string{
		"worker pre":                          {"preflight"},
		"worker run --lock-strategy ":         {"none", "optimistic", "range", "redlock"},
		"worker healthcheck --":               {"--data-dir", "--help", "--http-addr", "--timeout", "--version"},
		"worker completion ":                  {"bash", "fish", "zsh"},
		"worker migrate --log-level w":        {"warn"},
		"worker dev --once --late-payment re": {"reject"},
	} {
		shell := exec.Command(binary)
		shell.Env = append(plainEnviron(), "COMP_LINE="+line)
		out, err := shell.CombinedOutput()
		got := strings.Fields(string(out))
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %q, want %q", line, err, got, want)
		}
	}
}
