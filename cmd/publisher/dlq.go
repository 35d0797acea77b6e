package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/terminal"
)

// dlq is the verbs on dead letters: events that could not be processed.
type dlq struct {
	List    dlqList    `cmd:"" aliases:"ls" help:"List dead letters, oldest first."`
	Stats   dlqStats   `cmd:"" help:"Count dead letters by reason."`
	Show    dlqShow    `cmd:"" help:"Show one dead letter: its event, and why, where and when it died."`
	Replay  dlqReplay  `cmd:"" help:"Publish the events of dead letters again, or say what would happen."`
	Edit    dlqEdit    `cmd:"" help:"Publish a corrected copy of an event. The dead letter stays."`
	Discard dlqDiscard `cmd:"" help:"Remove dead letters for good."`
	Export  dlqExport  `cmd:"" help:"Write dead letters with all that they have, one JSON object a line."`
	Runs    dlqRuns    `cmd:"" help:"Show who did what to dead letters, when and why."`
}

// deadLetterFlags say which dead letters are meant.
type deadLetterFlags struct {
	Reason     []string `enum:"too_large,malformed,unknown_type,subject_mismatch,poison" placeholder:"REASON" help:"Only those with this reason (repeat it for more): ${enum}."`
	Type       string   `placeholder:"EVENT" help:"Only this event, like booking.requested."`
	ResourceID string   `placeholder:"R" help:"Only about this resource."`
	UserID     string   `placeholder:"U" help:"Only of this user."`
	Since      moment   `placeholder:"WHEN" help:"Only those stored since then: RFC 3339, or how long ago, like 90m or 2d."`
	Until      moment   `placeholder:"WHEN" help:"Only those stored before then, likewise."`
	Contains   string   `placeholder:"TEXT" help:"Only those with this text in their detail."`
	Limit      int      `placeholder:"N" help:"At most so many: the oldest, but for list --newest."`
}

// Validate implements kong's check.
func (f *deadLetterFlags) Validate() error {
	switch {
	case f.Limit < 0:
		return misused("--limit: must not be negative")
	case !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until.Time):
		return misused("--since: must be before --until")
	}
	return nil
}

// filter is what the flags say, but for the limit.
func (f *deadLetterFlags) filter() client.DeadLetterFilter {
	return client.DeadLetterFilter{
		Reasons: f.Reason, Type: f.Type, ResourceID: f.ResourceID, UserID: f.UserID,
		Since: f.Since.Time, Until: f.Until.Time, Contains: f.Contains,
	}
}

// moment is a time, or none.
type moment struct{ time.Time }

// UnmarshalText implements encoding.TextUnmarshaler for a flag: RFC 3339, or how long ago.
func (m *moment) UnmarshalText(text []byte) error {
	if at, err := time.Parse(time.RFC3339, string(text)); err == nil {
		m.Time = at.UTC()
		return nil
	}
	ago, err := time.ParseDuration(string(text))
	if days, isDays := strings.CutSuffix(string(text), "d"); isDays {
		var n uint16
		n, err = parseDays(days)
		ago = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || ago < 0 {
		return fmt.Errorf("want RFC 3339, or how long ago, like 90m or 2d, got %q", text)
	}
	m.Time = time.Now().UTC().Add(-ago)
	return nil
}

func parseDays(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err
}

// choice says which dead letters a verb is for that changes something: some that are named, or
// all that the flags mean.
type choice struct {
	Seqs    []uint64        `arg:"" optional:"" name:"seq" help:"Dead letters by their sequence, as list shows it."`
	All     bool            `help:"All dead letters, or with filters all that they mean."`
	Filters deadLetterFlags `embed:""`
}

// isEmpty reports whether nothing was chosen.
func (c *choice) isEmpty() bool { return len(c.Seqs) == 0 && !c.All && !c.narrowed() }

// narrowed reports whether there are filters.
func (c *choice) narrowed() bool {
	f := c.Filters.filter()
	return c.Filters.Limit > 0 || f.NeedsBody() || len(f.Reasons) > 0 || f.Contains != "" || !f.Since.IsZero() || !f.Until.IsZero()
}

// Validate implements kong's check: letters are named or filtered, and all is said on purpose.
func (c *choice) Validate() error {
	switch {
	case len(c.Seqs) > 0 && (c.All || c.narrowed()):
		return misused("give sequences, or --all with filters, not both")
	case !c.All && c.narrowed():
		return misused("give --all too: then all that the filters mean are chosen")
	}
	slices.Sort(c.Seqs)
	c.Seqs = slices.Compact(c.Seqs)
	return nil
}

// operatorFlags is what every verb takes that changes something.
type operatorFlags struct {
	Yes  bool   `short:"y" help:"Do not ask. Needed where nobody can be asked: stdin is no terminal."`
	Note string `placeholder:"TEXT" help:"Why. It is kept with the run."`
	Who  string `env:"HOLDFAST_WHO" placeholder:"NAME" help:"Who. It is kept with the run. Default: user@host."`
}

// operator is who runs the program.
func (t *operatorFlags) operator() string {
	if t.Who != "" {
		return t.Who
	}
	name, host := "unknown", "unknown"
	if account, err := user.Current(); err == nil {
		name = account.Username
	}
	if found, err := os.Hostname(); err == nil {
		host = found
	}
	return name + "@" + host
}

// errUnconfirmed says that the answer was not yes.
var errUnconfirmed = errors.New("nothing was done")

// confirm asks whether something is to be done, unless that was said already.
func (p *program) confirm(ctx context.Context, t operatorFlags, question string) error {
	if t.Yes {
		return nil
	}
	if !p.canPrompt() {
		return misused("stdin is no terminal, so nobody can be asked: give --yes")
	}
	fmt.Fprintf(p.err, "%s [y/N] ", question)
	answered := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(p.in).ReadString('\n') // without an answer it is ""
		answered <- line
	}()
	select {
	case answer := <-answered:
		if word := strings.ToLower(strings.TrimSpace(answer)); word == "y" || word == "yes" {
			return nil
		}
	case <-ctx.Done():
		fmt.Fprintln(p.err)
	}
	return errUnconfirmed
}

// canPrompt reports whether somebody sits at stdin.
func (p *program) canPrompt() bool { return isTerminal(p.in) }

// deadLetters returns the dead letters of the namespace. The caller calls disconnect.
func (p *program) deadLetters(ctx context.Context) (cl *client.Client, deadLetters *client.DeadLetters, disconnect func(), err error) {
	cl, disconnect, err = p.connect()
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	deadLetters, err = cl.DeadLetters(ctx)
	if err != nil {
		disconnect()
		return nil, nil, nil, p.withHint(err)
	}
	return cl, deadLetters, disconnect, nil
}

// choose returns the letters that are meant, oldest first. bodies says whether the events
// themselves are wanted.
func (c *choice) choose(ctx context.Context, deadLetters *client.DeadLetters, bodies bool) iter.Seq2[*events.DeadLetter, error] {
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

// limited returns the first so many, or all when that is 0.
func limited(deadLetters iter.Seq2[*events.DeadLetter, error], limit int) iter.Seq2[*events.DeadLetter, error] {
	return func(yield func(*events.DeadLetter, error) bool) {
		n := 0
		for l, err := range deadLetters {
			if !yield(l, err) {
				return
			}
			if n++; n == limit {
				return
			}
		}
	}
}

// startRun asks whether something is to be done to the letters that are meant, and begins a run
// over them. It returns no log when there are none, which it tells, or when it was not confirmed.
func (p *program) startRun(ctx context.Context, cl *client.Client, deadLetters *client.DeadLetters,
	c *choice, t *operatorFlags, question string, run client.Run,
) (*client.RunLog, []uint64, error) {
	var seqs []uint64
	var found []*events.DeadLetter
	for l, err := range c.choose(ctx, deadLetters, false) {
		if err != nil {
			return nil, nil, err
		}
		seqs = append(seqs, l.Seq)
		found = append(found, &events.DeadLetter{Reason: l.Reason, StoredAt: l.StoredAt})
	}
	run.Operator, run.Note = t.operator(), t.Note
	if c.All {
		filter := c.Filters.filter()
		run.Filter = &filter
	}
	if len(seqs) == 0 {
		run.State = client.RunDone
		return nil, nil, p.printNoDeadLetters(&run)
	}
	if err := p.confirm(ctx, *t, question+" "+described(found)+"?"); err != nil {
		return nil, nil, err
	}
	log, err := cl.StartRun(ctx, run, seqs)
	if err != nil {
		return nil, nil, p.withHint(err)
	}
	return log, seqs, nil
}

// described says how many letters there are, of what, and how old.
func described(list []*events.DeadLetter) string {
	counts := make(map[string]int)
	for _, l := range list {
		counts[l.Reason]++
	}
	text := counted(len(list), "dead letter") + " (" + tally(counts) + ")"
	oldest, newest := since(list[0].StoredAt), since(list[len(list)-1].StoredAt)
	if oldest == newest {
		return text + ", " + oldest + " old"
	}
	return text + ", " + newest + " to " + oldest + " old"
}

// tally is how often each of some words occurs, the most frequent first.
func tally(counts map[string]int) string {
	texts := make([]string, 0, len(counts))
	for _, word := range byCount(counts) {
		texts = append(texts, fmt.Sprintf("%d %s", counts[word], terminal.Printable(word)))
	}
	return strings.Join(texts, ", ")
}

// byCount returns the words, the most frequent first.
func byCount(counts map[string]int) []string {
	words := make([]string, 0, len(counts))
	for word := range counts {
		words = append(words, word)
	}
	slices.SortFunc(words, func(a, b string) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		return strings.Compare(a, b)
	})
	return words
}

func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// since is how long ago something was, for a person.
func since(at time.Time) string { return events.Humanize(time.Since(at)) }

// bytesText is a number of bytes, for a person.
func bytesText(n int) string {
	if n < 1<<10 {
		return strconv.Itoa(n) + " B"
	}
	return strconv.FormatFloat(float64(n)/(1<<10), 'f', 1, 64) + " KiB"
}
