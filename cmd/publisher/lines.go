package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/members"
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

// composed is an event of a file in the form in which it is published.
type composed struct {
	*events.Inbound
	message      *nats.Msg
	isCloudEvent bool // the file has it as a CloudEvent, with its own id
}

// The two members of the short form of an event.
const (
	shortEvent = "event"
	shortData  = "data"
)

// compose returns the message of an event that a file has as a CloudEvent in JSON or in the short
// form: an object with the member event, which is the event name, and data. compose derives the id
// of the short form from the content and batch. Every error is an *events.UnprocessableError. It is
// the error of the worker, except for an object that has event and no specversion and is not the
// short form either.
func (p *program) compose(text []byte, batch string) (composed, error) {
	c := composed{isCloudEvent: true}
	var given map[string]jsontext.Value
	err := json.Unmarshal(text, &given)
	_, isShort := given[shortEvent]
	_, isWhole := given["specversion"]
	if err == nil && isShort && !isWhole {
		c.isCloudEvent = false
		if text, err = p.expand(given, batch); err != nil {
			return composed{}, err
		}
	}
	c.message = events.NewStructuredMsg(text)
	if c.Inbound, err = events.DecodeEvent(c.message.Header, text, time.Time{}); err != nil {
		return composed{message: c.message}, err
	}
	c.message.Subject = p.namespace().In(c.Event, c.Resource)
	c.message.Header.Set(jetstream.MsgIDHeader, events.MessageID(c.Source, c.ID))
	return c, nil
}

// expand returns the CloudEvent of an event in the short form.
func (p *program) expand(given map[string]jsontext.Value, batch string) ([]byte, error) {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if name != shortEvent && name != shortData {
			return nil, malformed("%s: unknown member, the short form of an event has event and data", name)
		}
	}
	var event string
	if err := json.Unmarshal(given[shortEvent], &event); err != nil || given[shortEvent].Kind() != '"' {
		return nil, malformed("event: must be a string, found %s", members.KindName(given[shortEvent]))
	}
	data := given[shortData] // nil if the event has no data
	text, err := json.Marshal(events.Envelope{
		SpecVersion: "1.0", ID: contentID(event, data, batch), Source: source, Type: events.Type(event),
		DataContentType: events.ContentTypeJSON, Data: data,
	})
	if err != nil {
		return nil, malformed("event: %v", err)
	}
	return text, nil
}

func malformed(format string, args ...any) error {
	return &events.UnprocessableError{Reason: events.ReasonMalformed, Detail: fmt.Sprintf(format, args...)}
}

// contentID derives the id of an event from its content, so that the same content is always the
// same event, whatever its white space.
func contentID(event string, data jsontext.Value, batch string) string {
	data = data.Clone()
	_ = data.Compact() // fails only if data is not JSON, for example empty
	h := sha256.New()
	for _, part := range []string{batch, event, string(data)} {
		_, _ = fmt.Fprintf(h, "%d %s\n", len(part), part) // a hash never returns an error
	}
	id := uuid.UUID(h.Sum(nil)[:16])
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // RFC 9562: version 8, custom
	return id.String()
}
