package terminal

import (
	"os/exec"
	"testing"
)

// TestQuote_Words_ShellReadsOne lets a shell print words.
func TestQuote_Words_ShellReadsOne(t *testing.T) {
	t.Parallel()
	for _, word := range []string{"", "plain", "a b", "it's", `"$HOME"`, "`id`", "a\nb", "-n;id", "*"} {
		out, err := exec.Command("sh", "-c", "printf '%s|' "+Quote(word)).Output()
		if err != nil || string(out) != word+"|" {
			t.Errorf("%q: the shell reads %q, %v", word, out, err)
		}
	}
}

// TestFlag_ValueLikeAFlag_IsPartOfTheWord writes flags for a shell.
func TestFlag_ValueLikeAFlag_IsPartOfTheWord(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{"k": "--key k", "a b": "--key 'a b'", "-k": "--key=-k", "--all; x": "--key='--all; x'"} {
		if got := Flag("--key", value); got != want {
			t.Errorf("%q is written as %s, want %s", value, got, want)
		}
	}
}
