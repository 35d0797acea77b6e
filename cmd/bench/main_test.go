package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"

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
	args := []string{"--tiny", "--part", "latency", "--worker", workerProgram, "--write", dir, "-o", "json"}
	r := runBench(t, append(args, serverFlags()...)...)
	r.want(t, exitOf(t, r.out),
		"servers that were given", "latency: requests of 3 nights", "written: "+dir)
	written, err := os.ReadFile(filepath.Join(dir, "bench.json"))
	compact := jsontext.Value(written)
	if err != nil || compact.Compact() != nil || string(compact)+"\n" != r.out {
		t.Errorf("%v; printed and written reports differ:\n%s\n%s", err, r.out, written)
	}
	if _, err := os.Stat(filepath.Join(dir, "holds.svg")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a plot without peers: %v", err)
	}
	if svg, err := os.ReadFile(filepath.Join(dir, "latency.svg")); err != nil || !bytes.Contains(svg, []byte("<svg")) {
		t.Errorf("no plot: %v, %s", err, svg)
	}
	page, err := os.ReadFile(filepath.Join(dir, "report.md"))
	if err != nil || !strings.Contains(string(page), "| LOCKS | LOAD |") ||
		!strings.Contains(string(page), "\n| range | 80 % |") {
		t.Errorf("%v; no table of latency:\n%s", err, page)
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
	cmd := exec.CommandContext(t.Context(), benchProgram, "--tiny", "--part", "payments", "--write", dir)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	written, readErr := os.ReadFile(filepath.Join(dir, "bench.json"))
	if readErr != nil {
		t.Fatalf("%v, %v\n%s", err, readErr, errOut.String())
	}
	r := result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
	r.want(t, exitOf(t, string(written)), "servers of its own", "payments: holds are paid",
		"PAYMENTS/S  CEILING/S  OF CEILING  WORKER", "payments: of their ceiling")
	if strings.Contains(r.out, "holds are paid") || strings.Contains(r.errOut, "PAYMENTS/S") {
		t.Errorf("progress and report are mixed:\n%s\n%s", r.out, r.errOut)
	}
}

// TestRun_TerminalCloses_LeavesNothing ends a bench as the end of an ssh session does: with SIGHUP, after the reader of
// its output has ended. Its worker has started and is not ready yet.
func TestRun_TerminalCloses_LeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	worker, file := filepath.Join(dir, "worker"), filepath.Join(dir, "started")
	lines := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = run ]; then echo $$ $HOLDFAST_NAMESPACE > %[1]s.new; mv %[1]s.new %[1]s; "+
		"exec >/dev/null 2>&1; fi\nexec %[2]s \"$@\"\n", file, workerProgram)
	stacktest.Must(t, os.WriteFile(worker, []byte(lines), 0o755))
	reader, writer, err := os.Pipe()
	stacktest.Must(t, err)
	cmd := exec.CommandContext(t.Context(), benchProgram,
		append([]string{"--tiny", "--part", "latency", "--worker", worker}, serverFlags()...)...)
	cmd.Stderr = writer
	stacktest.Must(t, cmd.Start())
	stacktest.Must(t, writer.Close())
	var started string
	stacktest.Eventually(t, "the worker", func() bool {
		text, err := os.ReadFile(file)
		started = string(text)
		return err == nil
	})
	var pid int
	var namespace string
	_, err = fmt.Sscan(started, &pid, &namespace)
	stacktest.Must(t, err)
	stacktest.Must(t, reader.Close())
	stacktest.Must(t, cmd.Process.Signal(syscall.SIGHUP))
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exitFailed {
		t.Errorf("the bench ended with %v, want exit code %d", err, exitFailed)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the worker still runs: %v", err)
	}
	conn, err := pgx.Connect(t.Context(), stacktest.Shared().PostgresURL)
	stacktest.Must(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	var schemas int
	err = conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname = $1", namespace).Scan(&schemas)
	if err != nil || schemas > 0 {
		t.Errorf("schema %s is left: %v", namespace, err)
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
		"--part sails":                      {exitUsage, "sails"},
		"--quick --tiny":                    {exitUsage, "--quick"},
		"measure":                           {exitUsage, "measure"},
		"-o ndjson":                         {exitUsage, "--output"},
		worker + ".none":                    {exitUsage, "worker.none"},
		worker + " --redis-url redis://h:1": {exitUsage, "only some are given"},
		worker + " --write " + worker[9:] + "/sub": {exitFailed, "not a directory"},
		"": {exitFailed, "--worker"},
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
	use := map[string]float64{"worker": 61, "redis": 42, "bench": 30}
	r := &bench.Report{
		Throughputs: []bench.Throughput{
			{
				Nights: 3, Resources: 1000, Workers: 1, TimesMany: 1, Compared: bench.Compared{
					PerSecond: 12345.6, CeilingSecond: 24691.2, OfCeiling: 0.5,
					ProcessorMicros: use, CeilingMicros: map[string]float64{"redis": 21},
				},
			},
			{
				Nights: 3, Resources: 100000, Spread: "alone", Workers: 1, TimesMany: 1.62,
				Compared: bench.Compared{PerSecond: 20000, CeilingSecond: 25000, OfCeiling: 0.8},
			},
		},
		Batches: []bench.Batch{{Size: 8, Rate: bench.Rate{PerSecond: 3000, Processor: use}}},
		Peers: []bench.Peer{{
			Name: bench.HoldfastUnsynced, Nights: 3, Resources: 1000, InFlight: 256, Rate: bench.Rate{PerSecond: 9000},
			Quantiles: bench.Quantiles{P50: 20, P99: 40}, Promises: bench.Promises{Expires: true, Event: true, Outcome: true, Survives: new(false)},
			Quarter: &bench.Latency{Quantiles: bench.Quantiles{P50: 2.5, P99: 9}},
		}, {Name: bench.HoldfastGiven, Nights: 3, Resources: 1, Rate: bench.Rate{PerSecond: 9000}}},
		Expiries: []bench.Expiry{{
			Notified: true, Number: 20000, Within: 1, Keys: 500000, Late: bench.Quantiles{P50: 5, P99: 50, P999: 60, Max: 70},
		}},
		Overloads: []bench.Overload{{Server: "redis", Workers: 3, PerSecond: 640, Attempts: 1.1, Normal: 7000}},
		ScaleOuts: []bench.ScaleOut{{
			Workers: 2, PerSecond: 5400, TimesOne: 1.93, Attempts: 1, ProcessorMicros: use, MicrosTimesOne: 1.07, Others: 0.4,
		}},
		Consoles: &bench.Consoles{
			Pages: 10, PerSecond: 9000, WithSecond: 8900, TimesWithout: 0.989, Micros: use, WithMicros: use, MicrosTimes: 1.012,
		},
		Idle:    &bench.Idle{Rows: 3500000, Percent: map[string]float64{"redis": 0.4, "worker": 0.5}, Sum: 0.9},
		Scaling: []bench.Scaling{{Live: 10000, RedisBytes: 690, Parts: map[string]float64{"hold": 400, "records": 290}}},
		Goals:   []bench.Goal{{Name: "3 nights: of the ceiling", Bound: bench.AtLeast, Want: 0.5, Found: 0.5, Met: true}},
		Skipped: []string{"overload: it needs root"},
	}
	show := func(output string) result {
		var out, errOut bytes.Buffer
		c := &cli{Write: t.TempDir(), Output: output}
		if err := c.show(r, true, &out, &errOut); err != nil {
			t.Error(err)
		}
		if svg, err := os.ReadFile(filepath.Join(c.Write, "holds.svg")); err != nil || !bytes.Contains(svg, []byte("<svg")) {
			t.Errorf("no plot: %v, %s", err, svg)
		}
		return result{exitOK, out.String(), errOut.String()}
	}
	show("table").want(t, exitOK, "; not measured: overload: it needs root\n", `
NIGHTS  RESOURCES     WORKERS  HOLDS/S  CEILING/S  OF CEILING  X 1000 RES.  WORKER  REDIS  NATS  POSTGRES  BENCH  SUM  (CEILING: REDIS)
───────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
     3  1000                1    12346      24691        0.50         1.00      61     42     -         -     30  103                21
     3  100000 alone        1    20000      25000        0.80         1.62       -      -     -         -      -    -                 -
`, `
Holdfast, unsynced                      3       1000     9000      256  20.0  40.0  2.5, 9.0          yes                yes           yes           no
Holdfast, servers that were given       3          1     9000        0     -     -  -                 no                 no            no            -
`, `
NOTIFICATIONS  HOLDS  WITHIN S  OTHER KEYS  P50  P99  P99.9  MAX
────────────────────────────────────────────────────────────────
on             20000       1.0      500000    5   50     60   70
`, `
redis            3      640           1.10                   0.0      7000
`, `
      2     5400   1.93           1.00      61     42     -         -     30  103   1.07          0.4
`, `
        10     8900   0.989      61     42     -         -     30  103   1.012
`, `
       3500000     0.5    0.4     -         -      -  0.9
`, "  hold 400, records 290\n", `
Goals: all met.
GOAL                      BOUND     WANT  FOUND  STATUS
───────────────────────────────────────────────────────
3 nights: of the ceiling  at least   0.5   0.50  met
`)
	if page := markdown(r); !strings.Contains(page, "\n| 8 | 3000 | 61 | 42 | - | - | 30 | 103 |\n") {
		t.Errorf("no row of batches:\n%s", page)
	}
	r.Goals = append(r.Goals, bench.Goal{Name: "latency at 50 %: p99 in ms", Bound: bench.AtMost, Want: 20, Found: 20.5})
	show("table").want(t, exitOK, "Goals: 1 of 2 missed.", "missed\n")
	if missed := show("json"); exitOf(t, missed.out) != exitGoalMissed || !strings.Contains(missed.out, `"met":false`) {
		t.Errorf("the report of a missed goal: %s", missed.out)
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
