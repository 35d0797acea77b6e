package console

import (
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"golang.org/x/time/rate"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// Mode says what the console may do.
type Mode string

// The modes. There is no console without a mode.
const (
	Read Mode = "read" // every method but GET is refused, except the sign-in
	Act  Mode = "act"  // it also manages dead letters and capacity
)

// Options are what a console is made of.
type Options struct {
	Mode       Mode
	Namespace  events.Namespace
	Token      func() ([]byte, error) // the token that signs in; nil for none
	UserHeader string                 // header in which a proxy names the user; "" for none
	Local      bool                   // only this machine reaches it, so other host names are refused

	Status  func(ctx context.Context) (Status, error)
	Inquiry *events.Inquiry
	Slots   events.HoldQuerier
	Client  *client.Client
	DryRun  func(ctx context.Context, m *nats.Msg) (events.DryRunResult, error)
	Log     zerolog.Logger
}

// Status is the state of the worker that serves the console, and of its namespace.
type Status struct {
	Worker    string
	Version   string
	Ready     bool
	Reasons   []string          // why it is not ready
	Details   map[string]string // of /readyz
	Stats     events.Stats
	Lateness  Lateness
	Locks     []LockClass
	AuditLeft int64 // differences that the reconciler has found and not healed
	Healed    int64 // differences that it has healed, since the start
}

// Lateness says how late this worker has restored expired holds, since its start.
type Lateness struct {
	Holds int64
	P99   time.Duration // an upper bound: of the bucket
}

// LockClass has the statistics of the locks of one size class, as `worker locks` shows them. Its
// columns are texts, because that command formats them.
type LockClass struct {
	Slots, Sections, P50, P99, Waits, WaitP50, WaitP99, Lost, Conflicts, Lease string
}

// The bounds of requests.
const (
	answerWithin = 5 * time.Second
	requestsMax  = 32      // answered at the same time, without streams
	streamsMax   = 64      // live pages that are open at the same time
	formMax      = 1 << 20 // bytes; a page of check boxes and one event fit
	postsPerSec  = 5
	postsBurst   = 20
	signInPerSec = 1
	signInBurst  = 5
)

// Prefix is the path below which the console is served.
const Prefix = "/console/"

// Console serves the pages. Its methods may be called concurrently.
type Console struct {
	Options
	secret  []byte // signs sessions when there is no token
	assets  map[string]asset
	origins *http.CrossOriginProtection
	posts   *rate.Limiter
	signIns *rate.Limiter
	turns   chan struct{}
	streams chan struct{}
	live    shared[Status]
	frames  shared[[]byte]
	workers shared[[]client.WorkerInfo]
	groups  shared[deadLetterGroups]
	recent  shared[events.RecentOutcomes]
	runs    runs

	closing sync.Once
	closed  chan struct{} // closed when no live page may stay open
}

//go:embed assets templates
var files embed.FS

// New returns a Console.
func New(o Options) (*Console, error) {
	c := &Console{
		Options: o, secret: make([]byte, 32), origins: http.NewCrossOriginProtection(),
		posts: rate.NewLimiter(postsPerSec, postsBurst), signIns: rate.NewLimiter(signInPerSec, signInBurst),
		turns: make(chan struct{}, requestsMax), streams: make(chan struct{}, streamsMax), closed: make(chan struct{}),
	}
	c.runs.active = make(map[string]*activeRun)
	_, _ = rand.Read(c.secret) // never fails
	var err error
	c.assets, err = readAssets()
	return c, err
}

// Close ends the live pages, so that a server can shut down.
func (c *Console) Close() { c.closing.Do(func() { close(c.closed) }) }

// request is a request of a known operator.
type request struct {
	*http.Request
	w       http.ResponseWriter
	visitor visitor
}

// handler answers a request with a page, or does so itself and returns nil.
type handler func(ctx context.Context, r *request) (*page, error)

// Handler returns the handler of all paths below Prefix.
func (c *Console) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Prefix+"assets/{name}", c.asset)
	mux.HandleFunc("GET "+Prefix+"sign-in", c.signInForm)
	mux.HandleFunc("POST "+Prefix+"sign-in", c.signIn)
	mux.HandleFunc("POST "+Prefix+"sign-out", c.signOut)
	mux.HandleFunc("GET "+Prefix+"live", c.protected(c.stream))
	for path, answer := range map[string]handler{
		"{$}":                     c.overview,
		"runbook":                 c.runbook,
		"holds":                   c.holds,
		"holds/{id}":              c.hold,
		"dead-letters":            c.deadLetters,
		"dead-letters/list":       c.deadLetterList,
		"dead-letters/confirm":    c.confirm,
		"dead-letters/{seq}":      c.deadLetter,
		"dead-letters/{seq}/edit": c.editForm,
		"runs":                    c.runList,
		"availability":            c.availability,
		"availability/{resource}": c.resource,
		"lateness":                c.lateness,
		"inventory":               c.inventory,
		"runs/{id}":               c.run,
	} {
		mux.HandleFunc("GET "+Prefix+path, c.protected(c.page(answer)))
	}
	for path, answer := range map[string]handler{
		"dead-letters/{verb}":     c.startRun,
		"dead-letters/{seq}/edit": c.startEdit,
		"runs/{id}/cancel":        c.cancelRun,
		"inventory":               c.setInventory,
		"runs/{id}/resume":        c.resumeRun,
	} {
		mux.HandleFunc("POST "+Prefix+path, c.protected(c.page(answer)))
	}
	mux.HandleFunc(Prefix, c.protected(c.page(func(context.Context, *request) (*page, error) {
		return nil, &statusError{http.StatusNotFound, "There is no such page."}
	})))
	return c.guarded(mux)
}

// contentPolicy forbids everything that is not a file of the console.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// guarded sets the headers of every answer, and refuses what needs no sign-in to be refused.
func (c *Console) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		signs := r.URL.Path == Prefix+"sign-in" || r.URL.Path == Prefix+"sign-out"
		switch {
		case c.Local && !isLocalHost(r.Host):
			http.Error(w, "This console answers to the names of this machine only.", http.StatusMisdirectedRequest)
			return
		case r.Method != http.MethodGet && c.Mode != Act && !signs:
			h.Set("Allow", "GET")
			http.Error(w, "This console only reads: HOLDFAST_CONSOLE=read.", http.StatusMethodNotAllowed)
			return
		case r.Method != http.MethodGet && r.Method != http.MethodPost:
			h.Set("Allow", "GET, POST")
			http.Error(w, "Method not allowed.", http.StatusMethodNotAllowed)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, formMax)
		if err := c.origins.Check(r); err != nil {
			http.Error(w, "Refused: the request comes from another site.", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isLocalHost reports whether a Host header names this machine. A page of another site whose name
// was changed to a loopback address sends its own name.
func isLocalHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// protected lets requests of known operators pass, and no forged or too many POST requests.
func (c *Console) protected(next func(r *request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := c.visitor(w, r)
		if err != nil {
			c.refuse(w, r, err)
			return
		}
		if r.Method == http.MethodPost {
			switch {
			case !c.posts.Allow():
				err = errTooMany
			case r.ParseForm() != nil:
				err = &statusError{http.StatusRequestEntityTooLarge, "The form is too large or not readable."}
			case !v.owns(r.PostForm.Get("csrf")):
				err = &statusError{http.StatusForbidden, "The form is too old, or was not sent by this console. Go back, load the page again, and retry."}
			}
			if err != nil {
				c.fail(&request{r, w, v}, err)
				return
			}
		}
		next(&request{r, w, v})
	}
}

// refuse answers a request of an unknown operator.
func (c *Console) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, errSignIn) && r.Method == http.MethodGet {
		http.Redirect(w, r, Prefix+"sign-in?to="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
		return
	}
	status, text := statusOf(err)
	http.Error(w, text, status)
}

// page answers a request with a page, within answerWithin. It refuses the request at once while
// requestsMax others are being answered.
func (c *Console) page(answer handler) func(r *request) {
	return func(r *request) {
		select {
		case c.turns <- struct{}{}:
			defer func() { <-c.turns }()
		default:
			r.w.Header().Set("Retry-After", "1")
			c.fail(r, &statusError{http.StatusServiceUnavailable, events.Busy.Detail})
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), answerWithin)
		defer cancel()
		p, err := answer(ctx, r)
		switch {
		case err != nil:
			c.fail(r, err)
		case p != nil:
			c.render(r, http.StatusOK, p)
		}
	}
}

// fail answers with a page that says what is wrong.
func (c *Console) fail(r *request, err error) {
	status, text := statusOf(err)
	if status == http.StatusServiceUnavailable {
		c.Log.Error().Err(err).Str("path", r.URL.Path).Msg("console request failed")
	}
	c.render(r, status, &page{Title: http.StatusText(status), Body: "problem", Data: text})
}

// statusError is an error that the operator sees.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

func badRequest(text string) error { return &statusError{http.StatusBadRequest, text} }

var errTooMany = &statusError{http.StatusTooManyRequests, "Too many requests. Wait a second and retry."}

// statusOf returns the status of an answer and its text.
func statusOf(err error) (status int, text string) {
	var own *statusError
	if errors.As(err, &own) {
		return own.status, own.text
	}
	if errors.Is(err, client.ErrDeadLetterNotFound) || errors.Is(err, client.ErrRunNotFound) {
		return http.StatusNotFound, err.Error()
	}
	problem := events.ProblemOf(err)
	return problem.Status, problem.Detail
}

// logReveal logs that private data is shown.
func (c *Console) logReveal(r *request) {
	c.Log.Info().Str("what", r.URL.Path).Str("who", r.visitor.String()).Str("via", "console").Msg("private data revealed")
}

// reveals reports whether a request asks for private data, and logs it.
func (c *Console) reveals(r *request) bool {
	reveal := r.URL.Query().Get("reveal") == "true"
	if reveal {
		c.logReveal(r)
	}
	return reveal
}

// shared is a value that all requests of a moment share.
type shared[V any] struct {
	mu    sync.Mutex
	at    time.Time
	key   string
	value V
}

// get returns the value that was read for key less than maxAge ago, or reads it. Concurrent calls
// wait for one reading. The reading does not end when the request that began it does.
func (s *shared[V]) get(
	ctx context.Context, key string, maxAge time.Duration, read func(context.Context) (V, error),
) (V, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.at) < maxAge && s.key == key {
		return s.value, nil
	}
	reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
	defer cancel()
	value, err := read(reading)
	if err == nil {
		s.at, s.key, s.value = time.Now(), key, value
	}
	return value, err
}

// now returns the time of this machine, for ages.
func now() holds.Time { return holds.TimeFromMillis(time.Now().UnixMilli()) }
