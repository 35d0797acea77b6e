package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"holdfast/internal/client"
	"holdfast/internal/terminal"
)

// inFlightMax bounds what a load keeps in memory: a line is up to 128 KiB.
const inFlightMax = 4096

// rateSlack is of how much time the events may be published together under --rate.
const rateSlack = 100 * time.Millisecond

// load publishes a file of events.
type load struct {
	File        string        `short:"f" required:"" placeholder:"FILE" predictor:"file" help:"The events, one a line, or one event over several lines; - is standard input."`
	Wait        bool          `help:"Wait for the outcome of each event, and count them."`
	Strict      bool          `help:"Stop at the first bad line."`
	Rejects     string        `placeholder:"FILE" predictor:"file" help:"Write bad lines to this file, as they are. What was in it is lost."`
	Batch       string        `placeholder:"TEXT" help:"Part of the id of each event in the short form: the same line with another batch is another event."`
	InFlight    int           `default:"256" placeholder:"N" help:"How many events are on their way at a time, 1 to 4096. With --wait, 1 has each decided before the next is published. Default: ${default}."`
	Rate        float64       `placeholder:"N" help:"Publish at most so many events a second."`
	GiveUpAfter time.Duration `default:"5m" help:"Stop when nothing could be stored for so long, like while the server is away."`
}

// Help implements kong's detailed help.
func (*load) Help() string {
	return `Publishes the events of a file, one a line, or one event over several lines: CloudEvents in JSON, or in the short form of an event's name and data, like

  {"event": "booking.requested", "data": {"request_key": "k1", "user_id": "ann", "resource_id": "loft", "quantity": 1}}

Every line is checked as a worker checks it. A bad line is told with its number and what a worker would say, and is not published; the others are. Lines are up to 128 KiB long, blank ones are passed over.

A load that was stopped is resumed by loading the same file again: nothing is done twice and every answer is the same, as long as the worker remembers its answers (24 hours by default). For that the id of an event in the short form is made of its content, so two lines with the same content are one event. To do the same once more, like setting a capacity back or extending a hold again, give another --batch, or write a CloudEvent with an id of its own.

Events are stored in the order of the lines, but a worker decides requests, payments and the rest side by side: load the inventory first, with --wait.

Exit codes, the first that applies: 1 the load was stopped, 4 there were bad lines or dead letters; with --wait 5 an event had no answer in time, 3 an event was rejected; 0.

Examples:

  publisher load -f inventory.ndjson --wait
  publisher load -f requests.ndjson --wait --rejects bad.ndjson -o json
  generate | publisher load -f - --rate 200`
}

// Validate implements kong's check of what was given.
func (v *load) Validate() error {
	switch {
	case v.InFlight < 1 || v.InFlight > inFlightMax:
		return misused("--in-flight: want 1 to %d", inFlightMax)
	case v.Rate < 0:
		return misused("--rate: want more than 0")
	case v.GiveUpAfter <= 0:
		return misused("--give-up-after: want more than 0")
	}
	return nil
}

// Run loads the file and prints what became of it, also when the load was stopped.
func (v *load) Run(ctx context.Context, p *program) (err error) {
	in, err := p.openInput(v.File)
	if err != nil {
		return err
	}
	defer in.close()
	rejects, err := v.openRejects(in)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rejects.Close()) }()
	bar := p.newProgress(in.size())
	defer bar.end()
	p.err = bar
	cl, disconnect, err := p.connect()
	if err != nil {
		return err
	}
	defer disconnect()
	bulk, err := cl.BulkPublisher(ctx, client.BulkOptions{
		InFlight: v.InFlight, AwaitOutcomes: v.Wait, Timeout: p.Timeout, GiveUpAfter: v.GiveUpAfter,
		OnError: func(err error) {
			p.reportf("nothing can be stored now, tried again for up to %s: %v", v.GiveUpAfter, err)
		},
	})
	if err != nil {
		return err
	}
	defer bulk.Close()

	l := &loading{load: v, program: p, in: in, bar: bar, bulk: bulk, rejects: rejects, summary: newSummary(in.name, v.Wait)}
	stopped := l.publishAll(ctx)
	if err := bulk.Wait(); stopped == nil {
		stopped = err
	}
	if ctx.Err() != nil {
		stopped = errStoppedByUser
	}
	bar.end()
	return l.finish(p.withHint(stopped))
}

// openRejects opens the file for bad lines. Without one they are dropped.
func (v *load) openRejects(in input) (io.WriteCloser, error) {
	if v.Rejects == "" {
		return discard{io.Discard}, nil
	}
	if found, err := os.Stat(v.Rejects); err == nil && in.info != nil && os.SameFile(found, in.info) {
		return nil, misused("--rejects: %s is the file that is loaded", v.Rejects)
	}
	file, err := os.Create(v.Rejects)
	if err != nil {
		return nil, misused("--rejects: %v", err)
	}
	return file, nil
}

// discard is a file that keeps nothing.
type discard struct{ io.Writer }

// Close implements io.Closer.
func (discard) Close() error { return nil }

// reportf prints a message to who runs the program.
func (p *program) reportf(format string, args ...any) {
	fmt.Fprintf(p.err, "publisher: %s\n", terminal.Printable(fmt.Sprintf(format, args...)))
}

// loading is a load under way.
type loading struct {
	*load
	*program
	in   input
	bar  *progress
	bulk *client.BulkPublisher
	stop context.CancelCauseFunc // publishes no more, for a reason

	mu      sync.Mutex // guards what follows
	summary *summary
	rejects io.Writer
	failed  error // why rejects could not be written
}

// errStoppedByUser says that who runs the program has stopped it.
var errStoppedByUser = errors.New("interrupted")

// errStrict says that a bad line has stopped the load.
var errStrict = errors.New("--strict")

// publishAll publishes line by line until the end of the file. It returns why it stopped before.
func (l *loading) publishAll(ctx context.Context) error {
	ctx, l.stop = context.WithCancelCause(ctx)
	defer l.stop(nil)
	unhook := context.AfterFunc(l.bulk.Context(), func() { l.stop(context.Cause(l.bulk.Context())) })
	defer unhook()
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
			l.bar.at(lines.offset)
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

// publishLine publishes a line, or tells why not.
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
	// Events of several sources may have the same id; JetStream would drop all but one.
	again := event.isCloudEvent || l.Wait
	err = l.bulk.Publish(event.message, again, func(r client.BulkResult) {
		var refused *client.RefusedError
		if errors.As(r.Err, &refused) {
			l.count(func(s *summary) { s.Lines-- })
			if err := l.rejectLine(next.number, refused, rewrite); err != nil {
				l.stop(err)
			}
			return
		}
		if r.Stored && r.Err != nil {
			l.reportf("%s:%d: %v", l.in.name, next.number, r.Err)
		}
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

// rejectLine tells, counts and keeps a bad line, which rewrite writes. It returns why the load has to
// stop, if it has.
func (l *loading) rejectLine(number int, why error, rewrite func(to io.Writer) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.summary.Lines++
	l.summary.BadLines++
	l.summary.last = max(l.summary.last, number)
	fmt.Fprintf(l.err, "%s:%d: %s\n", terminal.Printable(l.in.name), number, terminal.Printable(why.Error()))
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

// finish prints the summary and returns the error that has the load's exit code.
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
		l.reportf("stopped at a bad line (--strict); mend it and load the file again: what is stored already is not done twice")
		return errDeadLettered
	case stopped != nil:
		return fmt.Errorf("stopped after line %d of %s: %w\nTo go on, load the same again: what is stored already is not done twice", s.last, s.File, stopped)
	case s.BadLines > 0 || s.deadLettered > 0:
		return errDeadLettered
	case s.Unanswered > 0:
		return fmt.Errorf("%w (%s): %d events are stored and will have their outcomes. To see them, load the same again: nothing is done twice. Does a worker run in namespace %s?",
			client.ErrReplyTimeout, l.Timeout, s.Unanswered, l.Namespace)
	case s.rejected > 0:
		return errRejected
	}
	return nil
}
