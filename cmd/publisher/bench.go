package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/bench"
)

// benchmark measures.
type benchmark struct {
	Worker      string   `type:"existingfile" placeholder:"FILE" predictor:"file" help:"The worker program. Default: worker beside this program, or in PATH."`
	Part        []string `enum:"sales,payments,latency,expiry,growth" placeholder:"PART,..." help:"Only these: ${enum}."`
	Quick       bool     `xor:"size" help:"Fewer events and rounds: some minutes instead of half an hour, and rougher figures."`
	Tiny        bool     `xor:"size" hidden:"" help:"For tests: so few events that the figures say nothing."`
	Out         string   `placeholder:"DIR" help:"Write bench.json, and holds.svg of the sales, there."`
	RedisURL    string   `name:"redis-url" placeholder:"URL" help:"With --nats-url and --postgres-url: measure on these servers."`
	PostgresURL string   `name:"postgres-url" placeholder:"URL" help:"Likewise."`
}

// Help implements kong's detailed help.
func (*benchmark) Help() string {
	return `Measures, in one run and on the same servers, what a worker does, beside what its servers can do:

  sales     holds a second, of 1, 3, 7 and 30 nights, against the least script that Redis can run, and
            against deciding night by night; a hot resource against many; 1, 2 and 3 workers
  payments  payments a second, against the same transactions in Postgres alone
  latency   from when a request was due until its outcome, at 10, 50 and 80 % of what can be done
  expiry    how late lapsed holds are given back, with keyspace notifications and without
  growth    what a live hold costs when there are more and more of them

What counts are ratios, because a second is another one on each machine. Where the time goes is told in microseconds of the processor that each process used for each event.

It starts servers of its own, which keep nothing, unless --nats-url, --redis-url and --postgres-url are given: then it makes namespaces that begin with bench_ there, and removes them. Nothing else should run on the machine.

Exit codes: 0 measured, and every goal is met; 1 failed; 2 wrong usage; 3 measured, and a goal is missed.

Examples:

  go build -o bin/ ./cmd/worker ./cmd/publisher && bin/publisher bench --quick
  publisher bench --part sales,payments --out docs/bench
  publisher bench --quick --part latency -o json`
}

// Run measures and prints what it found.
func (v *benchmark) Run(ctx context.Context, p *program) error {
	worker, err := v.worker()
	if err != nil {
		return err
	}
	if v.Out != "" { // find out now, not in half an hour
		if err := os.MkdirAll(v.Out, 0o755); err != nil { //nolint:gosec // a directory of documents
			return err
		}
	}
	own, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	steps := p.newSteps()
	report, err := bench.Run(ctx, bench.Options{
		Worker: worker, Parts: v.Part, Size: v.size(),
		NATSURL: p.NATSURL, RedisURL: v.RedisURL, PostgresURL: v.PostgresURL, NATSCommand: []string{own, "bench-nats"},
		Progress: steps.say, Step: steps.at,
	})
	steps.end()
	if errors.Is(err, bench.ErrPartialURLs) {
		return misused("%v (--nats-url or %s, --redis-url, --postgres-url)", err, nameNATSURL)
	}
	if report == nil {
		return err
	}
	report.Command = commandLine(os.Args[1:])
	if err != nil { // half an hour's work is shown, but is no result
		return errors.Join(err, p.print(benchSummary(report)))
	}
	return v.show(p, report)
}

// userInfo is what a URL has before its host: it may be a secret.
var userInfo = regexp.MustCompile(`://\S*@`)

// commandLine is what was typed, without secrets.
func commandLine(args []string) string {
	line := "publisher"
	for _, arg := range args {
		line += " " + userInfo.ReplaceAllString(arg, "://...@")
	}
	return line
}

// show writes and prints a report. It returns errRejected when a goal is missed.
func (v *benchmark) show(p *program, report *bench.Report) error {
	compact, err := json.Marshal(report, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	encoded := jsontext.Value(compact).Clone()
	if err := encoded.Indent(jsontext.WithIndent("  ")); err != nil {
		return fmt.Errorf("indent the report: %w", err)
	}
	if v.Out != "" {
		if err := v.write(p, report, encoded); err != nil {
			return err
		}
	}
	if p.json() {
		err = p.printJSON(compact)
	} else {
		err = p.print(benchSummary(report))
	}
	if err == nil && report.FailedGoals() > 0 {
		err = errRejected
	}
	return err
}

// write writes the report and, if there are sales, its plot.
func (v *benchmark) write(p *program, report *bench.Report, encoded []byte) error {
	path := filepath.Join(v.Out, "bench.json")
	if err := os.WriteFile(path, append(encoded, '\n'), 0o644); err != nil { //nolint:gosec // a document
		return err
	}
	written := path
	if len(report.Throughputs) > 0 {
		path := filepath.Join(v.Out, "holds.svg")
		if err := report.Plot(path); err != nil {
			return err
		}
		written += " and " + path
	}
	fmt.Fprintf(p.err, "written: %s\n", printable(written))
	return nil
}

func (v *benchmark) size() bench.Size {
	switch {
	case v.Quick:
		return bench.Quick
	case v.Tiny:
		return bench.Tiny
	default:
		return bench.Whole
	}
}

// worker finds the worker program.
func (v *benchmark) worker() (string, error) {
	if v.Worker != "" {
		return filepath.Abs(v.Worker)
	}
	if own, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(own), "worker")
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	found, err := exec.LookPath("worker")
	if err != nil {
		return "", errors.New("there is no worker program: build it (go build -o bin/ ./cmd/worker ./cmd/publisher) and run bin/publisher, or name it with --worker")
	}
	return filepath.Abs(found)
}

// benchNATS is what bench runs for a NATS server in a process of its own.
type benchNATS struct{}

// Help implements kong's detailed help.
func (*benchNATS) Help() string {
	return "Runs a NATS server that keeps nothing until its standard input ends. For bench.\n\nExample:\n\n  publisher bench-nats"
}

// Run runs a NATS server. Ctrl-C is not meant for it: bench ends it last.
func (*benchNATS) Run(p *program) error { return bench.ServeNATS(p.in, p.out) }
