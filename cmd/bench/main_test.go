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

// exitOf returns the exit code that belongs to a report.
func exitOf(t *testing.T, encoded string) int {
	t.Helper()
	var r bench.Report
	if err := json.Unmarshal([]byte(encoded), &r); err != nil {
		t.Fatalf("%v in %s", err, encoded)
	}
	if len(r.Goals) == 0 {
		t.Errorf("the report has no goals: %s", encoded)
	}
	if r.FailedGoals() > 0 {
		return exitGoalMissed
	}
	return exitOK
}

// TestRun_GivenServers_WritesOneReport checks that the same report is printed, compact, and written, indented.
func TestRun_GivenServers_WritesOneReport(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	dir := filepath.Join(t.TempDir(), "docs", "bench")
	args := []string{"--tiny", "--part", "latency", "--worker", workerProgram, "--out", dir, "-o", "json"}
	r := runBench(t, append(args, serverFlags()...)...)
	r.want(t, exitOf(t, r.out),
		"servers that were given", "latency: requests of 3 nights", "  at 80 %, ", "written: "+filepath.Join(dir,
			"bench.json"))
	written, err := os.ReadFile(filepath.Join(dir, "bench.json"))
	compact := jsontext.Value(written)
	if err != nil || compact.Compact() != nil || string(compact)+"\n" != r.out {
		t.Errorf("%v; printed and written reports differ:\n%s\n%s", err, r.out, written)
	}
	if _, err := os.Stat(filepath.Join(dir, "holds.svg")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a plot without sales: %v", err)
	}
	for _, member := range []string{`"command":"bench `, `"processors":`, `"redis":"`, `"own_servers":false`} {
		if !strings.Contains(r.out, member) {
			t.Errorf("the report lacks %s: %s", member, r.out)
		}
	}
}

// TestRun_OwnServers_NeedsNoFlags runs the program as a newcomer does. It finds the worker beside itself.
func TestRun_OwnServers_NeedsNoFlags(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	dir := t.TempDir()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(t.Context(), benchProgram, "--tiny", "--part", "payments", "--out", dir)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	written, readErr := os.ReadFile(filepath.Join(dir, "bench.json"))
	if readErr != nil {
		t.Fatalf("%v, %v\n%s", err, readErr, errOut.String())
	}
	r := result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
	r.want(t, exitOf(t, string(written)), "servers of its own", "payments: holds are paid",
		"PAYMENTS/S  CEILING/S  OF CEILING  WORKER  REDIS  NATS  POSTGRES  BENCH", "payments: of their ceiling")
	if strings.Contains(r.out, "holds are paid") || strings.Contains(r.errOut, "PAYMENTS/S") {
		t.Errorf("progress and report are mixed:\n%s\n%s", r.out, r.errOut)
	}
}

func TestRun_UnusableFlags_Fails(t *testing.T) {
	t.Parallel()
	servers := serverFlags()
	natsAndPostgres := strings.Join(append(servers[:2:2], servers[4:]...), " ")
	worker := "--worker " + workerProgram
	for line, c := range map[string]struct {
		code int
		text string
	}{
		"--part sails":                           {exitUsage, "sails"},
		"--quick --tiny":                         {exitUsage, "--quick"},
		"measure":                                {exitUsage, "measure"},
		"-o ndjson":                              {exitUsage, "--output"},
		worker + ".none":                         {exitUsage, "worker.none"},
		worker + " --redis-url redis://h:1":      {exitUsage, "only some are given"},
		worker + " --out " + worker[9:] + "/sub": {exitFailed, "not a directory"},
		"":                                       {exitFailed, "--worker"},
		worker + " --redis-url redis://:secret@127.0.0.1:a:b " + natsAndPostgres: {exitFailed, "the Redis URL"},
	} {
		r := runBench(t, strings.Fields(line)...)
		r.want(t, c.code, c.text)
		if strings.Contains(r.errOut+r.out, "secret") {
			t.Errorf("%s prints the password: %s", line, r.errOut)
		}
	}
}

// TestHelp_Flags_PrintedOnStdout checks --help and --version.
func TestHelp_Flags_PrintedOnStdout(t *testing.T) {
	t.Parallel()
	help := runBench(t, "--help")
	help.want(t, exitOK, "Exit codes", "Examples", "bin/bench --quick", "--part=PART,...")
	if help.errOut != "" || strings.Contains(help.out, "--tiny") {
		t.Errorf("stderr %q, stdout:\n%s", help.errOut, help.out)
	}
	runBench(t, "--version").want(t, exitOK, "bench: revision ")
}

func TestShow_StoredReports_TablesAndGoals(t *testing.T) {
	t.Parallel()
	use := map[string]float64{"worker": 61, "redis": 42}
	r := &bench.Report{
		Throughputs: []bench.Throughput{
			{
				Nights: 3, Resources: 1000, Workers: 1, PerSecond: 12345.6, CeilingSecond: 24691.2, OfCeiling: 0.5, TimesMany: 1,
				BaselineSecond: 1000, TimesBaseline: 12.3, ProcessorMicros: use, CeilingMicros: map[string]float64{"redis": 21},
			},
			{
				Nights: 3, Resources: 1, Workers: 1, PerSecond: 20000, CeilingSecond: 25000, OfCeiling: 0.8, TimesMany: 1.62,
				ProcessorMicros: use, CeilingMicros: map[string]float64{"redis": 20},
			},
		},
		Expiries: []bench.Expiry{{
			Notified: true, Number: 20000, Within: 1, Keys: 500000, Late: bench.Quantiles{P50: 5, P99: 50, P999: 60, Max: 70},
		}},
		Goals: []bench.Goal{{Name: "3 nights: of the ceiling", Bound: bench.AtLeast, Want: 0.5, Found: 0.5, Met: true}},
	}
	show := func(output string) result {
		var out, errOut bytes.Buffer
		c := &cli{Out: t.TempDir(), Output: output}
		if err := c.show(r, true, &out, &errOut); err != nil {
			t.Error(err)
		}
		if svg, err := os.ReadFile(filepath.Join(c.Out, "holds.svg")); err != nil || !bytes.Contains(svg, []byte("<svg")) {
			t.Errorf("no plot: %v, %s", err, svg)
		}
		return result{exitOK, out.String(), errOut.String()}
	}
	show("table").want(t, exitOK, `
NIGHTS  RESOURCES  WORKERS  HOLDS/S  CEILING/S  OF CEILING  X 1000 RES.  BASELINE/S  X BASELINE  WORKER  REDIS  (CEILING: REDIS)
────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
     3       1000        1    12346      24691        0.50         1.00        1000        12.3      61     42                21
     3          1        1    20000      25000        0.80         1.62           -           -      61     42                20
`, `
NOTIFICATIONS  HOLDS  WITHIN S  OTHER KEYS  P50  P99  P99.9  MAX
────────────────────────────────────────────────────────────────
on             20000       1.0      500000    5   50     60   70
`, `
Goals: all met.
GOAL                      BOUND     WANT  FOUND  STATUS
───────────────────────────────────────────────────────
3 nights: of the ceiling  at least   0.5   0.50  met
`)
	r.Goals = append(r.Goals, bench.Goal{Name: "latency at 50 %: p99 in ms", Bound: bench.AtMost, Want: 20, Found: 20.5})
	show("table").want(t, exitOK, "Goals: 1 of 2 missed.", "missed\n")
	if missed := show("json"); exitOf(t, missed.out) != exitGoalMissed || !strings.Contains(missed.out, `"met":false`) {
		t.Errorf("the report of a missed goal: %s", missed.out)
	}
	for _, s := range []*bench.Throughput{&r.Throughputs[0], &r.Throughputs[1]} {
		s.ProcessorMicros, s.CeilingMicros = nil, nil
	}
	if text := summary(r); strings.Contains(text, "µs") || strings.Contains(text, "REDIS)") {
		t.Errorf("CPU time was not measured:\n%s", text)
	}
	if text := summary(&bench.Report{Goals: []bench.Goal{}}); strings.Contains(text, "NIGHTS") ||
		strings.Contains(text, "Goals") {
		t.Errorf("nothing was measured:\n%s", text)
	}
}

// TestCommandLine_Passwords_AreHidden checks the command in the report, which others read.
func TestCommandLine_Passwords_AreHidden(t *testing.T) {
	t.Parallel()
	got := commandLine([]string{"--nats-url", "nats://token@nats:4222", "--redis-url=redis://:se/cr@et@redis:6379/0",
		"--quick"})
	if want := "bench --nats-url nats://...@nats:4222 --redis-url=redis://...@redis:6379/0 --quick"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
