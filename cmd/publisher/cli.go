package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/term"

	"holdfast/internal/client"
	"holdfast/internal/connect"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/terminal"
	"holdfast/internal/version"
)

// cli is the command line: the flags of every command, and the commands.
type cli struct {
	Common  common           `embed:"" group:"Flags of every command:"`
	Version kong.VersionFlag `help:"Print the revision of this program and its Go version."`

	Inventory         inventory           `cmd:"" help:"Set capacity and show availability."`
	Hold              hold                `cmd:"" help:"Show holds and what happened to them."`
	Request           request             `cmd:"" help:"Request a hold."`
	Extend            extend              `cmd:"" help:"Extend a hold."`
	StartPayment      startPayment        `cmd:"" help:"Mark the payment of a hold as started."`
	Pay               pay                 `cmd:"" help:"Confirm the payment of a hold. The hold becomes a reservation."`
	Cancel            cancel              `cmd:"" help:"Release a hold before its deadline."`
	CancelReservation cancelReservation   `cmd:"" help:"Cancel a reservation."`
	Load              load                `cmd:"" help:"Publish a file of events."`
	Validate          validate            `cmd:"" outputs:"table,json,ndjson" help:"Validate a file of events offline."`
	Watch             watch               `cmd:"" outputs:"table,ndjson,json" help:"Show outcomes and dead letters as they are stored."`
	DLQ               dlq                 `cmd:"" name:"dlq" help:"Manage dead letters."`
	Completion        terminal.Completion `cmd:"" help:"Print the completion script of a shell."`
}

// common is the flags of every command.
type common struct {
	NATSURL   string        `name:"nats-url" env:"HOLDFAST_NATS_URL" placeholder:"URL" help:"NATS servers, separated by commas. Default: from endpoints.env in --data-dir."`
	Namespace string        `env:"HOLDFAST_NAMESPACE" nonzero:"is empty; leave the flag out for the default" placeholder:"NS" help:"Namespace of the worker: the first token of every subject. Default: from endpoints.env, else holdfast."`
	DataDir   string        `env:"HOLDFAST_DATA_DIR" default:".holdfast" placeholder:"DIR" help:"Data directory of worker dev or worker run --embedded, with their endpoints.env. Default: .holdfast."`
	Output    string        `short:"o" enum:"table,wide,json,ndjson" default:"table" help:"Output format: wide is a table with all columns, json one JSON value, ndjson one JSON value a line."`
	Local     bool          `help:"Show times in the local time zone, not in UTC. JSON always has UTC."`
	Timeout   time.Duration `default:"10s" help:"Time limit for a reply: of a server, or with --wait of the worker."`

	NATSFiles connect.NATSFiles `embed:""`

	foundURL string // of NATS in endpoints.env, read unless NATSURL is given
}

func (c *common) Validate() error {
	if c.Namespace != "" && !record.NamespacePattern.MatchString(c.Namespace) {
		return misused("--namespace: %q does not match %s", c.Namespace, record.NamespacePattern)
	}
	if c.Timeout <= 0 {
		return misused("--timeout: must be more than 0")
	}
	return nil
}

const description = `Publishes the events of booking, payment and inventory services to Holdfast, shows their outcomes,
and manages dead letters.

Examples, while "worker dev" runs in the same directory:

  publisher inventory set --resource-id deluxe --check-in 2028-12-01 --check-out 2028-12-05 --capacity 2 --wait
  publisher request --resource-id deluxe --user-id ann --check-in 2028-12-01 --check-out 2028-12-03 --wait
  publisher pay --hold-id HOLD_ID --payment-id p-1 --wait
  publisher load -f events.ndjson --wait
  publisher watch

Environment (a flag of the same name takes precedence):

  HOLDFAST_DATA_DIR      data directory of the worker; default .holdfast
  HOLDFAST_NATS_URL      NATS servers; default from endpoints.env in the data directory
  HOLDFAST_NATS_...      files with the URL, a login and certificates: see the flags --nats-...-file
  HOLDFAST_NATS_CONTEXT  a context of the NATS command, see the flag --context
  HOLDFAST_NAMESPACE     namespace of the worker; default from endpoints.env, else holdfast

Exit codes:

  0  done
  1  failed
  2  wrong usage
  3  with --wait, dlq replay and dlq edit: an event was rejected
  4  with --wait, dlq replay and dlq edit: an event was dead-lettered; load, validate: a line would be
  5  with --wait, dlq replay and dlq edit: no answer in time; the event is stored and will have an outcome`

// program is one run of one command.
type program struct {
	common
	in         io.Reader
	out, err   io.Writer
	isTerminal bool                    // out is a terminal
	width      int                     // of the terminal in columns; 0 if out is not one or the width is unknown
	refuse     context.CancelCauseFunc // ends the command when a permission is missing
	disconnect func()                  // closes the connection that connect made
	client     *client.Client          // what connect has returned
}

func newProgram(stdout, stderr io.Writer) *program {
	p := &program{refuse: func(error) {}, disconnect: func() {}, in: os.Stdin, out: stdout, err: stderr, isTerminal: terminal.Is(stdout)}
	if file, isFile := stdout.(*os.File); isFile && p.isTerminal {
		p.width, _, _ = term.GetSize(int(file.Fd())) // without a width nothing is shortened
	}
	return p
}

// parser returns the parser of the command line.
func (p *program) parser(c *cli) *kong.Kong {
	c.Completion.Program = "publisher"
	parser, err := kong.New(c, kong.Name("publisher"), kong.Description(description),
		kong.Writers(p.out, p.err), kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}), kong.Help(printHelp),
		kong.Vars{"version": version.Line("publisher")}, terminal.DecimalIntegers())
	if err != nil {
		panic(err) // a mistake in the tags of cli
	}
	return parser
}

func (p *program) run(ctx context.Context, args []string) error {
	var c cli
	parser := p.parser(&c)
	command, done, err := terminal.Parse(parser, args)
	if done {
		return nil
	}
	if err != nil {
		return p.helpInstead(parser, args, err)
	}
	if err := terminal.CheckNonzero(command.Path); err != nil {
		return misused("%v", err)
	}
	if err := c.Common.setDefaults(); err != nil {
		return err
	}
	p.common = c.Common
	known := outputsOf(command.Selected())
	if p.Output == outputTable {
		p.Output = known[0] // also without -o, and dlq export has no table
	}
	if !slices.Contains(known, p.Output) {
		return misused("--output: %s has only %s", command.Selected().Path(), strings.Join(known, ", "))
	}
	ctx, p.refuse = context.WithCancelCause(ctx)
	defer p.refuse(nil)
	defer func() { p.disconnect() }()
	command.BindTo(ctx, (*context.Context)(nil))
	if err := command.Run(p); err != nil {
		return events.Refused(ctx, err)
	}
	return nil
}

// printHelp prints help, with the values of -o that the command accepts.
func printHelp(options kong.HelpOptions, line *kong.Context) error {
	if command := line.Selected(); command != nil && command.Leaf() {
		for _, flag := range line.Flags() {
			if flag.Name == "output" {
				flag.PlaceHolder = strings.Join(outputsOf(command), "|")
			}
		}
	}
	return kong.DefaultHelpPrinter(options, line)
}

// errNoCommand reports a command line without a command. Help is printed before it.
var errNoCommand = errors.New("expected one of the commands above")

// helpInstead prints help if err says that a command is missing, as in `publisher` and `publisher
// dlq`, and returns errNoCommand. It returns every other error unchanged.
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
	return errNoCommand
}

// outputsOf returns the values of -o that a command accepts, the default first: those of its tag outputs, else
// table and json.
func outputsOf(command *kong.Node) []string {
	return strings.Split(cmp.Or(command.Tag.Get("outputs"), outputTable+","+outputJSON), ",")
}

func (p *program) namespace() events.Namespace { return events.Namespace(p.Namespace) }

// json reports whether the output format is json.
func (p *program) json() bool { return p.Output == outputJSON }

// printJSON prints one JSON value on a line of its own, byte for byte. On a terminal it prints
// characters that could control the terminal as JSON escapes, which do not change the value.
func (p *program) printJSON(value []byte) error {
	if p.isTerminal {
		value = terminal.PrintableJSON(value)
	}
	return p.print(string(value) + "\n")
}

// timeText returns a time for people: in UTC, or with --local in the local time zone.
func (p *program) timeText(at time.Time) string {
	if p.Local {
		return at.Local().Format(localTimeFormat)
	}
	return at.UTC().Format(holds.TimeFormat)
}

// localTimeFormat is holds.TimeFormat with the offset of a time zone.
const localTimeFormat = "2006-01-02T15:04:05.000-07:00"

// encode returns the JSON of a value, also if its texts, which may be those of an event, are not UTF-8.
func encode(value any) ([]byte, error) {
	text, err := json.Marshal(value, jsontext.AllowInvalidUTF8(true), json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return text, nil
}

// printValue prints the JSON of a value as printJSON does.
func (p *program) printValue(value any) error {
	text, err := encode(value)
	if err != nil {
		return err
	}
	return p.printJSON(text)
}

func (p *program) print(text string) error {
	if _, err := io.WriteString(p.out, text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// reportf prints a message on stderr.
func (p *program) reportf(format string, args ...any) {
	fmt.Fprintf(p.err, "publisher: %s\n", terminal.Printable(fmt.Sprintf(format, args...)))
}
