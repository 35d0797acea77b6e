package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/terminal"
)

// dlq is the commands for dead letters: events that a worker could not process.
type dlq struct {
	List    dlqList    `cmd:"" aliases:"ls" outputs:"table,wide,json,ndjson" help:"List dead letters, oldest first."`
	Stats   dlqStats   `cmd:"" outputs:"table,wide,json,ndjson" help:"Count dead letters by reason."`
	Show    dlqShow    `cmd:"" help:"Show one dead letter."`
	Replay  dlqReplay  `cmd:"" outputs:"table,wide,json,ndjson" help:"Publish the events of dead letters again."`
	Edit    dlqEdit    `cmd:"" outputs:"table,wide,json,ndjson" help:"Publish a corrected copy of a dead-lettered event."`
	Discard dlqDiscard `cmd:"" outputs:"table,wide,json,ndjson" help:"Remove dead letters permanently."`
	Export  dlqExport  `cmd:"" outputs:"ndjson,json" help:"Write dead letters with headers and bodies, as one JSON object a line."`
	Runs    dlqRuns    `cmd:"" outputs:"table,wide,json,ndjson" help:"Show past replays, edits and discards."`
}

func (*dlq) Help() string {
	return `A dead letter is an event that no worker can process, for example because it is malformed. It is
stored with its reason until it is replayed or discarded.

Examples:

  publisher dlq list --since 1d
  publisher dlq show 12
  publisher dlq replay --all --reason poison --dry-run
  publisher dlq discard 12 --note "a test of the booking team"`
}

// deadLetterFlags select dead letters.
type deadLetterFlags struct {
	Reason     []string `nonzero:"is empty; leave the flag out for all reasons" enum:"too_large,malformed,unknown_type,subject_mismatch,poison" placeholder:"REASON" help:"Only dead letters with this reason: ${enum}. Repeat the flag for several."`
	Type       string   `nonzero:"is empty; leave the flag out for all types" placeholder:"EVENT" help:"Only events of this type, like booking.requested."`
	ResourceID string   `nonzero:"is empty; leave the flag out for all resources" placeholder:"R" help:"Only events of this resource."`
	UserID     string   `nonzero:"is empty; leave the flag out for all users" placeholder:"U" help:"Only events of this user."`
	Since      moment   `placeholder:"WHEN" help:"Only dead letters stored since then: RFC 3339, or an age like 90m or 2d."`
	Until      moment   `placeholder:"WHEN" help:"Only dead letters stored before then: RFC 3339, or an age like 90m or 2d."`
	Contains   string   `nonzero:"is empty; leave the flag out for all details" placeholder:"TEXT" help:"Only dead letters with this text in their detail."`
	Limit      int      `nonzero:"must be at least 1" placeholder:"N" help:"At most N dead letters: the oldest, or with list --newest the newest."`
}

func (f *deadLetterFlags) Validate() error {
	switch {
	case f.Limit < 0:
		return misused("--limit: must be at least 1")
	case !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until.Time):
		return misused("--since: must be before --until")
	}
	return nil
}

// filter returns the filter of the flags. The limit is not part of it.
func (f *deadLetterFlags) filter() client.DeadLetterFilter {
	return client.DeadLetterFilter{
		Reasons: f.Reason, Type: f.Type, ResourceID: f.ResourceID, UserID: f.UserID,
		Since: f.Since.Time, Until: f.Until.Time, Contains: f.Contains,
	}
}

// moment is an optional time.
type moment struct{ time.Time }

// UnmarshalText implements encoding.TextUnmarshaler for a flag: RFC 3339, or an age.
func (m *moment) UnmarshalText(text []byte) error {
	at, err := client.ParseMoment(string(text))
	m.Time = at
	return err
}

// choice is the dead letters that a command changes or removes: those in Seqs, or with All those that
// match the filters.
type choice struct {
	Seqs    []uint64        `arg:"" optional:"" name:"seq" help:"Sequences of dead letters, as dlq list shows them."`
	All     bool            `help:"All dead letters, or with filters all matching."`
	Filters deadLetterFlags `embed:""`
}

// isEmpty reports whether the command line selects no dead letters.
func (c *choice) isEmpty() bool { return len(c.Seqs) == 0 && !c.All && !c.narrowed() }

// narrowed reports whether filters are given.
func (c *choice) narrowed() bool { return !reflect.ValueOf(c.Filters).IsZero() }

// Validate implements kong's check: sequences exclude filters, and filters need --all.
func (c *choice) Validate() error {
	switch {
	case len(c.Seqs) > 0 && (c.All || c.narrowed()):
		return misused("give sequences, or --all with filters, not both")
	case !c.All && c.narrowed():
		return misused("filters need --all: it selects all matching dead letters")
	}
	slices.Sort(c.Seqs)
	c.Seqs = slices.Compact(c.Seqs)
	return nil
}

// operatorFlags are the flags of every command that changes something.
type operatorFlags struct {
	Yes  bool   `short:"y" help:"Do not ask for confirmation. Required if stdin is not a terminal."`
	Note string `placeholder:"TEXT" help:"The reason, recorded with the run."`
	Who  string `env:"HOLDFAST_WHO" placeholder:"NAME" help:"Operator name, recorded with the run. Default: user@host."`
}

// errUnconfirmed reports that the operator did not answer yes.
var errUnconfirmed = errors.New("aborted")

// canConfirm returns an error if --yes is not given and the operator cannot be asked. A command calls it
// before it connects.
func (p *program) canConfirm(o operatorFlags) error {
	if !o.Yes && !terminal.Is(p.in) {
		return misused("stdin is not a terminal, confirmation is impossible: give --yes")
	}
	return nil
}

// confirm asks a question on the terminal, unless --yes is given. It returns errUnconfirmed unless
// the answer is yes.
func (p *program) confirm(ctx context.Context, o operatorFlags, question string) error {
	if o.Yes || terminal.Confirmed(ctx, p.in, p.err, question) {
		return nil
	}
	return errUnconfirmed
}

// deadLetters connects, and returns the dead letters of the namespace.
func (p *program) deadLetters(ctx context.Context) (*client.DeadLetters, error) {
	cl, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	deadLetters, err := cl.DeadLetters(ctx)
	return deadLetters, p.withHint(err)
}

// choose returns the selected dead letters, oldest first. With bodies it also fetches bodies that are
// stored elsewhere.
func (c *choice) choose(
	ctx context.Context, deadLetters *client.DeadLetters, bodies bool,
) iter.Seq2[*events.DeadLetter, error] {
	if c.All {
		return limited(deadLetters.All(ctx, c.Filters.filter(), bodies), c.Filters.Limit)
	}
	return func(yield func(*events.DeadLetter, error) bool) {
		for _, seq := range c.Seqs {
			if l, err := deadLetters.Get(ctx, seq); !yield(l, err) || err != nil {
				return
			}
		}
	}
}

// limited returns the first limit dead letters, or all if limit is 0.
func limited(deadLetters iter.Seq2[*events.DeadLetter, error], limit int) iter.Seq2[*events.DeadLetter, error] {
	return func(yield func(*events.DeadLetter, error) bool) {
		n := 0
		for l, err := range deadLetters {
			if n++; !yield(l, err) || n == limit {
				return
			}
		}
	}
}

// startRun asks for confirmation and starts a run over the selected dead letters. It returns a nil
// log without an error if no dead letters match, which it prints.
func (p *program) startRun(
	ctx context.Context, deadLetters *client.DeadLetters, c *choice, o *operatorFlags, action string, run client.Run,
) (*client.RunLog, error) {
	var seqs []uint64
	var oldest, newest time.Time
	reasons := make(map[string]int)
	for l, err := range c.choose(ctx, deadLetters, false) {
		if err != nil {
			return nil, err
		}
		if len(seqs) == 0 {
			oldest = l.StoredAt
		}
		seqs, newest = append(seqs, l.Seq), l.StoredAt
		reasons[l.Reason]++
	}
	run.Operator, run.Note = terminal.Operator(o.Who), o.Note
	if c.All {
		filter := c.Filters.filter()
		run.Filter, run.Limit = &filter, c.Filters.Limit
	}
	if len(seqs) == 0 {
		if run.State = client.RunDone; p.json() {
			return nil, p.printRun(&run) // which is not recorded
		}
		p.reportf("no matching dead letters")
		return nil, nil
	}
	age := since(newest)
	if age != since(oldest) {
		age += " to " + since(oldest)
	}
	question := fmt.Sprintf("%s %s (%s), %s old?", action, terminal.Counted(len(seqs), "dead letter"), tally(reasons), age)
	if err := p.confirm(ctx, *o, question); err != nil {
		return nil, err
	}
	log, err := deadLetters.StartRun(ctx, run, seqs)
	return log, p.withHint(err)
}

// tally returns the counts with their words, the most frequent first.
func tally(counts map[string]int) string {
	words := terminal.ByCount(counts)
	for i, word := range words {
		words[i] = fmt.Sprintf("%d %s", counts[word], terminal.Printable(word))
	}
	return strings.Join(words, ", ")
}

// since returns the age of a time, for people.
func since(at time.Time) string { return events.Humanize(time.Since(at)) }

// distance returns how far a time is from now, for people.
func distance(at time.Time) string {
	if left := time.Until(at); left > 0 {
		return "in " + events.Humanize(left)
	}
	return since(at) + " ago"
}

// bytesText returns a number of bytes, for people.
func bytesText(n int) string {
	if n < 1<<10 {
		return strconv.Itoa(n) + " B"
	}
	return strconv.FormatFloat(float64(n)/(1<<10), 'f', 1, 64) + " KiB"
}
