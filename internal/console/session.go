package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json"

	"holdfast/internal/holds"
)

const (
	cookieName    = "holdfast_console"
	sessionLasts  = 12 * time.Hour
	sessionPrefix = "session "
	formPrefix    = "form "
	nameMax       = 64
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

// errSignIn reports that the operator has to sign in.
var errSignIn = errors.New("sign in")

// visitor returns who sent a request. It sets the cookie of a new session where no sign-in is needed.
func (c *Console) visitor(w http.ResponseWriter, r *http.Request) (v visitor, err error) {
	key, token, err := c.key()
	if err != nil {
		return v, err
	}
	s, signedIn := readSession(r, key)
	if !signedIn {
		if token != nil && !bears(r, token) {
			return v, errSignIn
		}
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

// key returns the key that signs sessions, and the token unless there is none. The key follows from
// the token: all workers with the token accept a session, and another token ends it.
func (c *Console) key() (key, token []byte, err error) {
	if c.Token == nil {
		return c.secret, nil, nil
	}
	if token, err = c.Token(); err != nil {
		c.Log.Error().Err(err).Msg("api token unreadable, request refused")
		return nil, nil, &statusError{http.StatusServiceUnavailable, "The token file of this worker cannot be read."}
	}
	h := hmac.New(sha256.New, token)
	h.Write([]byte("holdfast console sessions"))
	return h.Sum(nil), token, nil
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

// bears reports, in a time that does not depend on the token, whether a request has it in its header.
func bears(r *http.Request, token []byte) bool {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.EqualFold(scheme, "Bearer") && sameToken(strings.TrimSpace(given), token)
}

func sameToken(given string, token []byte) bool {
	want, got := sha256.Sum256(token), sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1
}

func remote(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return r.RemoteAddr
}

// printable returns a name without control and other invisible characters, cut to nameMax characters.
func printable(name string) string {
	runes := []rune(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.TrimSpace(name)))
	return string(runes[:min(len(runes), nameMax)])
}

// signInData is what the form shows.
type signInData struct{ To, Problem string }

func (c *Console) signInForm(w http.ResponseWriter, r *http.Request) {
	c.renderSignIn(w, r, http.StatusOK, "")
}

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
	if !c.signIns.Allow() {
		c.renderSignIn(w, r, http.StatusTooManyRequests, errTooMany.text)
		return
	}
	key, token, err := c.key()
	name := printable(r.PostFormValue("name"))
	switch {
	case err != nil:
		c.refuse(w, r, err)
	case token == nil:
		http.Redirect(w, r, Prefix, http.StatusSeeOther)
	case !holds.ValidName(strings.ReplaceAll(name, " ", "")):
		c.renderSignIn(w, r, http.StatusBadRequest, "Give your name: what you change is recorded under it.")
	case !sameToken(strings.TrimSpace(r.PostFormValue("token")), token):
		c.Log.Warn().Str("who", name).Str("from", remote(r)).Msg("console sign-in refused")
		c.renderSignIn(w, r, http.StatusUnauthorized, "This is not the token of this worker.")
	default:
		setSession(w, r, key, newSession(name))
		c.Log.Info().Str("who", name).Str("from", remote(r)).Msg("console sign-in")
		to := localPath(r.PostFormValue("to"))
		http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // localPath returns paths of the console only
	}
}

func (c *Console) signOut(w http.ResponseWriter, r *http.Request) {
	setCookie(w, r, "", -1)
	http.Redirect(w, r, Prefix+"sign-in", http.StatusSeeOther)
}
