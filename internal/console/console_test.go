package console

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/client"
)

// vendored are the files of others: package, version, licence and SHA-256 of each. The files are
// those of the npm packages, unchanged. Each has its licence beside it.
var vendored = []struct{ file, origin, licence, sha256 string }{
	{"htmx.min.js", "htmx.org 2.0.11, dist/htmx.min.js", "BSD-0-Clause", "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"},
	{"sse.min.js", "htmx-ext-sse 2.2.4, dist/sse.min.js", "BSD-0-Clause", "98a46496de0c3605fbffdce9167ba427bdd9553184f83f149c261891a92c0136"},
	{"uPlot.min.js", "uplot 1.6.32, dist/uPlot.iife.min.js", "MIT", "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"},
	{"uPlot.min.css", "uplot 1.6.32, dist/uPlot.min.css", "MIT", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"},
}

// TestAssets_Vendored_AreUnchanged compares each file of others with its hash. Every other file is
// our own or a licence.
func TestAssets_Vendored_AreUnchanged(t *testing.T) {
	t.Parallel()
	known := map[string]bool{"console.css": true, "console.js": true, "icon.svg": true}
	for _, v := range vendored {
		body, err := files.ReadFile("assets/" + v.file)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(body)
		if got := hex.EncodeToString(sum[:]); got != v.sha256 {
			t.Errorf("%s is not the file of %s: %s", v.file, v.origin, got)
		}
		name, _, _ := strings.Cut(v.file, ".")
		if licence, err := files.ReadFile("assets/" + name + ".LICENSE"); err != nil || len(licence) == 0 {
			t.Errorf("%s has no licence file", v.file)
		}
		known[v.file], known[name+".LICENSE"] = true, true
	}
	for name := range assets() {
		if !known[name] {
			t.Errorf("%s is not in the table", name)
		}
	}
}

// TestMarkedLines_MalformedEvents_MarkTheMember checks which line is marked, and what is hidden.
func TestMarkedLines_MalformedEvents_MarkTheMember(t *testing.T) {
	t.Parallel()
	const body = `{"specversion":"1.0","id":"1","data":{"user_id":"ana","quantity":"two","metadata":{"private-name":["x"]}}}`
	for _, c := range []struct {
		body, detail string
		reveal       bool
		faulty, why  string
		hidden       []string
	}{
		{body, "data.quantity: must be an integer", false, `"quantity": "‹a string of 3 characters›",`, "must be an integer", []string{"ana", "two", "private-name"}},
		{body, "data.quantity: must be an integer", true, `"quantity": "two",`, "must be an integer", nil},
		{body, "data.request_key: missing", false, `"data": {`, "data.request_key: missing", []string{"ana"}},
		{`{"user_id":"ana","quantity":true}`, "data.quantity: must be an integer", false, `"quantity": "‹a boolean›"`, "must be an integer", []string{"ana"}},
		{`{"user_id":"ana"}`, "data.quantity: missing", false, "{", "data.quantity: missing", []string{"ana"}},
		{body, "no member at all", false, "", "", []string{"ana"}},
		{`{"data":`, "data: no JSON", false, "", "", []string{"data"}},
		{`{"a":1} private`, "text follows", false, "", "", []string{"private"}},
		{`{"data.resource_id":"private","x":{"data.slots":["private"]}}`, "no member at all", false, "", "", []string{"private"}},
		{`{"specversion":"1.0","id":"shown","data":{"id":"private","source":"private","slots":[["private"],"A-1"]}}`, "no member at all", false, "", "", []string{"private"}},
		{`{"id":"private","source":"private","time":"private","quantity":2}`, "no member at all", false, "", "", []string{"private"}},
		{strings.Repeat("[", 5000) + `"private"` + strings.Repeat("]", 5000), "too deep", false, "", "", []string{"private"}},
		{"[" + strings.Repeat("1,", 30_000) + "2]", "too long", false, "", "", nil},
	} {
		all := ""
		var marked []line
		if lines := markedLines([]byte(c.body), c.detail, c.reveal); len(lines) > linesMax {
			t.Errorf("%s: %d lines", c.detail, len(lines))
		}
		for _, l := range markedLines([]byte(c.body), c.detail, c.reveal) {
			all += l.Text + "\n"
			if l.Faulty {
				marked = append(marked, l)
			}
		}
		for _, word := range c.hidden {
			if strings.Contains(all, word) {
				t.Errorf("%s: %q is shown:\n%s", c.detail, word, all)
			}
		}
		switch {
		case c.faulty == "" && len(marked) > 0:
			t.Errorf("%s: marked %+v", c.detail, marked)
		case c.faulty != "" && (len(marked) != 1 || strings.TrimSpace(marked[0].Text) != c.faulty || marked[0].Why != c.why):
			t.Errorf("%s: marked %+v, want %q %q", c.detail, marked, c.faulty, c.why)
		}
	}
}

// TestShared_ConcurrentCalls_ReadOnce is ten open pages that need the same state.
func TestShared_ConcurrentCalls_ReadOnce(t *testing.T) {
	t.Parallel()
	var reads atomic.Int64
	var s shared[int64]
	var pages sync.WaitGroup
	for range 10 {
		pages.Go(func() {
			if got, err := s.get(t.Context(), time.Hour, func(context.Context) (int64, error) { return reads.Add(1), nil }); got != 1 || err != nil {
				t.Errorf("got %d, %v", got, err)
			}
		})
	}
	pages.Wait()
	if reads.Load() != 1 {
		t.Errorf("%d readings for ten pages", reads.Load())
	}
}

// TestShared_SlowReading_HoldsUpNoOneElse has a reading that does not end: a page that is closed does not
// wait for it, and those that wait get its error. A reading that panics is an error too.
func TestShared_SlowReading_HoldsUpNoOneElse(t *testing.T) {
	t.Parallel()
	var s shared[int64]
	begun, end, broken := make(chan struct{}), make(chan struct{}), errors.New("broken")
	var first sync.Once
	slow := func(context.Context) (int64, error) {
		first.Do(func() { close(begun) })
		<-end
		return 0, broken
	}
	var pages sync.WaitGroup
	for range 3 {
		pages.Go(func() {
			if _, err := s.get(t.Context(), time.Hour, slow); !errors.Is(err, broken) {
				t.Errorf("error %v", err)
			}
		})
	}
	<-begun
	closed, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.get(closed, time.Hour, slow); !errors.Is(err, context.Canceled) {
		t.Errorf("a closed page: %v", err)
	}
	close(end)
	pages.Wait()
	if _, err := s.get(t.Context(), time.Hour, func(context.Context) (int64, error) { panic("fault") }); err == nil {
		t.Error("a panic is no error")
	}
	if got, err := s.get(t.Context(), time.Hour, func(context.Context) (int64, error) { return 7, nil }); got != 7 || err != nil {
		t.Errorf("after errors: %d, %v", got, err)
	}
}

// TestRuns_OneTwice_SecondIsRefused begins a run twice, as a double click on Resume does, and too many
// runs. A stop cancels those that have begun and waits for them.
func TestRuns_OneTwice_SecondIsRefused(t *testing.T) {
	t.Parallel()
	c := New(Options{Mode: Act})
	ended := make(chan struct{}, runsMax)
	for n := range runsMax {
		ctx, end, err := c.runs.begin(strconv.Itoa(n))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			<-ctx.Done()
			ended <- struct{}{}
			end()
		}()
	}
	var refused *statusError
	for id, status := range map[string]int{"0": http.StatusConflict, "x": http.StatusServiceUnavailable} {
		if _, _, err := c.runs.begin(id); !errors.As(err, &refused) || refused.status != status {
			t.Errorf("run %s: %v, want status %d", id, err, status)
		}
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := c.Run(stopped); err != nil || len(ended) != runsMax {
		t.Errorf("%v, %d of %d runs have ended", err, len(ended), runsMax)
	}
	if _, _, err := c.runs.begin("y"); !errors.As(err, &refused) || refused.status != http.StatusServiceUnavailable {
		t.Errorf("after the stop: %v", err)
	}
}

// TestContentPolicy_EveryDirective_AllowsOwnFilesOnly reads the header of a page: no script or style of the page itself, and
// nothing of another site.
func TestContentPolicy_EveryDirective_AllowsOwnFilesOnly(t *testing.T) {
	t.Parallel()
	_, handler := newTestConsole(t, Options{Mode: Read})
	w := answerTo(handler, newRequest(t, http.MethodGet, "sign-in", nil))
	sources := make(map[string]string)
	for directive := range strings.SplitSeq(w.Header().Get("Content-Security-Policy"), "; ") {
		name, value, _ := strings.Cut(directive, " ")
		if sources[name] = value; value != "'self'" && value != "'none'" {
			t.Errorf("%s allows %s", name, value)
		}
	}
	for name, want := range map[string]string{
		"default-src": "'none'", "base-uri": "'none'", "frame-ancestors": "'none'", "form-action": "'self'", // default-src covers the others
	} {
		if sources[name] != want {
			t.Errorf("%s is %q, want %q", name, sources[name], want)
		}
	}
}

// form returns a request with the form of a session, which has a text of a number of bytes beside the token.
func form(t *testing.T, c *Console, bytes int) *http.Request {
	t.Helper()
	key, err := c.key()
	if err != nil {
		t.Fatal(err)
	}
	s := newSession("ana")
	r := newRequest(t, http.MethodPost, "nothing",
		url.Values{"csrf": {sign(key, formPrefix+s.Nonce)}, "note": {strings.Repeat("x", bytes)}})
	r.AddCookie(cookieOf(t, c, s))
	return r
}

// TestForms_WithoutName_AreRefused sends a form where no sign-in has named the operator. Nothing listens at its path, so that
// a form that passes is answered with 404.
func TestForms_WithoutName_AreRefused(t *testing.T) {
	t.Parallel()
	c, handler := newTestConsole(t, Options{Mode: Act})
	key, err := c.key()
	if err != nil {
		t.Fatal(err)
	}
	s := newSession("")
	for name, want := range map[string]int{"": http.StatusBadRequest, " \t": http.StatusBadRequest, "ana": http.StatusNotFound} {
		r := newRequest(t, http.MethodPost, "nothing", url.Values{"csrf": {sign(key, formPrefix+s.Nonce)}, "who": {name}})
		r.AddCookie(cookieOf(t, c, s))
		if w := answerTo(handler, r); w.Code != want || (w.Code == http.StatusBadRequest) != strings.Contains(w.Body.String(), "give your name") {
			t.Errorf("the name %q: status %d, want %d\n%s", name, w.Code, want, w.Body)
		}
	}
}

// TestForms_TooManyOrTooLarge_AreRefused sends forms until there are too many, and one that is too large. Nothing listens
// at their path, so that a form that passes is answered with 404.
func TestForms_TooManyOrTooLarge_AreRefused(t *testing.T) {
	t.Parallel()
	c, handler := newTestConsole(t, Options{Mode: Act})
	send := func(bytes int) (status int) {
		return answerTo(handler, form(t, c, bytes)).Code
	}
	if status := send(formMax); status != http.StatusBadRequest {
		t.Errorf("a form of more than %d bytes: status %d", formMax, status)
	}
	status, forms := http.StatusNotFound, 0
	for ; status == http.StatusNotFound && forms < 10_000; forms++ {
		status = send(1)
	}
	if status != http.StatusTooManyRequests {
		t.Errorf("status %d after %d forms", status, forms)
	}
}

// TestPages_TooManyAtOnce_OneMoreIsRefused answers as many pages as a console does at the same time.
func TestPages_TooManyAtOnce_OneMoreIsRefused(t *testing.T) {
	t.Parallel()
	c, handler := newTestConsole(t, Options{Mode: Read})
	if !c.turns.TryAcquire(requestsMax) {
		t.Fatal("pages are being answered")
	}
	wantBusy(t, handler, "runbook")
}

// wantBusy requests a page of a console that answers as many as it may.
func wantBusy(t *testing.T, handler http.Handler, page string) {
	t.Helper()
	w := answerTo(handler, asBearer(newRequest(t, http.MethodGet, page, nil)))
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("status %d, header %v", w.Code, w.Header())
	}
}

// TestUnanswered_ErrorOfRequest_SaysWhetherItIsStored is an event that is stored, one that is not, and one of
// which this is unknown.
func TestUnanswered_ErrorOfRequest_SaysWhetherItIsStored(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err    error
		status int
		text   string
	}{
		{client.ErrReplyTimeout, http.StatusAccepted, "The event e is stored"},
		{&jetstream.APIError{Description: "maximum messages exceeded"}, http.StatusServiceUnavailable, "The event was not stored"},
		{jetstream.ErrNoStreamResponse, http.StatusServiceUnavailable, "The event was not stored"},
		{context.DeadlineExceeded, http.StatusServiceUnavailable, "It is unknown whether the event e is stored"},
	} {
		var shown *statusError
		err := unanswered("e", fmt.Errorf("request: %w", c.err))
		if !errors.As(err, &shown) || shown.status != c.status || !strings.HasPrefix(shown.text, c.text) {
			t.Errorf("%v: %+v", c.err, err)
		}
	}
}

// TestLocalPath_OtherSites_AreNotLocal checks what a link of another site could send.
func TestLocalPath_OtherSites_AreNotLocal(t *testing.T) {
	t.Parallel()
	for to, want := range map[string]string{
		"/console/holds?a=b": "/console/holds?a=b", "//evil.example": Prefix, "https://evil.example": Prefix, "": Prefix,
		"/console/\\evil": Prefix, "/console/../v1/holds": Prefix, "/console/.\t./v1": Prefix, "/console/holds?q=a..b": "/console/holds?q=a..b",
	} {
		if got := localPath(to); got != want {
			t.Errorf("localPath(%q) = %q", to, got)
		}
	}
}
