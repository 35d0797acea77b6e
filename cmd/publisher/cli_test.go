package main

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/stack/stacktest"
)

// commands returns the words of every command.
func commands() (list []string) {
	p := newProgram(io.Discard, io.Discard)
	for _, leaf := range p.parser(&cli{}).Model.Leaves(true) {
		words := leaf.Name
		for up := leaf.Parent; up.Parent != nil; up = up.Parent {
			words = up.Name + " " + words
		}
		list = append(list, words)
	}
	return list
}

// TestHelp_EachCommand_HasExample checks the help of every command, and that the help of the program lists it.
func TestHelp_EachCommand_HasExample(t *testing.T) {
	t.Parallel()
	all := publisher(t, "--help").want(t, exitOK)
	list := commands()
	if len(list) < 12 {
		t.Fatalf("commands: %q", list)
	}
	for _, command := range list {
		publisher(t, words(command+" --help")...).want(t, exitOK, "Example", "publisher "+command+" ")
		if !strings.Contains(all.out, "\n  "+command+" ") {
			t.Errorf("the help of the program does not list %s", command)
		}
	}
	for _, group := range []string{"inventory", "dlq"} {
		publisher(t, group, "--help").want(t, exitOK, "Example", "publisher "+group+" ")
	}
}

// TestNoCommand_HelpOnStderr runs the program without a command: wrong usage, with help instead of an error.
func TestNoCommand_HelpOnStderr(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{
		"":                  {"publisher inventory set --resource-id", "start-payment", "Exit codes"},
		"dlq":               {"dlq replay", "dlq list"},
		"inventory -o json": {"inventory set", "inventory show"},
	} {
		var out, errOut strings.Builder
		if code := run(t.Context(), words(line), &out, &errOut); code != exitUsage || out.String() != "" {
			t.Errorf("publisher %s: %d, want %d; stdout %q", line, code, exitUsage, out.String())
		}
		for _, text := range want {
			if !strings.Contains(errOut.String(), text) {
				t.Errorf("publisher %s does not print %q:\n%s", line, text, errOut.String())
			}
		}
	}
	publisher(t, "help").want(t, exitOK, "Usage: publisher <command>")
	publisher(t, "help", "dlq", "list").want(t, exitOK, "Usage: publisher dlq list")
	publisher(t, "dlq", "fly").want(t, exitUsage, "unexpected argument fly", "(try --help)")
}

// TestHelp_Output_NamesTheFormatsOfTheCommand checks that the help of a command offers no format that it refuses.
func TestHelp_Output_NamesTheFormatsOfTheCommand(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"pay":                "--output=table|json ",
		"hold list":          "--output=table|wide|json ",
		"inventory list":     "--output=table|json ",
		"dlq list":           "--output=table|wide|json|ndjson\n",
		"dlq export":         "--output=ndjson|json ",
		"watch":              "--output=table|ndjson|json\n",
		"cancel-reservation": "--output=table|json ",
	} {
		publisher(t, words(line+" --help")...).want(t, exitOK, want)
	}
}

func TestVersion_Flag_PrintsRevision(t *testing.T) {
	t.Parallel()
	if r := publisher(t, "--version").want(t, exitOK, "publisher: revision ", runtime.Version()); r.errOut != "" {
		t.Errorf("on stderr: %s", r.errOut)
	}
}

func TestCompletion_EachShell_PrintsScript(t *testing.T) {
	t.Parallel()
	for shell, want := range map[string]string{"bash": "complete -o default", "zsh": "bashcompinit",
		"fish": "function __complete_publisher"} {
		publisher(t, "completion", shell).want(t, exitOK, want)
	}
	publisher(t, "completion", "tcsh").want(t, exitUsage, "tcsh")
	publisher(t, "completion").want(t, exitUsage, "shell")
}

// TestCompletion_PartialLine_ListsCandidates requests the completions as shells do. Nothing else is printed.
func TestCompletion_PartialLine_ListsCandidates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "events.ndjson"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string][]string{
		"publisher inventory ":          {"list", "set", "show"},
		"publisher load --wait -f eve":  {"events.ndjson"},
		"publisher load --rejects eve":  {"events.ndjson"},
		"publisher validate --file eve": {"events.ndjson"},
		"publisher pay --payment":       {"--payment-id"},
		"publisher pay --hold-id ":      {},
		"publisher watch -o j":          {"json"},
		"publisher completion ":         {"bash", "fish", "zsh"},
		"publisher cancel-reservation -": {"--context", "--data-dir", "--explain", "--help", "--hold-id", "--local", "--namespace", "--nats-ca-file",
			"--nats-cert-file", "--nats-creds-file", "--nats-key-file", "--nats-nkey-file", "--nats-url", "--nats-url-file",
			"--output", "--reason", "--timeout", "--version", "--wait", "-h", "-o"},
	} {
		shell := exec.CommandContext(t.Context(), publisherBinary, "publisher", "--help", "load") // as for publisher load --help
		shell.Dir = dir
		shell.Env = append(os.Environ(), "COMP_LINE="+line)
		var errOut strings.Builder
		shell.Stderr = &errOut
		out, err := shell.Output()
		if err != nil || errOut.String() != "" {
			t.Errorf("%q: %v, %s", line, err, errOut.String())
		}
		got := strings.Fields(string(out))
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

// TestContext_Given_ConnectsThere connects by a context of the NATS command alone. Workers do not answer its inboxes: what
// awaits no outcome works.
func TestContext_Given_ConnectsThere(t *testing.T) {
	if stacktest.LeastPrivilege() {
		t.Skip("the URL of the context has no user")
	}
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	h := newHarness(t)
	path := filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "nats", "context", "here.json")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(`{"url":"`+h.nc.ConnectedUrl()+`","inbox_prefix":"_OURS"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"dlq", "stats", "--data-dir", t.TempDir(), "--namespace", string(h.ns)}
	publisher(t, args...).want(t, exitUsage, "NATS URL not set")
	publisher(t, append(args, "--context", "here")...).want(t, exitOK, "no dead letters")
	publisher(t, append(args, "--context", "there")...).want(t, exitUsage, "there is no such context")
	for _, line := range []string{
		"request --resource-id room --user-id u --wait", "load -f - --wait", "dlq replay 1 --yes", "dlq edit 1 --subject s --yes",
	} {
		publisher(t, append(words(line), "--context", "here")...).want(t, exitUsage, "its inbox_prefix is _OURS")
	}
}

// TestRun_InterruptedWhileConnecting_Ends interrupts a command that waits for a NATS that says nothing.
func TestRun_InterruptedWhileConnecting_Ends(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	ctx, interrupt := context.WithCancel(t.Context())
	go func() {
		if conn, err := silent.Accept(); err == nil {
			defer func() { _ = conn.Close() }()
			interrupt()
			<-t.Context().Done()
		}
	}()
	var out strings.Builder
	code := run(ctx, []string{"dlq", "list", "--nats-url", "nats://" + silent.Addr().String(), "--timeout", "20m"}, &out, &out)
	if code != exitFailed || !strings.Contains(out.String(), "canceled") {
		t.Errorf("%d %s", code, &out)
	}
}

// TestTimeText_Local_HasOffset formats a time in UTC and in a time zone with another date.
func TestTimeText_Local_HasOffset(t *testing.T) {
	at, zone := time.Date(2026, 11, 23, 23, 30, 0, 5e6, time.UTC), time.Local
	defer func() { time.Local = zone }()
	time.Local = time.FixedZone("east", 2*3600)
	p := newProgram(io.Discard, io.Discard)
	if got := p.timeText(at); got != "2026-11-23T23:30:00.005Z" {
		t.Errorf("in UTC %s", got)
	}
	p.Local = true
	if got := p.timeText(at); got != "2026-11-24T01:30:00.005+02:00" {
		t.Errorf("local %s", got)
	}
}

// TestSettings_EachVariable_IsDocumented checks the table of settings in docs/settings.md.
func TestSettings_EachVariable_IsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(settingsPath)
	if err != nil {
		t.Fatal(err)
	}
	p := newProgram(io.Discard, io.Discard)
	seen := 0
	for _, command := range p.parser(&cli{}).Model.Leaves(false) {
		for _, level := range command.AllFlags(false) {
			for _, flag := range level {
				for _, variable := range flag.Envs {
					seen++
					if !strings.Contains(string(text), "| `"+variable+"` | `--"+flag.Name+"` |") {
						t.Errorf("docs/settings.md has no row for %s, --%s of publisher %s", variable, flag.Name, command.Path())
					}
				}
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d flags with a variable", seen)
	}
}
