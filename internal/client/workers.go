package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"holdfast/internal/holds"
)

// workersWithin is how long Workers waits for the next answer.
const workersWithin = 300 * time.Millisecond

// WorkerInfo describes a running worker.
type WorkerInfo struct {
	Name      string    // host and process id
	Version   string    // its revision
	StartedAt time.Time // by its own clock

	Database *holds.Database // that it uses; nil when it does not say
}

// Workers returns the workers of the namespace that answer queries, in the order of their names. A
// worker that does not answer within workersWithin of the others is missing.
func (c *Client) Workers(ctx context.Context) (all []WorkerInfo, err error) {
	subject, err := micro.ControlSubject(micro.StatsVerb, string(c.ns), "")
	if err != nil {
		return nil, fmt.Errorf("workers: %w", err)
	}
	sub, err := c.nc.SubscribeSync(c.nc.NewInbox())
	if err != nil {
		return nil, fmt.Errorf("workers: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // only fails when the connection is closed
	if err := c.nc.PublishRequest(subject, sub.Subject, nil); err != nil {
		return nil, fmt.Errorf("workers: %w", err)
	}
	for {
		waiting, cancel := context.WithTimeout(ctx, workersWithin)
		m, err := sub.NextMsgWithContext(waiting)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrNoResponders) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("workers: %w", err)
		}
		var stats struct {
			Started  time.Time         `json:"started"`
			Metadata map[string]string `json:"metadata"`

			Endpoints []struct {
				Data *holds.Database `json:"data"` // null of most endpoints
			} `json:"endpoints"`
		}
		if json.Unmarshal(m.Data, &stats) != nil {
			continue
		}
		w := WorkerInfo{Name: stats.Metadata["worker"], Version: stats.Metadata["version"], StartedAt: stats.Started}
		for _, endpoint := range stats.Endpoints {
			if endpoint.Data != nil {
				w.Database = endpoint.Data
			}
		}
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b WorkerInfo) int { return strings.Compare(a.Name, b.Name) })
	return all, ctx.Err()
}
