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

// lineMax is the longest line of a file of events, in bytes without the line end.
const lineMax = 128 << 10

// joinMax is the longest rest of an event over several lines, in bytes.
const joinMax = 2 * lineMax

// standardInput is the file name that stands for standard input.
const standardInput = "-"

// input is a file that a flag names, or standard input.
type input struct {
	name  string // in messages
	file  io.Reader
	close func()
	info  os.FileInfo // nil if the input is not a file
}

// openInput opens the file of a flag.
func (p *program) openInput(flag, name string) (input, error) {
	if name == standardInput {
		in := input{name: "stdin", file: p.in, close: func() {}}
		if file, isFile := p.in.(*os.File); isFile {
			in.info, _ = file.Stat() // without it the size is unknown
		}
		return in, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return input{}, misused("%s: %v", flag, err)
	}
	in := input{name: name, file: file, close: func() { _ = file.Close() }} // only read
	if in.info, err = file.Stat(); err != nil || in.info.IsDir() {
		in.close()
		return input{}, misused("%s: %s is not a readable file", flag, name)
	}
	return in, nil
}

// size returns the number of bytes to read, or -1 if it is unknown.
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
	tooLong bool   // text is only the beginning of the line
}

// lineReader reads a file line by line, with bounded memory.
type lineReader struct {
	source *bufio.Reader
	number int
	offset int64 // bytes read
	open   bool  // the last returned line continues
	crlf   bool  // the last returned line ends in CR LF
}

// byteOrderMark is the UTF-8 byte order mark, with which some programs begin a file.
var byteOrderMark = []byte("\xef\xbb\xbf")

// newLineReader returns a reader that fails with the cause of ctx when ctx is cancelled, even while
// it waits for input.
func newLineReader(ctx context.Context, file io.Reader) *lineReader {
	out, in := io.Pipe()
	go func() {
		_, err := io.Copy(in, file)
		_ = in.CloseWithError(err) // never fails
	}()
	context.AfterFunc(ctx, func() { _ = in.CloseWithError(context.Cause(ctx)) }) // never fails
	return &lineReader{source: bufio.NewReaderSize(out, lineMax+2)}
}

// next returns the next line that is not blank. The last line may lack a line end. After the last
// line the error is io.EOF.
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

// copyRest copies the rest of a line that is too long.
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
			return fmt.Errorf("write the rest of line %d: %w", r.number, err)
		}
	}
	return nil
}

// event returns the next event: a line, or the whole file if it is one event over several lines.
func (r *lineReader) event() (inputLine, error) {
	first := r.number == 0
	next, err := r.next()
	if err != nil || next.tooLong || !first || !unfinished(next.text) {
		return next, err
	}
	next.text, err = r.joinLines(bytes.Clone(next.text))
	return next, err
}

// unfinished reports whether a text is the beginning of a JSON value.
func unfinished(text []byte) bool {
	var value jsontext.Value
	return errors.Is(json.Unmarshal(text, &value), io.ErrUnexpectedEOF)
}

// joinLines returns the first line with all lines after it, if they are one event over several lines, also a
// malformed one. Otherwise it returns the first line, and the others are read as lines: an event may be among them.
func (r *lineReader) joinLines(first []byte) ([]byte, error) {
	if r.eventFollows() {
		return first, nil
	}
	more, err := io.ReadAll(io.LimitReader(r.source, joinMax+1))
	if err != nil {
		return nil, err
	}
	all := first
	if r.crlf {
		all = append(all, '\r')
	}
	all = bytes.TrimRight(append(append(all, '\n'), more...), " \t\r\n")
	if len(more) > joinMax || hasEvent(more) && !isValue(all) {
		r.source = bufio.NewReaderSize(io.MultiReader(bytes.NewReader(more), r.source), lineMax+2)
		return first, nil
	}
	r.offset += int64(len(more))
	return all, nil
}

// eventFollows reports whether the next line that is not blank is an event. It does not read on: more lines of a pipe may
// come much later.
func (r *lineReader) eventFollows() bool {
	begin := 0 // of the line
	for n := 1; ; n++ {
		next, err := r.source.Peek(n)
		if err == nil && next[n-1] != '\n' {
			continue
		}
		line := bytes.TrimSpace(next[begin:])
		begin = n
		if err != nil || len(line) > 0 { // at the end of the file, or of the buffer, the line has no end
			return bytes.HasPrefix(line, []byte("{")) && isValue(line) &&
				(bytes.Contains(line, []byte(`"specversion"`)) || bytes.Contains(line, []byte(`"event"`)))
		}
	}
}

// hasEvent reports whether a line of a text may be an event.
func hasEvent(text []byte) bool {
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(bytes.TrimSpace(line), []byte("{")) {
			return true
		}
	}
	return false
}

// isValue reports whether a text is one JSON value, whatever its members and characters.
func isValue(text jsontext.Value) bool {
	return text.IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}
