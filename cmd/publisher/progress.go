package main

import (
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// drawEvery is the least time between two drawings of a bar.
const drawEvery = 100 * time.Millisecond

// progress shows on a terminal how far a file was read; elsewhere it shows nothing. What is
// written to it is printed above the bar.
type progress struct {
	mu  sync.Mutex
	to  io.Writer
	bar *progressbar.ProgressBar // nil when it is not shown
}

// newProgress returns a progress over so many bytes, -1 when nobody knows how many.
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

// at says how many bytes were read.
func (g *progress) at(offset int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bar != nil {
		_ = g.bar.Set64(offset) // a file that has grown, or a terminal that is gone
	}
}

// end takes the bar away.
func (g *progress) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hide()
	g.bar = nil
}

func (g *progress) hide() {
	if g.bar != nil {
		_ = g.bar.Clear() // a terminal that is gone
	}
}
