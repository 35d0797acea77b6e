package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack"
	"holdfast/internal/stack/endpoints"
)

// durable is a worker that runs its own servers, which sync, and later Postgres alone on the same data.
type durable struct {
	*cluster
	dir         string
	postgres    *stack.Stack // after onlyPostgres
	postgresURL string       // likewise
}

// startDurable starts `worker run --embedded`, with its data in a temporary directory. After an error nothing
// is left of it.
func (b *runner) startDurable(ctx context.Context) (*durable, error) {
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return nil, err
	}
	own := &runner{Options: b.Options, sizes: b.sizes, name: b.name, report: b.report}
	d := &durable{cluster: own.newCluster(), dir: dir}
	if err := d.startEmbedded(ctx); err != nil {
		return nil, fmt.Errorf("worker run --embedded: %w", errors.Join(err, d.close()))
	}
	return d, nil
}

// startEmbedded starts the worker and connects to its servers.
func (d *durable) startEmbedded(ctx context.Context) error {
	if err := os.Chmod(d.dir, 0o755); err != nil { //nolint:gosec // Postgres runs as another user
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startWithin, fmt.Errorf("not ready within %s", startWithin))
	defer cancel()
	environ := d.policies()
	if install, given := os.LookupEnv("HOLDFAST_INSTALL"); given { // it may forbid the worker to install programs
		environ = append(environ, "HOLDFAST_INSTALL="+install)
	}
	w, err := startWorker(d.Worker, environ, "run", "--embedded", "--data-dir", d.dir)
	if err != nil {
		return err
	}
	d.workers = append(d.workers, w)
	if err := w.ready(ctx); err != nil {
		return err
	}
	urls, err := endpoints.Read(filepath.Join(d.dir, endpoints.FileName))
	if err != nil {
		return err
	}
	d.NATSURL, d.RedisURL = urls["HOLDFAST_NATS_URL"], urls["HOLDFAST_REDIS_URL"]
	d.PostgresURL = urls["HOLDFAST_POSTGRES_URL"]
	if err := d.connect(ctx); err != nil {
		return err
	}
	return d.setInventory(ctx, manyResources)
}

// onlyPostgres stops the worker and its servers, and starts their Postgres again, on the same data and with
// the same settings.
func (d *durable) onlyPostgres(ctx context.Context) (err error) {
	if err := errors.Join(d.runner.close(), d.stopAll()); err != nil {
		return err
	}
	d.postgres, err = stack.Start(ctx, stack.Options{Dir: d.dir, Postgres: true})
	if err != nil {
		return err
	}
	d.postgresURL = d.postgres.PostgresURL
	return nil
}

// close stops what runs, and removes the data.
func (d *durable) close() error {
	var errs []error
	if d.postgres != nil {
		errs = append(errs, d.postgres.Close())
	} else {
		errs = append(errs, d.runner.close(), d.stopAll())
	}
	return errors.Join(append(errs, os.RemoveAll(d.dir))...)
}

// measureHoldfast measures Holdfast in a namespace with a worker, and then the latency at a quarter of its
// rate over many resources.
func (p *peers) measureHoldfast(ctx context.Context, kind peer, s *cluster) (err error) {
	with, err := s.newPlacer(ctx, kind.name == HoldfastDurable)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, with.close(ctx)) }()
	first := len(p.report.Peers)
	if err := p.measureWith(ctx, kind, with); err != nil {
		return fmt.Errorf("%s: %w", kind.name, err)
	}
	placed := int(with.placed.Load())
	s.answered += placed
	if err := s.tally(ctx, map[string]int{holds.EventHoldCreated: placed}); err != nil {
		return err
	}
	for i := range p.report.Peers[first:] {
		figure := &p.report.Peers[first+i]
		if figure.Nights != usualNights || figure.Resources != manyResources {
			continue
		}
		quarter, err := s.steady(ctx, figure.Rate.PerSecond/4)
		if err != nil {
			return fmt.Errorf("%s at a quarter of its rate: %w", kind.name, err)
		}
		figure.Quarter = &quarter
	}
	return nil
}

// holdfastPlacer places a hold by an event, and waits for its outcome.
type holdfastPlacer struct {
	*cluster
	answers *dialogue
	publish chan *nats.Msg   // to publishTogether; nil without
	stream  events.JetStream // of publishTogether
	failed  chan error       // its first error
	placed  atomic.Int64
}

// newPlacer returns a placer. With together the events of several callers are published in one atomic batch,
// if the inbound stream allows it: for servers that sync each publication.
func (s *cluster) newPlacer(ctx context.Context, together bool) (*holdfastPlacer, error) {
	answers, err := s.dialogue()
	if err != nil {
		return nil, err
	}
	p := &holdfastPlacer{cluster: s, answers: answers, failed: make(chan error, 1)}
	in, err := s.js.Stream(ctx, s.ns.InStream())
	if err != nil {
		return nil, errors.Join(err, p.close(ctx))
	}
	if together && in.CachedInfo().Config.AllowAtomicPublish {
		if p.stream, err = events.NewJetStream(s.nc, s.ns); err != nil {
			return nil, errors.Join(err, p.close(ctx))
		}
		p.publish = make(chan *nats.Msg, publishedTogether)
		go p.publishTogether()
	}
	return p, nil
}

func (p *holdfastPlacer) place(ctx context.Context, r peerRequest) (placed bool, err error) {
	last, err := time.Parse(time.DateOnly, r.nights[len(r.nights)-1])
	if err != nil {
		return false, err
	}
	m, err := p.event(events.BookingRequested, r.resource, events.BookingRequestedData{
		RequestKey: r.key, UserID: r.key, ResourceID: r.resource, Quantity: 1,
		SlotSelection: holds.SlotSelection{CheckIn: r.nights[0], CheckOut: last.AddDate(0, 0, 1).Format(time.DateOnly)},
	})
	if err != nil {
		return false, err
	}
	answer := p.answers.expect(m)
	if p.publish != nil {
		p.publish <- m
	} else if err := p.nc.PublishMsg(m); err != nil {
		return false, err
	}
	body, err := p.await(ctx, answer)
	if err != nil {
		select {
		case failed := <-p.failed:
			err = errors.Join(failed, err)
		default:
		}
		return false, err
	}
	var outcome events.Envelope
	if err := json.Unmarshal(body, &outcome); err != nil {
		return false, err
	}
	if outcome.Type != events.Type(holds.EventHoldCreated) {
		return false, nil
	}
	p.placed.Add(1)
	return true, nil
}

func (p *holdfastPlacer) close(context.Context) error {
	if p.publish != nil {
		close(p.publish)
	}
	return p.answers.close()
}

// publishedTogether is the most events in one atomic batch.
const publishedTogether = 256

// publishTogether publishes what callers send while the last batch was being stored, as one atomic batch.
func (p *holdfastPlacer) publishTogether() {
	for m := range p.publish {
		batch := []*nats.Msg{m}
		for more := true; more && len(batch) < publishedTogether; {
			select {
			case m, open := <-p.publish:
				if more = open; open {
					batch = append(batch, m)
				}
			default:
				more = false
			}
		}
		if err := p.publishBatch(batch); err != nil {
			select {
			case p.failed <- err:
			default: // only the first is reported
			}
		}
	}
}

// publishBatch publishes messages as one atomic batch, and waits for its PubAck.
func (p *holdfastPlacer) publishBatch(batch []*nats.Msg) error {
	if len(batch) == 1 {
		return p.nc.PublishMsg(batch[0])
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerWithin)
	defer cancel()
	stored, err := events.StoreBatch(ctx, p.stream, p.ns.InStream(), batch)
	if err == nil && !stored {
		err = errors.New("the server refuses it")
	}
	if err != nil {
		return fmt.Errorf("publish a batch of %d: %w", len(batch), err)
	}
	return nil
}
