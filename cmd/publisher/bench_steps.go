package main

import (
	"fmt"
	"io"
	"sync"

	"github.com/schollz/progressbar/v3"
)

// steps shows how far a run of bench is: on a terminal a bar with what is measured now, elsewhere
// only the lines that it is told to say.
type steps struct {
	mu  sync.Mutex
	to  io.Writer
	bar *progressbar.ProgressBar // nil when it is not shown
	off bool                     // it is never shown
}

func (p *program) newSteps() *steps { return &steps{to: p.err, off: !isTerminal(p.err)} }

// say prints a line, above the bar.
func (s *steps) say(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		_ = s.bar.Clear() // a terminal that is gone
	}
	fmt.Fprintln(s.to, printableLines(line))
	if s.bar != nil {
		_ = s.bar.RenderBlank() // likewise
	}
}

// at says what is measured next, and how many steps of how many are done.
func (s *steps) at(done, total int, what string) {
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
	s.bar.Describe(what)
	_ = s.bar.Set(done) // a terminal that is gone
}

// end takes the bar away.
func (s *steps) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		_ = s.bar.Clear() // a terminal that is gone
		s.bar = nil
	}
}
