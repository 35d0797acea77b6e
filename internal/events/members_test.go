package events

import (
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"
)

// secret is part of every value below. No detail may contain it.
const secret = "s3cret\u00e9"

// secretValues are values that no member of any event may have, at least one of each kind.
var secretValues = []string{
	`"` + secret + `"`, `"` + strings.Repeat(secret, 30) + `"`, `{"` + secret + `":"` + secret + `"}`,
	`["` + secret + `"]`, `["` + secret + `","` + secret + `"]`, `1.5`, `99999999999999999999`, `null`, `true`,
}

// TestDetail_BadMember_NamesNoValue sets each member of each event to values that it may not have.
func TestDetail_BadMember_NamesNoValue(t *testing.T) {
	t.Parallel()
	refused := make(map[string]bool)
	for event := range decoders {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(dataOf[event].data)) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if field.Anonymous || name == "" {
				continue
			}
			for _, value := range secretValues {
				all := map[string]string{
					"request_key": `"k"`, "user_id": `"u"`, "resource_id": `"room"`, "quantity": `1`, "payment_id": `"p"`,
					"hold_id": `"room.0192f5c4d0b07cc3a5d0f2f5a1b2c3d4"`, "ttl_seconds": `1`, "capacity": `1`,
				}
				if event == BookingCancelled && name != "hold_id" {
					delete(all, "hold_id")
				} else if event == BookingCancelled {
					delete(all, "request_key")
				}
				if name == "check_out" {
					all["check_in"] = `"2027-05-01"`
				}
				all[name] = value
				var members []string
				for member, text := range all {
					members = append(members, fmt.Sprintf("%q:%s", member, text))
				}
				body := envelopeOf(event, "e1", "{"+strings.Join(members, ",")+"}")
				_, err := DecodeEvent(nil, []byte(body), storedAt)
				if err == nil {
					continue // allowed in free text
				}
				refused[event+" "+name] = true
				if strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "data."+name+": ") || !strings.Contains(err.Error(), "found ") {
					t.Errorf("%s with %s %s: %v", event, name, value, err)
				}
			}
		}
	}
	if len(refused) < 20 {
		t.Errorf("only %d members refuse values: %v", len(refused), refused)
	}
}

// TestDetail_BadAttribute_NamesNoValue sets attributes and headers to values that they may not
// have.
func TestDetail_BadAttribute_NamesNoValue(t *testing.T) {
	t.Parallel()
	good := envelopeOf(BookingRequested, "e1", `{"request_key":"k","user_id":"u","resource_id":"room","quantity":1}`)
	for _, c := range []struct {
		header nats.Header
		body   string
	}{
		{nil, strings.Replace(good, `"1.0"`, `"s3cret"`, 1)},
		{nil, strings.Replace(good, Type(BookingRequested), "s3cret", 1)},
		{nil, strings.Replace(good, Type(BookingRequested), Type("s3cret"), 1)},
		{nil, strings.Replace(good, Type(BookingRequested), Type(BookingRequested)+".s3cret", 1)},
		{nil, strings.Replace(good, `"e1"`, `"s3cret\u0000"`, 1)},
		{nil, strings.Replace(good, `"e1"`, `"e1","ext":{"s3cret":1}`, 1)},
		{nil, strings.Replace(good, `"e1"`, `"e1","time":"s3cret"`, 1)},
		{nil, strings.Replace(good, `"e1"`, `"e1","dataschema":"<s3cret>"`, 1)},
		{nil, strings.Replace(good, `"e1"`, `"e1","datacontenttype":"s3cret"`, 1)},
		{nil, strings.Replace(good, `"e1"`, `"e1","datacontenttype":"text/s3cret"`, 1)},
		{nil, strings.Replace(good, `"e1"`, `"e1",s3cret`, 1)},
		{nil, `{"user_id":"s3cret"}`},
		{nil, `"s3cret"`},
		{nats.Header{"Content-Type": {"s3cret"}}, good},
		{nats.Header{"Content-Type": {"text/s3cret"}}, good},
		{nats.Header{"Content-Type": {"application/s3cret+json"}}, good},
		{nats.Header{"Content-Type": {"application/json; charset=s3cret"}}, good},
		{nats.Header{"Ce-Id": {"s3cret"}, "ce-id": {"s3cret"}}, "{}"},
		{nats.Header{"ce-id": {"%s3cret"}}, "{}"},
		{nats.Header{"ce-id": {"s3cret"}}, "{}"},
	} {
		_, err := DecodeEvent(c.header, []byte(c.body), storedAt)
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%v %s: %v", c.header, c.body, err)
		}
	}
}

// TestParseMembers_AnyText_IsAsInAMap compares the members of generated objects, and of broken ones,
// with those that json.Unmarshal decodes.
func TestParseMembers_AnyText_IsAsInAMap(t *testing.T) {
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
		got, err := parseMembers([]byte(text))
		if (err != nil) != (wantErr != nil) || err == nil && (len(got) != len(want) || (got == nil) != (want == nil)) {
			t.Fatalf("%s: %v %v, want %v %v", text, got, err, want, wantErr)
		}
		for _, m := range got {
			if wanted, found := want[m.name]; !found || string(wanted) != string(m.value) {
				t.Fatalf("%s: %s is %s, want %s", text, m.name, m.value, wanted)
			}
		}
	})
}

// TestIsURIReference_AnyText_IsAsParsed compares the short check with the whole one.
func TestIsURIReference_AnyText_IsAsParsed(t *testing.T) {
	t.Parallel()
	texts := rapid.OneOf(rapid.String(), rapid.StringMatching(`[-A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%]{0,12}`), rapid.StringMatching(`[-a-z0-9._~/]{0,8}`))
	rapid.Check(t, func(t *rapid.T) {
		text := texts.Draw(t, "text")
		_, err := url.Parse(text)
		if want := err == nil && uriReference.MatchString(text); isURIReference(text) != want {
			t.Fatalf("%q is %v, want %v", text, !want, want)
		}
	})
}
