package terminal

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
)

// Confirmed asks a question on a terminal and reports whether the answer is yes. It returns false when ctx
// is cancelled first.
func Confirmed(ctx context.Context, in io.Reader, to io.Writer, question string) bool {
	fmt.Fprintf(to, "%s [y/N] ", question)
	answered := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(in).ReadString('\n') // "" at the end of input, which means no
		answered <- line
	}()
	select {
	case answer := <-answered:
		word := strings.ToLower(strings.TrimSpace(answer))
		return word == "y" || word == "yes"
	case <-ctx.Done():
		fmt.Fprintln(to)
		return false
	}
}
