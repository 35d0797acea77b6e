package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// The verbs of runs.
const (
	RunReplay  = "replay"
	RunEdit    = "edit"
	RunDiscard = "discard"
)

// Discarded is the result of a dead letter that was discarded.
const Discarded = "discarded"

// The states of a run.
const (
	RunUnfinished = "unfinished" // in progress, or its process was killed
	RunDone       = "done"
	RunStopped    = "stopped" // before its end, by an operator or after too many failures
)

// RunResultsMax is the maximum number of results in one record.
const RunResultsMax = 50

// runSeqsMax is the maximum number of dead letters in one record.
const runSeqsMax = 4000

// Run is the work of an operator on dead letters: who did what to which of them, when, why, and
// with which results. It is stored as records on one subject. Each record repeats the fields of the
// run as of that record, but contains only the dead letters and results that no earlier record
// contains.
type Run struct {
	ID         string            `json:"run_id,omitzero"` // a UUIDv7; this and the times are missing in one that is not recorded
	Verb       string            `json:"verb"`
	State      string            `json:"state"`
	Operator   string            `json:"who"`
	Note       string            `json:"note"`
	StartedAt  holds.Time        `json:"started_at,omitzero"` // by the clock of the operator's machine, like RecordedAt
	RecordedAt holds.Time        `json:"recorded_at,omitzero"`
	Filter     *DeadLetterFilter `json:"filter,omitzero"`            // nil when the operator named the dead letters
	Limit      int               `json:"limit,omitzero"`             // of the dead letters that match Filter, only so many; 0 is all
	Keep       bool              `json:"keep,omitzero"`              // the dead letters are not removed
	Limits     *RunLimits        `json:"limits,omitzero"`            // of a replay
	Total      int               `json:"letters"`                    // number of dead letters
	Counts     map[string]int    `json:"counts"`                     // number of dead letters by result
	Stream     holds.Time        `json:"stream_created_at,omitzero"` // of the dead letters
	Seqs       []uint64          `json:"seqs,omitzero"`              // the dead letters
	Results    []RunResult       `json:"results,omitzero"`
}

// IsOver reports whether a run has nothing to resume: it is done, no dead letter failed, and each event has its outcome.
func (r *Run) IsOver() bool {
	return r.State == RunDone && r.Counts[ReplayFailed] == 0 && r.Counts[ReplayNoOutcome] == 0
}

// RunLimits are the limits of a replay. A resumed run keeps them.
type RunLimits struct {
	Rate           float64 `json:"rate"`             // maximum number of events per second; 0 is no limit
	StopOnFailures int     `json:"stop_on_failures"` // percentage of the processed dead letters; above it the run stops
	MaxReplays     uint64  `json:"max_replays"`      // dead letters replayed this often or more are skipped; 0 is no limit
}

// FailuresMin is the number of processed dead letters from which the share of failures counts.
const FailuresMin = 20

// DefaultRunLimits are the limits of a replay unless the operator gives others.
var DefaultRunLimits = RunLimits{Rate: 50, StopOnFailures: 20, MaxReplays: 3}

// exceeded returns an error if more of the processed events failed than StopOnFailures allows. A run without
// limits never stops.
func (l *RunLimits) exceeded(processed, failed int) error {
	if l != nil && processed >= FailuresMin && failed*100 > l.StopOnFailures*processed {
		return fmt.Errorf("stopped, because %d of %d were dead-lettered again or failed, more than %d%%", failed, processed,
			l.StopOnFailures)
	}
	return nil
}

// ReplayOf returns the event that a replay of a dead letter publishes. When it publishes none, the event is nil and why is
// what a dry run says.
func (l *RunLimits) ReplayOf(ns events.Namespace, d *events.DeadLetter) (m *nats.Msg, why events.DryRunResult) {
	if l.exhausted(d) {
		return nil, events.DryRunResult{Text: ReplaySkipped, Detail: exhaustedDetail(d)}
	}
	m, err := d.Again(ns)
	if err != nil {
		return nil, events.DryRunResult{Text: "cannot be replayed", Detail: err.Error()}
	}
	return m, events.DryRunResult{}
}

// exhausted reports whether an event was dead-lettered again after as many replays as the limits allow.
func (l *RunLimits) exhausted(d *events.DeadLetter) bool {
	return l.MaxReplays > 0 && d.Replays >= l.MaxReplays
}

// exhaustedDetail says why a dead letter is skipped, and what to do.
func exhaustedDetail(d *events.DeadLetter) string {
	noun := "replays"
	if d.Replays == 1 {
		noun = "replay"
	}
	return fmt.Sprintf("dead-lettered again after %d %s; to replay it nevertheless: publisher dlq replay %d", d.Replays, noun, d.Seq)
}

// Processed returns the number of dead letters that have a result.
func (r *Run) Processed() (n int) {
	for _, count := range r.Counts {
		n += count
	}
	return n
}

// RunLog writes the records of a run. It is not safe for concurrent use.
type RunLog struct {
	Run  Run      // without dead letters and results
	Left []uint64 // the dead letters to process

	c         *Client
	last      uint64    // sequence of the last record
	startedAt time.Time // when the first record was stored, by the server's clock; zero unless the run is resumed

	// earlierEnds is when an earlier process of a resumed run surely ends, by the clock of this machine. Until then it
	// stores events, unless it was killed.
	earlierEnds time.Time

	// unanswered are the earlier results of dead letters whose events are stored and had no outcome in time.
	unanswered map[uint64]RunResult
}

// NewRunID returns the id of a new run.
func NewRunID() string { return uuid.Must(uuid.NewV7()).String() } // rand.Read never fails

// StartRun writes the first records of a run over dead letters. It sets the state, the times, the
// counts and, unless it is given, the id. It writes nothing and returns ErrRunStream when the stream of dead letters is
// no longer the one from which d has read.
func (d *DeadLetters) StartRun(ctx context.Context, run Run, seqs []uint64) (*RunLog, error) {
	now, err := d.DeadLetters(ctx)
	if err != nil {
		return nil, err
	}
	if run.Stream = d.CreatedAt(); !run.Stream.Equal(now.CreatedAt().Time) {
		return nil, fmt.Errorf("the %w", ErrRunStream)
	}
	run.ID = cmp.Or(run.ID, NewRunID())
	run.State, run.StartedAt = RunUnfinished, ownTime()
	run.Total, run.Counts = len(seqs), make(map[string]int)
	log := &RunLog{Run: run, Left: seqs, c: d.Client}
	for chunk := range slices.Chunk(seqs, runSeqsMax) {
		if err := log.write(ctx, chunk, nil); err != nil {
			return nil, err
		}
	}
	return log, nil
}

// ownTime returns the time of this machine.
func ownTime() holds.Time { return holds.Time{Time: time.Now().UTC()} }

// ErrRunNotStarted reports that a run was killed before it began its work.
var ErrRunNotStarted = errors.New("run never started, start a new one")

// ErrRunStream reports that the dead letters of a run are of a stream that no longer exists.
var ErrRunStream = errors.New("stream of dead letters was deleted and created again since, " +
	"and has others under the same sequences: start a new run")

// ErrRunOver reports that a run has nothing to resume.
var ErrRunOver = errors.New("done, nothing to resume")

// ResumeRun continues the records of a run. Unless limits is nil, they replace the limits of the
// run. Left are the dead letters that have no result or failed, and those whose outcome did not come in
// time. It writes nothing and returns ErrRunOver when the run IsOver, and ErrRunStream when their stream
// is another one now. When the earlier process of the run is alive, its next record fails with ErrRunLocked.
func (c *Client) ResumeRun(ctx context.Context, id string, limits *RunLimits) (*RunLog, error) {
	log, err := c.loadRun(ctx, id)
	if err != nil {
		return nil, err
	}
	run := &log.Run
	switch {
	case len(run.Seqs) < run.Total:
		return nil, fmt.Errorf("run %s: %w", id, ErrRunNotStarted)
	case run.IsOver():
		return nil, fmt.Errorf("run %s is %w", id, ErrRunOver)
	}
	stored, err := c.DeadLetters(ctx)
	switch {
	case err != nil:
		return nil, err
	case !run.Stream.Equal(stored.CreatedAt().Time):
		return nil, fmt.Errorf("run %s: the %w", id, ErrRunStream)
	}
	processed := make(map[uint64]struct{}, len(run.Results))
	log.unanswered = make(map[uint64]RunResult)
	for _, result := range run.Results {
		switch result.Result {
		case ReplayFailed:
		case ReplayNoOutcome:
			log.unanswered[result.Seq] = result
		default:
			processed[result.Seq] = struct{}{}
		}
	}
	delete(run.Counts, ReplayFailed)
	delete(run.Counts, ReplayNoOutcome)
	log.Left = slices.DeleteFunc(run.Seqs, func(seq uint64) bool { _, found := processed[seq]; return found })
	run.State, run.Seqs, run.Results = RunUnfinished, nil, nil
	if limits != nil {
		run.Limits = limits
	}
	if err := log.write(ctx, nil, nil); err != nil {
		return nil, err
	}
	log.earlierEnds = time.Now().Add(earlierProcessLimit)
	return log, nil
}

// Record writes results, at most RunResultsMax. If it fails, they do not count.
func (l *RunLog) Record(ctx context.Context, results []RunResult) error {
	counted := l.Run.Counts
	l.Run.Counts = maps.Clone(counted)
	for _, result := range results {
		l.Run.Counts[result.Result]++
	}
	err := l.write(ctx, nil, results)
	if err != nil {
		l.Run.Counts = counted
	}
	// Ids of events may be long.
	if half := len(results) / 2; half > 0 && events.IsTooLarge(err) {
		err = l.Record(ctx, results[:half])
		if err == nil {
			err = l.Record(ctx, results[half:])
		}
	}
	return err
}

// End writes the last record, with the state RunDone or RunStopped.
func (l *RunLog) End(ctx context.Context, state string) error {
	l.Run.State = state
	return l.write(ctx, nil, nil)
}

// ErrRunLocked reports that another process has written records of the same run in the meantime.
var ErrRunLocked = errors.New("run is active in another process")

// recordAttempts is how often a record is published if no PubAck arrives, as when the connection breaks.
const recordAttempts = 2

// write writes a record. It does so also when ctx has ended, except the first one: the results of the work must not be lost.
func (l *RunLog) write(ctx context.Context, seqs []uint64, results []RunResult) error {
	l.Run.RecordedAt = ownTime()
	record := l.Run
	record.Seqs, record.Results = seqs, results
	body, err := json.Marshal(record, jsontext.AllowInvalidUTF8(true)) // texts of events
	if err != nil {
		return fmt.Errorf("encode run %s: %w", l.Run.ID, err)
	}
	m := nats.NewMsg(l.c.ns.Run(l.Run.ID))
	m.Data = body
	m.Header.Set(events.HeaderContentType, events.ContentTypeJSON)
	m.Header.Set(jetstream.MsgIDHeader, uuid.NewString())
	for range recordAttempts {
		if err = l.publish(ctx, m); !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("record run %s in stream %s: %w", l.Run.ID, l.c.ns.RunsStream(), err)
	}
	return nil
}

// publish publishes a record, unless the stream has it. It returns ErrRunLocked when the last record of the run is
// neither this one nor the one before.
func (l *RunLog) publish(ctx context.Context, m *nats.Msg) error {
	attempts := jetstream.DefaultPubRetryAttempts
	if l.last > 0 { // the stream exists, and may have no leader now
		ctx, attempts = context.WithoutCancel(ctx), math.MaxInt // until ctx ends
	}
	ctx, cancel := context.WithTimeout(ctx, deadLetterRequestLimit)
	defer cancel()
	ack, err := l.c.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(l.last),
		jetstream.WithRetryAttempts(attempts))
	switch {
	case err == nil:
		l.last = ack.Sequence
		return nil
	case !events.HasErrorCode(err, jetstream.JSErrCodeStreamWrongLastSequence,
		jetstream.JSErrCodeStreamWrongLastSequenceConstant):
		return err
	}
	stream, err := l.c.js.Stream(ctx, l.c.ns.RunsStream())
	if err != nil {
		return err
	}
	stored, err := stream.GetLastMsgForSubject(ctx, m.Subject)
	if err != nil {
		return err
	}
	if stored.Header.Get(jetstream.MsgIDHeader) != m.Header.Get(jetstream.MsgIDHeader) {
		return ErrRunLocked
	}
	l.last = stored.Sequence // an earlier attempt stored it, and its PubAck was lost
	return nil
}

// ErrRunNotFound reports that a run does not exist.
var ErrRunNotFound = errors.New("no such run")

// GetRun returns a run with all its dead letters and results. It returns ErrRunNotFound when the
// run does not exist.
func (c *Client) GetRun(ctx context.Context, id string) (*Run, error) {
	log, err := c.loadRun(ctx, id)
	if err != nil {
		return nil, err
	}
	return &log.Run, nil
}

// GetRunSummary returns a run as of its last record, with the first resultsMax results of each kind, or what has replaced
// them since, and without its dead letters: a run may have more of both than fit in memory. It returns ErrRunNotFound when
// the run does not exist.
func (c *Client) GetRunSummary(ctx context.Context, id string, resultsMax int) (*Run, error) {
	var run Run
	first := newFirstResults(resultsMax)
	err := c.eachRecord(ctx, id, func(record Run, _ *nats.MsgMetadata) {
		run = record
		first.add(record.Results)
	})
	run.Seqs, run.Results = nil, first.results
	return &run, err
}

// firstResults are the first results of each kind, in the order of the first results of their dead letters.
type firstResults struct {
	max     int            // of each kind
	counts  map[string]int // by kind
	indexOf map[uint64]int // in results, by dead letter
	results []RunResult
}

func newFirstResults(ofEachKind int) *firstResults {
	return &firstResults{max: ofEachKind, counts: make(map[string]int), indexOf: make(map[uint64]int)}
}

// add adds results. One replaces an earlier one of the same dead letter, also beyond max.
func (f *firstResults) add(results []RunResult) {
	for _, result := range results {
		if i, found := f.indexOf[result.Seq]; found {
			f.counts[f.results[i].Result]--
			f.counts[result.Result]++
			f.results[i] = result
			continue
		}
		if f.counts[result.Result] < f.max {
			f.counts[result.Result]++
			f.indexOf[result.Seq] = len(f.results)
			f.results = append(f.results, result)
		}
	}
}

// loadRun returns the log of a run, with all its dead letters and results.
func (c *Client) loadRun(ctx context.Context, id string) (*RunLog, error) {
	var seqs []uint64
	all := newFirstResults(math.MaxInt)
	log := &RunLog{c: c}
	err := c.eachRecord(ctx, id, func(record Run, meta *nats.MsgMetadata) {
		if log.last == 0 {
			log.startedAt = meta.Timestamp
		}
		log.Run, log.last = record, meta.Sequence.Stream
		seqs = append(seqs, record.Seqs...)
		all.add(record.Results)
	})
	log.Run.Seqs, log.Run.Results = seqs, all.results
	return log, err
}

// eachRecord passes the records of a run to take. It returns ErrRunNotFound when there are none.
func (c *Client) eachRecord(ctx context.Context, id string, take func(record Run, meta *nats.MsgMetadata)) error {
	err := fmt.Errorf("run %s: %w", id, ErrRunNotFound)
	for m, reading := range c.runRecords(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{c.ns.Run(id)}}) {
		if reading != nil {
			return reading
		}
		var record Run
		if record, err = c.parseRun(m); err != nil {
			return err
		}
		take(record, m.Meta)
	}
	return err
}

// ListRuns returns all runs in the order of their last records, without their dead letters and
// results. It leaves out what is no record of a run, and returns an error for each that says how to remove it.
func (c *Client) ListRuns(ctx context.Context) (runs []*Run, strange []error, err error) {
	config := jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, FilterSubjects: []string{c.ns.AllRuns()},
	}
	// By id. ReadAll continues with a new consumer after a stall, which can return a later record of the same run.
	last := make(map[string]*Run)
	for m, err := range c.runRecords(ctx, config) {
		if err != nil {
			return nil, nil, err
		}
		run, err := c.parseRun(m)
		if err != nil {
			strange = append(strange, err)
			continue
		}
		run.Seqs, run.Results = nil, nil
		runs, last[run.ID] = append(runs, &run), &run
	}
	return slices.DeleteFunc(runs, func(run *Run) bool { return last[run.ID] != run }), strange, nil
}

// runRecords returns the records of runs.
func (c *Client) runRecords(
	ctx context.Context, config jetstream.OrderedConsumerConfig,
) iter.Seq2[events.StoredMsg, error] {
	return func(yield func(events.StoredMsg, error) bool) {
		stream, err := c.openStream(ctx, c.ns.RunsStream())
		if err != nil {
			yield(events.StoredMsg{}, err)
			return
		}
		events.ReadAll(ctx, c.js, stream, config)(yield)
	}
}

func (c *Client) parseRun(m events.StoredMsg) (Run, error) {
	run := Run{Counts: make(map[string]int)}
	err := json.Unmarshal(m.Data, &run)
	if err == nil && run.Verb == "" {
		err = errors.New("it names no verb")
	}
	if err != nil {
		return run, fmt.Errorf("message %d on %s is no record of a run: %w; remove it with nats stream rmm %[4]s %[1]d",
			m.Meta.Sequence.Stream, m.Subject, err, c.ns.RunsStream())
	}
	return run, nil
}
