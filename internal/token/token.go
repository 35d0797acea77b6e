// Package token checks who may use /v1 and the console of a worker. Where there is a token, both share one
// Guard. Where there is none, because only this machine reaches them, both check the name that a
// request was sent to (IsLocal).
package token

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"

	"github.com/rs/zerolog"
	"golang.org/x/time/rate"
)

// The limits of wrong tokens: of one client, and of all clients together. Beyond them a wrong token is
// ErrTooMany, so that its client waits. They do not stop guesses, which the length of a token does: a limit
// that also refused the right token would let one client with an old token shut out all others behind
// the same proxy.
const (
	wrongPerSec, wrongBurst = 1, 5
	allPerSec, allBurst     = 20, 200
	ipv6Bits                = 64 // of an address: a site gives the rest to its machines as it likes
)

// The reasons why a request is refused.
var (
	ErrWrong      = errors.New("the token is missing or wrong")
	ErrTooMany    = errors.New("too many wrong tokens")
	ErrUnreadable = errors.New("the token cannot be read")
)

// Guard compares what clients give with the token. Its methods may be called concurrently.
type Guard struct {
	read func() ([]byte, error)
	log  zerolog.Logger

	mu      sync.Mutex
	logged  string // the last error of reading, "" after the token was read
	all     *rate.Limiter
	clients map[netip.Prefix]*rate.Limiter // of those with wrong tokens lately: allBurst at most, and a few
}

// New returns a Guard of the token that read returns, at each call.
func New(read func() ([]byte, error), log zerolog.Logger) *Guard {
	return &Guard{
		read: read, log: log, all: rate.NewLimiter(allPerSec, allBurst), clients: make(map[netip.Prefix]*rate.Limiter),
	}
}

// Token returns the token, or ErrUnreadable. It logs the same error again only after the token was read: anyone can
// cause one with each request.
func (g *Guard) Token() ([]byte, error) {
	token, err := g.read()
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil {
		g.logged = ""
		return token, nil
	}
	if g.logged != err.Error() {
		g.logged = err.Error()
		g.log.Error().Err(err).Msg("api token unreadable, requests refused")
	}
	return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
}

// CheckBearer returns nil if the header of a request has the token, else ErrWrong, ErrTooMany or
// ErrUnreadable. A request without a token does not count as a wrong one.
func (g *Guard) CheckBearer(r *http.Request) error {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if given = strings.TrimSpace(given); !strings.EqualFold(scheme, "Bearer") {
		given = ""
	}
	return g.Check(r, given)
}

// Check is CheckBearer for a token that a request has elsewhere, "" for none. The right token always
// passes, however many wrong ones came before. The time that the comparison takes does not depend on
// the token.
func (g *Guard) Check(r *http.Request, given string) error {
	token, err := g.Token()
	if err != nil {
		return err
	}
	if given == "" {
		return ErrWrong
	}
	want, got := sha256.Sum256(token), sha256.Sum256([]byte(given))
	if subtle.ConstantTimeCompare(want[:], got[:]) == 1 {
		return nil
	}
	client := clientOf(r)
	g.mu.Lock()
	defer g.mu.Unlock()
	limiter := g.clients[client]
	if g.all.Tokens() < 1 || limiter != nil && limiter.Tokens() < 1 {
		return ErrTooMany
	}
	if limiter == nil {
		maps.DeleteFunc(g.clients, func(_ netip.Prefix, l *rate.Limiter) bool { return l.Tokens() >= wrongBurst })
		limiter = rate.NewLimiter(wrongPerSec, wrongBurst)
		g.clients[client] = limiter
	}
	limiter.Allow()
	g.all.Allow()
	return ErrWrong
}

// clientOf returns the address of a client, of IPv6 its network. It is the zero prefix if the address
// is none of IP.
func clientOf(r *http.Request) netip.Prefix {
	address, _ := netip.ParseAddrPort(r.RemoteAddr) // the zero address has no prefix
	ip := address.Addr().Unmap()
	network, _ := ip.Prefix(min(ip.BitLen(), ipv6Bits))
	return network
}

// IsLocal reports whether the Host header of a request names this machine: by a loopback address, as localhost,
// or as the host that the address of the server was given with, "" for none. A page of another site whose
// name was changed to a loopback address (DNS rebinding) sends its own name.
func IsLocal(r *http.Request, given string) bool {
	name := (&url.URL{Host: r.Host}).Hostname()
	ip, err := netip.ParseAddr(name)
	return strings.EqualFold(name, "localhost") || err == nil && ip.Unmap().IsLoopback() ||
		name != "" && strings.EqualFold(name, given)
}
