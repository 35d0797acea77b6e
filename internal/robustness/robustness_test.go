package robustness

import (
	"flag"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/stack/stacktest"
)

var (
	seedFlag     = flag.Uint64("robustness.seed", 0, "seed of plan and load (0: a random one)")
	forFlag      = flag.Duration("robustness.for", 0, "long form: begin new rounds for this time (0: short form)")
	layoutFlag   = flag.String("robustness.layout", single, "layout of the servers: single, sentinel or cluster")
	strategyFlag = flag.String("robustness.strategy", "range", "HOLDFAST_LOCK_STRATEGY of the workers")
	burstsFlag   = flag.Int("robustness.bursts", 0, "bursts in a round (0: 2 in the short form, 5 in the long form)")
	faultsFlag   = flag.String("robustness.faults", "", "only these kinds of faults, separated by commas")
	raceFlag     = flag.Bool("robustness.race", false, "build the workers with the race detector")
	reportFlag   = flag.String("robustness.report", "", "write the report to `FILE` (JSON) and FILE.md (Markdown)")
	logsFlag     = flag.String("robustness.logs", "", "keep the workers' logs in this directory")
	nodesFlag    = flag.Int("robustness.nodes", 0, "nodes of NATS, 1 or 3 (0: 1 in the short form, 3 in the long form)")
)

// TestRobustness injects faults into servers, workers and connections while a load runs, and checks
// that every promise holds. It runs only with -robustness.for or -robustness.bursts; see
// docs/faults.md.
func TestRobustness(t *testing.T) {
	if *forFlag == 0 && *burstsFlag == 0 {
		t.Skip("takes minutes: make robustness, or -robustness.bursts 2")
	}
	o := Options{
		Seed: *seedFlag, Layout: *layoutFlag, For: *forFlag, Nodes: 1, Workers: 3, Bursts: 2, Histories: 10, FaultMax: 4 * time.Second,
		Strategy: *strategyFlag, Race: *raceFlag, Dir: t.TempDir(), Log: t.Logf,
	}
	if o.For > 0 {
		o.Nodes, o.Bursts, o.Histories, o.FaultMax = 3, 5, 12, 0
	}
	if *burstsFlag > 0 {
		o.Bursts = *burstsFlag
	}
	if !slices.Contains(layouts, o.Layout) {
		t.Fatalf("-robustness.layout: %q, want one of %v", o.Layout, layouts)
	}
	if o.Layout == cluster {
		o.Nodes = 3
	}
	if *nodesFlag > 0 {
		o.Nodes = *nodesFlag
	}
	if *faultsFlag != "" {
		o.Kinds = strings.Split(*faultsFlag, ",")
	}
	if *logsFlag != "" {
		o.Dir = *logsFlag
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64N(1 << 32)
	}
	t.Logf("seed %d; -robustness.seed=%d repeats this plan", o.Seed, o.Seed)
	report, err := Run(t.Context(), o)
	if report != nil {
		t.Logf("report\n%s", report.Markdown())
		write(t, report)
		for _, violation := range report.Violations {
			t.Errorf("seed %d: %s", o.Seed, violation)
		}
	}
	if err != nil {
		t.Fatalf("seed %d: %v", o.Seed, err)
	}
}

// write writes the report to the files of -robustness.report.
func write(t *testing.T, report *Report) {
	if *reportFlag == "" {
		return
	}
	text, err := json.Marshal(report, jsontext.WithIndent("  "), json.Deterministic(true))
	stacktest.Must(t, err)
	for name, content := range map[string][]byte{
		*reportFlag: append(text, '\n'), *reportFlag + ".md": []byte(report.Markdown()),
	} {
		stacktest.Must(t, os.WriteFile(name, content, 0o644))
	}
}
