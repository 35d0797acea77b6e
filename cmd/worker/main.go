// Command worker is Holdfast's daemon: it answers booking and payment events. Begin with
// `worker dev`, which starts everything it needs and shows what it does.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"

	"holdfast/internal/version"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitDiffer = 3 // of audit: something is not as it should be
)

type cli struct {
	Version kong.VersionFlag `help:"Print the revision that this was built from, and the Go version."`

	Dev         devCommand         `cmd:"" help:"Start everything, play a short story on it and stay up. Begin here."`
	Run         runCommand         `cmd:"" help:"Run the daemon."`
	Migrate     migrateCommand     `cmd:"" help:"Create streams, consumers, schema and epoch, then end."`
	Healthcheck healthcheckCommand `cmd:"" help:"Ask whether a worker lives: 0 or 1."`
	Preflight   preflightCommand   `cmd:"" help:"Check the servers that a worker would use, before it runs on them."`
	Locks       locksCommand       `cmd:"" help:"Show how the locks of running workers do, and which lease fits."`
	Audit       auditCommand       `cmd:"" help:"Check all that is kept against what is promised, explain what differs, and repair it on approval."`
	Rebuild     rebuildCommand     `cmd:"" help:"Rebuild Redis from the event streams and Postgres."`
	Completion  completionCommand  `cmd:"" help:"Print the script that lets a shell complete what is typed."`
}

const description = `Holdfast keeps temporary holds on bookable capacity: rooms, seats, stock.

Example:

  worker dev --once
  worker run --nats-url nats://127.0.0.1:4222 --redis-url redis://127.0.0.1:6379 --postgres-url postgres://holdfast@127.0.0.1/holdfast`

// streams are where a command reads and writes.
type streams struct {
	out, err io.Writer
}

// gcPercent spends memory, of which a worker needs little, to save processor time. GOGC overrules it.
const gcPercent = 400

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], streams{os.Stdout, os.Stderr}))
}

// newParser returns the parser of the command line. It calls exit when all was done in parsing.
func newParser(std streams, exit func(code int)) *kong.Kong {
	parser, err := kong.New(&cli{}, kong.Name("worker"), kong.Description(description), kong.Writers(std.out, std.err),
		tagVariables, kong.Vars{"version": version.Line("worker")},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}), kong.Exit(exit))
	if err != nil {
		panic(err) // a mistake in the struct tags of cli
	}
	return parser
}

// run runs the program until it is done or ctx is over, and returns its exit code.
func run(ctx context.Context, args []string, std streams) int {
	ended := -1
	parser := newParser(std, func(code int) { ended = code })
	kongcompletion.Register(parser)
	if ended >= 0 { // a shell has asked what could come next
		return ended
	}
	parsed, err := parser.Parse(args)
	if ended >= 0 { // --help, --version
		return ended
	}
	if len(args) == 0 { // to name no command is wrong usage, but help is of more use than an error
		parser.Stdout = std.err
		_, _ = parser.Parse([]string{"--help"})
		fmt.Fprintln(std.err, "worker: expected one of the commands above")
		return exitUsage
	}
	if err != nil {
		fmt.Fprintf(std.err, "worker: %v (try --help)\n", err)
		return exitUsage
	}
	parsed.BindTo(ctx, (*context.Context)(nil))
	if err := parsed.Run(std); err != nil {
		var usage *usageError
		if errors.As(err, &usage) {
			fmt.Fprintf(std.err, "worker: %v\n", err)
			return exitUsage
		}
		fmt.Fprintf(std.err, "worker: %v\n", err)
		var left *differencesError
		if errors.As(err, &left) {
			return exitDiffer
		}
		return exitFailed
	}
	return exitOK
}
