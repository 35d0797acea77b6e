package holds

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/record"
)

// The bounds of one step of a Census: commands that each read one number.
const (
	censusStepMax = 1000 // resources counted in one step
	censusScan    = 250  // resources read at a time
)

// Census counts the holds of a namespace, a few resources at a time: no server has their number,
// and reading all of them at once would delay decisions. One goroutine uses it.
type Census struct {
	service *Service
	metrics *Metrics

	partition int
	cursor    uint64
	counted   struct{ resources, held, unannounced int64 }
}

// NewCensus returns a Census that counts with the connections of s.
func NewCensus(s *Service, m *Metrics) *Census { return &Census{service: s, metrics: m} }

// Step counts the next resources, at most censusStepMax, and updates the metrics when all
// partitions are counted. Holds that change meanwhile make the count inexact. When Step returns an
// error, the next call continues at the same place.
func (c *Census) Step(ctx context.Context) error {
	for done := 0; done < censusStepMax; {
		n, err := c.count(ctx)
		if err != nil {
			return fmt.Errorf("count holds: %w", err)
		}
		done += max(n, 1)
		if c.cursor != 0 {
			continue
		}
		if c.partition++; c.partition == record.Partitions {
			c.publish()
			*c = Census{service: c.service, metrics: c.metrics}
			return nil
		}
	}
	return nil
}

// count counts the holds of some resources of a partition, and returns the number of resources.
func (c *Census) count(ctx context.Context) (resources int, err error) {
	keys := c.service.keys
	names, cursor, err := c.service.redis.ZScan(ctx, keys.Agenda(c.partition), c.cursor, "", censusScan).Result()
	if err != nil {
		return 0, err
	}
	pipe := c.service.redis.Pipeline()
	held := make([]*redis.IntCmd, 0, len(names)/2)
	unannounced := make([]*redis.IntCmd, 0, len(names)/2)
	for i := 0; i+1 < len(names); i += 2 { // each member is followed by its score
		prefix := keys.Prefix(names[i])
		held = append(held, pipe.ZCard(ctx, prefix+"due"))
		unannounced = append(unannounced, pipe.ZCard(ctx, prefix+"departing"))
	}
	if len(held) > 0 {
		if _, err := pipe.Exec(ctx); err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return 0, err // the audit reports a value of a wrong type
		}
	}
	c.cursor = cursor
	c.counted.resources += int64(len(held))
	for i := range held {
		c.counted.held += held[i].Val()
		c.counted.unannounced += unannounced[i].Val()
	}
	return len(held), nil
}

// publish updates the metrics.
func (c *Census) publish() {
	m := c.metrics
	m.holds.With(stateHeld).Set(float64(c.counted.held))
	m.holds.With(stateUnannounced).Set(float64(c.counted.unannounced))
	m.resources.Set(float64(c.counted.resources))
	m.countedAt.Set(float64(time.Now().Unix()))
}
