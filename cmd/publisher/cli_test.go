package main

import (
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// verbs are the words of every verb.
func verbs() (list []string) {
	p := newProgram(io.Discard, io.Discard)
	for _, leaf := range p.parser(&cli{}, func() {}).Model.Leaves(true) {
		words := leaf.Name
		for up := leaf.Parent; up.Parent != nil; up = up.Parent {
			words = up.Name + " " + words
		}
		list = append(list, words)
	}
	return list
}

// TestHelp_EachVerb_HasExample has an example of itself in the help of every verb, and the verb in the help
// of the program.
func TestHelp_EachVerb_HasExample(t *testing.T) {
	t.Parallel()
	all := publisher(t, "--help").want(t, exitOK)
	list := verbs()
	if len(list) < 12 {
		t.Fatalf("verbs: %q", list)
	}
	for _, verb := range list {
		publisher(t, words(verb+" --help")...).want(t, exitOK, "Example", "publisher "+verb+" ")
		if !strings.Contains(all.out, "\n  "+verb+" ") {
			t.Errorf("the help of the program does not name %s", verb)
		}
	}
}

// TestNoVerb_HelpOnStderr names no verb. It is wrong usage, and help is printed instead of an error.
func TestNoVerb_HelpOnStderr(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{
		"":                  {"publisher inventory set --resource-id", "start-payment", "Exit codes"},
		"dlq":               {"dlq replay", "dlq list"},
		"inventory -o json": {"inventory set", "inventory show"},
	} {
		var out, errOut strings.Builder
		if code := run(t.Context(), words(line), &out, &errOut); code != exitUsage || out.String() != "" {
			t.Errorf("publisher %s: %d, want %d; it prints %q", line, code, exitUsage, out.String())
		}
		for _, text := range want {
			if !strings.Contains(errOut.String(), text) {
				t.Errorf("publisher %s does not say %q:\n%s", line, text, errOut.String())
			}
		}
	}
	publisher(t, "dlq", "fly").want(t, exitUsage, "unexpected argument fly", "(try --help)")
}

// TestVersion_Flag_PrintsRevision prints revision and Go version.
func TestVersion_Flag_PrintsRevision(t *testing.T) {
	t.Parallel()
	if r := publisher(t, "--version").want(t, exitOK, "publisher: revision ", runtime.Version()); r.errOut != "" {
		t.Errorf("on stderr: %s", r.errOut)
	}
}

// TestCompletion_EachShell_PrintsScript prints a script for each shell, and for no other.
func TestCompletion_EachShell_PrintsScript(t *testing.T) {
	t.Parallel()
	for shell, want := range map[string]string{"bash": "complete -o default", "zsh": "bashcompinit", "fish": "function __complete_publisher"} {
		publisher(t, "completion", shell).want(t, exitOK, want)
	}
	publisher(t, "completion", "tcsh").want(t, exitUsage, "tcsh")
	publisher(t, "completion").want(t, exitUsage, "shell")
}

// TestCompletion_PartialLine_ListsCandidates asks as shells do what could come next. Nothing else is printed.
func TestCompletion_PartialLine_ListsCandidates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "events.ndjson"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string][]string{
		"publisher inventory ":           {"set", "show"},
		"publisher load --wait -f eve":   {"events.ndjson"},
		"publisher load --rejects eve":   {"events.ndjson"},
		"publisher validate --file eve":  {"events.ndjson"},
		"publisher pay --payment":        {"--payment-id"},
		"publisher pay --hold-id ":       {},
		"publisher watch -o j":           {"json"},
		"publisher completion ":          {"bash", "fish", "zsh"},
		"publisher cancel-reservation -": {"--data-dir", "--explain", "--help", "--hold-id", "--namespace", "--nats-url", "--output", "--reason", "--timeout", "--version", "--wait", "-h", "-o"},
	} {
		shell := asProgram(t.Context(), "publisher", "--help", "load") // as for publisher load --help
		shell.Dir = dir
		shell.Env = append(shell.Env, "COMP_LINE="+line)
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

// TestSettings_EachVariable_IsDocumented finds each variable that a verb reads in docs/settings.md.
func TestSettings_EachVariable_IsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(settingsPath)
	if err != nil {
		t.Fatal(err)
	}
	p := newProgram(io.Discard, io.Discard)
	seen := 0
	for _, verb := range p.parser(&cli{}, func() {}).Model.Leaves(false) {
		for _, level := range verb.AllFlags(false) {
			for _, flag := range level {
				for _, variable := range flag.Envs {
					seen++
					if !strings.Contains(string(text), "| `"+variable+"` | `--"+flag.Name+"` |") {
						t.Errorf("docs/settings.md has no row for %s, --%s of publisher %s", variable, flag.Name, verb.Path())
					}
				}
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d flags with a variable were seen", seen)
	}
}
