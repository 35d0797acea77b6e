package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// What a run does to letters.
const (
	RunReplay  = "replay"
	RunEdit    = "edit"
	RunDiscard = "discard"
)

// Discarded is the result of a letter that was discarded.
const Discarded = "discarded"

// The states of a run. One that is unfinished is still going on, or its process was killed.
const (
	RunUnfinished = "unfinished"
	RunDone       = "done"
	RunStopped    = "stopped" // before its end, by an operator or by too many failures
)

// RunResultsMax is how many results one record has at most.
const RunResultsMax = 50

// runSeqsMax is how many letters one record names at most.
const runSeqsMax = 4000

// Run is one run of a person over dead letters: who did what to which of them, when and why, and
// what came of it. It is kept as records on one subject. Each says all of it as it is by then, but
// has only those letters and results that are in no record before.
type Run struct {
	ID         string            `json:"run_id"` // a UUIDv7
	Verb       string            `json:"verb"`
	State      string            `json:"state"`
	Operator   string            `json:"who"`
	Note       string            `json:"note"`
	StartedAt  holds.Time        `json:"started_at"` // by the clock of who runs it
	RecordedAt holds.Time        `json:"recorded_at"`
	Filter     *DeadLetterFilter `json:"filter,omitzero"` // how the letters were found, nil when they were named
	Keep       bool              `json:"keep,omitzero"`   // the letters stay
	Limits     *RunLimits        `json:"limits,omitzero"` // of a replay; nil in the records of older versions
	Total      int               `json:"letters"`         // how many there are to work on
	Counts     map[string]int    `json:"counts"`          // of each result
	Seqs       []uint64          `json:"seqs,omitzero"`   // the letters
	Results    []RunResult       `json:"results,omitzero"`
}

// RunLimits are the limits of a replay, which a run that goes on keeps.
type RunLimits struct {
	Rate           float64 `json:"rate"`             // events a second, at most; 0 means no limit
	StopOnFailures int     `json:"stop_on_failures"` // percent of those that have ended
}

// Processed is how many letters have a result.
func (r *Run) Processed() (n int) {
	for _, count := range r.Counts {
		n += count
	}
	return n
}

// RunLog writes the records of a run.
type RunLog struct {
	Run Run // without letters and results

	c         *Client
	last      uint64    // sequence of the last record
	startedAt time.Time // when the first record was stored, by the server's clock; zero unless the run is resumed
}

// StartRun begins the records of a run over letters, and sets its id, its state, its times and
// what it counts.
func (c *Client) StartRun(ctx context.Context, run Run, seqs []uint64) (*RunLog, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("new run id: %w", err)
	}
	run.ID, run.State, run.StartedAt = id.String(), RunUnfinished, ownTime()
	run.Total, run.Counts = len(seqs), make(map[string]int)
	log := &RunLog{Run: run, c: c}
	for chunk := range slices.Chunk(seqs, runSeqsMax) {
		if err := log.write(ctx, chunk, nil); err != nil {
			return nil, err
		}
	}
	return log, nil
}

func ownTime() holds.Time { return holds.Time{Time: time.Now().UTC()} }

// ErrRunNotStarted says that a run was killed before it did anything.
var ErrRunNotStarted = errors.New("the run did nothing, start a new one")

// ResumeRun goes on with the records of a run, with other limits unless those are nil, and returns the
// letters that have no result or failed. A process that is still at it has its next record refused: ErrRunLocked.
func (c *Client) ResumeRun(ctx context.Context, id string, limits *RunLimits) (log *RunLog, left []uint64, err error) {
	run, last, begun, err := c.loadRun(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	if len(run.Seqs) < run.Total {
		return nil, nil, fmt.Errorf("run %s: %w", id, ErrRunNotStarted)
	}
	ended := make(map[uint64]struct{}, len(run.Results))
	for _, result := range run.Results {
		if result.Result != ReplayFailed {
			ended[result.Seq] = struct{}{}
		}
	}
	delete(run.Counts, ReplayFailed)
	left = slices.DeleteFunc(run.Seqs, func(seq uint64) bool { _, has := ended[seq]; return has })
	run.State, run.Seqs, run.Results = RunUnfinished, nil, nil
	if limits != nil {
		run.Limits = limits
	}
	log = &RunLog{Run: *run, c: c, last: last, startedAt: begun}
	return log, left, log.write(ctx, nil, nil)
}

// Record adds results, at most RunResultsMax.
func (l *RunLog) Record(ctx context.Context, results []RunResult) error {
	for _, result := range results {
		l.Run.Counts[result.Result]++
	}
	return l.write(ctx, nil, results)
}

// End writes the last record.
func (l *RunLog) End(ctx context.Context, state string) error {
	l.Run.State = state
	return l.write(ctx, nil, nil)
}

// ErrRunLocked says that another process has written records of the same run meanwhile.
var ErrRunLocked = errors.New("another process is at this run")

// write writes a record, also when ctx is over: what was done is to be known.
func (l *RunLog) write(ctx context.Context, seqs []uint64, results []RunResult) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deadLetterRequestLimit)
	defer cancel()
	l.Run.RecordedAt = ownTime()
	record := l.Run
	record.Seqs, record.Results = seqs, results
	body, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encode run %s: %w", l.Run.ID, err)
	}
	m := nats.NewMsg(l.c.ns.Run(l.Run.ID))
	m.Data = body
	m.Header.Set(events.HeaderContentType, events.ContentTypeJSON)
	ack, err := l.c.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(l.last))
	var refused *jetstream.APIError
	switch {
	case errors.As(err, &refused) && refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence,
		errors.As(err, &refused) && refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		return fmt.Errorf("record run %s: %w", l.Run.ID, ErrRunLocked)
	case err != nil:
		return fmt.Errorf("record run %s in stream %s: %w", l.Run.ID, l.c.ns.RunsStream(), err)
	}
	l.last = ack.Sequence
	return nil
}

// ErrRunNotFound says that there is no such run.
var ErrRunNotFound = errors.New("no such run")

// GetRun returns a run with all of its letters and results.
func (c *Client) GetRun(ctx context.Context, id string) (*Run, error) {
	run, _, _, err := c.loadRun(ctx, id)
	return run, err
}

// loadRun also returns the sequence of the last record, and when the first was stored.
func (c *Client) loadRun(ctx context.Context, id string) (run *Run, last uint64, begun time.Time, err error) {
	var seqs []uint64
	var results []RunResult
	places := make(map[uint64]int) // in results; of a letter that failed and was tried again the last counts
	config := jetstream.OrderedConsumerConfig{FilterSubjects: []string{c.ns.Run(id)}}
	for m, err := range c.records(ctx, config) {
		if err != nil {
			return nil, 0, begun, err
		}
		meta, err := m.Metadata()
		if err != nil {
			return nil, 0, begun, fmt.Errorf("read run %s: %w", id, err)
		}
		if run, err = readRun(m); err != nil {
			return nil, 0, begun, err
		}
		if begun.IsZero() {
			begun = meta.Timestamp
		}
		seqs, last = append(seqs, run.Seqs...), meta.Sequence.Stream
		for _, result := range run.Results {
			place, again := places[result.Seq]
			if again {
				results[place] = result
				continue
			}
			places[result.Seq] = len(results)
			results = append(results, result)
		}
	}
	if run == nil {
		return nil, 0, begun, fmt.Errorf("run %s: %w", id, ErrRunNotFound)
	}
	run.Seqs, run.Results = seqs, results
	return run, last, begun, nil
}

// ListRuns returns the runs, the one that was recorded last at the end, without their letters and
// results.
func (c *Client) ListRuns(ctx context.Context) ([]*Run, error) {
	var runs []*Run
	config := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, FilterSubjects: []string{c.ns.AllRuns()}}
	for m, err := range c.records(ctx, config) {
		if err != nil {
			return nil, err
		}
		run, err := readRun(m.Msg)
		if err != nil {
			return nil, err
		}
		run.Seqs, run.Results = nil, nil
		// A server that was asked anew may tell of a run again.
		runs = slices.DeleteFunc(runs, func(other *Run) bool { return other.ID == run.ID })
		runs = append(runs, run)
	}
	return runs, nil
}

func (c *Client) records(ctx context.Context, config jetstream.OrderedConsumerConfig) iter.Seq2[events.StoredMsg, error] {
	return func(yield func(events.StoredMsg, error) bool) {
		stream, err := c.js.Stream(ctx, c.ns.RunsStream())
		if err != nil {
			yield(events.StoredMsg{}, fmt.Errorf("stream %s: %w", c.ns.RunsStream(), err))
			return
		}
		events.ReadAll(ctx, stream, config)(yield)
	}
}

func readRun(m jetstream.Msg) (*Run, error) {
	run := &Run{Counts: make(map[string]int)}
	if err := json.Unmarshal(m.Data(), run); err != nil {
		return nil, fmt.Errorf("read a record on %s: %w", m.Subject(), err)
	}
	return run, nil
}
