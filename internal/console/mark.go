package console

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/client"
)

// line is a line of an event.
type line struct {
	Text   string
	Faulty bool   // the member that the detail of the dead letter names
	Why    string // the rest of the detail
}

// faultyMember matches the name of a member at the begin of a detail.
var faultyMember = regexp.MustCompile(`^([a-z_]+(?:\.[a-z_]+)*): (.*)$`)

// linesMax bounds the lines of an event. One with more is a line alone.
const linesMax = 5000

// markedLines returns an event as lines, unless reveal is true without what may be private. The line of the member that
// detail names is faulty; of a member that is missing, the line of the object that lacks it.
func markedLines(body []byte, detail string, reveal bool) []line {
	if !reveal {
		size := len(body)
		if body = client.PublicBody(body); body == nil {
			return []line{{Text: fmt.Sprintf("‹%s that are no JSON object›", counted(size, "byte"))}}
		}
	}
	text := bytes.TrimSuffix(client.EditableBody(body), []byte("\n"))
	if bytes.Count(text, []byte("\n")) >= linesMax {
		return []line{{Text: string(body)}}
	}
	var lines []line
	for one := range bytes.SplitSeq(text, []byte("\n")) {
		lines = append(lines, line{Text: string(one)})
	}
	if found := faultyMember.FindStringSubmatch(detail); found != nil {
		name := found[1]
		if lineOf(text, "/specversion") < 0 { // in binary mode, the body is the data
			name = strings.TrimPrefix(name, "data.")
		}
		member := jsontext.Pointer("/" + strings.ReplaceAll(name, ".", "/"))
		if n := lineOf(text, member); n >= 0 {
			lines[n].Faulty, lines[n].Why = true, found[2]
		} else if n = lineOf(text, member.Parent()); n >= 0 {
			lines[n].Faulty, lines[n].Why = true, detail
		}
	}
	return lines
}

// lineOf returns the index of the line of a JSON text where a member begins, or -1 if there is no such member.
func lineOf(text []byte, member jsontext.Pointer) int {
	decoder := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowInvalidUTF8(true))
	depth := max(1, strings.Count(string(member), "/"))
	for {
		deeper := decoder.StackDepth() >= depth && (decoder.PeekKind() == '{' || decoder.PeekKind() == '[')
		if deeper { // StackPointer would take long in thousands of levels
			if decoder.SkipValue() != nil {
				return -1
			}
			continue
		}
		if _, err := decoder.ReadToken(); err != nil {
			return -1
		}
		if decoder.StackPointer() == member {
			return bytes.Count(text[:decoder.InputOffset()], []byte("\n"))
		}
	}
}
