package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// TestCompletion_Prefix_PrintsCandidates requests completions as a shell does. Only the candidates
// are printed.
func TestCompletion_Prefix_PrintsCandidates(t *testing.T) {
	t.Parallel()
	binary, err := workerBinary()
	stacktest.Must(t, err)
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
