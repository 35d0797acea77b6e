package main

import (
	"fmt"
	"io"
	"sync"

	"github.com/schollz/progressbar/v3"

	"holdfast/internal/terminal"
)

// steps shows the progress of a run. On a terminal it draws a bar with the current step; elsewhere
// it prints only the lines.
type steps struct {
	mu  sync.Mutex
	to  io.Writer
	bar *progressbar.ProgressBar // nil while no bar is shown
	off bool                     // no bar is ever shown
}

func newSteps(to io.Writer) *steps { return &steps{to: to, off: !terminal.Is(to)} }

// print prints a line, above the bar.
func (s *steps) print(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		_ = s.bar.Clear() // the terminal may be gone
	}
	fmt.Fprintln(s.to, terminal.PrintableLines(line))
	if s.bar != nil {
		_ = s.bar.RenderBlank() // likewise
	}
}

// begin shows the name of the next step, and how many steps of the total are done.
func (s *steps) begin(done, total int, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.off {
		return
	}
	if s.bar == nil {
		s.bar = progressbar.NewOptions(total,
			progressbar.OptionSetWriter(s.to),
			progressbar.OptionSetSpinnerChangeInterval(0), // no goroutine of its own
			progressbar.OptionUseANSICodes(true),
			progressbar.OptionShowCount(),
			progressbar.OptionSetWidth(20))
	}
	s.bar.Describe(name)
	_ = s.bar.Set(done) // the terminal may be gone
}

// end removes the bar.
func (s *steps) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		_ = s.bar.Clear() // the terminal may be gone
		s.bar = nil
	}
}
