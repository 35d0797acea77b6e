package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/queries"
)

// busyWait is the delay before a query is sent again after a busy worker refused it.
const busyWait = 200 * time.Millisecond

// ErrNoWorker reports that no worker answers queries in the namespace.
var ErrNoWorker = errors.New("no worker answers")

// RefusedQueryError is the refusal of a query by a worker.
type RefusedQueryError struct {
	Status int    // HTTP status; 0 when the refusal has none
	Reason string // "<reason>: <detail>"
}

func (e *RefusedQueryError) Error() string { return strconv.Itoa(e.Status) + " " + e.Reason }

// Detail returns the reason without the word before its detail.
func (e *RefusedQueryError) Detail() string {
	if _, detail, found := strings.Cut(e.Reason, ": "); found {
		return detail
	}
	return e.Reason
}

// DryRun queries a worker for the outcome that a message would have if it were published now. The
// message is not published. DryRun returns ErrNoWorker or *RefusedQueryError when there is no
// answer.
func (c *Client) DryRun(ctx context.Context, m *nats.Msg) (events.DryRunResult, error) {
	request := nats.NewMsg(c.ns.Service(queries.EndpointDryRun))
	request.Data = m.Data
	for name, values := range m.Header {
		if events.IsAttributeHeader(name) { // other headers decide nothing, and could make the query too large
			request.Header[name] = values
		}
	}
	request.Header.Set(events.HeaderDLQSubject, m.Subject)
	var result events.DryRunResult
	_, err := c.query(ctx, request, &result)
	return result, err
}

// AvailabilityQuery is the query of queries.EndpointAvailability.
type AvailabilityQuery struct {
	ResourceID string `json:"resource_id"`
	holds.SlotSelection
}

// HoldQuery is the query of queries.EndpointHold and EndpointHistory. Who is logged when private data is revealed.
type HoldQuery struct {
	HoldID holds.HoldID `json:"hold_id"`
	Reveal bool         `json:"reveal"`
	Who    string       `json:"who"`
}

// HoldsQuery is the query of queries.EndpointHolds.
type HoldsQuery struct {
	queries.HoldsQuery
	Who string `json:"who"`
}

// Ask sends a query to an endpoint of a worker. It returns the parsed answer and its body as received. It
// returns ErrNoWorker or *RefusedQueryError when there is no answer.
func Ask[T any](ctx context.Context, c *Client, endpoint string, query any) (answer T, body []byte, err error) {
	request := nats.NewMsg(c.ns.Service(endpoint))
	if request.Data, err = json.Marshal(query); err != nil {
		return answer, nil, &RefusedQueryError{http.StatusBadRequest, err.Error()}
	}
	body, err = c.query(ctx, request, &answer)
	return answer, body, err
}

// query sends a query to a worker of the namespace and parses the answer into answer. It returns
// the body of the answer, or ErrNoWorker or *RefusedQueryError.
func (c *Client) query(ctx context.Context, request *nats.Msg, answer any) ([]byte, error) {
	m, err := c.requestWithRetry(ctx, request)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, fmt.Errorf("%w on %s", ErrNoWorker, request.Subject)
	case err != nil:
		return nil, fmt.Errorf("query %s: %w", request.Subject, err)
	}
	if reason := m.Header.Get(micro.ErrorHeader); reason != "" {
		status, _ := strconv.Atoi(m.Header.Get(micro.ErrorCodeHeader)) // 0 when another program answers
		return nil, fmt.Errorf("query %s: %w", request.Subject, &RefusedQueryError{status, reason})
	}
	if err := json.Unmarshal(m.Data, answer); err != nil {
		return nil, fmt.Errorf("parse the answer of %s: %w", request.Subject, err)
	}
	return m.Data, nil
}

// requestWithRetry sends a query, and sends it again while a busy worker refuses it. When ctx ends
// during a delay, it returns that refusal.
func (c *Client) requestWithRetry(ctx context.Context, request *nats.Msg) (*nats.Msg, error) {
	for {
		answer, err := c.nc.RequestMsgWithContext(ctx, request)
		if err != nil || !strings.HasPrefix(answer.Header.Get(micro.ErrorHeader), queries.Busy.Reason+": ") {
			return answer, err
		}
		select {
		case <-ctx.Done():
			return answer, nil
		case <-time.After(busyWait):
		}
	}
}
