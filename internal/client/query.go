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
)

// busyWait is the delay until a worker that is busy is asked again.
const busyWait = 200 * time.Millisecond

// availabilityQuery is the body of a query to events.EndpointAvailability.
type availabilityQuery struct {
	ResourceID string `json:"resource_id"`
	holds.SlotSelection
}

// ErrNoWorker says that no worker answers queries in the namespace.
var ErrNoWorker = errors.New("no worker answers")

// DryRun asks a worker what would become of a message if it were published now.
func (c *Client) DryRun(ctx context.Context, m *nats.Msg) (events.DryRunResult, error) {
	request := nats.NewMsg(c.ns.Service(events.EndpointDryRun))
	request.Data = m.Data
	for name, values := range m.Header {
		if events.IsAttributeHeader(name) { // no more than is decoded, so that it fits
			request.Header[name] = values
		}
	}
	request.Header.Set(events.HeaderDLQSubject, m.Subject)
	var v events.DryRunResult
	_, err := c.query(ctx, request, &v)
	return v, err
}

// Availability asks a worker of the namespace what can be had of slots. It returns the answer as received too.
func (c *Client) Availability(ctx context.Context, resource string, selection holds.SlotSelection) (events.KnownAvailability, []byte, error) {
	request := nats.NewMsg(c.ns.Service(events.EndpointAvailability))
	var a events.KnownAvailability
	var err error
	if request.Data, err = json.Marshal(availabilityQuery{resource, selection}); err != nil {
		return a, nil, &RefusedQueryError{http.StatusBadRequest, err.Error()}
	}
	body, err := c.query(ctx, request, &a)
	return a, body, err
}

// RefusedQueryError is a worker's answer to a query that it does not answer.
type RefusedQueryError struct {
	Status int // of HTTP
	Reason string
}

func (e *RefusedQueryError) Error() string { return strconv.Itoa(e.Status) + " " + e.Reason }

// query asks a worker of the namespace, and reads its answer into answer. It returns ErrNoWorker and
// *RefusedQueryError.
func (c *Client) query(ctx context.Context, request *nats.Msg, answer any) ([]byte, error) {
	m, err := c.requestWithRetry(ctx, request)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, fmt.Errorf("%w on %s", ErrNoWorker, request.Subject)
	case err != nil:
		return nil, fmt.Errorf("ask on %s: %w", request.Subject, err)
	}
	if reason := m.Header.Get(micro.ErrorHeader); reason != "" {
		status, _ := strconv.Atoi(m.Header.Get(micro.ErrorCodeHeader)) // of another program: 0
		return nil, fmt.Errorf("ask on %s: %w", request.Subject, &RefusedQueryError{status, reason})
	}
	if err := json.Unmarshal(m.Data, answer); err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", request.Subject, err)
	}
	return m.Data, nil
}

// requestWithRetry asks, and again while the worker that has the question is busy.
func (c *Client) requestWithRetry(ctx context.Context, request *nats.Msg) (*nats.Msg, error) {
	for {
		answer, err := c.nc.RequestMsgWithContext(ctx, request)
		if err != nil || !strings.HasPrefix(answer.Header.Get(micro.ErrorHeader), events.Busy.Reason+": ") {
			return answer, err
		}
		select {
		case <-ctx.Done():
			return answer, nil // which says why
		case <-time.After(busyWait):
		}
	}
}
