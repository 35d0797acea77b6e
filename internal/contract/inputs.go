// Package contract reads the files that describe the contract, for the tests of several packages:
// the catalogue of inputs under internal/events/testdata/catalogue, each with its expected result,
// and the schemas and the AsyncAPI document under docs.
package contract

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/tools/txtar"
)

// Input is an inbound message of the default namespace, and its expected result.
type Input struct {
	Name    string // file and name within it: "numbers/quantity 1.0"
	Event   string // the event whose data the body was written as, "" for a whole message
	Subject string // begins with "holdfast."
	Header  map[string][]string
	Body    []byte

	// Want is the reason of a dead letter, or the outbound event that answers it.
	Want string
	// Detail is what the detail of the dead letter begins with, or the reason of the event and,
	// after a space, its field; "" when the catalogue names neither.
	Detail string
	// Beyond names the rule for which it is dead-lettered when no schema can express that rule.
	Beyond string
}

// The reasons of dead letters that an Input can want.
var deadLetterReasons = []string{"too_large", "malformed", "unknown_type", "subject_mismatch"}

// IsDeadLetter reports whether the input is to be dead-lettered.
func (in Input) IsDeadLetter() bool { return slices.Contains(deadLetterReasons, in.Want) }

// ReadInputs returns all inputs of a directory, in the order of the files and of each file. Dates
// that are relative to today are computed from now. It returns an error that names the file and the
// input when an input is not in the form that the directory's README.md describes.
func ReadInputs(dir string, now time.Time) ([]Input, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s: no .txtar file", dir)
	}
	var inputs []Input
	seen := make(map[string]struct{})
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			return nil, err
		}
		theme := strings.TrimSuffix(filepath.Base(path), ".txtar")
		for _, file := range archive.Files {
			in, err := parse(file, now)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", path, file.Name, err)
			}
			if _, repeated := seen[file.Name]; repeated {
				return nil, fmt.Errorf("%s: %s: the name is used twice", path, file.Name)
			}
			seen[file.Name] = struct{}{}
			in.Name = theme + "/" + file.Name
			inputs = append(inputs, in)
		}
	}
	return inputs, nil
}

// parse reads one input: lines of "key: value", an empty line, and the body.
func parse(file txtar.File, now time.Time) (in Input, err error) {
	head, body, found := bytes.Cut(file.Data, []byte("\n\n"))
	if !found {
		return Input{}, fmt.Errorf("no empty line before the body")
	}
	in.Header = make(map[string][]string)
	for line := range strings.Lines(string(head)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch key {
		case "want":
			in.Want, in.Detail, _ = strings.Cut(value, " ")
		case "beyond":
			in.Beyond = value
		case "event":
			in.Event = value
		case "subject":
			in.Subject = value
		case "header":
			name, value, _ := strings.Cut(value, ": ")
			text, err := expand([]byte(value), now)
			if err != nil {
				return Input{}, err
			}
			in.Header[name] = append(in.Header[name], string(text))
		default:
			return Input{}, fmt.Errorf("unknown key %q", key)
		}
	}
	body = bytes.TrimSuffix(body, []byte("\n"))
	if in.Event != "" {
		body = fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":"/catalogue","type":"holdfast.%s.v1","data":%s}`, file.Name, in.Event, body)
		if in.Subject == "" {
			in.Subject = "holdfast.in." + in.Event + ".room"
		}
	}
	switch {
	case in.Subject == "":
		return Input{}, fmt.Errorf("neither event nor subject")
	case !in.IsDeadLetter() && !strings.Contains(in.Want, "."):
		return Input{}, fmt.Errorf("want %q is neither the reason of a dead letter nor an event", in.Want)
	case in.Beyond != "" && in.Want != "malformed":
		return Input{}, fmt.Errorf("beyond says why a schema does not refuse what is malformed")
	}
	in.Body, err = expand(body, now)
	return in, err
}

var placeholder = regexp.MustCompile(`%\{([a-z]+) ([^}]*)\}`)

// expand replaces the placeholders of a text, which stand for bytes that a readable file cannot
// have, or that are too long for it.
func expand(text []byte, now time.Time) ([]byte, error) {
	var failed error
	fill := -1
	expanded := placeholder.ReplaceAllFunc(text, func(match []byte) []byte {
		words := placeholder.FindSubmatch(match)
		value, err := expandOne(string(words[1]), string(words[2]), now)
		if err != nil && failed == nil {
			failed = fmt.Errorf("%s: %w", match, err)
		}
		if string(words[1]) == "fill" {
			fill, _ = strconv.Atoi(string(words[2])) // expandOne has checked it
			return match
		}
		return value
	})
	if failed != nil || fill < 0 {
		return expanded, failed
	}
	mark := placeholder.Find(expanded)
	missing := fill - len(expanded) + len(mark)
	if missing < 0 {
		return nil, fmt.Errorf("%s: the body is longer", mark)
	}
	return bytes.Replace(expanded, mark, bytes.Repeat([]byte("x"), missing), 1), nil
}

func expandOne(verb, argument string, now time.Time) ([]byte, error) {
	switch verb {
	case "hex":
		return hex.DecodeString(strings.ReplaceAll(argument, " ", ""))
	case "times":
		number, text, _ := strings.Cut(argument, " ")
		n, err := strconv.Atoi(number)
		if err != nil {
			return nil, err
		}
		return bytes.Repeat([]byte(text), n), nil
	case "slots":
		n, err := strconv.Atoi(argument)
		if err != nil {
			return nil, err
		}
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprintf(`"s%04d"`, i)
		}
		return []byte(strings.Join(names, ",")), nil
	case "day":
		n, err := strconv.Atoi(argument)
		return []byte(now.UTC().AddDate(0, 0, n).Format(time.DateOnly)), err
	case "fill":
		_, err := strconv.Atoi(argument)
		return nil, err
	default:
		return nil, fmt.Errorf("unknown")
	}
}
