package client

import (
	"strings"
	"testing"
)

// TestEditableBody_Nesting_BoundsSize indents bodies that are nested as deep as is indented, and one deeper. Each further
// level would make every line inside of it longer: 20 KB became 200 MB.
func TestEditableBody_Nesting_BoundsSize(t *testing.T) {
	t.Parallel()
	nested := func(depth int) string { return strings.Repeat("[", depth) + "1" + strings.Repeat("]", depth) }
	for _, body := range []string{nested(indentDepthMax + 1), nested(9_990), `{"a":` + nested(indentDepthMax) + `}`, `{"a":`, ""} {
		if got := string(EditableBody([]byte(body))); got != body {
			t.Errorf("%.80s: %d bytes become %d", body, len(body), len(got))
		}
	}
	deepest := strings.Repeat("  ", indentDepthMax) + "1\n"
	if got := string(EditableBody([]byte(nested(indentDepthMax)))); !strings.Contains(got, deepest) || !strings.HasSuffix(got, "\n]\n") {
		t.Errorf("nested %d deep: %s", indentDepthMax, got)
	}
	if got := string(EditableBody([]byte(`{"a":1,"a":"` + "\xff" + `"}`))); got != "{\n  \"a\": 1,\n  \"a\": \"\xff\"\n}\n" {
		t.Errorf("a name twice, and no UTF-8: %q", got)
	}
}

func TestPublicBody_AnyBody_LacksWhatMayBePrivate(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"specversion":"1.0","data":{"user_id":"ann","quantity":2,"metadata":{"a":["secret"]},"slots":["A","B"]},"id":"i","from":"ann"}`: `{"specversion":"1.0","data":{"user_id":"‹a string of 3 characters›","quantity":2,"metadata":"‹an object›","slots":["A","B"]},"id":"i","from":"‹a string of 3 characters›"}`,
		`{"specversion":"1.0","data":"{\"user_id\":\"ann\"}","type":["ann"]}`:                                                             `{"specversion":"1.0","data":"‹a string of 21 characters›","type":"‹a list›"}`,
		`{"specversion":"1.0","data":{"id":"ann","hold_id":7,"quantity":"ann","data":{"quantity":2}}}`:                                    `{"specversion":"1.0","data":{"id":"‹a string of 3 characters›","hold_id":"‹a number›","quantity":"‹a string of 3 characters›","data":"‹an object›"}}`,
		`{"userId":true,"hold_id":{"user_id":"ann"},"slots":[["ann"],"A"],"quantity":1,"ttl_seconds":null}`:                               `{"userId":"‹a boolean›","hold_id":"‹an object›","slots":"‹a list›","quantity":1,"ttl_seconds":null}`,
		`{"id":"ann","user_id":"ann","user_id":{"user_id":"ben"},"data":{"quantity":1}}`:                                                  `{"id":"‹a string of 3 characters›","user_id":"‹a string of 3 characters›","user_id":"‹an object›","data":"‹an object›"}`,
		`"ann"`: "", `["ann"]`: "", `no JSON ann`: "", `{"user_id":"ann"`: "", `{} ann`: "", "": "",
	} {
		if got := PublicBody([]byte(body)); string(got) != want || (got == nil) != (want == "") {
			t.Errorf("%s: %s\nwant %s", body, got, want)
		}
	}
}
