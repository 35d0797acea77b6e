package terminal

import (
	"fmt"
	"reflect"
	"strconv"

	"github.com/alecthomas/kong"
)

// DecimalIntegers has a command line read integers as events and queries have them: decimal. Kong's own mappers read
// 010 as 8, and a dead letter of another number would be removed.
func DecimalIntegers() kong.Option {
	return kong.OptionFunc(func(k *kong.Kong) error {
		for kind := reflect.Int; kind <= reflect.Uint64; kind++ {
			if err := kong.KindMapper(kind, kong.MapperFunc(decodeDecimal)).Apply(k); err != nil {
				return err
			}
		}
		return nil
	})
}

func decodeDecimal(of *kong.DecodeContext, target reflect.Value) error {
	token, err := of.Scan.PopValue("integer")
	if err != nil {
		return err
	}
	text := fmt.Sprint(token.Value)
	if target.CanInt() {
		n, err := strconv.ParseInt(text, 10, target.Type().Bits())
		target.SetInt(n)
		return malformed(err, text)
	}
	n, err := strconv.ParseUint(text, 10, target.Type().Bits())
	target.SetUint(n)
	return malformed(err, text)
}

func malformed(err error, text string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("expected an integer such as 2 but got %q", text)
}

// CheckNonzero returns an error if a flag with the tag nonzero is given and its value is empty or 0, with the text of the
// tag. An unset variable of a shell must not do the same as a flag that is left out.
func CheckNonzero(given []*kong.Path) error {
	for _, part := range given {
		flag := part.Flag
		if flag == nil || !flag.Tag.Has("nonzero") {
			continue
		}
		if flag.Target.IsZero() || flag.IsSlice() && flag.Target.Len() == 0 {
			return fmt.Errorf("--%s: %s", flag.Name, flag.Tag.Get("nonzero"))
		}
	}
	return nil
}
