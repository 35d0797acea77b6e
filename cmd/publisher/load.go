package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/time/rate"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/terminal"
)

// inFlightMax bounds the memory of a load: a line is up to 128 KiB.
const inFlightMax = 4096

// rateSlack is the time whose events --rate allows in one burst.
const rateSlack = 100 * time.Millisecond

// load publishes a file of events.
type load struct {
	File        string        `short:"f" required:"" placeholder:"FILE" predictor:"file" help:"File of events, one a line, or one event over several lines; - for standard input."`
	Wait        bool          `help:"Wait for the outcome of each event, and count the outcomes."`
	Strict      bool          `help:"Stop at the first bad line."`
	Rejects     string        `nonzero:"is empty; give a file, or leave the flag out" placeholder:"FILE" predictor:"file" help:"Write bad lines to this file, unchanged. Overwrites the file."`
	Batch       string        `placeholder:"TEXT" help:"Part of the id of each event in the short form. The same line with another batch is another event."`
	InFlight    int           `default:"256" placeholder:"N" help:"Number of events in flight, 1 to 4096. With --wait and 1, each event has its outcome before the next is published. Default: ${default}."`
	Rate        float64       `placeholder:"N" help:"Publish at most N events per second."`
	GiveUpAfter time.Duration `default:"5m" help:"Stop when no event could be stored for this time, for example because the server is down."`
}

func (*load) Help() string {
	return `Publishes the events of a file, one a line, or one event over several lines. An event is a
CloudEvent in JSON, or in the short form of event name and data:

  {"event": "booking.requested", "data": {"request_key": "k1", "user_id": "ann", "resource_id": "loft", "quantity": 1}}

Every line is validated as by a worker. A bad line, which a worker would dead-letter, is printed
with its number and the error, and is not published; the other lines are. Lines are up to 128 KiB
long. Blank lines are skipped.

To resume a stopped load, load the same file again: no event is processed twice and every outcome is
the same, as long as the worker remembers its answers (24 hours by default). What the earlier load
stored is counted as published: "duplicates" are only lines in the short form whose event NATS has
stored less than 100 ms before. The id of an event in the short form is derived from its content, so
two lines with the same content are one event. To repeat an event, for example to reset a capacity or
to extend a hold again, give another --batch, or write a CloudEvent with its own id.

Events are stored in the order of the lines while the connection holds. Those in flight when it breaks
are published again in any order, and a second load does not change what they have done. If lines depend
on each other, as two inventory.set of one slot do, give --in-flight 1. Workers process requests, payments
and other events concurrently: load the inventory first, with --wait.

Exit codes, the first that applies: 1 the load was stopped, except by --strict; 4 lines were bad or events
dead-lettered; with --wait, 5 an event had no outcome in time; with --wait, 3 an event was rejected;
0.

Examples:

  publisher load -f inventory.ndjson --wait
  publisher load -f requests.ndjson --wait --rejects bad.ndjson -o json
  generate | publisher load -f - --rate 200`
}

func (c *load) Validate() error {
	switch {
	case c.InFlight < 1 || c.InFlight > inFlightMax:
		return misused("--in-flight: must be 1 to %d", inFlightMax)
	case c.GiveUpAfter <= 0:
		return misused("--give-up-after: must be more than 0")
	}
	return checkRate(c.Rate)
}

// checkRate returns an error unless events per second are a number: NaN and Inf would lift the limit.
func checkRate(perSecond float64) error {
	if !(perSecond >= 0) || math.IsInf(perSecond, 1) {
		return misused("--rate: must be a number, and not negative")
	}
	return nil
}

// Run loads the file and prints a summary, even if the load was stopped.
func (c *load) Run(ctx context.Context, p *program) (err error) {
	if c.Wait {
		if err := p.checkReplies(); err != nil {
			return err
		}
	}
	in, err := p.openInput("--file", c.File)
	if err != nil {
		return err
	}
	defer in.close()
	bar := terminal.NewProgress(p.err, in.size(), progressbar.OptionSetDescription("loading"),
		progressbar.OptionShowBytes(true), progressbar.OptionShowCount())
	defer bar.End()
	p.err = bar
	cl, err := p.connect(ctx)
	if err != nil {
		return err
	}
	rejects, err := c.createRejects(in)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rejects.Close()) }()
	bulk := cl.BulkPublisher(ctx, client.BulkOptions{
		InFlight: c.InFlight, AwaitOutcomes: c.Wait, Timeout: p.Timeout, GiveUpAfter: c.GiveUpAfter,
		OnError: func(err error) {
			order := ""
			if c.InFlight > 1 {
				order = fmt.Sprintf("; the order of up to %d lines may change, see --in-flight", c.InFlight)
			}
			p.reportf("publish failed, retrying for up to %s: %v%s", c.GiveUpAfter, err, order)
		},
	})
	defer bulk.Close()

	l := &loading{
		load: c, program: p, in: in, bar: bar, bulk: bulk, rejects: rejects, summary: newSummary(in.name, c.Wait),
	}
	stopped := l.publishAll()
	if err := bulk.Wait(); stopped == nil {
		stopped = err
	}
	if ctx.Err() != nil {
		stopped = errInterrupted
	}
	bar.End()
	return l.finish(p.withHint(stopped))
}

// createRejects creates the file of --rejects, or empties it. Without the flag the result discards the lines.
func (c *load) createRejects(in input) (io.WriteCloser, error) {
	if found, err := os.Stat(c.Rejects); err == nil && in.info != nil && os.SameFile(found, in.info) {
		return nil, misused("--rejects: %s is the input file", c.Rejects)
	}
	const flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC                  // not read: the reader of a pipe may end
	file, err := os.OpenFile(cmp.Or(c.Rejects, os.DevNull), flags, 0o666) //nolint:gosec // the mode of os.Create: the umask decides
	if err != nil {
		return nil, misused("--rejects: %v", err)
	}
	return file, nil
}

// loading is a running load.
type loading struct {
	*load
	*program
	in   input
	bar  *terminal.Progress
	bulk *client.BulkPublisher
	stop context.CancelCauseFunc // stops publishing, with the reason

	mu      sync.Mutex // guards the fields below
	summary *summary
	rejects io.Writer
	failed  error // the error of writing to rejects
}

// errStrict reports that a bad line stopped the load.
var errStrict = errors.New("--strict")

// publishAll publishes line by line until the end of the file. It returns an error if it stopped
// earlier.
func (l *loading) publishAll() error {
	var ctx context.Context
	ctx, l.stop = context.WithCancelCause(l.bulk.Context())
	defer l.stop(nil)
	limiter := rate.NewLimiter(rate.Inf, 1)
	if l.Rate > 0 {
		limiter = rate.NewLimiter(rate.Limit(l.Rate), max(1, int(l.Rate*rateSlack.Seconds())))
	}
	lines := newLineReader(ctx, l.in.file)
	for {
		next, err := lines.event()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			l.bar.Set(lines.offset)
			err = l.publishLine(ctx, limiter, lines, next)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// publishLine publishes a line, or rejects it. It returns an error if the load must stop.
func (l *loading) publishLine(ctx context.Context, limiter *rate.Limiter, lines *lineReader, next inputLine) error {
	if next.tooLong {
		return l.rejectLine(next.number, errLineTooLong, func(to io.Writer) error {
			if _, err := to.Write(next.text); err != nil {
				return err
			}
			return lines.copyRest(to)
		})
	}
	text := bytes.Clone(next.text)
	rewrite := func(to io.Writer) error { _, err := to.Write(text); return err }
	event, err := l.compose(text, l.Batch)
	if err != nil {
		return l.rejectLine(next.number, err, rewrite)
	}
	if err := limiter.Wait(ctx); err != nil {
		return err
	}
	// JetStream drops a second event with the same message id. A CloudEvent may be another event with
	// the same id, and with --wait every line needs a reply: these are published again.
	republish := event.isCloudEvent || l.Wait
	err = l.bulk.Publish(event.message, republish, func(r client.BulkResult) {
		if events.IsTooLarge(r.Err) {
			l.count(func(s *summary) { s.Lines-- })
			if err := l.rejectLine(next.number, r.Err, rewrite); err != nil {
				l.stop(err)
			}
			return
		}
		if r.Stored && r.Err != nil {
			l.reportf("%s:%d: %v", l.in.name, next.number, r.Err)
		}
		r.Duplicate = r.Duplicate && !event.isCloudEvent // that was published again, and may be another event
		l.count(func(s *summary) { s.add(r) })
	})
	if err == nil {
		l.count(func(s *summary) { s.Lines++; s.last = max(s.last, next.number) })
	}
	return err
}

func (l *loading) count(add func(s *summary)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	add(l.summary)
}

// rejectLine prints the error of a bad line, counts the line and writes it to rejects with
// rewrite. It returns an error if the load must stop.
func (l *loading) rejectLine(number int, reason error, rewrite func(to io.Writer) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.summary.Lines++
	l.summary.BadLines++
	l.summary.last = max(l.summary.last, number)
	fmt.Fprintf(l.err, "%s:%d: %s\n", terminal.Printable(l.in.name), number, terminal.Printable(reason.Error()))
	if l.failed == nil {
		l.failed = rewrite(l.rejects)
	}
	if l.failed == nil {
		_, l.failed = l.rejects.Write([]byte("\n"))
	}
	switch {
	case l.failed != nil:
		return fmt.Errorf("--rejects: %w", l.failed)
	case l.Strict:
		return errStrict
	}
	return nil
}

// finish prints the summary and returns the error for the exit code.
func (l *loading) finish(stopped error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.summary
	s.Complete = stopped == nil
	if err := l.printSummary(s); err != nil {
		return err
	}
	if stopped == nil && l.failed != nil {
		stopped = fmt.Errorf("--rejects: %w", l.failed)
	}
	switch {
	case errors.Is(stopped, errStrict):
		l.reportf("stopped at a bad line (--strict); correct it and load the file again: no event is processed twice")
		return errDeadLettered
	case stopped != nil:
		return fmt.Errorf("stopped after line %d of %s: %w\nTo resume, load the same file again: no event is processed twice",
			s.last, s.File, stopped)
	case s.BadLines > 0 || s.deadLettered > 0:
		return errDeadLettered
	case s.Unanswered > 0:
		return fmt.Errorf("%w (%s): %d events are stored and will have outcomes. "+
			"To see them, load the same file again: no event is processed twice. Is a worker running in namespace %s?",
			client.ErrReplyTimeout, l.Timeout, s.Unanswered, l.Namespace)
	case s.rejected > 0:
		return errRejected
	}
	return nil
}
