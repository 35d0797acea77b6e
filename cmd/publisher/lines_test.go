package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
)

func TestLineReader_EndsAndLengths_AreRead(t *testing.T) {
	t.Parallel()
	full, long := strings.Repeat("x", lineMax), strings.Repeat("y", lineMax+1)
	type read struct {
		number  int
		text    string
		tooLong bool
	}
	for name, c := range map[string]struct {
		text string
		want []read
	}{
		"nothing":           {"", nil},
		"blank":             {"\n \r\n\t\n  ", nil},
		"without an end":    {"a", []read{{1, "a", false}}},
		"every end":         {"a\nb\r\n\nc \r", []read{{1, "a", false}, {2, "b", false}, {4, "c ", false}}},
		"a byte order mark": {"\xef\xbb\xbfa\n\xef\xbb\xbfb", []read{{1, "a", false}, {2, "\xef\xbb\xbfb", false}}},
		"full": {full + "\n" + full + "\r\n" + full,
			[]read{{1, full, false}, {2, full, false}, {3, full, false}}},
		"too long": {long + "\na\n" + long + "\r\nb\n" + long,
			[]read{{1, long, true}, {2, "a", false}, {3, long, true}, {4, "b", false}, {5, long, true}}},
		"much too long":         {long + long + long + "\r\na", []read{{1, long + long + long, true}, {2, "a", false}}},
		"too long, without end": {"a\n" + long + long, []read{{1, "a", false}, {2, long + long, true}}},
	} {
		for _, skip := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			lines := newLineReader(ctx, strings.NewReader(c.text))
			var got []read
			for {
				next, err := lines.next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				text := bytes.NewBuffer(bytes.Clone(next.text))
				if !skip {
					if err := lines.copyRest(text); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
				}
				all := text.String()
				if next.tooLong {
					all = strings.TrimSuffix(all, "\r") // part of the line end
				}
				got = append(got, read{next.number, all, next.tooLong})
			}
			cancel()
			if len(got) != len(c.want) || lines.offset != int64(len(c.text)) {
				t.Fatalf("%s: %d lines and %d bytes, want %d and %d", name, len(got), lines.offset, len(c.want), len(c.text))
			}
			for i, want := range c.want {
				if skip && want.tooLong {
					got[i].text = want.text // only the beginning
				}
				if got[i] != want {
					t.Errorf("%s: line %d is %d bytes (%.20q), too long %v, want %d bytes, %v", name,
						got[i].number, len(got[i].text), got[i].text, got[i].tooLong, len(want.text), want.tooLong)
				}
			}
		}
	}
}

// endless is a line of that many bytes.
type endless struct{ left int64 }

// Read implements io.Reader.
func (e *endless) Read(b []byte) (int, error) {
	if e.left <= 0 {
		return 0, io.EOF
	}
	n := min(int64(len(b)), e.left)
	e.left -= n
	for i := range b[:n] {
		b[i] = 'x'
	}
	return int(n), nil
}

// TestLineReader_EndlessLine_UsesBoundedMemory reads a line that is larger than the memory limit. It is not parallel,
// because it measures allocations.
func TestLineReader_EndlessLine_UsesBoundedMemory(t *testing.T) {
	const size, bound = 256 << 20, 8 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	lines := newLineReader(t.Context(), &endless{left: size})
	next, err := lines.next()
	if err != nil || !next.tooLong {
		t.Fatalf("%v, %v", next.tooLong, err)
	}
	if _, err := lines.next(); !errors.Is(err, io.EOF) || lines.offset != size {
		t.Fatalf("%v after %d bytes", err, lines.offset)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > bound {
		t.Errorf("allocated %d bytes, want at most %d", took, bound)
	}
}

// TestLineReader_ContextCancelled_Ends cancels a reader that waits for input.
func TestLineReader_ContextCancelled_Ends(t *testing.T) {
	t.Parallel()
	in, file := io.Pipe()
	defer func() { _ = file.Close() }() // ends the reading goroutine
	ctx, cancel := context.WithCancelCause(t.Context())
	lines := newLineReader(ctx, in)
	ended := make(chan error, 1)
	go func() {
		_, err := lines.next()
		ended <- err
	}()
	cancel(errInterrupted)
	if err := <-ended; !errors.Is(err, errInterrupted) {
		t.Error(err)
	}
}

// TestLineReader_PipeStaysOpen_BrokenFirstLineIsRead reads a pipe whose first line is broken and whose second one is an
// event, while its writer has no more for the moment.
func TestLineReader_PipeStaysOpen_BrokenFirstLineIsRead(t *testing.T) {
	t.Parallel()
	source, writer := io.Pipe()
	const broken, event = `{"event":"booking.requested","data":{`, `{"event":"booking.requested","data":{}}`
	go func() { _, _ = io.WriteString(writer, broken+"\n\n "+event+"\n") }() // ends when the reader has read it
	lines := newLineReader(t.Context(), source)
	for _, want := range []string{broken, " " + event} {
		if next, err := lines.event(); err != nil || string(next.text) != want {
			t.Errorf("read %q, %v, want %q", next.text, err, want)
		}
	}
	_ = writer.Close() // never fails
	if _, err := lines.next(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}
