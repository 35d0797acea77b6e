package events

import (
	"context"
	"errors"
	"strconv"
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

const (
	outcomeBatchMin = 32   // outcomes; a server needs some milliseconds for a batch, however small it is
	outcomeBatchMax = 1000 // the limit of a server

	// A server that syncs every message to disk needs a sync for each outcome, or one for a batch. Above
	// this time for one outcome a batch is worth a trial.
	outcomeBatchWorth = 60 * time.Microsecond

	paceProbeEvery = 64 // publications of one kind before the other one is measured again
)

// pace chooses the faster way to store many outcomes: one by one, or as an atomic batch where the
// server syncs every message to disk. A worker cannot ask for that, so it measures the time per
// outcome.
type pace struct {
	least  int           // outcomes of a batch
	worth  time.Duration // see outcomeBatchWorth
	single time.Duration // per outcome, as last measured; 0: not yet
	batch  time.Duration // likewise
	since  int           // publications of one kind since the other one was measured
}

// batches reports whether so many outcomes should be stored as a batch.
func (p *pace) batches(outcomes int) bool {
	if outcomes < p.least || p.single < p.worth {
		return false
	}
	better := p.batch == 0 || p.batch < p.single
	if p.since++; p.since >= paceProbeEvery {
		p.since = 0
		return !better
	}
	return better
}

// measured keeps how long so many outcomes took.
func (p *pace) measured(took time.Duration, outcomes int, batch bool) {
	if outcomes < p.least {
		return
	}
	each := &p.single
	if batch {
		each = &p.batch
	}
	if took /= time.Duration(outcomes); *each > 0 {
		took = (3**each + took) / 4
	}
	*each = max(took, 1)
}

// storeInBatches publishes the outcomes among messages that were not sent yet, as atomic batches. It
// waits until they are stored. What a server rejects as a batch, for example because it has one of
// the outcomes already, is sent one by one.
func (c *Consumer) storeInBatches(ctx context.Context, waiting []pendingMsg) {
	for rest := waiting; len(rest) > 0; {
		var batch []*pendingMsg
		for len(rest) > 0 && len(batch) < outcomeBatchMax {
			if !rest[0].dead {
				batch = append(batch, &rest[0])
			}
			rest = rest[1:]
		}
		stored, err := c.storeBatch(ctx, batch)
		for _, s := range batch {
			switch {
			case err != nil: // perhaps the batch is stored: the next delivery of each event shows it
				s.unsent = ofNATS(err)
			case stored:
				s.stored = true
			default:
				s.send(c)
			}
		}
	}
}

// send publishes a message on its own.
func (s *pendingMsg) send(c *Consumer) {
	future, err := c.js.PublishMsgAsync(s.message)
	s.ack, s.unsent = future, ofNATS(err)
}

// storeBatch publishes outcomes as one atomic batch, and reports whether all are stored. If not,
// none is, and the server has rejected the batch. After an error it is unknown whether they are
// stored.
func (c *Consumer) storeBatch(ctx context.Context, batch []*pendingMsg) (stored bool, err error) {
	if len(batch) < 2 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	id := uuid.NewString()
	ids, last := []string{id}, len(batch)-1
	defer func() {
		for _, s := range batch { // the server must not take the message for one of a batch again
			delete(s.message.Header, headerBatchID)
			delete(s.message.Header, headerBatchSeq)
			delete(s.message.Header, headerBatchCommit)
		}
	}()
	for i, s := range batch {
		s.message.Header[headerBatchID] = ids
		s.message.Header.Set(headerBatchSeq, strconv.Itoa(i+1))
		if i < last {
			if err := c.nc.PublishMsg(s.message); err != nil {
				return false, nil // without a commit nothing is stored; alone, the message has its error
			}
		}
	}
	batch[last].message.Header.Set(headerBatchCommit, "1")
	reply, err := c.nc.RequestMsgWithContext(ctx, batch[last].message)
	switch {
	case IsTooLarge(err), errors.Is(err, nats.ErrNoResponders): // the commit was not sent, or no stream has it
		return false, nil
	case err != nil:
		return false, err
	}
	return isCommit(reply, id, len(batch)), nil
}

// isCommit reports whether a reply says that a whole batch is stored. It may be an error of the
// server, or the PubAck of the last message alone from a server that does not know batches.
func isCommit(reply *nats.Msg, id string, size int) bool {
	var ack struct {
		Error *jetstream.APIError `json:"error"`
		Batch string              `json:"batch"`
		Count int                 `json:"count"`
	}
	return json.Unmarshal(reply.Data, &ack) == nil && ack.Error == nil && ack.Batch == id && ack.Count == size
}
