package terminal

import (
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

const (
	barWidth  = 30
	drawEvery = 100 * time.Millisecond // the shortest time between two updates of a bar
)

// Progress is a bar that shows on a terminal how far a command is; elsewhere it shows nothing. It prints
// the text that is written to it above the bar. Its methods may be called concurrently.
type Progress struct {
	mu  sync.Mutex
	to  io.Writer
	bar *progressbar.ProgressBar // nil while no bar is shown
}

// NewProgress returns the progress of a command with total steps, or bytes; -1 if their number is unknown.
// The caller calls End.
func NewProgress(to io.Writer, total int64, options ...progressbar.Option) *Progress {
	g := &Progress{to: to}
	if Is(to) && total != 0 {
		g.bar = progressbar.NewOptions64(total, append([]progressbar.Option{
			progressbar.OptionSetWriter(to), progressbar.OptionSetWidth(barWidth), progressbar.OptionThrottle(drawEvery),
			progressbar.OptionUseANSICodes(true), progressbar.OptionSetSpinnerChangeInterval(0), // no goroutine of its own
		}, options...)...)
	}
	return g
}

// Write implements io.Writer.
func (g *Progress) Write(text []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hide()
	return g.to.Write(text)
}

// Describe sets the text before the bar.
func (g *Progress) Describe(text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bar != nil {
		g.bar.Describe(text)
	}
}

// Set sets how many of the steps or bytes are done.
func (g *Progress) Set(done int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bar != nil {
		_ = g.bar.Set64(done) // a file may have grown, the terminal may be gone
	}
}

// End removes the bar.
func (g *Progress) End() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hide()
	g.bar = nil
}

func (g *Progress) hide() {
	if g.bar != nil {
		_ = g.bar.Clear() // the terminal may be gone
	}
}
