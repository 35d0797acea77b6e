// Command bench measures how much a worker does on this machine, compared with what its servers
// can do. Package internal/bench measures; this program reads the flags, shows progress, prints the
// report and compares it with the goals.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/schollz/progressbar/v3"

	"holdfast/internal/bench"
	"holdfast/internal/terminal"
	"holdfast/internal/version"
)

// The exit codes.
const (
	exitOK         = 0
	exitFailed     = 1
	exitUsage      = 2
	exitGoalMissed = 3
)

// serveNATS is the only argument with which this program is a NATS server: bench.Run starts it, so
// that the CPU time of NATS is that of a process.
const serveNATS = "serve-nats"

func main() {
	if len(os.Args) == 2 && os.Args[1] == serveNATS {
		if err := bench.ServeNATS(os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(exitFailed)
		}
		return
	}
	ctx, stop := terminal.UntilStopped()
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// cli is the command line.
type cli struct {
	Worker      string           `type:"existingfile" placeholder:"FILE" help:"The worker program. Default: worker beside this program, or in PATH."`
	Part        []string         `enum:"sales,batches,latency,peers,payments,expiry,overload,scale,console,idle,growth" placeholder:"PART" help:"Measure only these parts: ${enum}."`
	Quick       bool             `xor:"size" help:"Measure fewer events and rounds: four minutes instead of forty, and less exact."`
	Tiny        bool             `xor:"size" hidden:"" help:"For tests: so few events that the figures mean nothing."`
	Write       string           `placeholder:"DIR" help:"Write there bench.json, report.md with its tables, and the plots holds.svg and latency.svg."`
	NATSURL     string           `name:"nats-url" env:"HOLDFAST_NATS_URL" placeholder:"URL" help:"Measure on these servers instead of own ones. All three URLs are needed."`
	RedisURL    string           `name:"redis-url" placeholder:"URL" help:"See --nats-url."`
	PostgresURL string           `name:"postgres-url" placeholder:"URL" help:"See --nats-url."`
	Output      string           `short:"o" enum:"table,json" default:"table" help:"Print a table, or the report as one JSON value."`
	Version     kong.VersionFlag `help:"Print the revision of this program and its Go version."`
}

const description = `Measures how much a worker does on this machine, compared with what its servers can do. Both are
measured in the same run, on the same servers:

  sales     holds per second of 1, 3, 7 and 30 nights, compared with the least script in Redis alone;
            many resources, one hot one, 100,000 that are not shared or by Zipf; 1, 2 and 3 workers
  batches   CPU time of a hold when 1, 8 or 64 requests for different resources arrive together
  latency   from when a request was due until its outcome: at 1,000/s, and at 10, 50 and 80 % of the
            maximum; with locks and without
  peers     other ways of placing holds: Postgres alone, a lock a night, one script. Each with the
            number of requests at once that it does best with
  payments  payments per second, compared with the same transactions in Postgres alone
  expiry    how late the slots of expired holds are restored, with and without keyspace notifications
  overload  1, 2 and 3 workers while Redis or Postgres has a tenth of a processor, and after that
  scale     1, 2 and 3 workers with as many shards of Redis, each with a tenth of a processor; as root
  console   a worker without live pages of its console, and with ten
  idle      CPU time of a worker without work, with 3.5 million rows of inventory
  growth    the cost of one live hold as the number of live holds grows

Compare ratios: absolute numbers depend on the machine. The report also shows the CPU time, in
microseconds, that each process used per event.

bench starts its own servers, which keep nothing. With --nats-url, --redis-url and --postgres-url it
uses those servers: it creates namespaces that begin with bench_ and removes them. Run nothing else
on the machine.

Exit codes: 0 measured, every goal met; 1 failed; 2 wrong usage; 3 measured, a goal missed.

Examples:

  go build -o bin/ ./cmd/worker ./cmd/bench && bin/bench --quick
  bench --write docs/bench
  bench --part sales,peers --quick
  bench --quick --part latency -o json`

// run measures until it is done or ctx is over, and returns the exit code. The report goes to
// stdout, everything else to stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c cli
	done := false
	parser, err := kong.New(&c, kong.Name("bench"), kong.Description(description), kong.Writers(stdout, stderr),
		kong.Vars{"version": version.Line("bench")}, kong.Exit(func(int) { done = true }), terminal.DecimalIntegers())
	if err != nil {
		panic(err) // a mistake in the tags of cli
	}
	_, err = parser.Parse(args)
	if done { // --help, --version
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %s (try --help)\n", terminal.Printable(err.Error()))
		return exitUsage
	}
	report, err := c.measure(ctx, args, stderr)
	if report != nil { // half an hour of work is shown even if a later part failed
		err = errors.Join(err, c.show(report, err == nil, stdout, stderr))
	}
	switch {
	case errors.Is(err, bench.ErrPartialURLs):
		fmt.Fprintf(stderr, "bench: %s (--nats-url or HOLDFAST_NATS_URL, --redis-url, --postgres-url) (try --help)\n", err)
		return exitUsage
	case err != nil:
		fmt.Fprintf(stderr, "bench: %s\n", terminal.PrintableLines(err.Error()))
		return exitFailed
	case report.FailedGoals() > 0:
		return exitGoalMissed
	default:
		return exitOK
	}
}

// measure runs the benchmark. With an error it returns the report of what was measured before, or
// nil if nothing was.
func (c *cli) measure(ctx context.Context, args []string, stderr io.Writer) (*bench.Report, error) {
	worker, err := c.worker()
	if err != nil {
		return nil, err
	}
	if c.Write != "" { // fail now, not after half an hour
		if err := os.MkdirAll(c.Write, 0o755); err != nil { //nolint:gosec // a directory of documents
			return nil, err
		}
	}
	own, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	// Go ends a process that writes to a pipe whose reader has ended. A bench first removes its data.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	bar := terminal.NewProgress(stderr, 100, progressbar.OptionThrottle(0)) // percent of the steps, which are rare
	defer bar.End()
	report, err := bench.Run(ctx, bench.Options{
		Worker: worker, Parts: c.Part, Size: c.size(), NATSCommand: []string{own, serveNATS},
		NATSURL: c.NATSURL, RedisURL: c.RedisURL, PostgresURL: c.PostgresURL,
		Progress: func(line string) { fmt.Fprintln(bar, terminal.PrintableLines(line)) },
		Step: func(done, total int, what string) {
			bar.Describe(what)
			bar.Set(int64(100 * done / total))
		},
	})
	if report != nil {
		report.Command = commandLine(args)
	}
	return report, err
}

// userInfo matches the part of a URL before its host, which may be a secret.
var userInfo = regexp.MustCompile(`://\S*@`)

// commandLine returns the command line without passwords.
func commandLine(args []string) string {
	line := "bench"
	for _, arg := range args {
		line += " " + userInfo.ReplaceAllString(arg, "://...@")
	}
	return line
}

// show prints a report, and writes it to the directory Out if it is complete.
func (c *cli) show(report *bench.Report, complete bool, stdout, stderr io.Writer) error {
	if !complete {
		_, err := io.WriteString(stdout, summary(report))
		return err
	}
	compact, err := json.Marshal(report, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	if c.Write != "" {
		if err := c.write(report, compact, stderr); err != nil {
			return err
		}
	}
	text := summary(report)
	if c.Output == "json" {
		if terminal.Is(stdout) {
			compact = terminal.PrintableJSON(compact)
		}
		text = string(compact) + "\n"
	}
	if _, err := io.WriteString(stdout, text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// write writes the report, its tables, and the plots of what was measured.
func (c *cli) write(report *bench.Report, compact jsontext.Value, stderr io.Writer) error {
	encoded := compact.Clone()
	if err := encoded.Indent(jsontext.WithIndent("  ")); err != nil {
		return fmt.Errorf("indent the report: %w", err)
	}
	files := map[string][]byte{"bench.json": append(encoded, '\n'), "report.md": []byte(markdown(report))}
	for name, content := range files {
		//nolint:gosec // a document
		if err := os.WriteFile(filepath.Join(c.Write, name), content, 0o644); err != nil {
			return err
		}
	}
	if len(report.Peers) > 0 {
		if err := report.PlotHolds(filepath.Join(c.Write, "holds.svg")); err != nil {
			return err
		}
	}
	if len(report.Latencies) > 0 {
		if err := report.PlotLatency(filepath.Join(c.Write, "latency.svg")); err != nil {
			return err
		}
	}
	fmt.Fprintf(stderr, "written: %s\n", terminal.Printable(c.Write))
	return nil
}

func (c *cli) size() bench.Size {
	switch {
	case c.Quick:
		return bench.Quick
	case c.Tiny:
		return bench.Tiny
	default:
		return bench.Whole
	}
}

// worker returns the path of the worker program.
func (c *cli) worker() (string, error) {
	if c.Worker != "" {
		return filepath.Abs(c.Worker)
	}
	if own, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(own), "worker")
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	found, err := exec.LookPath("worker")
	if err != nil {
		return "", errors.New("worker program not found: build it with " +
			"`go build -o bin/ ./cmd/worker ./cmd/bench` and run bin/bench, or give --worker")
	}
	return filepath.Abs(found)
}
