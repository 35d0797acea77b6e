package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestCompletion_TabInBash_CompletesLine runs the script in a bash on a terminal, types lines and presses tab.
func TestCompletion_TabInBash_CompletesLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "events.ndjson"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// Ctrl-A goes to the beginning of the line: the completed line is echoed instead of run.
	const tab, echo, nothing = "\t", "\x01echo ECHO \n", "\x01: \n"
	completed := map[string]string{
		"start":                 "start-payment",
		"inventory se":          "inventory set",
		"load --rej":            "load --rejects",
		"load --wait -f eve":    "load --wait -f events.ndjson",
		"validate --file eve":   "validate --file events.ndjson",
		"watch -o j":            "watch -o json",
		"pay --hold-id x --pay": "pay --hold-id x --payment-id",
		"completion zs":         "completion zsh",
	}
	typed := "bind 'set show-all-if-ambiguous on'\nsource <(publisher completion bash)\npublisher " + tab + nothing
	for begin := range completed {
		typed += "publisher " + begin + tab + echo
	}
	terminal := exec.CommandContext(t.Context(), "script", "--quiet", "--return", "--command",
		"bash --norc --noprofile -i", "/dev/null")
	terminal.Dir = dir
	terminal.Env = append(os.Environ(), "TERM=dumb", "PATH="+filepath.Dir(publisherBinary)+":"+os.Getenv("PATH"), "HISTFILE=")
	terminal.Stdin = strings.NewReader(typed + "exit\n")
	out, err := terminal.CombinedOutput()
	if err != nil {
		t.Fatalf("%v (script is part of bsdutils)\n%s", err, out)
	}
	shown := strings.ReplaceAll(string(out), "\r", "")
	for begin, want := range completed {
		if !strings.Contains(shown, "\nECHO publisher "+want+"\n") {
			t.Errorf("%q is not completed to %q:\n%q", begin, want, shown)
		}
	}
	list, _, _ := strings.Cut(shown[strings.LastIndex(shown, "completion bash)\n"):], "ECHO")
	for _, command := range commands() {
		first, _, _ := strings.Cut(command, " ")
		if !slices.Contains(strings.Fields(list), first) {
			t.Errorf("%s is not among the candidates for the first word:\n%s", first, list)
		}
	}
}
