package stack

import (
	"context"
	"time"
)

// Poll calls ready, at once and then at each interval, until it returns true or an error. It returns the
// cause of ctx when that ends first.
func Poll(ctx context.Context, interval time.Duration, ready func() (bool, error)) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if done, err := ready(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
