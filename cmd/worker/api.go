package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/net/http/httpguts"

	"holdfast/internal/audit"
	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/queries"
	"holdfast/internal/token"
	"holdfast/internal/version"
)

// API has the settings of the endpoints under /v1.
type API struct {
	APIAddr      string `name:"api-addr" env:"HOLDFAST_API_ADDR" placeholder:"ADDR" help:"Address that serves the queries under /v1. Default: the same as --http-addr."`
	APITokenFile string `name:"api-token-file" env:"HOLDFAST_API_TOKEN_FILE" placeholder:"FILE" help:"File with the token that every request of /v1 must have: Authorization: Bearer TOKEN. It is read for each request, so a changed token counts at once."`
	ConsoleMode  `embed:""`
	ConsoleUser  string `name:"console-user-header" env:"HOLDFAST_CONSOLE_USER_HEADER" placeholder:"NAME" help:"Header in which a proxy names the operator who uses the console, such as X-Forwarded-User. Only the proxy may reach the worker then."`
	APIInsecure  bool   `name:"api-insecure" env:"HOLDFAST_API_INSECURE" help:"Serve /v1 without a token also beyond loopback, where everyone on the network may then query holds."`
}

// ConsoleMode sets whether there is a console, and whether it acts.
type ConsoleMode struct {
	Console string `name:"console" env:"HOLDFAST_CONSOLE" default:"${console}" enum:"off,read,act" help:"Pages for operators under /console/, on the address of /v1 and with its token: off, read (they change nothing), or act (they also manage dead letters and set capacity)."`
}

// apiTokenMin is the length of the shortest token, in bytes.
const apiTokenMin = 16

// consoleOff is the value of --console without a console.
const consoleOff = "off"

// listeners are the open addresses of a worker.
type listeners struct {
	operations net.Listener
	api        net.Listener // nil when operations serves /v1 too
	apiHost    string       // of the address that serves /v1, as it was given
}

// listen opens the addresses of a worker, and sets HTTPAddr and APIAddr to what it opened. With near it takes a free
// port of the same host when that of HTTPAddr is in use. The caller closes the listeners.
func (c *Config) listen(near bool) (l listeners, err error) {
	operations, err := listenOn("--http-addr", c.HTTPAddr)
	host, _, splitErr := net.SplitHostPort(c.HTTPAddr)
	if near && err != nil && splitErr == nil {
		operations, err = listenOn("--http-addr", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return listeners{}, err
	}
	c.HTTPAddr = operations.Addr().String()
	l, err = c.listenAPI(operations)
	if l.api == nil {
		l.apiHost = host
	}
	return l, err
}

// listenOn opens the address of a setting.
func listenOn(setting, addr string) (net.Listener, error) {
	if addr == "" { // else it would be any port of all interfaces
		return nil, misused("%s is empty: want host:port", setting)
	}
	l, err := net.Listen("tcp", addr)
	var malformed *net.AddrError
	switch {
	case errors.As(err, &malformed):
		return nil, misused("%s: %v: want host:port", setting, err)
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s: %w: give another address, or port 0 for a free port", setting, err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	return l, nil
}

// listenAPI opens the address of /v1, unless it is that of the operations. It returns a usage error
// if /v1 would be open to the network without a token.
func (a *API) listenAPI(operations net.Listener) (l listeners, err error) {
	l.operations = operations
	setting, at := "--http-addr", operations
	if a.APIAddr != "" && !isListening(operations, a.APIAddr) {
		if l.api, err = listenOn("--api-addr", a.APIAddr); err != nil {
			l.close()
			return listeners{}, err
		}
		setting, at = "--api-addr", l.api
		l.apiHost, _, _ = net.SplitHostPort(a.APIAddr) // it was opened
		a.APIAddr = l.api.Addr().String()
	}
	if err := errors.Join(a.checkUserHeader(), a.checkAPI(setting, addrOf(at))); err != nil {
		l.close()
		return listeners{}, err
	}
	return l, nil
}

// isListening reports whether a listener has an address.
func isListening(l net.Listener, addr string) bool {
	has := addrOf(l)
	want, err := net.ResolveTCPAddr("tcp", addr)
	anywhere := err == nil && (want.IP == nil || want.IP.IsUnspecified()) // 0.0.0.0 is opened as [::]
	return err == nil && want.Port == has.Port && (want.IP.Equal(has.IP) || anywhere && has.IP.IsUnspecified())
}

// checkUserHeader returns a usage error if no proxy can name a user in the header, or it has a secret.
func (a *API) checkUserHeader() error {
	unusable := []string{"authorization", "proxy-authorization", "cookie", "host"}
	if name := a.ConsoleUser; name != "" &&
		(!httpguts.ValidHeaderFieldName(name) || slices.Contains(unusable, strings.ToLower(name))) {
		return misused("--console-user-header %s: want the header in which a proxy names the user, such as X-Forwarded-User", name)
	}
	return nil
}

// checkAPI returns a usage error if /v1 needs a token that is not given or not usable.
func (a *API) checkAPI(setting string, addr *net.TCPAddr) error {
	if a.APITokenFile != "" {
		_, err := readToken(a.APITokenFile)
		return err
	}
	if a.APIInsecure || addr.IP.IsLoopback() {
		return nil
	}
	return misused("%s %s serves /v1 beyond loopback without a token: give --api-token-file FILE, or serve /v1 on "+
		"loopback with --api-addr 127.0.0.1:8081, or accept it with --api-insecure", setting, addr)
}

// apiAddr returns the address that serves /v1 and the console.
func (l listeners) apiAddr() *net.TCPAddr {
	return addrOf(cmp.Or(l.api, l.operations))
}

// addrOf returns the address of a listener of listenOn, which are all of TCP.
func addrOf(l net.Listener) *net.TCPAddr { return l.Addr().(*net.TCPAddr) }

// close closes the addresses.
func (l listeners) close() {
	for _, one := range []net.Listener{l.operations, l.api} {
		if one != nil {
			_ = one.Close() // the HTTP server may have closed it
		}
	}
}

// readToken reads the token in a file, without the white space around it.
func readToken(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, misused("--api-token-file: %v", err)
	}
	token := bytes.TrimSpace(text)
	if len(token) < apiTokenMin {
		return nil, misused("--api-token-file %s: the token has %d bytes, want at least %d", file, len(token), apiTokenMin)
	}
	if !httpguts.ValidHeaderFieldValue(string(token)) {
		return nil, misused("--api-token-file %s: the token has a line break or another control character, which no request can send: "+
			"want one line", file)
	}
	return token, nil
}

// The answers of /v1 to requests that are no queries, or have no token.
var (
	unauthorized = queries.Problem{
		Status: http.StatusUnauthorized, Reason: "unauthorized", Detail: "send the token of this worker: Authorization: Bearer TOKEN",
	}
	readOnly = queries.Problem{
		Status: http.StatusMethodNotAllowed, Reason: "method_not_allowed", Detail: "the queries under /v1 only read: use GET",
	}
	unknownPath = queries.Problem{
		Status: http.StatusNotFound, Reason: "unknown_path", Detail: "no such query; / lists them",
	}
	tooManyTokens = queries.Problem{
		Status: http.StatusTooManyRequests, Reason: "too_many_tokens", Detail: "too many wrong tokens came from this address; try again in a second",
	}
	wrongHost = queries.Problem{
		Status: http.StatusMisdirectedRequest, Reason: "wrong_host",
		Detail: "without a token this worker answers only requests to localhost, a loopback address or the name that it listens " +
			"on, and the header Host has another: let a proxy send such a name, or give the worker --api-token-file FILE",
	}
	noToken = queries.Problem{
		Status: http.StatusServiceUnavailable, Reason: "unavailable", Detail: "the token file of this worker cannot be read",
	}
)

// local returns a handler that refuses requests to other names than those of this machine, if only this machine
// reaches /v1 and the console and neither a token nor a proxy says who may use them.
func (s *server) local(h http.Handler) http.Handler {
	if !s.listeners.apiAddr().IP.IsLoopback() || s.token != nil || s.api.ConsoleUser != "" {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !token.IsLocal(r, s.listeners.apiHost) {
			s.answer(w, wrongHost.Status, wrongHost)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// protected returns a handler that requires the token, if there is one, and refuses every method
// that does not read.
func (s *server) protected(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if s.token != nil {
			switch err := s.token.CheckBearer(r); {
			case errors.Is(err, token.ErrWrong):
				s.refuse(w, unauthorized, "WWW-Authenticate", `Bearer realm="holdfast"`)
				return
			case errors.Is(err, token.ErrTooMany):
				s.refuse(w, tooManyTokens, "Retry-After", "1")
				return
			case err != nil:
				s.answer(w, noToken.Status, noToken)
				return
			}
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			s.refuse(w, readOnly, "Allow", "GET, HEAD")
			return
		}
		h.ServeHTTP(w, r)
	})
}

// refuse answers a request with a problem and a header.
func (s *server) refuse(w http.ResponseWriter, p queries.Problem, header, value string) {
	w.Header().Set(header, value)
	s.answer(w, p.Status, p)
}

// requester describes who sent a request, for the log: the address, and the begin of the hash of the
// token.
func requester(r *http.Request) string {
	who := r.RemoteAddr
	if _, token, found := strings.Cut(r.Header.Get("Authorization"), " "); found {
		sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
		who += " token " + hex.EncodeToString(sum[:4])
	}
	return who
}

// apiQueries are the queries under /v1.
var apiQueries = []struct {
	route  string
	answer func(*server, context.Context, *http.Request) (any, error)
}{
	{"/v1/availability", (*server).availability},
	{"/v1/holds", answerOf(queries.EndpointHolds)},
	{"/v1/holds/{hold_id}", answerOf(queries.EndpointHold)},
	{"/v1/holds/{hold_id}/history", answerOf(queries.EndpointHistory)},
	{"/v1/resources", answerOf(queries.EndpointResources)},
	{"/v1/stats", (*server).stats},
	{"/v1/dead-letters", (*server).deadLetters},
}

// apiHandler returns the handler of /v1.
func (s *server) apiHandler() http.Handler {
	mux := http.NewServeMux()
	for _, q := range apiQueries {
		mux.HandleFunc("GET "+q.route, s.query(func(ctx context.Context, r *http.Request) (any, error) {
			return q.answer(s, ctx, r)
		}))
	}
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, _ *http.Request) {
		s.answer(w, unknownPath.Status, unknownPath)
	})
	return s.protected(mux)
}

func (s *server) availability(ctx context.Context, r *http.Request) (any, error) {
	resource, selection, err := queries.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	return s.inquiry.Availability(ctx, resource, selection)
}

// answerOf returns what answers a query that NATS answers too.
func answerOf(endpoint string) func(*server, context.Context, *http.Request) (any, error) {
	return func(s *server, ctx context.Context, r *http.Request) (any, error) {
		return s.inquiry.AnswerURL(ctx, endpoint, r.PathValue("hold_id"), r.URL.RawQuery, func() {
			s.log.Info().Str("what", r.URL.Path).Str("who", requester(r)).Str("via", "http").Msg("private data revealed")
		})
	}
}

// workerStats is the answer of /v1/stats: the state of the namespace, and of the worker that
// answers.
type workerStats struct {
	Worker    string `json:"worker"`
	Version   string `json:"version"`
	Namespace string `json:"namespace"`
	queries.Readiness
	AuditLeft int64 `json:"audit_left"` // differences that this worker, if it reconciles, has found and not healed
	queries.Stats
}

func (s *server) stats(ctx context.Context, r *http.Request) (any, error) {
	if err := queries.ParseNoQuery(r.URL.RawQuery); err != nil {
		return nil, err
	}
	stats, ready, err := s.state(ctx)
	if err != nil && !ready.Ready {
		return nil, &queries.NotReadyError{Readiness: ready, Err: err}
	}
	if err != nil {
		return nil, err
	}
	families, err := s.metrics.Gather()
	if err != nil {
		return nil, err
	}
	return workerStats{
		workerName(), version.Line("worker"), s.namespace, ready, sumOf(families, audit.MetricLeft), stats,
	}, nil
}

// state returns the state of the namespace and of this worker. Both are read at the same time, so a server that
// hangs delays them only once.
func (s *server) state(ctx context.Context) (stats queries.Stats, ready queries.Readiness, err error) {
	var checking sync.WaitGroup
	checking.Go(func() { ready = s.readiness(ctx) })
	stats, err = s.inquiry.Stats(ctx)
	checking.Wait()
	return stats, ready, err
}

// deadLettersPage is the answer of /v1/dead-letters, oldest first.
type deadLettersPage struct {
	DeadLetters []*events.DeadLetter `json:"dead_letters"`
	Next        uint64               `json:"next,omitzero"` // the value of after for the next page; 0 at the end
}

func (s *server) deadLetters(ctx context.Context, r *http.Request) (any, error) {
	q, err := queries.ParseDeadLettersQuery(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	stored, err := s.client.DeadLetters(ctx)
	if err != nil {
		return nil, err
	}
	page := deadLettersPage{DeadLetters: []*events.DeadLetter{}}
	var filter client.DeadLetterFilter
	if q.Reason != "" {
		filter.Reasons = []string{q.Reason}
	}
	for l, err := range stored.After(ctx, filter, true, q.After) {
		if err != nil {
			return nil, err
		}
		if len(page.DeadLetters) == q.Limit {
			page.Next = page.DeadLetters[q.Limit-1].Seq
			break
		}
		page.DeadLetters = append(page.DeadLetters, l)
	}
	return page, nil
}
