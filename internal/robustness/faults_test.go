package robustness

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/stack/stacktest"
)

// Fault is one kind of failure that the suite injects.
type Fault struct {
	Kind string // the name in the report and in -robustness.faults
	What string // the description in docs/faults.md
	// Claims names what the fault breaks. Two faults with a common claim never strike in the same
	// burst. See claims.
	Claims []string
	// Lasts bounds the duration of the fault; the zero value means usualSpan.
	Lasts span
	// Layouts are the layouts that have the fault, nil for all.
	Layouts []string
	// CausesRebuild reports that workers rebuild Redis after the fault. Workers then decide again
	// what was decided but not yet published.
	CausesRebuild bool
	// Unavailable returns why the fault cannot strike now, "" when it can; nil means that it always can.
	Unavailable func(s *Cluster) string
	Strike      strikeFunc
}

// strikeFunc injects a fault and returns the function that repairs it.
type strikeFunc func(ctx context.Context, s *Cluster, random *rand.Rand) (undo undoFunc, err error)

type undoFunc func(ctx context.Context) error

type span struct{ min, max time.Duration }

var usualSpan = span{500 * time.Millisecond, 6 * time.Second}

func (s span) pick(random *rand.Rand) time.Duration {
	if s.max == 0 {
		s = usualSpan
	}
	return s.min + time.Duration(random.Int64N(int64(s.max-s.min)+1))
}

// Cluster is the system under test: the servers, the workers and the proxies between them.
type Cluster struct {
	*Servers
	Namespace string
	Workers   []*Worker
	Load      []*stacktest.Proxy // between the load and the nodes of NATS
	Log       func(format string, args ...any)
	Binary    string // path of the worker program

	// In this round:
	capacityBySQL      bool // SQL has changed capacities
	counterOverwritten bool // a counter in Redis was overwritten by hand

	AfterRepair []func(ctx context.Context) error // runs once when all faults of a burst are repaired
}

// A fault that can delay an outcome on its way to JetStream until Redis is rebuilt claims one of these.
const (
	heldByWorker  = "outcomes in a worker"
	heldByNetwork = "outcomes on their way"
	heldByNATS    = "outcomes in a node"
)

// claims returns Claims and, for a fault that causes a rebuild, all claims of faults that can delay
// an outcome. internal/recovery/doc.go says why Holdfast cannot survive both together.
func (f Fault) claims() []string {
	if !f.CausesRebuild {
		return f.Claims
	}
	return slices.Concat(f.Claims, []string{heldByWorker, heldByNetwork, heldByNATS})
}

// isFor reports whether a layout has the fault.
func (f Fault) isFor(layout string) bool {
	return f.Layouts == nil || slices.Contains(f.Layouts, layout)
}

// noUndo repairs nothing: the fault ended by itself, or the workers repair it.
func noUndo(context.Context) error { return nil }

// undoWith returns an undoFunc that needs no context.
func undoWith(f func() error) undoFunc {
	return func(context.Context) error { return f() }
}

// repair runs `worker audit --repair` for a resource. It retries when the command cannot run,
// because another fault may have ended only just now.
func (s *Cluster) repair(ctx context.Context, resource string) error {
	ctx, cancel := context.WithTimeout(ctx, hardBound)
	defer cancel()
	args := append([]string{"audit", "--repair", "--yes", "--resource-id", resource}, s.workerFlags()...)
	for {
		out, err := exec.CommandContext(ctx, s.Binary, args...).CombinedOutput()
		if exit := (*exec.ExitError)(nil); err == nil || errors.As(err, &exit) && exit.ExitCode() == 3 {
			return nil // with 3 differences may remain; check decides later whether they are violations
		}
		if ctx.Err() != nil {
			return fmt.Errorf("worker audit --repair: %w\n%s", err, out)
		}
		wait(ctx, time.Second)
	}
}

// workerFlags returns the flags of a worker command that connects without proxies.
func (s *Cluster) workerFlags() []string {
	return []string{
		"--namespace", s.Namespace, "--nats-url", s.natsURL(), "--redis-url", s.redisURL(s.redisAddrs(), s.sentinelAddrs()),
		"--postgres-url", s.writerURL(),
	}
}

// randomWorker returns one worker.
func (s *Cluster) randomWorker(random *rand.Rand) *Worker {
	return s.Workers[random.IntN(len(s.Workers))]
}

// Faults returns all kinds of faults.
func Faults() []Fault {
	return slices.Concat(workerFaults, redisFaults, dataLossFaults, clusterFaults, sentinelFaults, postgresFaults,
		natsFaults, networkFaults)
}

var update = flag.Bool("update", false, "write the table of faults into docs/faults.md")

// TestFaultTable_Docs_IsCurrent keeps the table in docs/faults.md equal to Faults.
func TestFaultTable_Docs_IsCurrent(t *testing.T) {
	t.Parallel()
	want := "| kind | what happens | duration | layout |\n|---|---|---|---|\n"
	for _, f := range Faults() {
		lasts := f.Lasts
		if lasts == (span{}) {
			lasts = usualSpan
		}
		want += fmt.Sprintf("| %s | %s | %v to %v | %s |\n", f.Kind, f.What, lasts.min, lasts.max, cmp.Or(strings.Join(f.Layouts, ", "), "all"))
	}
	stacktest.CheckGenerated(t, "../../docs/faults.md", "faults",
		"go test ./internal/robustness -run FaultTable -update", want, *update)
}

// TestPickFaults_ManyBursts_DisjointAndFair picks the faults of many bursts: two faults of a burst
// have no common claim, every kind comes once before any kind comes twice, and the same seed picks
// the same faults.
func TestPickFaults_ManyBursts_DisjointAndFair(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			checkPicked(t, layout)
		})
	}
}

func checkPicked(t *testing.T, layout string) {
	pickAll := func() (kinds []string) {
		h := &harness{runner: newRunner(Options{Seed: 5, Layout: layout})}
		h.cluster = &Cluster{Servers: &Servers{shim: "clock.so", nats: make([]*serverProcess, 3)}}
		for range 500 {
			picked := h.pickFaults()
			if len(picked) == 0 || len(picked) > 3 {
				t.Fatalf("%d faults in a burst, want 1 to 3", len(picked))
			}
			var claims []string
			for _, f := range picked {
				kinds = append(kinds, f.Kind)
				claims = append(claims, f.claims()...)
			}
			if slices.Sort(claims); len(slices.Compact(slices.Clone(claims))) != len(claims) {
				t.Errorf("two faults of a burst have a common claim: %v", kinds[len(kinds)-len(picked):])
			}
		}
		return kinds
	}
	kinds := pickAll()
	if !slices.Equal(kinds, pickAll()) {
		t.Error("the same seed picks other faults")
	}
	times := make(map[string]int)
	for _, kind := range kinds {
		times[kind]++
	}
	possible := slices.DeleteFunc(Faults(), func(f Fault) bool { return !f.isFor(layout) })
	for _, f := range possible {
		if n, fair := times[f.Kind], len(kinds)/len(possible); n < fair-2 || n > fair+2 {
			t.Errorf("%s was picked %d times, want about %d", f.Kind, n, fair)
		}
	}
	if len(times) != len(possible) {
		t.Errorf("%d kinds of faults were picked, want the %d of the layout", len(times), len(possible))
	}
}
