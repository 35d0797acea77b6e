package preflight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// workersAsked is how often workers are asked while none answers, or one does not say which database it uses: a busy
// worker, or a busy Postgres, may answer too late.
const workersAsked = 4

// natsWorkers checks that the workers that run use the same database. They announce it in the statistics of their
// service. Each reads it between the two readings here, so the position of the same server is between these two.
func (r *report) natsWorkers(ctx context.Context, l *natsProbe, t Target) {
	if slices.Contains(t.Skip, NATSWorkers) { // the user of worker migrate may not ask
		r.skipAll("not checked", NATSWorkers)
		return
	}
	asking, err := client.New(l.nc, events.Namespace(t.Namespace))
	var workers []client.WorkerInfo
	var before, after holds.Database
	for attempt := 0; err == nil && attempt < workersAsked; attempt++ {
		before, err = t.Store.ReadDatabase(ctx)
		if err == nil {
			workers, err = request(ctx, l, asking.Workers)
		}
		if err == nil {
			after, err = t.Store.ReadDatabase(ctx)
		}
		isSilent := func(w client.WorkerInfo) bool { return w.Database == nil }
		if len(workers) > 0 && !slices.ContainsFunc(workers, isSilent) {
			break
		}
	}
	switch {
	case errors.Is(err, nats.ErrPermissionViolation):
		r.unknown(NATSWorkers, err.Error(), "allow the user to publish on $SRV.STATS."+t.Namespace)
		return
	case err != nil:
		r.unknown(NATSWorkers, err.Error(), "check again")
		return
	}
	var others []string
	silent := 0
	for _, w := range workers {
		switch {
		case w.Database == nil:
			silent++
		case !w.Database.IsBetween(before, after):
			others = append(others, fmt.Sprintf("worker %s (%s at %d)", w.Name, w.Database.ID, w.Database.Position))
		}
	}
	switch found := fmt.Sprintf("running workers: %d", len(workers)); {
	case len(others) > 0:
		r.fail(NATSWorkers, fmt.Sprintf("%s, and another database than here (%s at %d) is used by %s",
			found, after.ID, after.Position, strings.Join(others, ", ")),
			"each database has reservations that the other one lacks, and the same capacity would be sold in both",
			"give the URL of the database that the other workers use, or stop them first.\n"+
				"Workers of a copy, as for tests, need a NATS and a Redis of their own, or another namespace")
	case silent > 0:
		r.unknown(NATSWorkers, fmt.Sprintf("%s, of which %d do not say which database they use", found, silent),
			"check again when Postgres answers them")
	default:
		r.ok(NATSWorkers, found)
	}
}
