package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"holdfast/internal/client"
	"holdfast/internal/console"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/queries"
	"holdfast/internal/recovery"
	"holdfast/internal/store"
	"holdfast/internal/terminal"
	"holdfast/internal/token"
)

const (
	readyWithin  = time.Second
	answerWithin = 5 * time.Second
	finishWithin = 3 * time.Second // what is being answered at a stop: less than stopWithinForServers
	scrapesMax   = 4
	queriesMax   = 64 // at the same time
)

// newWebServer returns a server that limits the time and the header bytes of each connection. An answer may take
// answerWithin to be computed and as much again to be sent.
func newWebServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      2 * answerWithin,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    48 << 10, // the availability of holds.InventorySlotsMax slots with long names
	}
}

// server serves the operations address.
type server struct {
	listeners listeners
	api       API
	inquiry   *queries.Inquiry
	client    *client.Client
	namespace string
	term      *recovery.EpochTerm
	policy    holds.Policy
	redis     redis.UniversalClient
	store     *store.Store
	nats      *nats.Conn
	natsError *natsFailure
	consumers []*events.Consumer
	expirer   *holds.Expirer
	metrics   *prometheus.Registry
	queries   *queryMetrics
	log       zerolog.Logger
	token     *token.Guard     // nil when /v1 and the console need none
	console   *console.Console // nil when it is off

	turns chan struct{}      // one element for each query that is being answered
	ready singleflight.Group // one check answers all concurrent requests of /readyz
}

func newServer(
	l listeners, c Config, i *queries.Inquiry, cl *client.Client, t *recovery.EpochTerm, q *queries.Service,
	r redis.UniversalClient, db *store.Store, nc *nats.Conn, nf *natsFailure, cs []*events.Consumer, x *holds.Expirer,
	m *prometheus.Registry, qm *queryMetrics, log zerolog.Logger,
) *server {
	s := &server{
		listeners: l, api: c.API, inquiry: i, client: cl, namespace: c.Namespace, term: t, policy: c.policy(),
		redis: r, store: db, nats: nc, natsError: nf, consumers: cs, expirer: x, metrics: m, queries: qm, log: log,
		turns: make(chan struct{}, queriesMax),
	}
	if c.APITokenFile != "" {
		s.token = token.New(func() ([]byte, error) { return readToken(c.APITokenFile) }, log)
	}
	if c.Console != consoleOff {
		s.console = console.New(console.Options{
			Mode: console.Mode(c.Console), Namespace: events.Namespace(c.Namespace), UserHeader: c.ConsoleUser,
			Token: s.token, Status: s.consoleStatus, Inquiry: i, Client: cl, DryRun: q.DryRun, Log: log,
		})
	}
	return s
}

// run serves until ctx is over.
func (s *server) run(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.page)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		s.answer(w, http.StatusOK, map[string]string{"status": "alive"})
	})
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{MaxRequestsInFlight: scrapesMax}))
	api, all := mux, "/v1/"
	if s.listeners.api != nil {
		api, all = http.NewServeMux(), "/"
	}
	api.Handle(all, s.local(s.apiHandler()))
	if s.console != nil {
		api.Handle(console.Prefix, s.local(s.console.Handler()))
	}
	if s.listeners.api == nil {
		return s.serve(ctx, s.listeners.operations, mux)
	}
	serving, ctx := errgroup.WithContext(ctx)
	serving.Go(func() error { return s.serve(ctx, s.listeners.operations, mux) })
	serving.Go(func() error { return s.serve(ctx, s.listeners.api, api) })
	return serving.Wait()
}

// serve serves an address until ctx is over. Then it takes no more requests, and finishes within finishWithin those that it
// has.
func (s *server) serve(ctx context.Context, l net.Listener, h http.Handler) error {
	web := newWebServer(h)
	if s.console != nil {
		web.RegisterOnShutdown(s.console.Close) // its live pages would never end
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		closing, cancel := context.WithTimeout(context.Background(), finishWithin)
		defer cancel()
		stopped <- web.Shutdown(closing)
	})
	err := web.Serve(l)
	if !stop() {
		return <-stopped
	}
	return err
}

// The HTML page at the root of the operations address consists of pageBegin, pageConsole when the console is on,
// and pageQueries; or, when another address serves both, of pageBegin and pageElsewhere.
const (
	pageBegin = `<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>Holdfast worker</title>
<pre>
A Holdfast worker of namespace %s. It keeps temporary holds on bookable capacity.

<a href="/healthz">/healthz</a>   200 while the process is alive
<a href="/readyz">/readyz</a>    200 while it processes events and all its servers answer, else 503 with the reasons
<a href="/metrics">/metrics</a>   metrics for Prometheus
`
	pageConsole = `<a href="/console/">/console/</a>  pages for operators
`
	pageQueries = `
<a href="/v1/availability">/v1/availability</a>?resource_id=R&amp;check_in=D&amp;check_out=D   availability of nights
<a href="/v1/availability">/v1/availability</a>?resource_id=R&amp;slot=S                   availability of slots (repeat &amp;slot=S)
<a href="/v1/availability">/v1/availability</a>?resource_id=R                          availability of a stock
/v1/holds/HOLD_ID                                      a hold and its state
/v1/holds/HOLD_ID/history                              what happened to a hold
<a href="/v1/holds">/v1/holds</a>?resource_id=R                                 live holds, in the order of their deadlines
<a href="/v1/resources">/v1/resources</a>                                          resources with their sums
<a href="/v1/stats">/v1/stats</a>                                              rates, lag, live holds, dead letters, streams
<a href="/v1/dead-letters">/v1/dead-letters</a>                                       dead letters, oldest first
`
	pageElsewhere = `
The queries under /v1 are on the address %s.
`
	pageEnd = `</pre>
</html>
`
)

// page answers a request for the root path.
func (s *server) page(w http.ResponseWriter, _ *http.Request) {
	text := fmt.Sprintf(pageBegin, html.EscapeString(s.namespace))
	switch {
	case s.listeners.api != nil:
		text += fmt.Sprintf(pageElsewhere, html.EscapeString(s.listeners.api.Addr().String()))
	case s.console != nil:
		text += pageConsole + pageQueries
	default:
		text += pageQueries
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = fmt.Fprint(w, text+pageEnd) // fails only when the client has disconnected
}

// answer writes a value as JSON. Texts of events that are not UTF-8 are shown with U+FFFD.
func (s *server) answer(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		s.log.Error().Err(err).Msg("http answer failed")
		http.Error(w, `{"error":"internal","detail":"the answer cannot be encoded, see the log of the worker"}`,
			http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // fails only when the client has disconnected
}

// query returns a handler that answers a query within answerWithin. It rejects the query at once,
// with 503, while queriesMax others are being answered.
func (s *server) query(answer func(ctx context.Context, r *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.turns <- struct{}{}:
			defer func() { <-s.turns }()
		default:
			w.Header().Set("Retry-After", "1")
			s.queries.answered(r, queries.Busy.Status, 0)
			s.answer(w, queries.Busy.Status, queries.Busy)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), answerWithin)
		defer cancel()
		began := time.Now()
		value, err := answer(ctx, r)
		status := http.StatusOK
		if err != nil {
			problem := queries.LogProblem(r.Context(), s.log, err, "query failed")
			status, value = problem.Status, problem
		}
		if r.Context().Err() == nil { // else the client has gone, or waits without sending
			s.queries.answered(r, status, time.Since(began))
		}
		s.answer(w, status, value)
	}
}

func (s *server) readyz(w http.ResponseWriter, r *http.Request) {
	ready := s.readiness(r.Context())
	status := http.StatusOK
	if !ready.Ready {
		status = http.StatusServiceUnavailable
	}
	s.answer(w, status, ready)
}

// readiness checks the worker and its servers. Concurrent calls share one check.
func (s *server) readiness(ctx context.Context) queries.Readiness {
	shared, _, _ := s.ready.Do("", func() (any, error) {
		return s.check(context.WithoutCancel(ctx)), nil // other callers wait for the result too
	})
	return shared.(queries.Readiness)
}

// check checks all servers at the same time, so one that hangs does not delay the others.
func (s *server) check(ctx context.Context) queries.Readiness {
	ready := queries.Readiness{Reasons: []string{},
		Details: map[string]string{"namespace": s.namespace, "keyspace_notifications": "on"}}
	var mu sync.Mutex
	because := func(reason string, err error) {
		mu.Lock()
		defer mu.Unlock()
		ready.Reasons = append(ready.Reasons, reason)
		if before := ready.Details[reason]; before != "" {
			err = fmt.Errorf("%s; %w", before, err)
		}
		ready.Details[reason] = err.Error()
	}
	var checks sync.WaitGroup
	for reason, check := range map[string]func(context.Context) error{
		"redis":    s.checkRedis,
		"postgres": s.store.Ping,
		"nats":     s.checkNATS,
	} {
		checks.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, readyWithin)
			defer cancel()
			err := check(ctx)
			for _, cause := range causes(err) {
				if errors.Is(cause, holds.ErrDataLost) {
					because("rebuilding", cause)
				} else {
					because(reason, cause)
				}
			}
		})
	}
	checks.Wait()
	for i, consumer := range s.consumers {
		if err := consumer.Outage(); err != nil {
			because("paused", fmt.Errorf("consumer %s is paused by an outage: %w", consumerNames[i], err))
		}
		if pause := consumer.OperatorPause(); pause != nil {
			because("paused", fmt.Errorf("consumer %s is %s", consumerNames[i], pause))
		}
	}
	if err, is := errors.AsType[*holds.UnreachableError](s.term.Unreachable()); is && len(ready.Reasons) == 0 {
		because("paused", fmt.Errorf("few events are fetched, because the last check of %s failed: %w", err.Server(), err))
	}
	s.addDetails(ready.Details)
	slices.Sort(ready.Reasons)
	ready.Reasons = slices.Compact(ready.Reasons)
	ready.Ready = len(ready.Reasons) == 0
	return ready
}

// addDetails adds what does not stop a worker.
func (s *server) addDetails(details map[string]string) {
	if err := s.expirer.NotificationError(); err != nil {
		details["keyspace_notifications"] = "off: " + err.Error()
	}
	if mismatch := s.term.Current().Policies.Mismatch(s.policy); mismatch != "" {
		details["policy_mismatch"] = mismatch
	}
	if eviction := s.term.Eviction(); eviction != "" {
		details["redis_eviction"] = eviction
	}
	if n := s.term.LostCommits(); n > 0 {
		details["lost_commits"] = fmt.Sprintf("postgres lacks %s, and nothing is granted on their resources: "+
			"worker audit names them", terminal.Counted(n, "published outcome"))
	}
}

// checkRedis returns an error unless Redis answers and every partition has its current epoch.
func (s *server) checkRedis(ctx context.Context) error {
	var unusable error
	if current := s.term.Current(); current.Ready != 0 {
		unusable = recovery.CheckEpochs(ctx, s.namespace, s.redis, current)
	}
	return errors.Join(unusable, s.term.Paused())
}

// checkNATS returns why the worker is not connected, if it is not.
func (s *server) checkNATS(ctx context.Context) error {
	if !s.nats.IsConnected() { // natsError may not have noticed that it is: nats.go drops states that are received late
		if err := s.natsError.why(); err != nil {
			return err
		}
	}
	return s.nats.FlushWithContext(ctx)
}

// causes returns the errors that were joined, none for nil. One that wraps a joined error stays whole.
func causes(err error) (all []error) {
	if joined, is := err.(interface{ Unwrap() []error }); is {
		for _, one := range joined.Unwrap() {
			all = append(all, causes(one)...)
		}
		return all
	}
	if err != nil {
		all = append(all, err)
	}
	return all
}
