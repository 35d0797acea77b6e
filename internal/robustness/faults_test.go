package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"time"

	"holdfast/internal/stack/stacktest"
)

// Fault is one kind of thing that breaks.
type Fault struct {
	Kind string // as the report counts it
	What string // in words, for docs/faults.md
	// Claims names what it breaks: two that claim the same do not happen at once. See claims.
	Claims []string
	// Lasts bounds how long it lasts; the zero value is the usual time.
	Lasts span
	// Forgets says that Redis is filled again afterwards: what was decided and not told by then is
	// decided anew.
	Forgets bool
	// Missing says why it cannot happen here, "" when it can. nil = it always can.
	Missing func(s *Cluster) string
	// Strike breaks it, and returns what mends it.
	Strike func(ctx context.Context, s *Cluster, random *rand.Rand) (undo func(ctx context.Context) error, err error)
}

type span struct{ min, max time.Duration }

var usualSpan = span{500 * time.Millisecond, 6 * time.Second}

func (s span) pick(random *rand.Rand) time.Duration {
	if s.max == 0 {
		s = usualSpan
	}
	return s.min + time.Duration(random.Int64N(int64(s.max-s.min)+1))
}

// Cluster is where faults strike: the servers, the workers, and what is between them.
type Cluster struct {
	*Servers
	Namespace  string
	Workers    []*Worker
	Load       []*stacktest.Proxy // between the load and the nodes of NATS
	Log        func(format string, args ...any)
	CanRebuild bool   // workers fill Redis again that has lost its data
	Binary     string // of the worker

	capacityBySQL bool // capacity was written by SQL in this round

	Later []func(ctx context.Context) error // what is to be done when all that strikes at once is mended
}

// What may hold an outcome back on its way to JetStream until Redis is filled again claims one of these.
const (
	heldByWorker  = "outcomes in a worker"
	heldByNetwork = "outcomes on their way"
	heldByNATS    = "outcomes in a node"
)

// claims are all that a fault claims. One that Forgets claims all that may hold an outcome back as well: both together
// are what holds/doc.go says that cannot be survived.
func (f Fault) claims() []string {
	if !f.Forgets {
		return f.Claims
	}
	return slices.Concat(f.Claims, []string{heldByWorker, heldByNetwork, heldByNATS})
}

// noUndo mends what has mended itself, or what nobody mends.
func noUndo(context.Context) error { return nil }

// undoWith returns a mend that needs no context.
func undoWith(f func() error) func(context.Context) error {
	return func(context.Context) error { return f() }
}

// repair has `worker audit` repair a resource, again when it cannot look: something else may have
// been mended only now.
func (s *Cluster) repair(ctx context.Context, resource string) error {
	ctx, cancel := context.WithTimeout(ctx, hardBound)
	defer cancel()
	args := []string{"audit", "--repair", "--yes", "--resource-id", resource, "--namespace", s.Namespace,
		"--nats-url", s.natsURL(), "--redis-url", "redis://" + s.redis.addr() + "/0", "--postgres-url", postgresURL(s.postgres.addr())}
	for {
		out, err := exec.CommandContext(ctx, s.Binary, args...).CombinedOutput() //nolint:gosec // our own program
		if exit := (*exec.ExitError)(nil); err == nil || errors.As(err, &exit) && exit.ExitCode() == 3 {
			return nil // something may be left: whether it is right to be there is judged later
		}
		if ctx.Err() != nil {
			return fmt.Errorf("worker audit --repair: %w\n%s", err, out)
		}
		wait(ctx, time.Second)
	}
}

// randomWorker returns one worker.
func (s *Cluster) randomWorker(random *rand.Rand) *Worker {
	return s.Workers[random.IntN(len(s.Workers))]
}

// Faults are all kinds of faults.
func Faults() []Fault {
	var all []Fault
	for _, some := range [][]Fault{workerFaults, redisFaults, dataLossFaults, postgresFaults, natsFaults, networkFaults} {
		all = append(all, some...)
	}
	return all
}
