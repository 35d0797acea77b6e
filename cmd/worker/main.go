// Command worker is Holdfast's daemon: it answers booking and payment events. Start with
// `worker dev`, which starts all servers and runs a short demo.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/alecthomas/kong"

	"holdfast/internal/terminal"
	"holdfast/internal/version"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitDiffer = 3 // worker audit found differences and did not repair them
)

type cli struct {
	Version kong.VersionFlag `help:"Print the source revision and the Go version."`

	Dev         devCommand          `cmd:"" help:"Start all servers, run a short demo and keep running. Start here."`
	Run         runCommand          `cmd:"" help:"Run a worker until it is stopped."`
	Migrate     migrateCommand      `cmd:"" help:"Create streams, consumers and schema, then exit."`
	Healthcheck healthcheckCommand  `cmd:"" help:"Check that a worker process is alive."`
	Nagios      nagiosCommand       `cmd:"" help:"Check a running worker as a plugin of Nagios does."`
	Preflight   preflightCommand    `cmd:"" help:"Check the servers before a worker runs on them."`
	Locks       locksCommand        `cmd:"" help:"Show lock statistics and recommend a lease."`
	Pause       pauseCommand        `cmd:"" help:"Stop the processing of events, for maintenance."`
	Resume      resumeCommand       `cmd:"" help:"End a pause."`
	Top         topCommand          `cmd:"" help:"Watch a worker in the terminal."`
	Audit       auditCommand        `cmd:"" help:"Check stored data for consistency, and repair it on request."`
	Rebuild     rebuildCommand      `cmd:"" help:"Rebuild Redis from the event streams and Postgres."`
	Completion  terminal.Completion `cmd:"" help:"Print the completion script for a shell."`
}

const description = `Holdfast keeps temporary holds on bookable capacity: rooms, seats, stock.
A worker reads booking and payment events from NATS and answers each with one outcome.

Examples:

  worker dev --once
  worker run --embedded
  HOLDFAST_NATS_URL=nats://nats:4222 HOLDFAST_REDIS_URL=redis://redis:6379 \
    HOLDFAST_POSTGRES_URL=postgres://holdfast@postgres/holdfast worker run`

// streams are the standard output and the standard error of a command.
type streams struct {
	out, err io.Writer
}

// warnf prints a message for operators.
func (s streams) warnf(format string, args ...any) {
	fmt.Fprintf(s.err, "worker: "+format+"\n", args...)
}

// gcPercent trades memory, of which a worker needs little, for processor time. The environment
// variable GOGC overrides it.
const gcPercent = 400

// memoryShare is the share of the memory of its container that the program may use before it collects
// garbage more often than gcPercent says. The rest is for what the Go runtime does not count. The
// environment variable GOMEMLIMIT overrides it.
const memoryShare = 0.8

// limitMemory sets the memory limit of the garbage collector where the cgroup of the process has a limit.
func limitMemory() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit, err := memlimit.ApplyRatio(memlimit.FromCgroup, memoryShare)()
	if err == nil { // else there is no cgroup, or it has no limit
		debug.SetMemoryLimit(int64(min(limit, math.MaxInt64)))
	}
}

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	limitMemory()
	ctx, stop := terminal.UntilStopped()
	defer stop()
	os.Exit(run(ctx, os.Args[1:], streams{os.Stdout, os.Stderr}))
}

// newParser returns the parser of the command line.
func newParser(std streams) *kong.Kong {
	parser, err := kong.New(&cli{Completion: terminal.Completion{Program: "worker"}}, kong.Name("worker"),
		kong.Description(description), kong.Writers(std.out, std.err), tagVariables, kong.Vars{"version": version.Line("worker")},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}), terminal.DecimalIntegers())
	if err != nil {
		panic(err) // a mistake in the struct tags of cli
	}
	return parser
}

// run runs the program until it ends or ctx is cancelled, and returns its exit code.
func run(ctx context.Context, args []string, std streams) int {
	parser := newParser(std)
	parsed, done, err := terminal.Parse(parser, args)
	if done {
		return exitOK
	}
	if len(args) == 0 { // wrong usage, but the help is more useful than an error alone
		parser.Stdout = std.err
		_, _ = parser.Parse([]string{"--help"})
		std.warnf("expected one of the commands above")
		return exitUsage
	}
	if err == nil {
		err = terminal.CheckNonzero(parsed.Path)
	}
	if err != nil {
		parse, is := errors.AsType[*kong.ParseError](err)
		if is && parse.Context.Selected() != nil && parse.Context.Selected().Name == "nagios" {
			return printNagios(std.out, nagiosUnknown, withoutBar(err.Error()))
		}
		std.warnf("%v (try --help)", err)
		return exitUsage
	}
	parsed.BindTo(ctx, (*context.Context)(nil))
	out := &output{Writer: std.out}
	err = parsed.Run(streams{out, std.err})
	if unwritten := out.failed(); unwritten != nil && !errors.Is(err, unwritten) { // a result that is lost is no success
		err = errors.Join(err, fmt.Errorf("the result was not written: %w", unwritten))
	}
	if err != nil {
		if found, is := errors.AsType[*nagiosError](err); is {
			return found.state
		}
		std.warnf("%v", err)
		var usage *usageError
		var left *differencesError
		switch {
		case errors.As(err, &usage):
			return exitUsage
		case errors.As(err, &left):
			return exitDiffer
		}
		return exitFailed
	}
	return exitOK
}
