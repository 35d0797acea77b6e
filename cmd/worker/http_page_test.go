package main

import (
	"net"
	"net/http/httptest"
	"strings"
	"testing"

	"holdfast/internal/console"
	"holdfast/internal/stack/stacktest"
)

// TestPage_Links_AreServedOnItsAddress checks that the page links to the console and to the queries only where they
// are served.
func TestPage_Links_AreServedOnItsAddress(t *testing.T) {
	t.Parallel()
	api, err := net.Listen("tcp", "127.0.0.1:0")
	stacktest.Must(t, err)
	t.Cleanup(func() { _ = api.Close() })
	for name, c := range map[string]struct {
		server  *server
		wants   []string
		without []string
	}{
		"queries": {&server{}, []string{`href="/v1/stats"`}, []string{"/console/"}},
		"console": {&server{console: &console.Console{}}, []string{`href="/v1/stats"`, `href="/console/"`}, nil},
		"queries on another address": {
			&server{console: &console.Console{}, listeners: listeners{api: api}},
			[]string{api.Addr().String()}, []string{`href="/v1`, `href="/console/`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recorder := httptest.NewRecorder()
			c.server.page(recorder, httptest.NewRequest("GET", "/", nil))
			page := recorder.Body.String()
			for _, text := range append(c.wants, `href="/readyz"`, "</html>") {
				if !strings.Contains(page, text) {
					t.Errorf("the page lacks %s:\n%s", text, page)
				}
			}
			for _, text := range c.without {
				if strings.Contains(page, text) {
					t.Errorf("the page has %s:\n%s", text, page)
				}
			}
		})
	}
}
