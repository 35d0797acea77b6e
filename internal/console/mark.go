package console

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/members"
	"holdfast/internal/queries"
)

// line is a line of an event.
type line struct {
	Text   string
	Faulty bool   // the member that the detail of the dead letter names
	Why    string // the rest of the detail
}

// faultyMember matches the name of a member at the begin of a detail.
var faultyMember = regexp.MustCompile(`^([a-z_]+(?:\.[a-z_]+)*): (.*)$`)

// The bounds of an event that is shown as lines.
const (
	linesMax = 5000
	depthMax = 64 // objects and arrays inside of each other
)

var errTooLarge = errors.New("too many lines, or nested too deep")

// markedLines returns an event as lines. The line of the member that detail names is faulty; of a
// member that is missing, the line of the object that lacks it. Unless reveal is true, values that
// may be private are replaced by their kind. A body that is no JSON, or beyond the bounds, is one line,
// hidden unless reveal is true.
func markedLines(body []byte, detail string, reveal bool) []line {
	w := &lineWriter{reveal: reveal, parentAt: -1}
	_, w.event = members.LaxObject(body)["specversion"]
	if found := faultyMember.FindStringSubmatch(detail); found != nil {
		w.faulty, w.why = "."+found[1], found[2]
		w.parent = w.faulty[:strings.LastIndexByte(w.faulty, '.')]
	}
	decoder := jsontext.NewDecoder(bytes.NewReader(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	err := w.value(decoder, "", "")
	if err == nil {
		if _, rest := decoder.ReadToken(); !errors.Is(rest, io.EOF) {
			err = errors.New("text follows the event")
		}
	}
	switch {
	case err == nil:
		if w.faulty != "" && !w.marked && w.parentAt >= 0 {
			l := &w.lines[w.parentAt]
			l.Faulty, l.Why = true, w.faulty[1:]+": "+w.why
		}
		return w.lines
	case !reveal:
		return []line{{Text: fmt.Sprintf("‹%s that cannot be shown as one JSON text›", counted(len(body), "byte"))}}
	case !utf8.Valid(body):
		return []line{{Text: fmt.Sprintf("%q", body)}}
	}
	return []line{{Text: string(body)}}
}

// lineWriter writes a JSON text as indented lines.
type lineWriter struct {
	lines    []line
	depth    int
	reveal   bool
	event    bool   // the text is an event, and not its data alone
	faulty   string // the path of the faulty member, such as .data.quantity
	parent   string // the path of the object around it
	parentAt int    // the line where that object begins, -1 before it is found
	why      string
	marked   bool
}

func (w *lineWriter) add(path, text string) {
	l := line{Text: strings.Repeat("  ", w.depth) + text}
	if w.faulty != "" && path == w.faulty && !w.marked {
		l.Faulty, l.Why, w.marked = true, w.why, true
	}
	w.lines = append(w.lines, l)
}

// value writes the next value. prefix is the name before it.
func (w *lineWriter) value(d *jsontext.Decoder, path, prefix string) error {
	if w.depth > depthMax || len(w.lines) > linesMax {
		return errTooLarge
	}
	kind := d.PeekKind()
	if kind != '{' && kind != '[' {
		value, err := d.ReadValue()
		if err != nil {
			return err
		}
		w.add(path, prefix+w.scalar(value, path))
		return nil
	}
	if kind == '{' && path == w.parent && w.parentAt < 0 {
		w.parentAt = len(w.lines)
	}
	w.add(path, prefix+string(kind))
	w.depth++
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	if kind == '[' && prefix == "" && path != "" {
		path += ".[]" // no member that is shown contains nested arrays
	}
	for d.PeekKind() != '}' && d.PeekKind() != ']' {
		inner, name := path, ""
		if kind == '{' {
			token, err := d.ReadToken()
			if err != nil {
				return err
			}
			name = fmt.Sprintf("%q: ", w.name(token.String(), path))
			inner += "." + strings.ReplaceAll(token.String(), ".", "…") // so that a name is no path
		}
		if err := w.value(d, inner, name); err != nil {
			return err
		}
	}
	w.depth--
	end, err := d.ReadToken()
	w.add("", string(end.Kind()))
	return err
}

// name returns the name of a member, hidden inside of private objects: there it may be private too.
func (w *lineWriter) name(name, path string) string {
	if w.reveal || path == "" || path == ".data" {
		return name
	}
	return "…"
}

// scalar returns a value, or its kind when it may be private.
func (w *lineWriter) scalar(value jsontext.Value, path string) string {
	name := path[strings.LastIndexByte(path, '.')+1:]
	parent := strings.TrimSuffix(path, "."+name)
	kind := value.Kind()
	public := (parent == "" || parent == ".data") && queries.IsPublic(name, kind) ||
		w.event && parent == "" && kind == '"' && queries.IsPublicAttribute(name)
	switch {
	case w.reveal, public, kind == 'n':
		return string(value)
	case kind == '"':
		return fmt.Sprintf("‹a string of %d characters›", max(0, utf8.RuneCount(value)-2))
	default:
		return "‹" + members.KindName(value) + "›"
	}
}
