package stack

import (
	"bytes"
	"strings"
	"sync"
)

// tailBytesMax bounds the part of a server's log in memory.
const tailBytesMax = 16 << 10

// tail keeps the last tailBytesMax bytes written to it. The zero value is ready.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

// Write appends p. It never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailBytesMax; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// String returns the end of the log, as the end of an error message.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := strings.TrimSpace(string(t.buf)); s != "" {
		return "its log ends with:\n" + s
	}
	return "its log is empty"
}

// LineWriter is an io.Writer that calls Each with every whole line, without its line break. It is for one goroutine.
type LineWriter struct {
	Each func(line string)
	rest []byte // of an incomplete line
}

// Write never fails.
func (w *LineWriter) Write(text []byte) (int, error) {
	w.rest = append(w.rest, text...)
	for {
		line, rest, whole := bytes.Cut(w.rest, []byte("\n"))
		if !whole {
			return len(text), nil
		}
		w.Each(string(line))
		w.rest = rest
	}
}
