package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/go-json-experiment/json"
)

const (
	cookieName    = "holdfast_console"
	sessionLasts  = 12 * time.Hour
	sessionPrefix = "session "
	formPrefix    = "form "
	nameMax       = 64
	endedMax      = 1000
)

// session is what the cookie says. Its signature makes it true.
type session struct {
	Name    string `json:"name"`    // as the operator gave it; "" for none
	Nonce   string `json:"nonce"`   // random, for the tokens of forms
	Expires int64  `json:"expires"` // in seconds since 1970
}

// visitor is the operator who sent a request.
type visitor struct {
	Name string // "" when it is not known
	From string // the address of the client
	csrf string // the token of forms in this session
}

// String returns who and from where, for logs and runs.
func (v visitor) String() string {
	if v.Name == "" {
		return "console@" + v.From
	}
	return v.Name + "@" + v.From
}

// owns reports whether a form was sent from a page of this session.
func (v visitor) owns(token string) bool {
	return v.csrf != "" && subtle.ConstantTimeCompare([]byte(token), []byte(v.csrf)) == 1
}

// visitor returns who sent a request. It sets the cookie of a new session where no sign-in is needed.
func (c *Console) visitor(w http.ResponseWriter, r *http.Request) (v visitor, err error) {
	s, key, err := c.session(r)
	if err != nil {
		return v, err
	}
	if s.Nonce == "" {
		s = newSession("")
		setSession(w, r, key, s)
	}
	v = visitor{s.Name, remote(r), sign(key, formPrefix+s.Nonce)}
	if c.UserHeader != "" {
		// A second value means that the proxy has added its own to one of the client: neither is trusted.
		named := r.Header.Values(c.UserHeader)
		if len(named) == 1 {
			v.Name = printable(named[0])
		}
		if len(named) != 1 || v.Name == "" {
			return v, &statusError{http.StatusUnauthorized, "The proxy has not named one user in the header " + c.UserHeader + "."}
		}
	}
	return v, nil
}

// session returns the session of a request, the zero session if the request needs none, and the key
// that signs sessions. Its errors are those of token.Guard.
func (c *Console) session(r *http.Request) (s session, key []byte, err error) {
	if key, err = c.key(); err != nil {
		return s, nil, err
	}
	if s, valid := readSession(r, key); valid && !c.ended.has(s.Nonce) {
		return s, key, nil
	}
	if c.Token != nil {
		err = c.Token.CheckBearer(r)
	}
	return session{}, key, err
}

// key returns the key that signs sessions. It follows from the token: all workers with the token accept
// a session, and another token ends it.
func (c *Console) key() ([]byte, error) {
	if c.Token == nil {
		return c.secret, nil
	}
	secret, err := c.Token.Token()
	return []byte(sign(secret, "holdfast console sessions")), err
}

func sign(key []byte, text string) string {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

func newSession(name string) session {
	return session{Name: name, Nonce: rand.Text(), Expires: time.Now().Add(sessionLasts).Unix()}
}

// readSession returns the session of a request, and false if it has none that is valid.
func readSession(r *http.Request, key []byte) (s session, valid bool) {
	cookie, err := r.Cookie(cookieName)
	if err != nil {
		return s, false
	}
	text, signature, _ := strings.Cut(cookie.Value, ".")
	if !hmac.Equal([]byte(signature), []byte(sign(key, sessionPrefix+text))) {
		return s, false
	}
	body, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(body, &s) != nil {
		return s, false
	}
	return s, time.Now().Unix() < s.Expires
}

func setSession(w http.ResponseWriter, r *http.Request, key []byte, s session) {
	body, _ := json.Marshal(s) // texts and a number
	text := base64.RawURLEncoding.EncodeToString(body)
	setCookie(w, r, text+"."+sign(key, sessionPrefix+text), int(sessionLasts/time.Second))
}

func setCookie(w http.ResponseWriter, r *http.Request, value string, maxAge int) {
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // Secure is set wherever the browser uses TLS; on loopback it does not
		Name: cookieName, Value: value, Path: Prefix, MaxAge: maxAge, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https",
	})
}

// remote returns the address of the client.
func remote(r *http.Request) string {
	host, _, _ := net.SplitHostPort(r.RemoteAddr) // net/http has set it
	return host
}

// printable returns a name without control and other invisible characters, cut to nameMax characters.
func printable(name string) string {
	runes := []rune(strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, name)))
	return string(runes[:min(len(runes), nameMax)])
}

// signInData is what the form shows.
type signInData struct{ To, Problem string }

func (c *Console) renderSignIn(w http.ResponseWriter, r *http.Request, status int, problem string) {
	c.render(&request{Request: r, w: w}, status, &page{
		Title: "Sign in", Body: "sign-in", Data: signInData{localPath(r.FormValue("to")), problem},
	})
}

// localPath returns a path of the console, never an address of another site.
func localPath(to string) string {
	path, _, _ := strings.Cut(to, "?")
	if !strings.HasPrefix(to, Prefix) || strings.Contains(path, "..") || strings.ContainsAny(to, "\\\r\n\t") {
		return Prefix
	}
	return to
}

// signIn checks the token of the form and sets the cookie.
func (c *Console) signIn(w http.ResponseWriter, r *http.Request) {
	if c.Token == nil {
		http.Redirect(w, r, Prefix, http.StatusSeeOther)
		return
	}
	name := printable(r.PostFormValue("name"))
	key, err := c.key()
	if err == nil {
		err = c.Token.Check(r, strings.TrimSpace(r.PostFormValue("token")))
	}
	switch {
	case err != nil:
		if c.refused.Allow() {
			c.Log.Warn().Err(err).Str("who", name).Str("from", remote(r)).Msg("console sign-in refused")
		}
		status, text := c.statusOf(r.Context(), err)
		c.renderSignIn(w, r, status, text)
	case name == "":
		c.renderSignIn(w, r, http.StatusBadRequest, "Give your name: what you change is recorded under it.")
	default:
		setSession(w, r, key, newSession(name))
		c.Log.Info().Str("who", name).Str("from", remote(r)).Msg("console sign-in")
		to := localPath(r.PostFormValue("to"))
		http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // localPath returns paths of the console only
	}
}

// signOut ends the session of a request on this worker, and removes its cookie.
func (c *Console) signOut(w http.ResponseWriter, r *http.Request) {
	if s, _, err := c.session(r); err == nil && s.Nonce != "" {
		c.ended.add(s.Nonce)
	}
	setCookie(w, r, "", -1)
	http.Redirect(w, r, Prefix+"sign-in", http.StatusSeeOther)
}

// endedSessions are the last sessions that were ended before their time, endedMax of them. Only who
// has the token can end a session.
type endedSessions struct {
	mu     sync.Mutex
	nonces []string
}

func (e *endedSessions) add(nonce string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.nonces = append(e.nonces[max(0, len(e.nonces)+1-endedMax):], nonce)
}

func (e *endedSessions) has(nonce string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.nonces, nonce)
}
