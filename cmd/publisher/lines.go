package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// lineMax is the longest line of a file of events, in bytes without its end.
const lineMax = 128 << 10

// standardInput is the name of a file that means standard input.
const standardInput = "-"

// input is a file of events, or standard input.
type input struct {
	name  string // as it is shown
	file  io.Reader
	close func()
	info  os.FileInfo // nil for what is no file
}

// openInput opens what -f names.
func (p *program) openInput(name string) (input, error) {
	if name == standardInput {
		in := input{name: "stdin", file: p.in, close: func() {}}
		if file, isFile := p.in.(*os.File); isFile {
			in.info, _ = file.Stat() // without it only less is known
		}
		return in, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return input{}, misused("--file: %v", err)
	}
	in := input{name: name, file: file, close: func() { _ = file.Close() }} // only read
	if in.info, err = file.Stat(); err != nil || in.info.IsDir() {
		in.close()
		return input{}, misused("--file: %s is not a file that can be read", name)
	}
	return in, nil
}

// size is how many bytes there are to read, or -1 when nobody can know.
func (in input) size() int64 {
	if in.info == nil || !in.info.Mode().IsRegular() {
		return -1
	}
	return in.info.Size()
}

// inputLine is one line of a file of events.
type inputLine struct {
	number  int
	text    []byte // without its end; valid until the next line is read
	tooLong bool   // text is only how it begins
}

// lineReader reads a file line by line, with bounded memory.
type lineReader struct {
	source *bufio.Reader
	number int
	offset int64 // bytes that were read
	open   bool  // the line that was returned last goes on
	crlf   bool  // the line that was returned last ends in both
	begun  bool  // an event was returned
}

// byteOrderMark is what some programs begin a file with.
var byteOrderMark = []byte("\xef\xbb\xbf")

// newLineReader returns a reader that ends with ctx's error when ctx is over, also while it waits
// for input.
func newLineReader(ctx context.Context, file io.Reader) *lineReader {
	out, in := io.Pipe()
	go func() {
		_, err := io.Copy(in, file)
		_ = in.CloseWithError(err) // never fails
	}()
	context.AfterFunc(ctx, func() { _ = in.CloseWithError(context.Cause(ctx)) }) // never fails
	return &lineReader{source: bufio.NewReaderSize(out, lineMax+2)}
}

// next returns the next line that is not blank. The last one may lack its end. The error after
// the last line is io.EOF.
func (r *lineReader) next() (inputLine, error) {
	if err := r.copyRest(io.Discard); err != nil {
		return inputLine{}, err
	}
	for {
		text, err := r.source.ReadSlice('\n')
		r.offset += int64(len(text))
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) && (!errors.Is(err, io.EOF) || len(text) == 0) {
			return inputLine{}, err
		}
		r.number++
		r.open = errors.Is(err, bufio.ErrBufferFull)
		if r.number == 1 {
			text = bytes.TrimPrefix(text, byteOrderMark)
		}
		if !r.open {
			r.crlf = bytes.HasSuffix(text, []byte("\r\n"))
			text = trimEnd(text)
		}
		if r.open || len(bytes.TrimSpace(text)) > 0 {
			return inputLine{r.number, text, r.open || len(text) > lineMax}, nil
		}
	}
}

func trimEnd(text []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r"))
}

// copyRest copies what is left of a line that is too long.
func (r *lineReader) copyRest(to io.Writer) error {
	for r.open {
		text, err := r.source.ReadSlice('\n')
		r.offset += int64(len(text))
		r.open = errors.Is(err, bufio.ErrBufferFull)
		if err != nil && !r.open && !errors.Is(err, io.EOF) {
			return err
		}
		if !r.open {
			text = trimEnd(text)
		}
		if _, err := to.Write(text); err != nil {
			return fmt.Errorf("write what is left of line %d: %w", r.number, err)
		}
	}
	return nil
}

// event returns the next event: a line, or of a file that is one event over several lines all of it.
func (r *lineReader) event() (inputLine, error) {
	next, err := r.next()
	first := !r.begun
	r.begun = true
	if err != nil || next.tooLong || !first || !unfinished(next.text) {
		return next, err
	}
	next.text, err = r.joinLines(bytes.Clone(next.text))
	return next, err
}

// unfinished reports whether a text is how a JSON value begins.
func unfinished(text []byte) bool {
	var value jsontext.Value
	return errors.Is(json.Unmarshal(text, &value), io.ErrUnexpectedEOF)
}

// joinLines returns the first line together with all that follows, if that reads as one event that
// is written over several lines: the next one does not begin an event of its own. Else it returns
// the line. What is longer than any event may be is cut.
func (r *lineReader) joinLines(first []byte) ([]byte, error) {
	if begin, err := r.source.Peek(1); err != nil || begin[0] == '{' {
		return first, nil //nolint:nilerr // there is no next line, or reading it tells the error
	}
	if r.crlf {
		first = append(first, '\r')
	}
	more, err := io.ReadAll(io.LimitReader(r.source, lineMax))
	if err != nil {
		return nil, err
	}
	cut, err := io.Copy(io.Discard, r.source)
	r.offset += int64(len(more)) + cut
	all := append(append(first, '\n'), more...)
	if cut == 0 {
		all = bytes.TrimRight(all, " \t\r\n")
	}
	return all, err
}
