package queries

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/members"
)

// The endpoints of the service that answers queries: <ns>.svc.<endpoint>.
const (
	EndpointAvailability = "availability" // {"resource_id", and "check_in" with "check_out", or "slots", or neither}
	EndpointHold         = "hold"         // {"hold_id", "reveal", "who"}; without "reveal" nothing is hidden
	EndpointHolds        = "holds"        // holdsParameters and "who": a page of live holds
	EndpointHistory      = "history"      // {"hold_id", "reveal", "who"}
	EndpointResources    = "resources"    // resourcesParameters
	EndpointDryRun       = "evaluate"     // a message to be published, with its subject in events.HeaderDLQSubject
)

const (
	serviceVersion = "1.0.0" // of the contract
	queriesMax     = 64      // answered at a time
	queryLimit     = 5 * time.Second
)

// Service answers queries on NATS like the HTTP endpoints, and dry runs of events. It is a
// service of the NATS service framework, named after the namespace, so `nats service ls` shows it.
// Several workers share the queries.
type Service struct {
	// Optional. Set them before Run.
	Revision string // the version of the program, which the service shows
	// Database reads which database the worker uses. The service announces it in the statistics of EndpointHold.
	Database func(context.Context) (holds.Database, error)

	ns        events.Namespace
	log       zerolog.Logger
	nc        *nats.Conn
	inquiry   *Inquiry
	dryRunner events.DryRunner
	worker    string
	turns     chan struct{} // one element for each query that is being answered
}

// NewService returns a Service. If dry is nil, it has no EndpointDryRun.
func NewService(
	nc *nats.Conn, ns events.Namespace, i *Inquiry, dry events.DryRunner, worker string, log zerolog.Logger,
) *Service {
	log = log.With().Str("consumer", "queries").Logger()
	return &Service{
		ns: ns, log: log, nc: nc, inquiry: i, dryRunner: dry, worker: worker, turns: make(chan struct{}, queriesMax),
	}
}

// DryRun returns the outcome that a message would have if it were published now. It returns an error
// if that cannot be known.
func (q *Service) DryRun(ctx context.Context, m *nats.Msg) (events.DryRunResult, error) {
	return q.ns.DryRun(ctx, q.dryRunner, m, q.log)
}

// Run answers queries until ctx ends, completes those that it has begun, and returns nil.
func (q *Service) Run(ctx context.Context) error {
	service, err := micro.AddService(q.nc, micro.Config{
		Name: string(q.ns), Version: serviceVersion, Description: "what Holdfast knows of slots and holds",
		Metadata:     map[string]string{"worker": q.worker, "version": q.Revision},
		StatsHandler: q.statistics,
	})
	if err != nil {
		return fmt.Errorf("query service: %w", err)
	}
	defer func() { _ = service.Stop() }() // fails only if the connection is closed
	endpoints := map[string]answerer{EndpointAvailability: q.availability}
	for name, to := range questions {
		endpoints[name] = q.ask(to)
	}
	if q.dryRunner != nil {
		endpoints[EndpointDryRun] = q.dryRun
	}
	for name, answer := range endpoints {
		e := &endpoint{q: q, ctx: ctx, answer: answer}
		if err := service.AddEndpoint(name, e, micro.WithEndpointSubject(q.ns.Service(name))); err != nil {
			return fmt.Errorf("query service: endpoint %s: %w", name, err)
		}
	}
	<-ctx.Done()
	if err := service.Stop(); err != nil {
		q.log.Debug().Err(err).Msg("query service stop failed")
	}
	for range queriesMax { // no other query gets a turn, so this waits for those that have one
		q.turns <- struct{}{}
	}
	return nil
}

// availability answers EndpointAvailability.
func (q *Service) availability(ctx context.Context, m micro.Request) (any, error) {
	resource, selection, err := parametersOf(m.Data(), "resource_id", "check_in", "check_out", "slots").availability()
	if err != nil {
		return nil, err
	}
	found, err := q.inquiry.Availability(ctx, resource, selection)
	return found.known(), err
}

// dryRun answers EndpointDryRun.
func (q *Service) dryRun(ctx context.Context, m micro.Request) (any, error) {
	header := nats.Header(m.Headers())
	return q.DryRun(ctx, &nats.Msg{Subject: header.Get(events.HeaderDLQSubject), Header: header, Data: m.Data()})
}

// question is a query that HTTP and NATS answer in the same way.
type question struct {
	parameters []string // by NATS; by HTTP the path has hold_id, and the log names the client
	answer     func(i *Inquiry, ctx context.Context, p parameters, logReveal func(what string)) (any, error)
}

// questions are the questions by the names of their endpoints.
var questions = map[string]question{
	EndpointHold:      {[]string{"hold_id", "reveal", "who"}, (*Inquiry).answerHold},
	EndpointHolds:     {append(holdsParameters, "who"), (*Inquiry).answerHolds},
	EndpointHistory:   {[]string{"hold_id", "reveal", "who"}, (*Inquiry).answerHistory},
	EndpointResources: {resourcesParameters, (*Inquiry).answerResources},
}

// ask answers a question by NATS.
func (q *Service) ask(to question) answerer {
	return func(ctx context.Context, m micro.Request) (any, error) {
		p := parametersOf(m.Data(), to.parameters...)
		who := p.who()
		return to.answer(q.inquiry, ctx, p, func(what string) {
			q.log.Info().Str("what", events.OneLine(what)).Str("who", who).Str("via", "nats").Msg("private data revealed")
		})
	}
}

// AnswerURL answers a question by HTTP: the endpoint, the hold in the path of the URL if it has one, and its query. It
// calls logReveal when the answer shows private data.
func (i *Inquiry) AnswerURL(ctx context.Context, endpoint, holdID, rawQuery string, logReveal func()) (any, error) {
	to := questions[endpoint]
	p := parametersOfURL(rawQuery, slices.DeleteFunc(slices.Clone(to.parameters), func(name string) bool {
		return name == "hold_id" || name == "who"
	})...)
	id, _ := jsontext.AppendQuote(nil, holdID) // what is not UTF-8 is no hold id
	p.Object = append(p.Object, members.Member{Name: "hold_id", Value: id})
	return to.answer(i, ctx, p, func(string) { logReveal() })
}

func (i *Inquiry) answerHold(ctx context.Context, p parameters, logReveal func(what string)) (any, error) {
	id, reveal := p.Text("hold_id"), !p.Has("reveal") || p.reveal()
	if p.Err() != nil {
		return nil, p.Err()
	}
	hold, err := i.Hold(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case !reveal:
		return Hidden(hold), nil
	case p.Has("reveal"): // the services that own a hold do not give it
		logReveal("hold " + id)
	}
	return hold, nil
}

func (i *Inquiry) answerHolds(ctx context.Context, p parameters, logReveal func(what string)) (any, error) {
	asked, err := p.holdsQuery()
	if err != nil {
		return nil, err
	}
	if asked.Reveal {
		logReveal("holds of " + asked.ResourceID)
	}
	return i.Holds(ctx, asked)
}

func (i *Inquiry) answerHistory(ctx context.Context, p parameters, logReveal func(what string)) (any, error) {
	id, reveal := p.Text("hold_id"), p.reveal()
	if p.Err() != nil {
		return nil, p.Err()
	}
	if reveal {
		logReveal("history of hold " + id)
	}
	return i.History(ctx, id, reveal)
}

func (i *Inquiry) answerResources(ctx context.Context, p parameters, _ func(what string)) (any, error) {
	asked, err := p.resourcesQuery()
	if err != nil {
		return nil, err
	}
	return i.Resources(ctx, asked)
}

// answerer answers a query.
type answerer func(ctx context.Context, m micro.Request) (any, error)

// endpoint answers each query on a goroutine of its own, at most queriesMax at a time. It refuses
// more at once, because their callers would have given up before their turn. The framework would
// process queries one after the other. Its statistics count a query until Handle returns, so they show neither its
// time nor its result.
type endpoint struct {
	q      *Service
	ctx    context.Context // ends when the service stops
	answer answerer
}

// Handle implements micro.Handler.
func (e *endpoint) Handle(m micro.Request) {
	select {
	case e.q.turns <- struct{}{}: // also while the service stops, as long as there is a turn
	default:
		if e.ctx.Err() != nil {
			e.send(m, nil, Problem{http.StatusServiceUnavailable, "stopping", "this worker is stopping; try again"})
		} else {
			e.send(m, nil, Busy)
		}
		return
	}
	go func() {
		defer func() { <-e.q.turns }()
		e.handle(m)
	}()
}

func (e *endpoint) handle(m micro.Request) {
	// Not e.ctx: a query that was begun is answered even if the service stops.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), queryLimit)
	defer cancel()
	body, err := e.body(ctx, m)
	if err == nil {
		e.send(m, body, Problem{})
		return
	}
	e.send(m, nil, LogProblem(ctx, e.q.log, err, "query failed"))
}

// body returns the answer to a query. A panic becomes an error of that query.
func (e *endpoint) body(ctx context.Context, m micro.Request) (body []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			e.q.log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("panic while answering a query")
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	value, err := e.answer(ctx, m)
	if err != nil {
		return nil, err
	}
	return json.Marshal(value, jsontext.AllowInvalidUTF8(true)) // texts of events
}

// send answers a query with a body, or with a problem in the headers of the framework.
func (e *endpoint) send(m micro.Request, body []byte, problem Problem) {
	answer := nats.NewMsg(m.Reply())
	answer.Data = body
	answer.Header.Set(events.HeaderContentType, events.ContentTypeJSON)
	if problem.Status != 0 {
		answer.Header.Set(micro.ErrorCodeHeader, strconv.Itoa(problem.Status))
		answer.Header.Set(micro.ErrorHeader, events.OneLine(problem.Reason+": "+problem.Detail))
		answer.Data, _ = json.Marshal(problem) // two strings
	}
	err := e.q.nc.PublishMsg(answer)
	if events.IsTooLarge(err) && problem.Status == 0 {
		e.send(m, nil, tooLarge)
		return
	}
	if err != nil {
		e.q.log.Debug().Err(err).Msg("query reply failed")
	}
}

// databaseWithin bounds the reading of the database. It is shorter than callers wait for the next worker, so that they see this one.
const databaseWithin = 200 * time.Millisecond

// statistics returns what the service adds to the statistics of an endpoint: to those of EndpointHold the database, unless
// it cannot be read.
func (q *Service) statistics(e *micro.Endpoint) any {
	if q.Database == nil || e.Name != EndpointHold {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), databaseWithin)
	defer cancel()
	database, err := q.Database(ctx)
	if err != nil {
		q.log.Debug().Err(err).Msg("database not announced")
		return nil
	}
	return database
}
