package console

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"holdfast/internal/token"
)

const testToken = "a-long-secret-token"

// newTestConsole returns a console without any server behind it, and its handler.
func newTestConsole(t *testing.T, o Options) (*Console, http.Handler) {
	t.Helper()
	o.Token = token.New(func() ([]byte, error) { return []byte(testToken), nil }, zerolog.Nop())
	c := New(o)
	return c, c.Handler()
}

// newRequest returns a request for a path of a console, with a form.
func newRequest(t *testing.T, method, path string, form url.Values) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, Prefix+path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return r
}

// asBearer gives the right token to a request.
func asBearer(r *http.Request) *http.Request {
	r.Header.Set("Authorization", "Bearer "+testToken)
	return r
}

// answerTo returns the answer to a request.
func answerTo(handler http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

// cookieOf returns the cookie of a session.
func cookieOf(t *testing.T, c *Console, s session) *http.Cookie {
	t.Helper()
	key, err := c.key()
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	setSession(w, newRequest(t, http.MethodGet, "", nil), key, s)
	return w.Result().Cookies()[0]
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
		r := newRequest(t, http.MethodGet, "runbook", nil)
		r.Header["X-User"] = test.named
		if test.bearer {
			asBearer(r)
		}
		w := answerTo(handler, r)
		body := w.Body.String()
		if w.Code != test.status || !strings.Contains(body, test.shown) || strings.Contains(body, "forged") || strings.Contains(body, "<b>") {
			t.Errorf("%s: status %d\n%.600s", what, w.Code, body)
		}
	}
}

// TestSignIn_ManyAttempts_OnlyGuessesAreRefused guesses tokens by the form and by the header until the guesses
// are no longer compared. The right one still signs in: another operator may be behind the same proxy.
func TestSignIn_ManyAttempts_OnlyGuessesAreRefused(t *testing.T) {
	t.Parallel()
	for _, bearer := range []bool{false, true} {
		_, handler := newTestConsole(t, Options{Mode: Read})
		signIn := func(from, given string) int {
			r := newRequest(t, http.MethodPost, "sign-in", url.Values{"name": {"ana"}, "token": {given}})
			if bearer {
				r = newRequest(t, http.MethodGet, "runbook", nil)
				r.Header.Set("Authorization", "Bearer "+given)
			}
			r.RemoteAddr = from
			return answerTo(handler, r).Code
		}
		refused, passes := http.StatusUnauthorized, http.StatusSeeOther
		if bearer {
			refused, passes = http.StatusSeeOther, http.StatusOK
		}
		status, guesses := refused, 0
		for ; status == refused && guesses < 1000; guesses++ {
			status = signIn("192.0.2.1:1", "guess")
		}
		if status != http.StatusTooManyRequests {
			t.Fatalf("bearer %t: status %d after %d wrong tokens", bearer, status, guesses)
		}
		if status := signIn("192.0.2.1:1", testToken); status != passes {
			t.Errorf("bearer %t: status %d for the right token of the same client", bearer, status)
		}
	}
}

// TestSignIn_FloodOfRefused_LogIsLimited signs in without a token and with a wrong one, many more times than are logged at
// once.
func TestSignIn_FloodOfRefused_LogIsLimited(t *testing.T) {
	t.Parallel()
	for _, given := range []string{"", "guess"} {
		var log bytes.Buffer
		c, handler := newTestConsole(t, Options{Mode: Read, Log: zerolog.New(&log)})
		c.refused.SetLimit(0)
		for range 10 * refusalsBurst {
			answerTo(handler, newRequest(t, http.MethodPost, "sign-in", url.Values{"name": {"ana"}, "token": {given}}))
		}
		if n := strings.Count(log.String(), "console sign-in refused"); n != refusalsBurst {
			t.Errorf("token %q: %d lines, want %d", given, n, refusalsBurst)
		}
	}
}

// TestSignOut_CopiedCookie_IsRefused keeps the cookie of a session that was signed out. Other sessions
// stay, and no sign-out without a session counts.
func TestSignOut_CopiedCookie_IsRefused(t *testing.T) {
	t.Parallel()
	c, handler := newTestConsole(t, Options{Mode: Read})
	own, other := cookieOf(t, c, newSession("ana")), cookieOf(t, c, newSession("ana"))
	send := func(method, path string, cookie *http.Cookie) int {
		r := newRequest(t, method, path, nil)
		r.AddCookie(cookie)
		return answerTo(handler, r).Code
	}
	for range 2 * endedMax {
		send(http.MethodPost, "sign-out", &http.Cookie{Name: cookieName, Value: "forged"})
	}
	if len(c.ended.nonces) != 0 {
		t.Errorf("%d forged sessions are remembered", len(c.ended.nonces))
	}
	send(http.MethodPost, "sign-out", own)
	if status := send(http.MethodGet, "runbook", own); status != http.StatusSeeOther {
		t.Errorf("status %d after the sign-out", status)
	}
	if status := send(http.MethodGet, "runbook", other); status != http.StatusOK {
		t.Errorf("status %d in another session", status)
	}
	for range 2 * endedMax {
		send(http.MethodPost, "sign-out", cookieOf(t, c, newSession("ana")))
	}
	if len(c.ended.nonces) != endedMax {
		t.Errorf("%d ended sessions are remembered", len(c.ended.nonces))
	}
}

// TestStream_SignOut_Ends opens a live page and signs out: the page gets no more.
func TestStream_SignOut_Ends(t *testing.T) {
	t.Parallel()
	c, handler := newTestConsole(t, Options{Mode: Read})
	c.frames.last.Store(&reading[[]byte]{time.Now().Add(time.Hour), []byte("data: x\n\n")})
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	cookie := cookieOf(t, c, newSession("ana"))
	send := func(method, path string) io.Reader {
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+Prefix+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.AddCookie(cookie)
		response, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		return response.Body
	}
	live := send(http.MethodGet, "live")
	frame := make([]byte, 9)
	if _, err := io.ReadFull(live, frame); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(live, frame); err != nil { // it goes on
		t.Fatal(err)
	}
	send(http.MethodPost, "sign-out")
	if _, err := io.Copy(io.Discard, live); err != nil { // which waits for the end
		t.Error(err)
	}
}

// TestStream_TooManyOpen_OneMoreIsRefused fills the live pages.
func TestStream_TooManyOpen_OneMoreIsRefused(t *testing.T) {
	t.Parallel()
	c, handler := newTestConsole(t, Options{Mode: Read})
	if !c.streams.TryAcquire(streamsMax) {
		t.Fatal("live pages are open")
	}
	wantBusy(t, handler, "live")
}

// TestHead_EveryMode_AnswersAsGet sends HEAD, as proxies and monitors do. Also that of a live page ends.
func TestHead_EveryMode_AnswersAsGet(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{Read, Act} {
		_, handler := newTestConsole(t, Options{Mode: mode})
		for path, want := range map[string]int{
			"sign-in": http.StatusOK, "runbook": http.StatusOK, "live": http.StatusOK, "assets/icon.svg": http.StatusOK,
			"nothing": http.StatusNotFound,
		} {
			if w := answerTo(handler, asBearer(newRequest(t, http.MethodHead, path, nil))); w.Code != want {
				t.Errorf("%s: HEAD %s: status %d, want %d", mode, path, w.Code, want)
			}
		}
		if w := answerTo(handler, newRequest(t, http.MethodHead, "runbook", nil)); w.Code != http.StatusSeeOther {
			t.Errorf("%s: HEAD without a session: status %d", mode, w.Code)
		}
	}
}

// TestSignIn_AnyScript_NameIsKept signs in with names of people. A name without a visible character is none.
func TestSignIn_AnyScript_NameIsKept(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"José Müller": "José Müller", " 山田 ": "山田", "ana <b>": "ana &lt;b&gt;", "": "", " \u202e": "", "\u202e \u202e": "",
	} {
		_, handler := newTestConsole(t, Options{Mode: Act})
		w := answerTo(handler, newRequest(t, http.MethodPost, "sign-in", url.Values{"name": {name}, "token": {testToken}}))
		if want == "" {
			if w.Code != http.StatusBadRequest {
				t.Errorf("%q: status %d", name, w.Code)
			}
			continue
		}
		if w.Code != http.StatusSeeOther {
			t.Errorf("%q: status %d", name, w.Code)
			continue
		}
		page := newRequest(t, http.MethodGet, "runbook", nil)
		page.AddCookie(w.Result().Cookies()[0])
		if shown := answerTo(handler, page).Body.String(); !strings.Contains(shown, want) {
			t.Errorf("%q is not shown:\n%.1500s", name, shown)
		}
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
		key, err := c.key()
		if err != nil {
			t.Fatal(err)
		}
		s := newSession("ana")
		form := url.Values{"csrf": {sign(key, formPrefix+s.Nonce)}}
		if test.forged {
			form.Set("csrf", sign(key, formPrefix+newSession("ana").Nonce))
		}
		r := newRequest(t, test.method, "nothing", form)
		r.AddCookie(cookieOf(t, c, s))
		if w := answerTo(handler, r); w.Code != test.status {
			t.Errorf("%s: status %d, want %d", what, w.Code, test.status)
		}
	}
}

// TestCookie_OfTLS_IsSecure requests a session directly, over TLS, and behind a proxy with TLS.
func TestCookie_OfTLS_IsSecure(t *testing.T) {
	t.Parallel()
	for proto, want := range map[string]bool{"": false, "http": false, "https": true} {
		r := newRequest(t, http.MethodGet, "", nil)
		r.Header.Set("X-Forwarded-Proto", proto)
		w := httptest.NewRecorder()
		setSession(w, r, []byte("key"), newSession("ana"))
		set := w.Header().Get("Set-Cookie")
		if strings.Contains(set, "Secure") != want || !strings.Contains(set, "HttpOnly") || !strings.Contains(set, "SameSite=Strict") {
			t.Errorf("protocol %q: %s", proto, set)
		}
	}
}

// TestSession_Lifetime_IsTwelveHours signs in, and shows cookies of sessions that have ended and that have not. The signature
// of each is right.
func TestSession_Lifetime_IsTwelveHours(t *testing.T) {
	t.Parallel()
	c, handler := newTestConsole(t, Options{Mode: Read})
	const lifetime = 12 * time.Hour
	earliest := time.Now().Add(lifetime).Unix()
	s := newSession("ana")
	if latest := time.Now().Add(lifetime).Unix(); s.Expires < earliest || s.Expires > latest {
		t.Errorf("a new session ends at %d, want %d to %d", s.Expires, earliest, latest)
	}
	for left, want := range map[time.Duration]int{time.Hour: http.StatusOK, 0: http.StatusSeeOther, -time.Hour: http.StatusSeeOther} {
		s.Expires = time.Now().Add(left).Unix()
		r := newRequest(t, http.MethodGet, "runbook", nil)
		r.AddCookie(cookieOf(t, c, s))
		if w := answerTo(handler, r); w.Code != want {
			t.Errorf("a session that ends in %s: status %d, want %d", left, w.Code, want)
		}
	}
}
