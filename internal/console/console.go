package console

import (
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/queries"
	"holdfast/internal/token"
)

// Mode says what the console may do.
type Mode string

// The modes. There is no console without a mode.
const (
	Read Mode = "read" // every method but GET and HEAD is refused, except the sign-in
	Act  Mode = "act"  // it also manages dead letters and capacity
)

// Options are what a console is made of.
type Options struct {
	Mode       Mode
	Namespace  events.Namespace
	Token      *token.Guard // of the token that signs in; nil for none
	UserHeader string       // header in which a proxy names the user; "" for none

	Status  func(ctx context.Context) (Status, error)
	Inquiry *queries.Inquiry
	Client  *client.Client
	DryRun  func(ctx context.Context, m *nats.Msg) (events.DryRunResult, error)
	Log     zerolog.Logger
}

// Status is the state of the worker that serves the console, and of its namespace.
type Status struct {
	Worker  string
	Version string
	queries.Readiness
	Stats     queries.Stats
	Expired   int64         // holds that this worker has expired, since its start
	LateP99   time.Duration // their lateness, an upper bound: of the bucket
	Locks     [][]string    // a row for each size class, as `worker locks` shows it
	AuditLeft int64         // differences that the reconciler has found and not healed
	Healed    int64         // differences that it has healed, since the start
}

// The bounds of requests.
const (
	answerWithin = 5 * time.Second
	requestsMax  = 32      // answered at the same time, without streams
	streamsMax   = 64      // live pages that are open at the same time
	formMax      = 1 << 20 // bytes; a page of check boxes and one event fit
	postsPerSec  = 5
	postsBurst   = 20

	refusalsPerSec = 1 // of refused sign-ins in the log, which anyone can cause
	refusalsBurst  = 20
)

// Prefix is the path below which the console is served.
const Prefix = "/console/"

// Console serves the pages. Its methods may be called concurrently.
type Console struct {
	Options
	secret  []byte // signs sessions when there is no token
	ended   endedSessions
	origins *http.CrossOriginProtection
	posts   *rate.Limiter
	refused *rate.Limiter       // sign-ins in the log
	turns   *semaphore.Weighted // of requestsMax
	streams *semaphore.Weighted // of streamsMax
	live    shared[Status]
	frames  shared[[]byte]
	workers shared[[]client.WorkerInfo]
	groups  shared[deadLetterGroups]
	recent  shared[queries.RecentOutcomes]
	runs    runs

	open  context.Context // ends when no live page may stay open
	close context.CancelFunc
}

//go:embed assets templates
var files embed.FS

// New returns a Console.
func New(o Options) *Console {
	c := &Console{
		Options: o, secret: []byte(rand.Text()), origins: http.NewCrossOriginProtection(),
		posts: rate.NewLimiter(postsPerSec, postsBurst), turns: semaphore.NewWeighted(requestsMax),
		streams: semaphore.NewWeighted(streamsMax), refused: rate.NewLimiter(refusalsPerSec, refusalsBurst),
		runs: runs{cancels: make(map[string]context.CancelFunc), views: make(map[string]*shared[*client.Run])},
	}
	c.open, c.close = context.WithCancel(context.Background())
	return c
}

// Close ends the live pages, so that a server can shut down.
func (c *Console) Close() { c.close() }

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
	mux.HandleFunc("GET "+Prefix+"assets/{name}", asset)
	mux.HandleFunc("GET "+Prefix+"sign-in", func(w http.ResponseWriter, r *http.Request) {
		c.renderSignIn(w, r, http.StatusOK, "")
	})
	mux.HandleFunc("POST "+Prefix+"sign-in", c.signIn)
	mux.HandleFunc("POST "+Prefix+"sign-out", c.signOut)
	mux.HandleFunc("GET "+Prefix+"live", c.protected(c.stream))
	for pattern, answer := range map[string]handler{
		"GET /{$}":                      c.overview,
		"GET /runbook":                  c.runbook,
		"GET /holds":                    c.holds,
		"GET /holds/{id}":               c.hold,
		"GET /dead-letters":             c.deadLetters,
		"GET /dead-letters/list":        c.deadLetterList,
		"GET /dead-letters/confirm":     c.confirm,
		"GET /dead-letters/{seq}":       c.deadLetter,
		"GET /dead-letters/{seq}/edit":  c.editForm,
		"GET /runs":                     c.runList,
		"GET /runs/{id}":                c.run,
		"GET /availability":             c.availability,
		"GET /availability/{resource}":  c.resource,
		"GET /lateness":                 c.lateness,
		"GET /inventory":                c.inventory,
		"POST /dead-letters/{verb}":     c.confirm,
		"POST /dead-letters/{seq}/edit": c.startEdit,
		"POST /runs/{id}/cancel":        c.cancelRun,
		"POST /runs/{id}/resume":        c.resumeRun,
		"POST /inventory":               c.inventory,
		"/": func(context.Context, *request) (*page, error) {
			return nil, &statusError{http.StatusNotFound, "There is no such page."}
		},
	} {
		mux.HandleFunc(strings.Replace(pattern, "/", Prefix, 1), c.protected(c.page(answer)))
	}
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
		methods := []string{http.MethodGet, http.MethodHead}
		if c.Mode == Act || r.URL.Path == Prefix+"sign-in" || r.URL.Path == Prefix+"sign-out" {
			methods = append(methods, http.MethodPost)
		}
		if !slices.Contains(methods, r.Method) {
			h.Set("Allow", strings.Join(methods, ", "))
			http.Error(w, "Method not allowed with HOLDFAST_CONSOLE="+string(c.Mode)+".", http.StatusMethodNotAllowed)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, formMax)
		if err := c.origins.Check(r); err != nil {
			http.Error(w, "Refused: the request comes from another site, or from a proxy without https that sends another Host than "+
				"the browser (docs/http.md).", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// protected lets requests of known operators pass, and no forged or too many POST requests. Those are actions, which are
// recorded with the name of who acts.
func (c *Console) protected(next func(r *request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := c.visitor(w, r)
		if err != nil {
			c.refuse(w, r, err)
			return
		}
		post := r.Method == http.MethodPost
		switch {
		case post && !c.posts.Allow():
			err = errTooMany
		case r.ParseForm() != nil:
			err = badRequest("The form is too large or not readable.")
		case post && !v.owns(r.PostForm.Get("csrf")):
			err = &statusError{http.StatusForbidden, "The form is too old, or was not sent by this console. Load the page again, and retry."}
		case post && nameOf(v, r) == "":
			err = badRequest("Nothing was done: give your name, which is recorded with the action.")
		}
		if err != nil {
			c.fail(&request{r, w, v}, err)
			return
		}
		next(&request{r, w, v})
	}
}

// refuse answers a request of an unknown operator.
func (c *Console) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, token.ErrWrong) && r.Method != http.MethodPost {
		http.Redirect(w, r, Prefix+"sign-in?to="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
		return
	}
	status, text := c.statusOf(r.Context(), err)
	http.Error(w, text, status)
}

// page answers a request with a page, within answerWithin. It refuses the request at once while
// requestsMax others are being answered.
func (c *Console) page(answer handler) func(r *request) {
	return func(r *request) {
		if !c.turns.TryAcquire(1) {
			r.w.Header().Set("Retry-After", "1")
			c.fail(r, &statusError{http.StatusServiceUnavailable, queries.Busy.Detail})
			return
		}
		defer c.turns.Release(1)
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
	status, text := c.statusOf(r.Context(), err)
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

// statusOf returns the status of an answer and its text. It logs what the text leaves out, as a failure unless ctx, that of
// the request, was cancelled: then the client has gone.
func (c *Console) statusOf(ctx context.Context, err error) (status int, text string) {
	var own *statusError
	switch {
	case errors.As(err, &own):
		return own.status, own.text
	case errors.Is(err, token.ErrWrong):
		return http.StatusUnauthorized, "This is not the token of this worker."
	case errors.Is(err, token.ErrTooMany):
		return http.StatusTooManyRequests, errTooMany.text
	case errors.Is(err, token.ErrUnreadable):
		return http.StatusServiceUnavailable, "The token file of this worker cannot be read."
	case errors.Is(err, client.ErrDeadLetterNotFound), errors.Is(err, client.ErrRunNotFound):
		return http.StatusNotFound, err.Error()
	}
	problem := queries.LogProblem(ctx, c.Log, err, "console request failed")
	return problem.Status, problem.Detail
}

// reveals reports whether a request asks for private data. render logs it.
func (r *request) reveals() bool { return r.URL.Query().Get("reveal") == "true" }

// shared is a value that all requests of a moment share.
type shared[V any] struct {
	reads singleflight.Group
	last  atomic.Pointer[reading[V]]
}

// reading is a value and when it was read.
type reading[V any] struct {
	at    time.Time
	value V
}

// get returns the value that was read less than maxAge ago, or reads it. Concurrent calls share one
// reading and its error. It lasts answerWithin at most, and does not end with any of the calls. A panic
// of read is an error: the worker goes on.
func (s *shared[V]) get(ctx context.Context, maxAge time.Duration, read func(context.Context) (V, error)) (V, error) {
	done := s.reads.DoChan("", func() (value any, err error) {
		defer func() {
			if fault := recover(); fault != nil {
				value, err = *new(V), fmt.Errorf("panic: %v\n%s", fault, debug.Stack())
			}
		}()
		if last := s.last.Load(); last != nil && time.Since(last.at) < maxAge {
			return last.value, nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
		defer cancel()
		v, err := read(ctx)
		if err == nil {
			s.last.Store(&reading[V]{time.Now(), v})
		}
		return v, err
	})
	select {
	case result := <-done:
		return result.Val.(V), result.Err
	case <-ctx.Done():
		return *new(V), ctx.Err()
	}
}
