package robustness

import (
	"context"
	"math/rand/v2"
	"time"
)

// failpoints are where a worker can be killed or stopped, see internal/failpoint.
var failpoints = []string{
	"requests.fetched", "requests.published", "requests.acked", "changes.fetched", "changes.published", "changes.acked",
	"payments.fetched", "payments.published", "payments.acked",
	"place.locked", "place.read", "place.decided", "extend.decided", "cancel.committed", "cancel.timed",
	"confirm.claimed", "confirm.retaken", "confirm.committed", "confirm.settled",
	"expire.restored", "expire.announced", "expire.forgotten",
}

// beyondAckWait is longer than a lock's lease, and than JetStream waits for an ack.
var beyondAckWait = span{16 * time.Second, 22 * time.Second}

var workerFaults = []Fault{
	{
		Kind: "worker killed", What: "kill -9 of a worker, which is started again", Claims: []string{"worker"},
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
			return noUndo, s.randomWorker(random).kill()
		},
	},
	{
		Kind: "workers killed", What: "kill -9 of all workers at once, which are started again", Claims: []string{"worker"},
		Strike: func(_ context.Context, s *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
			for _, w := range s.Workers {
				if err := w.kill(); err != nil {
					return noUndo, err
				}
			}
			return noUndo, nil
		},
	},
	{
		Kind: "worker stopped", What: "SIGSTOP of a worker for longer than its locks last", Claims: []string{"worker", heldByWorker}, Lasts: span{5500 * time.Millisecond, 9 * time.Second},
		Strike: stopWorker,
	},
	{
		Kind: "worker stopped long", What: "SIGSTOP of a worker for longer than JetStream waits for an ack", Claims: []string{"worker", heldByWorker}, Lasts: beyondAckWait,
		Strike: stopWorker,
	},
	{
		Kind: "worker killed between steps", What: "a worker that dies at a failpoint: before or after a side effect", Claims: []string{"worker"},
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
			w, place := s.randomWorker(random), failpoints[random.IntN(len(failpoints))]
			s.Log("%s will die at %s", w.name, place)
			return undoWith(w.reset), w.kill("HOLDFAST_FAILPOINT=" + place)
		},
	},
	{
		Kind: "worker stopped between steps", What: "a worker that stands still at a failpoint, and goes on later", Claims: []string{"worker", heldByWorker}, Lasts: span{5500 * time.Millisecond, 18 * time.Second},
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
			w, place := s.randomWorker(random), failpoints[random.IntN(len(failpoints))]
			s.Log("%s will stop at %s", w.name, place)
			return func(ctx context.Context) error {
				if process := w.running(); process != nil {
					if err := process.Resume(); err != nil {
						return err
					}
					wait(ctx, 2*time.Second) // it goes on where it stopped, before it is started without the failpoint
				}
				return w.reset()
			}, w.kill("HOLDFAST_FAILPOINT=" + place + ":stop")
		},
	},
	{
		Kind: "worker restarted", What: "SIGTERM of a worker, which must end with 0, and is started again", Claims: []string{"worker"},
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
			return noUndo, s.randomWorker(random).restart()
		},
	},
}

func stopWorker(_ context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
	w := s.randomWorker(random)
	process := w.running()
	if process == nil {
		return noUndo, nil // another fault has ended it just now
	}
	return undoWith(process.Resume), process.Pause()
}
