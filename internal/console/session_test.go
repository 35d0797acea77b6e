package console

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

const testToken = "a-long-secret-token"

// newTestConsole returns a console without any server behind it, and its handler.
func newTestConsole(t *testing.T, o Options) (*Console, http.Handler) {
	t.Helper()
	o.Token = func() ([]byte, error) { return []byte(testToken), nil }
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c, c.Handler()
}

// TestVisitor_UserHeader_NamesButDoesNotSignIn is a proxy that names the user, and clients that forge it.
func TestVisitor_UserHeader_NamesButDoesNotSignIn(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		header string // configured
		named  []string
		bearer bool
		status int
		shown  string
	}{
		"named and signed in":   {"X-User", []string{"ana"}, true, http.StatusOK, "ana"},
		"named only":            {"X-User", []string{"ana"}, false, http.StatusSeeOther, ""},
		"not named":             {"X-User", nil, true, http.StatusUnauthorized, ""},
		"named twice":           {"X-User", []string{"forged", "ana"}, true, http.StatusUnauthorized, ""},
		"invisible":             {"X-User", []string{"\u202e\u0085"}, true, http.StatusUnauthorized, ""},
		"markup":                {"X-User", []string{"<b>"}, true, http.StatusOK, "&lt;b&gt;"},
		"header not configured": {"", []string{"forged"}, true, http.StatusOK, ""},
	} {
		_, handler := newTestConsole(t, Options{Mode: Act, UserHeader: test.header})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, Prefix+"runbook", nil)
		r.Header["X-User"] = test.named
		if test.bearer {
			r.Header.Set("Authorization", "Bearer "+testToken)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		body := w.Body.String()
		if w.Code != test.status || !strings.Contains(body, test.shown) || strings.Contains(body, "forged") || strings.Contains(body, "<b>") {
			t.Errorf("%s: status %d\n%.600s", what, w.Code, body)
		}
	}
}

// TestSignIn_ManyAttempts_AreRefused guesses tokens: the right one is refused too when there were too
// many.
func TestSignIn_ManyAttempts_AreRefused(t *testing.T) {
	t.Parallel()
	_, handler := newTestConsole(t, Options{Mode: Read})
	for range 1000 {
		form := url.Values{"name": {"ana"}, "token": {"guess"}}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, Prefix+"sign-in", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code == http.StatusTooManyRequests {
			return
		}
		if w.Code != http.StatusUnauthorized {
			t.Fatalf("a wrong token: status %d", w.Code)
		}
	}
	t.Error("1,000 wrong tokens were compared")
}

// TestStream_TooManyOpen_OneMoreIsRefused fills the live pages.
func TestStream_TooManyOpen_OneMoreIsRefused(t *testing.T) {
	t.Parallel()
	c, handler := newTestConsole(t, Options{Mode: Read})
	for range streamsMax {
		c.streams <- struct{}{}
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, Prefix+"live", nil)
	r.Header.Set("Authorization", "Bearer "+testToken)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("status %d, header %v", w.Code, w.Header())
	}
}

// TestServerSentEvent_LineEnds_BeginNoField checks texts that could end the event or begin a field.
func TestServerSentEvent_LineEnds_BeginNoField(t *testing.T) {
	t.Parallel()
	got := string(serverSentEvent([]byte("<p>a\r\revent: close</p>\r\n<p>b</p>\n")))
	if want := "event: body\ndata: <p>a  event: close</p> \ndata: <p>b</p>\n\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestForms_ForgedOrReadOnly_AreRefused sends forms of a signed-in operator. Nothing listens at their
// path, so that a form that passes is answered with 404.
func TestForms_ForgedOrReadOnly_AreRefused(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		mode   Mode
		method string
		forged bool
		status int
	}{
		"own form":                     {Act, http.MethodPost, false, http.StatusNotFound},
		"forged form":                  {Act, http.MethodPost, true, http.StatusForbidden},
		"own form, console only reads": {Read, http.MethodPost, false, http.StatusMethodNotAllowed},
		"PUT, console only reads":      {Read, http.MethodPut, false, http.StatusMethodNotAllowed},
		"PATCH, console only reads":    {Read, http.MethodPatch, false, http.StatusMethodNotAllowed},
		"DELETE, console acts":         {Act, http.MethodDelete, false, http.StatusMethodNotAllowed},
	} {
		c, handler := newTestConsole(t, Options{Mode: test.mode})
		key, _, err := c.key()
		if err != nil {
			t.Fatal(err)
		}
		s := newSession("ana")
		form := url.Values{"csrf": {sign(key, formPrefix+s.Nonce)}}
		if test.forged {
			form.Set("csrf", sign(key, formPrefix+newSession("ana").Nonce))
		}
		r := httptest.NewRequestWithContext(t.Context(), test.method, Prefix+"nothing", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		given := httptest.NewRecorder()
		setSession(given, r, key, s)
		r.AddCookie(given.Result().Cookies()[0])
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != test.status {
			t.Errorf("%s: status %d, want %d", what, w.Code, test.status)
		}
	}
}

// TestCookie_OfTLS_IsSecure requests a session directly, over TLS, and behind a proxy with TLS.
func TestCookie_OfTLS_IsSecure(t *testing.T) {
	t.Parallel()
	for proto, want := range map[string]bool{"": false, "http": false, "https": true} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, Prefix, nil)
		r.Header.Set("X-Forwarded-Proto", proto)
		w := httptest.NewRecorder()
		setSession(w, r, []byte("key"), newSession("ana"))
		set := w.Header().Get("Set-Cookie")
		if strings.Contains(set, "Secure") != want || !strings.Contains(set, "HttpOnly") || !strings.Contains(set, "SameSite=Strict") {
			t.Errorf("protocol %q: %s", proto, set)
		}
	}
}
