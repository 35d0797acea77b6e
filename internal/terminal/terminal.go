// Package terminal prints for people: tables, text from outside in a form that is safe to print,
// and whether a stream is a terminal at all.
package terminal

import (
	"io"
	"os"

	"github.com/mattn/go-isatty"
)

// Is reports whether a stream, or the one that its method Unwrap returns, is a terminal.
func Is(stream any) bool {
	if wrapper, wraps := stream.(interface{ Unwrap() io.Writer }); wraps {
		stream = wrapper.Unwrap()
	}
	file, isFile := stream.(*os.File)
	return isFile && isatty.IsTerminal(file.Fd())
}
