package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The headers of a message in an atomic batch.
const (
	headerBatchID     = "Nats-Batch-Id"
	headerBatchSeq    = "Nats-Batch-Sequence"
	headerBatchCommit = "Nats-Batch-Commit"
)

// BatchMax is the largest number of messages in an atomic batch, a limit of the server.
const BatchMax = 1000

const (
	atomicMin = 32 // messages; a server needs some milliseconds for a batch, however small it is

	// A server that syncs every message to disk needs a sync for each message, or one for a batch. Above
	// this time for one message a batch is worth a trial.
	atomicWorth = 60 * time.Microsecond

	paceTrialEvery = 64 // publications of one kind before the other one is measured again
	paceWindow     = 8  // measurements of a kind, of which the quickest counts
)

// Pace chooses the faster way to store many messages: one by one, or as an atomic batch where the
// server syncs every message to disk. A client cannot ask for that, so it measures the time per
// message. All that publish to a stream share a Pace: the server stores for one after the other, so a
// batch among single messages of others takes longer than it would alone, and so do messages among their batches.
type Pace struct {
	Least int           // messages of a batch
	Worth time.Duration // of one message on its own: below it, no batch is tried

	mu            sync.Mutex // guards what follows
	single, batch window
	since         int // publications of one kind since the other one was measured
}

// NewPace returns a pace that has measured nothing yet: it begins with messages one by one.
func NewPace() *Pace { return &Pace{Least: atomicMin, Worth: atomicWorth} }

// window has the last times per message. What others publish only makes a message slower, so the
// quickest of them is the best estimate of what the server needs.
type window []time.Duration

func (w *window) add(each time.Duration) {
	if *w = append(*w, each); len(*w) > paceWindow {
		*w = slices.Delete(*w, 0, 1)
	}
}

// quickest returns 0 before the first measurement.
func (w window) quickest() time.Duration {
	if len(w) == 0 {
		return 0
	}
	return slices.Min(w)
}

// Next returns how many of so many messages should be stored next, and whether as a batch.
func (p *Pace) Next(messages int) (number int, batch bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if messages < p.Least || p.single.quickest() < p.Worth {
		return messages, false
	}
	better := len(p.batch) < paceWindow || p.batch.quickest() < p.single.quickest()
	if p.since++; p.since < paceTrialEvery {
		return messages, better
	}
	p.since = 0
	if better { // few: where one message is slow, many would delay what comes next
		return p.Least, false
	}
	return messages, true
}

// Measured keeps how long so many messages took, stored as a batch or one by one.
func (p *Pace) Measured(took time.Duration, messages int, batch bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch each := took / time.Duration(max(messages, 1)); {
	case messages < p.Least:
	case batch:
		p.batch.add(each)
	default:
		p.single.add(each)
	}
}

// KnowsBatches reports whether the connected server knows atomic batches: NATS 2.12 and newer. Others would
// store each message of one by itself.
func KnowsBatches(nc *nats.Conn) bool { return isVersion2(nc, 12) }

// isVersion2 reports whether the connected server is NATS 2 with a minor version, or newer.
func isVersion2(nc *nats.Conn, least int) bool {
	var major, minor int
	_, err := fmt.Sscanf(nc.ConnectedServerVersion(), "%d.%d", &major, &minor)
	return err == nil && (major > 2 || major == 2 && minor >= least)
}

// ErrNoBatches reports that the leader of a stream does not know atomic batches: in a cluster that is being upgraded it may
// be older than the connected server. It has stored the messages of the batch one by one, the last one for certain.
var ErrNoBatches = errors.New("the leader of the stream does not know atomic batches")

// StoreBatch publishes 2 to [BatchMax] messages as one atomic batch, and reports whether a stream has stored all. If
// not, none is: the server has rejected the batch, for example because it has one of the message ids already,
// or the stream does not allow batches. After an error, such as [ErrNoBatches], it is unknown whether they are stored. The
// messages keep no header of the batch.
func StoreBatch(ctx context.Context, js JetStream, stream string, batch []*nats.Msg) (stored bool, err error) {
	nc, id := js.Conn(), uuid.NewString()
	ids, last := []string{id}, len(batch)-1
	defer func() {
		for _, m := range batch { // the server must not take the message for one of a batch again
			delete(m.Header, headerBatchID)
			delete(m.Header, headerBatchSeq)
			delete(m.Header, headerBatchCommit)
		}
	}()
	for i, m := range batch {
		m.Header[headerBatchID] = ids
		m.Header.Set(headerBatchSeq, strconv.Itoa(i+1))
		if i < last {
			if err := nc.PublishMsg(m); err != nil {
				return false, nil // without a commit nothing is stored; alone, the message has its error
			}
		}
	}
	commit := *batch[last]
	commit.Header.Set(headerBatchCommit, "1")
	commit.Reply = nc.NewInbox()
	replies, err := nc.SubscribeSync(commit.Reply)
	if err != nil {
		return false, err
	}
	defer func() { _ = replies.Unsubscribe() }()
	if err := nc.PublishMsg(&commit); err != nil {
		return false, nil // likewise
	}
	for {
		reply, err := replies.NextMsgWithContext(ctx)
		if errors.Is(err, nats.ErrNoResponders) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if stored, answered, err := parseCommit(reply, js, stream, id, len(batch)); answered {
			return stored, err
		}
	}
}

// parseCommit reports whether a reply is the answer of a stream, and whether it says that a whole batch is stored. It may be
// an error of the server, or the PubAck of the last message alone: then err is ErrNoBatches.
func parseCommit(reply *nats.Msg, js JetStream, stream, id string, size int) (stored, answered bool, err error) {
	var ack struct {
		Error  *jetstream.APIError `json:"error"`
		Stream string              `json:"stream"`
		Domain string              `json:"domain"`
		Batch  string              `json:"batch"`
		Count  int                 `json:"count"`
	}
	if accepted := json.Unmarshal(reply.Data, &ack) == nil && ack.Error == nil; !accepted {
		return false, isAnswerOf(stream, ack.Stream), nil // a refusal names no domain
	}
	if ack.Stream == stream && ack.Batch == "" {
		err = ErrNoBatches
	}
	return ack.Batch == id && ack.Count == size, js.isOwn(stream, ack.Stream, ack.Domain), err
}
