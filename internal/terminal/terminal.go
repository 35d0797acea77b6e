// Package terminal prints for people: tables, text from outside in a form that is safe to print,
// and whether a stream is a terminal at all.
package terminal

import (
	"os"

	"github.com/mattn/go-isatty"
)

// Is reports whether a stream is a terminal.
func Is(stream any) bool {
	file, isFile := stream.(*os.File)
	return isFile && isatty.IsTerminal(file.Fd())
}
