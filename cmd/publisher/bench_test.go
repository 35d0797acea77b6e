package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/bench"
	"holdfast/internal/stack/stacktest"
)

// exitOf is the exit code that fits a report.
func exitOf(t *testing.T, encoded string) int {
	t.Helper()
	var r bench.Report
	if err := json.Unmarshal([]byte(encoded), &r); err != nil {
		t.Fatalf("%v in %s", err, encoded)
	}
	if len(r.Goals) == 0 {
		t.Errorf("nothing was judged: %s", encoded)
	}
	if r.FailedGoals() > 0 {
		return exitRejected
	}
	return exitOK
}

// TestBench_GivenServers_WritesOneReport measures on servers that are named, and writes and prints one report: the file is for
// readers, and indented.
func TestBench_GivenServers_WritesOneReport(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	dir := filepath.Join(t.TempDir(), "docs", "bench")
	r := publisher(t, append([]string{"bench", "--tiny", "--part", "latency", "--worker", workerBinary, "--out", dir, "-o", "json"}, serverFlags(t)...)...)
	r.want(t, exitOf(t, r.out), "servers that were given", "latency: requests of 3 nights", "  at 80 %, ", "written: "+filepath.Join(dir, "bench.json"))
	written, err := os.ReadFile(filepath.Join(dir, "bench.json"))
	compact := jsontext.Value(written)
	if err != nil || compact.Compact() != nil || string(compact)+"\n" != r.out {
		t.Errorf("%v; printed and written differ:\n%s\n%s", err, r.out, written)
	}
	if _, err := os.Stat(filepath.Join(dir, "holds.svg")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there are no sales, and yet a plot: %v", err)
	}
	for _, member := range []string{`"command":"publisher `, `"processors":`, `"redis":"`, `"own_servers":false`} {
		if !strings.Contains(r.out, member) {
			t.Errorf("the report has no %s: %s", member, r.out)
		}
	}
}

// TestBench_OwnServers_NeedsNoFlags is run as a newcomer runs it: nothing is said but what to measure. The
// worker is the one beside the program.
func TestBench_OwnServers_NeedsNoFlags(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	dir := t.TempDir()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(t.Context(), publisherBinary, "bench", "--tiny", "--part", "payments", "--out", dir)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	written, readErr := os.ReadFile(filepath.Join(dir, "bench.json"))
	if readErr != nil {
		t.Fatalf("%v, %v\n%s", err, readErr, errOut.String())
	}
	result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}.want(t, exitOf(t, string(written)),
		"servers of its own", "payments: holds are paid", "PAYMENTS/S  CEILING/S  OF CEILING  WORKER  REDIS  NATS  POSTGRES  BENCH", "payments: of their ceiling")
	if strings.Contains(out.String(), "holds are paid") || strings.Contains(errOut.String(), "PAYMENTS/S") {
		t.Errorf("progress and result are mixed:\n%s\n%s", out.String(), errOut.String())
	}
}

// TestBench_UnusableFlags_Fails asks for what cannot be measured.
func TestBench_UnusableFlags_Fails(t *testing.T) {
	t.Parallel()
	servers := serverFlags(t)
	for line, c := range map[string]struct {
		code int
		text string
	}{
		"bench --part sails":                       {exitUsage, "sails"},
		"bench --quick --tiny":                     {exitUsage, "--quick"},
		"bench --worker " + workerBinary + ".none": {exitUsage, "worker.none"},
		"bench --worker " + workerBinary + " --redis-url redis://127.0.0.1:1":                                                                     {exitUsage, "only some are given"},
		"bench --worker " + workerBinary + " --redis-url redis://:secret@127.0.0.1:a:b " + strings.Join(append(servers[:2], servers[4:]...), " "): {exitFailed, "the Redis URL"},
		"bench --worker " + workerBinary + " --out " + workerBinary + "/bench":                                                                    {exitFailed, "not a directory"},
		"bench": {exitFailed, "--worker"},
	} {
		if r := publisher(t, words(line)...).want(t, c.code, c.text); strings.Contains(r.errOut+r.out, "secret") {
			t.Errorf("it tells the password: %s", r.errOut)
		}
	}
}

// TestBench_StoredReports_ShownWithExitCode prints reports that were measured elsewhere, with the exit code that fits.
func TestBench_StoredReports_ShownWithExitCode(t *testing.T) {
	t.Parallel()
	use := map[string]float64{"worker": 61, "redis": 42}
	r := &bench.Report{
		Throughputs: []bench.Throughput{
			{Nights: 3, Resources: 1000, Workers: 1, PerSecond: 12345.6, CeilingSecond: 24691.2, OfCeiling: 0.5, TimesMany: 1, BaselineSecond: 1000, TimesBaseline: 12.3, ProcessorMicros: use, CeilingMicros: map[string]float64{"redis": 21}},
			{Nights: 3, Resources: 1, Workers: 1, PerSecond: 20000, CeilingSecond: 25000, OfCeiling: 0.8, TimesMany: 1.62, ProcessorMicros: use, CeilingMicros: map[string]float64{"redis": 20}},
		},
		Expiries: []bench.Expiry{{Notified: true, Number: 20000, Within: 1, Keys: 500000, Late: bench.Quantiles{P50: 5, P99: 50, P999: 60, Max: 70}}},
		Goals:    []bench.Goal{{Name: "3 nights: of the ceiling", Bound: bench.AtLeast, Want: 0.5, Found: 0.5, Met: true}},
	}
	show := func(output string) result {
		var out, errOut bytes.Buffer
		p := newProgram(&out, &errOut)
		p.Output = output
		verb := &benchmark{Out: t.TempDir()}
		code := exitCode(verb.show(p, r))
		if svg, err := os.ReadFile(filepath.Join(verb.Out, "holds.svg")); err != nil || !bytes.Contains(svg, []byte("<svg")) {
			t.Errorf("no plot: %v, %s", err, svg)
		}
		return result{code, out.String(), errOut.String()}
	}
	show(outputTable).want(t, exitOK, `
NIGHTS  RESOURCES  WORKERS  HOLDS/S  CEILING/S  OF CEILING  X 1000 RES.  BASELINE/S  X BASELINE  WORKER  REDIS  (CEILING: REDIS)
────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
     3       1000        1    12346      24691        0.50         1.00        1000        12.3      61     42                21
     3          1        1    20000      25000        0.80         1.62           -           -      61     42                20
`, `
NOTIFICATIONS  HOLDS  WITHIN S  OTHER KEYS  P50  P99  P99.9  MAX
────────────────────────────────────────────────────────────────
on             20000       1.0      500000    5   50     60   70
`, `
Goals: all are met.
GOAL                      BOUND     WANT  FOUND
────────────────────────────────────────────────────
3 nights: of the ceiling  at least   0.5   0.50  met
`)
	r.Goals = append(r.Goals, bench.Goal{Name: "latency at 50 %: p99 in ms", Bound: bench.AtMost, Want: 20, Found: 20.5})
	show(outputTable).want(t, exitRejected, "Goals: 1 of 2 are missed.", "missed\n")
	missed := show(outputJSON)
	missed.want(t, exitOf(t, missed.out), `"met":false`)
	if missed.code != exitRejected {
		t.Errorf("a goal is missed, and the code is %d", missed.code)
	}
	for _, s := range []*bench.Throughput{&r.Throughputs[0], &r.Throughputs[1]} {
		s.ProcessorMicros, s.CeilingMicros = nil, nil
	}
	if text := benchSummary(r); strings.Contains(text, "µs") || strings.Contains(text, "REDIS)") {
		t.Errorf("what is not known is told:\n%s", text)
	}
	if text := benchSummary(&bench.Report{Goals: []bench.Goal{}}); strings.Contains(text, "NIGHTS") || strings.Contains(text, "Goals") {
		t.Errorf("nothing was measured:\n%s", text)
	}
}

// TestCommandLine_Passwords_AreHidden tells what was typed, but for passwords: reports are shown to others.
func TestCommandLine_Passwords_AreHidden(t *testing.T) {
	t.Parallel()
	got := commandLine([]string{"bench", "--nats-url", "nats://token@nats:4222", "--redis-url=redis://:se/cr@et@redis:6379/0", "--quick"})
	if want := "publisher bench --nats-url nats://...@nats:4222 --redis-url=redis://...@redis:6379/0 --quick"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestSteps_Terminal_ShowsBarAndLines shows a bar with what is measured now, and lines above it.
func TestSteps_Terminal_ShowsBarAndLines(t *testing.T) {
	t.Parallel()
	var screen bytes.Buffer
	s := &steps{to: &screen}
	s.say("before\x1b[2J")
	s.at(0, 4, "sale of 1 night")
	s.at(1, 4, "payments")
	s.say("a figure")
	s.end()
	s.say("after")
	for _, text := range []string{"before\\x1b[2J\n", "sale of 1 night", "payments", "(1/4)", "a figure\n", "after\n"} {
		if !strings.Contains(screen.String(), text) {
			t.Errorf("it does not show %q: %q", text, screen.String())
		}
	}
	screen.Reset()
	off := &steps{to: &screen, off: true}
	off.at(0, 4, "sale of 1 night")
	off.say("a figure")
	off.end()
	if screen.String() != "a figure\n" {
		t.Errorf("no terminal: %q", screen.String())
	}
}
