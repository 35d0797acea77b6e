package events

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// syncedNATS starts a NATS server that syncs every message, with its data in dir.
func syncedNATS(t *testing.T, dir string) *server.Server {
	t.Helper()
	return stacktest.StartNATS(t, &server.Options{JetStream: true, StoreDir: dir, SyncAlways: true})
}

// TestOutcomeBatch_AnyAnswerToIt_OneOutcomeEach stores outcomes as an atomic batch on a server that
// syncs, while something is in the way. Each event has exactly one outcome in the end.
func TestOutcomeBatch_AnyAnswerToIt_OneOutcomeEach(t *testing.T) {
	t.Parallel()
	const number = 8
	type scene struct {
		*harness
		server *server.Server
		dir    string
		proxy  *stacktest.Proxy
		batch  []*delivery
	}
	for name, c := range map[string]struct {
		before  func(s *scene) // after the decision
		after   func(s *scene) // after the attempt to store the batch
		batched int            // outcomes that are stored in the batch
	}{
		"stored": {batched: number},
		"one is stored already": {before: func(s *scene) {
			m, err := s.workers[0].message(s.batch[3], s.batch[3].result.Outcome)
			if err == nil {
				_, err = s.js.PublishMsg(s.t.Context(), m)
			}
			if err != nil {
				s.t.Fatal(err)
			}
		}},
		"one event is in it twice": {before: func(s *scene) {
			s.publish(s.ns.In(BookingRequested, "room"), nil, resourceKeyed("room", 3))
			s.batch = append(s.batch, s.decided(s.workers[0], 1)...)
		}},
		"one event is delivered again meanwhile": {batched: number, before: func(s *scene) {
			c := s.workers[0]
			c.recall([]string{s.batch[3].msg.Reply})
			stacktest.Eventually(s.t, "its second delivery", func() bool {
				stacktest.Must(s.t, c.fetch(1, false, func(again []*delivery) {
					s.decideEvents(c, again)
					s.batch = append(s.batch, again...)
				}))
				return consumerOf(s.t, s.js, s.ns, ConsumerRequests).CachedInfo().NumRedelivered > 0
			})
		}},
		"batches are no longer allowed": {before: func(s *scene) {
			updateStream(s.t, s.js, s.ns.OutStream(), func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false })
		}},
		"the leader knows no batches": {before: func(s *scene) {
			nc, err := Connect(stacktest.WithoutBatches(s.t, s.server.ClientURL()), s.t.Name(), s.t.Logf)
			stacktest.Must(s.t, err)
			s.t.Cleanup(nc.Close)
			js, err := NewJetStream(nc, s.ns)
			stacktest.Must(s.t, err)
			s.workers[0].js = js
		}},
		"an outcome is too large for the connection": {before: func(s *scene) {
			o := &s.batch[3].result.Outcome
			data := o.Data.(holds.HoldRejected)
			data.Message = strings.Repeat("x", 2<<20)
			o.Data = data
		}},
		"the server ends before its PubAck arrives": {batched: number,
			before: func(s *scene) { s.proxy.Drop(stacktest.DropRule{Words: []string{headerBatchCommit}}) },
			after: func(s *scene) {
				if s.proxy.Dropped() != 1 {
					s.t.Fatal("the PubAck was not lost")
				}
				s.proxy.Cut(true)
				s.server.Shutdown()
				s.server.WaitForShutdown()
				s.proxy.Target(syncedNATS(s.t, s.dir).Addr().String())
			},
		},
		"the connection ends before the commit arrives": {
			before: func(s *scene) {
				s.proxy.Drop(stacktest.DropRule{Words: []string{headerBatchCommit}, Request: true})
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &scene{dir: t.TempDir()}
			s.server = syncedNATS(t, s.dir)
			var url string
			url, s.proxy = stacktest.ProxyTo(t, s.server.ClientURL())
			s.harness = newHarnessAt(t, url, func(js JetStream) JetStream { return js })
			s.cancel() // so that all events are in one batch
			s.loops.Wait()
			worker := s.workers[0]
			for i := range number {
				s.publishRequest("room", i)
			}
			s.awaitPublished()
			s.batch = s.decided(worker, number)
			if c.before != nil {
				c.before(s)
			}
			worker.newLane(1).publishBatch(t.Context(), s.batch, true)
			if c.after != nil {
				c.after(s)
			}

			ctx, stop := context.WithCancel(t.Context())
			defer s.loops.Wait()
			defer stop()
			s.loops.Go(func() { _ = worker.Run(ctx) }) // what is delivered again
			s.awaitIdle(ConsumerRequests)
			s.checkOutcomes(number, c.batched)
		})
	}
}

// TestOutcomeBatch_EpochEndsMeanwhile_RestNotPublished lets the epoch end while the server stores or rejects a batch.
// A recovery may have read the outcomes when what is left would be stored.
func TestOutcomeBatch_EpochEndsMeanwhile_RestNotPublished(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		number, published int
		allowed           bool                                       // the stream accepts batches
		ended             func(stored func() int, verified int) bool // the epoch has ended
	}{
		"an earlier batch is stored": {
			number: BatchMax + 8, published: BatchMax, allowed: true,
			ended: func(stored func() int, _ int) bool { return stored() > 0 },
		},
		"the batch is rejected": {
			number: 8, ended: func(_ func() int, verified int) bool { return verified > 8 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newHarness(t)
			worker := b.unhurried() // does not run, so that all events are published together
			stored := func() int { return int(streamOf(t, b.js, b.ns.OutStream()).CachedInfo().State.LastSeq) }
			updateStream(t, b.js, b.ns.OutStream(), func(sc *jetstream.StreamConfig) { sc.AllowAtomicPublish = c.allowed })
			for i := range c.number {
				b.publishRequest("room", i)
			}
			b.awaitPublished()
			batch := b.decided(worker, c.number)
			b.setVerify(func(verified int) error {
				if c.ended(stored, verified) {
					return errors.New("the epoch has ended")
				}
				return nil
			})
			worker.newLane(1).publishBatch(t.Context(), batch, true)
			if n := stored(); n != c.published {
				t.Errorf("%d outcomes are stored, want %d", n, c.published)
			}
			if n := b.publicationsNow(); n.uncertain != 0 {
				t.Errorf("%d publications are uncertain although nothing is being stored", n.uncertain)
			}

			b.setVerify(nil)
			ctx, stop := context.WithCancel(context.Background())
			defer b.loops.Wait()
			defer stop()
			b.loops.Go(func() { _ = worker.Run(ctx) }) // what is delivered again
			b.awaitIdle(ConsumerRequests)
			b.checkOutcomes(c.number, c.published)
		})
	}
}

// decided fetches so many events for a consumer that does not run, and decides them.
func (b *harness) decided(c *Consumer, number int) []*delivery {
	b.t.Helper()
	batch := b.fetchAllOf(c, number)
	b.decideEvents(c, batch)
	return batch
}

// decideEvents decides fetched events.
func (b *harness) decideEvents(c *Consumer, batch []*delivery) {
	b.t.Helper()
	c.decodeBatch(batch)
	for _, d := range batch {
		d.termID = b.TermID("")
	}
	c.decider.dispatch(b.t.Context(), batch, func(*delivery) {})
}

// checkOutcomes checks that so many events have one outcome or dead letter each, and that so many
// outcomes were stored in a batch.
func (b *harness) checkOutcomes(number, batched int) {
	b.t.Helper()
	seen, inBatch := make(map[string]int), 0
	for _, name := range []string{b.ns.OutStream(), b.ns.DLQStream()} {
		var stream jetstream.Stream
		stacktest.Eventually(b.t, "the stream "+name, func() (ok bool) {
			var err error
			stream, err = b.js.Stream(b.t.Context(), name)
			return err == nil
		})
		for seq := range stream.CachedInfo().State.LastSeq {
			m, err := stream.GetMsg(b.t.Context(), seq+1)
			if err != nil {
				b.t.Fatal(err)
			}
			var e Envelope
			if err := json.Unmarshal(m.Data, &e); err != nil {
				b.t.Fatal(err)
			}
			if e.CausationID == "" { // a dead letter is the event
				e.CausationID = e.ID
			}
			seen[e.CausationID]++
			if m.Header.Get(headerBatchID) != "" {
				inBatch++
			}
		}
	}
	for i := range number {
		if key := fmt.Sprintf("room:%05d", i); seen[key] != 1 {
			b.t.Errorf("event %s has %d outcomes, want one", key, seen[key])
		}
	}
	if len(seen) != number || inBatch != batched {
		b.t.Errorf("outcomes of %d events, %d in a batch, want %d and %d", len(seen), inBatch, number, batched)
	}
}
