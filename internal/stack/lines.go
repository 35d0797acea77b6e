package stack

import "bytes"

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
