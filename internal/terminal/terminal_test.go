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
