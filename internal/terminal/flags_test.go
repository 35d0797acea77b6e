package terminal

import (
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// TestDecimalIntegers_EachKind_IsDecimal parses what other readers take for octal, hexadecimal or grouped numbers.
func TestDecimalIntegers_EachKind_IsDecimal(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]struct {
		seqs []uint64
		n    int
		err  string
	}{
		"0144 --n 010":                 {[]uint64{144}, 10, ""},
		"08 9 --n=-7":                  {[]uint64{8, 9}, -7, ""},
		"0x10":                         {err: `"0x10"`},
		"1_000":                        {err: `"1_000"`},
		"1 --n 0b1":                    {err: `"0b1"`},
		"1 --n 9223372036854775808":    {err: `"9223372036854775808"`},
		"18446744073709551615 --n 1.5": {err: `"1.5"`},
		"-- -1":                        {err: `"-1"`},
	} {
		var flags struct {
			Seqs []uint64 `arg:""`
			N    int
		}
		parser, err := kong.New(&flags, DecimalIntegers())
		if err != nil {
			t.Fatal(err)
		}
		_, err = parser.Parse(strings.Fields(line))
		switch {
		case want.err != "":
			if err == nil || !strings.Contains(err.Error(), want.err) {
				t.Errorf("%s: %v, want an error with %s", line, err, want.err)
			}
		case err != nil || flags.N != want.n || len(flags.Seqs) != len(want.seqs) || flags.Seqs[0] != want.seqs[0]:
			t.Errorf("%s: %v, %+v, want %+v", line, err, flags, want)
		}
	}
}
