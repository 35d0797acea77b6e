package main

import (
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// drawEvery is the shortest time between two updates of the bar.
const drawEvery = 100 * time.Millisecond

// progress shows on a terminal how much of a file was read; elsewhere it shows nothing. It prints
// the text that is written to it above the bar.
type progress struct {
	mu  sync.Mutex
	to  io.Writer
	bar *progressbar.ProgressBar // nil while no bar is shown
}

// newProgress returns the progress of a file of size bytes, -1 if the size is unknown.
func (p *program) newProgress(size int64) *progress {
	g := &progress{to: p.err}
	if isTerminal(p.err) && size != 0 {
		g.bar = progressbar.NewOptions64(size,
			progressbar.OptionSetWriter(p.err),
			progressbar.OptionSetDescription("loading"),
			progressbar.OptionShowBytes(true),
			progressbar.OptionShowCount(),
			progressbar.OptionThrottle(drawEvery),
			progressbar.OptionSetSpinnerChangeInterval(0), // no goroutine of its own
			progressbar.OptionUseANSICodes(true),
			progressbar.OptionSetWidth(20))
	}
	return g
}

// Write implements io.Writer.
func (g *progress) Write(text []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hide()
	return g.to.Write(text)
}

// at sets the number of bytes read.
func (g *progress) at(offset int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bar != nil {
		_ = g.bar.Set64(offset) // the file may have grown, the terminal may be gone
	}
}

// end removes the bar.
func (g *progress) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hide()
	g.bar = nil
}

func (g *progress) hide() {
	if g.bar != nil {
		_ = g.bar.Clear() // the terminal may be gone
	}
}
