package console

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/net/html"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/queries"
)

// TestPages_TextsOfEvents_AreEscaped renders pages with characters that change the order of a line or hide a part of it. Their
// texts show the escapes of these characters; what is copied or submitted keeps the characters.
func TestPages_TextsOfEvents_AreEscaped(t *testing.T) {
	t.Parallel()
	const (
		hostile = "a\u202eb\x1b[2J\u2028\u200bc\xff\u2066é</textarea><b hx-get=x>&lt;\"'&amp;amp;"
		escaped = `a\u202eb\x1b[2J\u2028\u200bc\xff\u2066é</textarea><b hx-get=x>&lt;"'&amp;amp;`
	)
	deadLetter := &events.DeadLetter{EventID: hostile, Detail: hostile, Subject: hostile, Worker: hostile}
	listed := newTable("", "", "a", "b", "c")
	listed.add(text(hostile), link(hostile, "/"), badge(hostile, "bad"))
	list := listData{Note: hostile + " of " + thousands(12345), Tables: []*table{listed}}
	for name, p := range map[string]*page{
		"hold": {Body: "hold", Data: holdData{Steps: []step{{
			HistoryEntry: queries.HistoryEntry{EventID: hostile, Detail: hostile},
			Facts:        facts(jsontext.Value("{\"user_id\":\"" + hostile + "\"}")),
		}}}},
		"dead letter": {Body: "dead-letter", Data: deadLetterData{
			DeadLetter: deadLetter, Headers: []fact{{hostile, hostile}}, Lines: []line{{Text: "x\n\t" + hostile}},
		}},
		"list":      {Body: "list", Data: list},
		"run":       {Body: "run", Data: runData{Run: &client.Run{Operator: hostile, Note: hostile}, Results: listed}},
		"text area": {Body: "edit", Data: editData{Body: hostile, Problem: hostile}, Revealed: true},
		"title":     {Body: "problem", Data: hostile, Title: hostile},
	} {
		body, err := p.execute(p.Body)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if p.Title != "" {
			if body, err = p.execute("layout"); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		area, shown, kept, tokens := false, 0, 0, html.NewTokenizer(bytes.NewReader(body))
		for tokens.Next() != html.ErrorToken {
			token := tokens.Token()
			for _, attribute := range token.Attr {
				if attribute.Key == "data-copy" && strings.Contains(attribute.Val, "\u202e") {
					kept++
				}
			}
			if token.Data == "b" && token.Type != html.TextToken {
				t.Errorf("%s: the text became an element\n%s", name, body)
			}
			if token.Type != html.TextToken {
				area = token.Data == "textarea"
				continue
			}
			if area {
				kept += strings.Count(token.Data, "\u202e")
			} else if bad := strings.IndexFunc(token.Data, isUnprintable); bad >= 0 {
				t.Errorf("%s: raw character in %q", name, token.Data)
			}
			shown += strings.Count(token.Data, escaped)
		}
		if shown == 0 {
			t.Errorf("%s: the text is missing\n%s", name, body)
		}
		if (name == "hold" || name == "dead letter" || name == "text area") && kept == 0 {
			t.Errorf("%s: what is copied or submitted is escaped\n%s", name, body)
		}
		if name == "list" && !bytes.Contains(body, []byte("12\u202f345")) {
			t.Errorf("the thin space of a number is escaped\n%s", body)
		}
	}
}

// TestAsset_OfAnotherVersion_IsNotKept requests files by the addresses that the pages of this version have and those of
// another version, as behind a proxy during an upgrade. Browsers may keep only the first.
func TestAsset_OfAnotherVersion_IsNotKept(t *testing.T) {
	t.Parallel()
	_, handler := newTestConsole(t, Options{Mode: Read})
	for address, want := range map[string]bool{
		assets()["console.js"]:                     true,
		Prefix + "assets/console.js":               false,
		Prefix + "assets/console.js?0000000000000": false,
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, address, nil))
		if kept := strings.Contains(w.Header().Get("Cache-Control"), "immutable"); w.Code != http.StatusOK || kept != want {
			t.Errorf("%s: status %d, kept %v, want %v", address, w.Code, kept, want)
		}
	}
}
