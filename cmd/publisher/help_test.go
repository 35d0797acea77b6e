package main

import (
	"io"
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

// TestHelpOfEachVerb has an example of itself in the help of every verb, and the verb in the help
// of the program.
func TestHelpOfEachVerb(t *testing.T) {
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

// TestCompletionScripts prints a script for each shell, and for no other.
func TestCompletionScripts(t *testing.T) {
	t.Parallel()
	for shell, want := range map[string]string{"bash": "complete -o default", "zsh": "bashcompinit", "fish": "function __complete_publisher"} {
		publisher(t, "completion", shell).want(t, exitOK, want)
	}
	publisher(t, "completion", "tcsh").want(t, exitUsage, "tcsh")
	publisher(t, "completion").want(t, exitUsage, "shell")
}
