package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
	"github.com/posener/complete"
	"golang.org/x/term"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/terminal"
	"holdfast/internal/version"
)

// cli is the command line: what every verb takes, and the verbs.
type cli struct {
	Common  common           `embed:"" group:"Flags of every verb:"`
	Version kong.VersionFlag `help:"Print the revision that this was built from, and the Go version."`

	Inventory struct {
		Set  inventorySet  `cmd:"" help:"Set the capacity of slots."`
		Show inventoryShow `cmd:"" help:"Show what can be had of slots now."`
	} `cmd:"" help:"Set and show capacities."`
	Request           request           `cmd:"" help:"Ask for a hold."`
	Extend            extend            `cmd:"" help:"Have a hold last longer."`
	StartPayment      startPayment      `cmd:"" help:"Say that a hold is being paid, so that it does not lapse meanwhile."`
	Pay               pay               `cmd:"" help:"Confirm the payment of a hold: it becomes a reservation."`
	Cancel            cancel            `cmd:"" help:"Give a hold back before its deadline."`
	CancelReservation cancelReservation `cmd:"" help:"Give back what a reservation took."`
	Load              load              `cmd:"" help:"Publish a file of events."`
	Validate          validate          `cmd:"" help:"Say what a worker would say of events, without any server."`
	Watch             watch             `cmd:"" help:"Show outcomes and dead letters as they come."`
	DLQ               dlq               `cmd:"" name:"dlq" help:"Look after dead letters: list, show, replay, edit, discard, export them."`
	Completion        completion        `cmd:"" help:"Print the script that lets a shell complete what is typed."`
}

// common is what every verb takes.
type common struct {
	NATSURL   string        `name:"nats-url" env:"HOLDFAST_NATS_URL" placeholder:"URL" help:"Where NATS is. Default: as endpoints.env in --data-dir says."`
	Namespace string        `env:"HOLDFAST_NAMESPACE" placeholder:"NS" help:"First token of every subject. Default: as endpoints.env says, else holdfast."`
	DataDir   string        `env:"HOLDFAST_DATA_DIR" default:".holdfast" placeholder:"DIR" help:"The --data-dir of the worker that has started its servers: worker dev, or worker run --embedded. Its endpoints.env says where they are. Default: .holdfast."`
	Output    string        `short:"o" enum:"table,wide,json,ndjson" default:"table" help:"What to print: table, or json, which is one value, compact, of a list an element a line; what lists things also knows wide and ndjson (a value a line)."`
	Timeout   time.Duration `default:"10s" help:"How long to wait for an answer, of a server or (--wait) of the worker."`
}

// Validate implements kong's check of what was given.
func (c *common) Validate() error {
	if c.Namespace != "" && !holds.NamespacePattern.MatchString(c.Namespace) {
		return misused("--namespace: %q does not match %s", c.Namespace, holds.NamespacePattern)
	}
	if c.Timeout <= 0 {
		return misused("--timeout: want more than 0")
	}
	return nil
}

const description = `Publisher speaks to Holdfast as booking, payment and inventory services do.

Examples, with a "worker dev" running in the same directory:

  publisher inventory set --resource-id deluxe --check-in 2026-12-01 --check-out 2026-12-05 --capacity 2 --wait
  publisher request --resource-id deluxe --user-id ann --check-in 2026-12-01 --check-out 2026-12-03 --wait
  publisher pay --hold-id HOLD_ID --payment-id p-1 --wait
  publisher load -f events.ndjson --wait
  publisher watch

Environment (a flag of the same name takes precedence):

  HOLDFAST_DATA_DIR   the --data-dir of the worker, .holdfast
  HOLDFAST_NATS_URL   where NATS is; else as endpoints.env in that directory says
  HOLDFAST_NAMESPACE  first token of every subject; else as endpoints.env says, else holdfast

Exit codes:

  0  done
  1  failed
  2  wrong usage
  3  with --wait: the event was rejected
  4  with --wait, dlq replay and dlq edit: an event was dead-lettered; load, validate: a line would be
  5  with --wait, dlq replay and dlq edit: no answer in time; the event is stored and will have one`

// program is one run of one verb.
type program struct {
	common
	in       io.Reader
	out, err io.Writer
	terminal bool                    // out is one
	width    int                     // of the terminal in columns, 0 when there is none or it is not known
	refuse   context.CancelCauseFunc // ends the verb, for lack of a permission
}

func newProgram(stdout, stderr io.Writer) *program {
	p := &program{refuse: func(error) {}, in: os.Stdin, out: stdout, err: stderr, terminal: isTerminal(stdout)}
	if file, isFile := stdout.(*os.File); isFile && p.terminal {
		p.width, _, _ = term.GetSize(int(file.Fd())) // without it nothing is cut
	}
	return p
}

// isTerminal reports whether somebody sits at the other end of a stream.
func isTerminal(stream any) bool {
	if locked, isLocked := stream.(*lockedWriter); isLocked {
		stream = locked.w
	}
	return terminal.Is(stream)
}

// parser returns the parser of the command line. exit is called when all was done in parsing.
func (p *program) parser(c *cli, exit func()) *kong.Kong {
	parser, err := kong.New(c, kong.Name("publisher"), kong.Description(description),
		kong.Writers(p.out, p.err), kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}),
		kong.Vars{"version": version.Line("publisher")}, kong.Exit(func(int) { exit() }))
	if err != nil {
		panic(err) // a mistake in the tags of cli
	}
	return parser
}

func (p *program) run(ctx context.Context, args []string) error {
	var c cli
	done := false
	parser := p.parser(&c, func() { done = true })
	kongcompletion.Register(parser, kongcompletion.WithPredictor("file", complete.PredictFiles("*")))
	if done {
		return nil // a shell has asked what could come next
	}
	verb, err := parser.Parse(args)
	if done {
		return nil
	}
	if err != nil {
		return p.helpInstead(parser, args, err)
	}
	if err := c.Common.setDefaults(); err != nil {
		return err
	}
	p.common = c.Common
	if known := outputsOf(verb.Selected()); !slices.Contains(known, p.Output) {
		return misused("--output: %s knows %s", verb.Selected().Path(), strings.Join(known, ", "))
	}
	ctx, p.refuse = context.WithCancelCause(ctx)
	defer p.refuse(nil)
	verb.BindTo(ctx, (*context.Context)(nil))
	if err := verb.Run(p); err != nil {
		return events.Refused(ctx, err)
	}
	return nil
}

// errNoVerb says that no verb was named, and help was printed.
var errNoVerb = errors.New("expected one of the commands above")

// helpInstead prints help where only a verb is missing, like publisher and publisher dlq: that is of more use than
// err, which says so. It is wrong usage all the same.
func (p *program) helpInstead(parser *kong.Kong, args []string, err error) error {
	var parse *kong.ParseError
	if !errors.As(err, &parse) || parse.Context == nil {
		return err
	}
	node := parse.Context.Selected()
	if node == nil {
		node = parser.Model.Node
	}
	if len(node.Children) == 0 || !strings.HasPrefix(err.Error(), "expected ") {
		return err
	}
	parser.Stdout = p.err
	_, _ = parser.Parse(append(slices.Clone(args), "--help"))
	return errNoVerb
}

// outputsOf returns what -o may be for a verb: table and json unless it says more.
func outputsOf(verb *kong.Node) []string {
	if lister, ok := verb.Target.Addr().Interface().(interface{ outputs() []string }); ok {
		return lister.outputs()
	}
	return []string{outputTable, outputJSON}
}

// namespace are those of the namespace.
func (p *program) namespace() events.Namespace { return events.Namespace(p.Namespace) }

// json reports whether JSON is to be printed.
func (p *program) json() bool { return p.Output == outputJSON }

// printJSON prints one JSON value, its bytes as they are, on a line of its own. On a terminal
// characters that could steer it are written as JSON escapes: another spelling of the same value.
func (p *program) printJSON(value []byte) error {
	if p.terminal {
		value = terminal.PrintableJSON(value)
	}
	return p.print(string(value) + "\n")
}

func (p *program) print(text string) error {
	if _, err := io.WriteString(p.out, text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
