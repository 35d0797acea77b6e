package record_test

import (
	"errors"
	"testing"

	"holdfast/internal/record"
)

// TestParse_WrittenLines_RoundTrip checks that each line is read and written again without a change.
func TestParse_WrittenLines_RoundTrip(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		line  string
		parse func(string) (interface{ String() string }, error)
	}{
		{`held 1790000600000 1790000000000 2 0 - ana k1 A-1,A-2 {"slots":["A-1"]} {"a":"b c"}`, parseWith(record.Parse)},
		{`released 1790000600000 1790000000000 1 1790000000500 e1 ana k1 stock {} `, parseWith(record.Parse)},
		{`ana k1 stock {} {"a":"b c"}`, parseWith(record.ParseTail)},
		{`created f1 e1 1790000000000 0192f5c4d0b07cc3a5d0f2f5a1b2c3d4:1790000600000 - `, parseWith(record.ParseAnswer)},
		{`sold_out f1 e1 1790000000000 -|stock:3:1:2 {} {"a":"b c"}`, parseWith(record.ParseAnswer)},
		{`0192f5c4d0b07cc3a5d0f2f5a1b2c3d4:1790000600000`, parseWith(record.ParseCreated)},
		{`-|stock:3:1:2`, parseWith(record.ParseShortage)},
		{`1790000600000|A-1:3:1:2,A-2:0:0:0`, parseWith(record.ParseShortage)},
	} {
		parsed, err := c.parse(c.line)
		if err != nil || parsed.String() != c.line {
			t.Errorf("%q is read as %+v %v", c.line, parsed, err)
		}
	}
}

// TestParse_MalformedLine_IsRefused checks that no parser accepts a line that it does not write.
func TestParse_MalformedLine_IsRefused(t *testing.T) {
	t.Parallel()
	for line, parse := range map[string]func(string) (interface{ String() string }, error){
		"":                                parseWith(record.Parse),
		"held 1 1 1 0 -":                  parseWith(record.Parse),
		"held 1 1 x 0 - ana k stock {} ":  parseWith(record.Parse),
		"held  1 1 1 0 - ana k stock {} ": parseWith(record.Parse),
		"ana k stock {}":                  parseWith(record.ParseTail),
		"ana k":                           parseWith(record.ParseShortTail),
		"created f e 1 d -":               parseWith(record.ParseAnswer),
		"created f e x d - ":              parseWith(record.ParseAnswer),
		"0192f5c4":                        parseWith(record.ParseCreated),
		"x|stock:1:1:1":                   parseWith(record.ParseShortage),
		"-|stock:1:1":                     parseWith(record.ParseShortage),
		"-|stock:1:1:x":                   parseWith(record.ParseShortage),
	} {
		if parsed, err := parse(line); !errors.Is(err, record.ErrMalformed) {
			t.Errorf("%q is read as %+v %v, want ErrMalformed", line, parsed, err)
		}
	}
}

func parseWith[T interface{ String() string }](
	parse func(string) (T, error),
) func(string) (interface{ String() string }, error) {
	return func(line string) (interface{ String() string }, error) { return parse(line) }
}
