package robustness

import (
	"flag"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

var (
	seedFlag     = flag.Uint64("robustness.seed", 0, "what is random is chosen by it; 0 = another one each time")
	forFlag      = flag.Duration("robustness.for", 0, "rounds begin until this is over; 0 = the short form")
	strategyFlag = flag.String("robustness.strategy", "range", "HOLDFAST_LOCK_STRATEGY of the workers")
	burstsFlag   = flag.Int("robustness.bursts", 0, "bursts in a round; 0 = as the form says")
	faultsFlag   = flag.String("robustness.faults", "", "only these kinds of faults, divided by commas")
	raceFlag     = flag.Bool("robustness.race", false, "build the workers with the race detector")
	reportFlag   = flag.String("robustness.report", "", "write the report to this file (JSON), and beside it with the ending .md")
	keepFlag     = flag.String("robustness.logs", "", "keep the workers' logs in this directory")
	nodesFlag    = flag.Int("robustness.nodes", 0, "nodes of NATS, 1 or 3; 0 = as the form says")
)

// TestRobustness breaks the servers, the workers and what is between them while a load goes on, and
// sees that every promise holds. Without flags it is short; see docs/faults.md.
func TestRobustness(t *testing.T) {
	if *forFlag == 0 && *burstsFlag == 0 {
		t.Skip("takes minutes: make robustness, or -robustness.bursts 2")
	}
	o := Options{
		Seed: *seedFlag, For: *forFlag, Nodes: 1, Workers: 3, Bursts: 2, Histories: 10, Strategy: *strategyFlag, Longest: 4 * time.Second,
		Race: *raceFlag, Dir: t.TempDir(), Log: t.Logf,
	}
	if o.For > 0 {
		o.Nodes, o.Bursts, o.Histories, o.Longest = 3, 5, 12, 0
	}
	if *burstsFlag > 0 {
		o.Bursts = *burstsFlag
	}
	if *nodesFlag > 0 {
		o.Nodes = *nodesFlag
	}
	if *faultsFlag != "" {
		o.Kinds = strings.Split(*faultsFlag, ",")
	}
	if *keepFlag != "" {
		o.Dir = *keepFlag
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64N(1 << 32)
	}
	t.Logf("seed %d: -robustness.seed=%d has the same plan", o.Seed, o.Seed)
	report, err := Run(t.Context(), o)
	if report != nil {
		t.Logf("report\n%s", report.Markdown())
		write(t, report)
		for _, wrong := range report.Violations {
			t.Errorf("seed %d: %s", o.Seed, wrong)
		}
	}
	if err != nil {
		t.Fatalf("seed %d: %v", o.Seed, err)
	}
}

// write writes the report where it is wanted.
func write(t *testing.T, report *Report) {
	if *reportFlag == "" {
		return
	}
	text, err := json.Marshal(report, jsontext.WithIndent("  "), json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{*reportFlag: append(text, '\n'), *reportFlag + ".md": []byte(report.Markdown())} {
		if err := os.WriteFile(name, content, 0o644); err != nil {
			t.Error(err)
		}
	}
}
