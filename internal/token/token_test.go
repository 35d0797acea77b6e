package token

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

const right = "a-long-secret-token"

func newGuard() *Guard {
	return New(func() ([]byte, error) { return []byte(right), nil }, zerolog.Nop())
}

// from returns a request of a client with a header Authorization.
func from(t *testing.T, address, authorization string) *http.Request {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	r.RemoteAddr = address
	r.Header.Set("Authorization", authorization)
	return r
}

// TestCheckBearer_Headers_OnlyTokenPasses checks the forms of the header.
func TestCheckBearer_Headers_OnlyTokenPasses(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]error{
		"Bearer " + right: nil, "bearer  " + right + " ": nil, "": ErrWrong, "Bearer": ErrWrong, right: ErrWrong,
		"Basic " + right: ErrWrong, "Bearer " + right + "x": ErrWrong, "Bearer x" + right: ErrWrong,
	} {
		if err := newGuard().CheckBearer(from(t, "192.0.2.1:1", header)); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", header, err, want)
		}
	}
}

// TestCheckBearer_TokenUnreadable_IsError is a file that was removed.
func TestCheckBearer_TokenUnreadable_IsError(t *testing.T) {
	t.Parallel()
	gone := errors.New("gone")
	g := New(func() ([]byte, error) { return nil, gone }, zerolog.Nop())
	if err := g.CheckBearer(from(t, "192.0.2.1:1", "Bearer ")); !errors.Is(err, gone) || !errors.Is(err, ErrUnreadable) {
		t.Errorf("error %v", err)
	}
}

// TestCheck_ClientGuesses_OnlyItsGuessesAreLimited guesses until a client is limited. So is its network in
// IPv6, and no other. The right token passes from everywhere.
func TestCheck_ClientGuesses_OnlyItsGuessesAreLimited(t *testing.T) {
	t.Parallel()
	for attacker, same := range map[string]string{
		"192.0.2.1:1": "192.0.2.1:2", "[2001:db8::1]:1": "[2001:db8::ffff:1]:1", "[::ffff:192.0.2.1]:1": "192.0.2.1:1",
	} {
		g := newGuard()
		guess := func() error { return g.CheckBearer(from(t, attacker, "Bearer guess")) }
		compared := 0
		for ; errors.Is(guess(), ErrWrong); compared++ {
			if compared > 100 {
				t.Fatalf("%s: 100 wrong tokens were compared", attacker)
			}
		}
		if compared < wrongBurst {
			t.Errorf("%s: limited after %d wrong tokens", attacker, compared)
		}
		if err := g.CheckBearer(from(t, same, "Bearer another guess")); !errors.Is(err, ErrTooMany) {
			t.Errorf("%s after guesses of %s: %v", same, attacker, err)
		}
		if err := g.CheckBearer(from(t, attacker, "")); !errors.Is(err, ErrWrong) {
			t.Errorf("%s without a token: %v", attacker, err)
		}
		for _, other := range []string{"192.0.2.2:1", "[2001:db8:0:1::1]:1", "@"} {
			if err := g.CheckBearer(from(t, other, "Bearer guess")); !errors.Is(err, ErrWrong) {
				t.Errorf("%s after guesses of %s: %v", other, attacker, err)
			}
		}
		for _, one := range []string{attacker, same, "192.0.2.2:1"} {
			if err := g.CheckBearer(from(t, one, "Bearer "+right)); err != nil {
				t.Errorf("%s with the token after guesses of %s: %v", one, attacker, err)
			}
		}
	}
}

// TestCheck_RightTokens_AreNotLimited sends the right token more often than a wrong one is allowed.
func TestCheck_RightTokens_AreNotLimited(t *testing.T) {
	t.Parallel()
	g := newGuard()
	for range 10 * allBurst {
		if err := g.CheckBearer(from(t, "192.0.2.1:1", "Bearer "+right)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCheck_ManyClients_MapStaysBounded guesses from many addresses: in the end all together are
// limited, and no more of them are remembered than that limit allows.
func TestCheck_ManyClients_MapStaysBounded(t *testing.T) {
	t.Parallel()
	g := newGuard()
	const clients = 100_000
	compared := 0
	for n := range clients {
		r := from(t, fmt.Sprintf("10.%d.%d.%d:1", n>>16, n>>8&255, n&255), "Bearer guess")
		if errors.Is(g.CheckBearer(r), ErrWrong) {
			compared++
		}
	}
	if compared < allBurst || compared > clients/10 || len(g.clients) > compared {
		t.Errorf("%d of %d wrong tokens were compared, %d clients are remembered", compared, clients, len(g.clients))
	}
	if err := g.CheckBearer(from(t, "192.0.2.1:1", "Bearer "+right)); err != nil {
		t.Errorf("the right token while all wrong ones are limited: %v", err)
	}
}

// TestToken_Unreadable_LoggedOncePerError reads a token that cannot be read for some time.
func TestToken_Unreadable_LoggedOncePerError(t *testing.T) {
	t.Parallel()
	var unreadable error
	var log strings.Builder
	g := New(func() ([]byte, error) { return []byte(right), unreadable }, zerolog.New(&log))
	missing, denied := errors.New("missing"), errors.New("denied")
	for i, c := range []struct {
		unreadable error
		logged     bool
	}{{missing, true}, {missing, false}, {denied, true}, {denied, false}, {missing, true}, {nil, false}, {missing, true}} {
		unreadable = c.unreadable
		log.Reset()
		err := g.CheckBearer(from(t, "192.0.2.1:1", "Bearer "+right))
		if !errors.Is(err, c.unreadable) || errors.Is(err, ErrUnreadable) != (c.unreadable != nil) {
			t.Errorf("request %d: error %v, want %v", i, err, c.unreadable)
		}
		if logged := strings.Contains(log.String(), "api token unreadable"); logged != c.logged {
			t.Errorf("request %d: %v is logged: %t, want %t", i, err, logged, c.logged)
		}
	}
}

// TestIsLocal_OtherSites_AreNotLocal checks what a changed DNS entry sends.
func TestIsLocal_OtherSites_AreNotLocal(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"localhost:8080": true, "LocalHost": true, "127.0.0.1:8080": true, "127.1.2.3": true, "[::1]:8080": true,
		"[::ffff:127.0.0.1]:1": true, "evil.example": false, "evil.example:8080": false, "127.0.0.1.evil.example": false,
		"localhost.evil.example": false, "Till-7:8080": true, "till-70": false, "10.0.0.1:8080": false, "": false, "[::1": false,
	} {
		r := from(t, "127.0.0.1:1", "")
		r.Host = host
		if got := IsLocal(r, "till-7"); got != want {
			t.Errorf("IsLocal(%q) = %v", host, got)
		}
		if host == "" && IsLocal(r, "") {
			t.Error("a request without a Host is local")
		}
	}
}
