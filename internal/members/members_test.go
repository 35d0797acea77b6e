package members

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"
)

// TestParse_AnyText_IsAsInAMap compares the members of generated objects, and of broken ones,
// with those that json.Unmarshal decodes.
func TestParse_AnyText_IsAsInAMap(t *testing.T) {
	t.Parallel()
	space := rapid.SampledFrom([]string{"", "", " ", "\n\t", "\r "})
	scalar := rapid.OneOf(
		rapid.SampledFrom([]string{"0", "-1.5e3", "true", "false", "null", `""`, `"a\"}],{[b\\"`, `"\u0041"`, `"日本"`, "\"\xff\"", `"\ud800"`, "tru", `"open`}),
		rapid.Map(rapid.String(), func(s string) string { b, _ := json.Marshal(s); return string(b) }),
	)
	name := rapid.OneOf(rapid.SampledFrom([]string{`"id"`, `"\u0069d"`, `"data"`, `"data"`, `"resource_id"`, `"a\\"`, `"}"`, `""`}), rapid.Just(`"x"`), scalar)
	value := scalar
	for range 3 {
		inner := value
		list := func(open, end string, element func(t *rapid.T) string) *rapid.Generator[string] {
			return rapid.Custom(func(t *rapid.T) string {
				parts := make([]string, rapid.IntRange(0, 4).Draw(t, "length"))
				for i := range parts {
					parts[i] = space.Draw(t, "space") + element(t) + space.Draw(t, "space")
				}
				return open + space.Draw(t, "space") + strings.Join(parts, ",") + end
			})
		}
		value = rapid.OneOf(scalar, list("[", "]", func(t *rapid.T) string { return inner.Draw(t, "element") }),
			list("{", "}", func(t *rapid.T) string {
				return name.Draw(t, "name") + space.Draw(t, "space") + ":" + space.Draw(t, "space") + inner.Draw(t, "value")
			}))
	}
	rapid.Check(t, func(t *rapid.T) {
		text := space.Draw(t, "space") + value.Draw(t, "text") + rapid.SampledFrom([]string{"", "", "", " ", "{}", "}"}).Draw(t, "end")
		var want map[string]jsontext.Value
		wantErr := json.Unmarshal([]byte(text), &want)
		if wantErr == nil && want == nil {
			wantErr = errors.New("it is null")
		}
		got, err := Parse("text", []byte(text))
		if (err != nil) != (wantErr != nil) || err == nil && (len(got) != len(want) || got == nil) {
			t.Fatalf("%s: %v %v, want %v %v", text, got, err, want, wantErr)
		}
		for _, m := range got {
			if wanted, found := want[m.Name]; !found || string(wanted) != string(m.Value) {
				t.Fatalf("%s: %s is %s, want %s", text, m.Name, m.Value, wanted)
			}
		}
	})
}
