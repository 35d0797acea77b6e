// Package terminal has what the programs share on a command line: tables, text from outside in a form that
// is safe to print, whether a stream is a terminal at all, and how flags are read.
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
