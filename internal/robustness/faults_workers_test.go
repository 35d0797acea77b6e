package robustness

import (
	"context"
	"math/rand/v2"
	"time"
)

// failpoints are the places in a worker's code where it can be killed or stopped; see internal/failpoint.
var failpoints = []string{
	"requests.fetched", "requests.published", "requests.acked", "changes.fetched", "changes.published", "changes.acked",
	"payments.fetched", "payments.published", "payments.acked",
	"place.locked", "place.read", "place.decided", "extend.decided", "cancel.committed", "cancel.timed",
	"confirm.claimed", "confirm.retaken", "confirm.committed", "confirm.settled",
	"expire.restored", "expire.announced", "expire.forgotten",
}

// longStop is several times the lease of a lock, and the time that JetStream waits for an ack.
var longStop = span{16 * time.Second, 22 * time.Second}

var workerFaults = []Fault{
	{
		Kind: "worker killed", What: "kill -9 of a worker; it starts again", Claims: []string{"worker"},
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			return noUndo, s.randomWorker(random).kill()
		},
	},
	{
		Kind: "workers killed", What: "kill -9 of all workers at once; they start again", Claims: []string{"worker"},
		Strike: func(_ context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
			for _, w := range s.Workers {
				if err := w.kill(); err != nil {
					return noUndo, err
				}
			}
			return noUndo, nil
		},
	},
	{
		Kind: "worker stopped", What: "SIGSTOP of a worker for longer than the lease of its locks and than JetStream waits for an ack",
		Claims: []string{"worker", heldByWorker}, Lasts: span{5500 * time.Millisecond, 9 * time.Second},
		Strike: stopWorker,
	},
	{
		Kind: "worker stopped long", What: "SIGSTOP of a worker for so long that other workers have answered all its events",
		Claims: []string{"worker", heldByWorker}, Lasts: longStop,
		Strike: stopWorker,
	},
	{
		Kind: "worker killed between steps", What: "a worker dies at a failpoint, before or after a side effect",
		Claims: []string{"worker"},
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			w, failpoint := s.randomWorker(random), failpoints[random.IntN(len(failpoints))]
			s.Log("%s will die at %s", w.name, failpoint)
			return undoWith(w.reset), w.kill("HOLDFAST_FAILPOINT=" + failpoint)
		},
	},
	{
		Kind: "worker stopped between steps", What: "a worker stops at a failpoint and continues later",
		Claims: []string{"worker", heldByWorker}, Lasts: span{5500 * time.Millisecond, 18 * time.Second},
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			w, failpoint := s.randomWorker(random), failpoints[random.IntN(len(failpoints))]
			s.Log("%s will stop at %s", w.name, failpoint)
			return func(ctx context.Context) error {
				if process := w.running(); process != nil {
					if err := process.Resume(); err != nil {
						return err
					}
					wait(ctx, 2*time.Second) // it continues where it stopped before reset restarts it
				}
				return w.reset()
			}, w.kill("HOLDFAST_FAILPOINT=" + failpoint + ":stop")
		},
	},
	{
		Kind: "worker restarted", What: "SIGTERM of a worker; it must exit with 0, and starts again",
		Claims: []string{"worker"},
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			return noUndo, s.randomWorker(random).stop()
		},
	},
}

func stopWorker(_ context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
	process := s.randomWorker(random).running()
	if process == nil {
		return noUndo, nil // another fault has just ended it
	}
	return undoWith(process.Resume), process.Pause()
}
