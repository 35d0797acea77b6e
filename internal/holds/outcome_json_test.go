package holds

import (
	"bytes"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"holdfast/internal/stack/stacktest"
)

// TestAppendJSON_AnyOutcome_IsWhatReflectionWrites compares the two encodings of every type of
// outcome, over generated values.
func TestAppendJSON_AnyOutcome_IsWhatReflectionWrites(t *testing.T) {
	for _, event := range slices.Sorted(maps.Keys(outcomeTypes)) {
		t.Run(event, func(t *testing.T) {
			empty, _, err := DecodeOutcomeData(event, []byte("{}"))
			stacktest.Must(t, err)
			rapid.Check(t, func(t *rapid.T) {
				value := reflect.New(reflect.TypeOf(empty)).Elem()
				fill(t, value)
				data := value.Interface().(OutcomeData)
				want, wantErr := json.Marshal(data)
				got, err := AppendJSON([]byte("before "), data)
				if (err != nil) != (wantErr != nil) {
					t.Fatalf("error %v, with reflection %v", err, wantErr)
				}
				if got = bytes.TrimPrefix(got, []byte("before ")); err == nil && !bytes.Equal(got, want) {
					t.Fatalf("appended  %s\nreflected %s", got, want)
				}
			})
		})
	}
}

// texts are some that JSON escapes, some that it does not, and one that is not UTF-8.
var texts = rapid.OneOf(
	rapid.SampledFrom([]string{"", "room-17", `a"b\c`, "tab\there", "nul\x00", "del\x7f", "</script>&", "naïve", "\u2028", "日本", "not\xffUTF-8"}),
	rapid.String(),
)

// fill sets a value, and all that it contains, to something generated.
func fill(t *rapid.T, v reflect.Value) {
	switch at := v.Addr().Interface().(type) {
	case *Time:
		*at = Time{rapid.OneOf(
			rapid.Custom(func(t *rapid.T) time.Time { return time.UnixMilli(rapid.Int64Range(-1e14, 3e14).Draw(t, "ms")) }),
			rapid.SampledFrom([]time.Time{{}, time.Unix(0, 999_999_999), time.Unix(1.8e9, 1e6).In(time.FixedZone("", 3600))}),
		).Draw(t, "time")}
		return
	case *jsontext.Value:
		*at = jsontext.Value(rapid.SampledFrom([]string{
			`{"a":1}`, ` { "b" : [ 1.50 , "\u0041\/" ] } `, `{"a":1,"a":2}`, `{`, "", `{"c":"` + "\xff" + `"}`, `"\ud800"`, "{} {}",
		}).Draw(t, "metadata"))
		if rapid.Bool().Draw(t, "no metadata") {
			*at = nil
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	case reflect.Pointer:
		if rapid.Bool().Draw(t, "set") {
			v.Set(reflect.New(v.Type().Elem()))
			fill(t, v.Elem())
		}
	case reflect.Slice:
		if rapid.Bool().Draw(t, "list") {
			v.Set(reflect.MakeSlice(v.Type(), rapid.IntRange(0, 3).Draw(t, "length"), 3))
			for i := range v.Len() {
				fill(t, v.Index(i))
			}
		}
	case reflect.String:
		v.SetString(texts.Draw(t, "text"))
	case reflect.Int64:
		v.SetInt(rapid.Int64().Draw(t, "number"))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "flag"))
	default:
		t.Fatalf("no generator for %s", v.Type())
	}
}

// TestSlotSelection_Any_CompactIsItsJSON compares Compact, which is stored in records, with
// json.Marshal.
func TestSlotSelection_Any_CompactIsItsJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a SlotSelection
		fill(t, reflect.ValueOf(&a).Elem())
		want, wantErr := json.Marshal(a)
		got, err := a.Compact()
		if (err != nil) != (wantErr != nil) || err == nil && got != string(want) {
			t.Fatalf("%s %v, want %s %v", got, err, want, wantErr)
		}
	})
}

// TestValid_AnyText_IsWhatPatternMatches compares the checks of names with their patterns.
func TestValid_AnyText_IsWhatPatternMatches(t *testing.T) {
	texts := rapid.OneOf(rapid.String(), rapid.StringMatching(`[-A-Za-z0-9_]{0,70}`), rapid.StringMatching(`[0-9a-f]{31,33}`))
	uuids := regexp.MustCompile(`^[0-9a-f]{32}$`)
	rapid.Check(t, func(t *rapid.T) {
		text := texts.Draw(t, "text")
		if ValidResource(text) != ResourcePattern.MatchString(text) || ValidSlot(text) != SlotPattern.MatchString(text) ||
			validUUID(text) != uuids.MatchString(text) {
			t.Fatalf("%q: %v, %v, %v", text, ValidResource(text), ValidSlot(text), validUUID(text))
		}
	})
}
