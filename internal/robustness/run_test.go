package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
)

// hardBound is after what time a thing that should have happened is taken for one that never will.
// It is far beyond all that is promised: what is promised is measured and reported.
const hardBound = 5 * time.Minute

// Options say how long and how hard a run is.
type Options struct {
	Seed      uint64
	For       time.Duration // rounds begin until it is over; 0 = one round
	Nodes     int           // of NATS, 1 or 3
	Workers   int
	Bursts    int // in a round, with the same namespace
	Histories int // in a burst
	Strategy  string
	Longest   time.Duration // of one fault, 0 = as the fault says
	Kinds     []string      // only these faults, nil = all
	Race      bool          // the workers have the race detector
	Dir       string        // where the logs of the workers are kept
	Log       func(format string, args ...any)
}

// runner is a run on its way.
type runner struct {
	Options
	report  *Report
	cluster *Cluster
	deck    []Fault // what is still to strike before it is shuffled anew
	random  *rand.Rand
}

// Run runs rounds, each in a namespace of its own, and reports what was broken, what was asked and
// what was wrong. It returns an error when it could not go on: what is wrong is in the report.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	r := newRunner(o)
	binary, err := BuildWorker(ctx, o.Dir, o.Race)
	if err != nil {
		return nil, err
	}
	servers, err := NewServers(ctx, o.Nodes)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, servers.Close()) }()
	r.cluster = &Cluster{Servers: servers, Log: o.Log, Binary: binary, CanRebuild: canRebuild(ctx, binary)}
	r.noteMissing()
	began := time.Now()
	defer func() { r.report.took(time.Since(began)) }()
	for round := 1; round == 1 || time.Since(began) < o.For && ctx.Err() == nil; round++ {
		if err := r.round(ctx, round); err != nil {
			return r.report, fmt.Errorf("round %d: %w", round, err)
		}
		r.report.Rounds++
		if len(r.report.Violations) > 0 {
			break // what comes after tells nothing new
		}
	}
	return r.report, ctx.Err()
}

func newRunner(o Options) *runner {
	return &runner{Options: o, report: newReport(o), random: rand.New(rand.NewPCG(o.Seed, 0))}
}

// noteMissing notes which faults cannot happen here, and why.
func (r *runner) noteMissing() {
	for _, f := range Faults() {
		if f.Missing != nil {
			if why := f.Missing(r.cluster); why != "" {
				r.report.LeftOut[f.Kind] = why
			}
		}
	}
}

// harness is what there is for one round.
type harness struct {
	*runner
	subjects events.Namespace
	recorder *Recorder
	load     *Load
	nc       *nats.Conn // past all proxies
	js       jetstream.JetStream
	workers  context.CancelFunc
}

// round runs some bursts on a fresh namespace.
func (r *runner) round(ctx context.Context, number int) (err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	seed := r.random.Uint64()
	w := &harness{runner: r}
	r.cluster.Namespace = fmt.Sprintf("robustness%d", number)
	w.subjects = events.Namespace(r.cluster.Namespace)
	if err := r.cluster.resetClock(ctx); err != nil {
		return err
	}
	if err := w.open(ctx, seed); err != nil {
		return err
	}
	var readers sync.WaitGroup
	readers.Go(func() { w.recorder.Follow(ctx, w.js) })
	readers.Go(func() { r.report.sample(ctx, r.cluster) })
	defer func() { end(); readers.Wait() }()
	if err := w.load.Open(ctx); err != nil {
		return errors.Join(err, w.close(ctx))
	}
	for burst := range r.Bursts {
		if err := w.burst(ctx, burst); err != nil || len(r.report.Violations) > 0 {
			return errors.Join(err, w.close(ctx))
		}
	}
	return w.close(ctx)
}

// resetClock gives Redis its own clock and nothing to remember: a round begins.
func (s *Cluster) resetClock(ctx context.Context) error {
	s.capacityBySQL = false
	if s.clock == 0 {
		return nil
	}
	s.clock = 0
	return errors.Join(s.redis.kill(), s.redis.up(ctx))
}

// open prepares a namespace, and starts workers and the load on it.
func (w *harness) open(ctx context.Context, seed uint64) (err error) {
	if w.nc, err = w.cluster.connectNATS(); err != nil {
		return err
	}
	if w.js, err = jetstream.New(w.nc); err != nil {
		return err
	}
	policy := []string{
		"--late-payment", []string{"reject", "accept_if_free"}[seed%2], "--hold-ttl", "3s", "--payment-window", "3s",
	}
	if err := w.cluster.migrate(ctx, policy...); err != nil {
		return err
	}
	w.cluster.Workers = nil
	running, cancel := context.WithCancel(ctx)
	w.workers = cancel
	for i := range w.Workers {
		worker, err := newWorker(w.cluster.Servers, w.cluster.Binary, fmt.Sprintf("%s-worker-%d", w.cluster.Namespace, i+1), w.Dir)
		if err != nil {
			return err
		}
		worker.run(running, append([]string{
			"--namespace", w.cluster.Namespace, "--lock-strategy", w.Strategy, "--lock-lease", "2s", "--log-level", "info",
		}, policy...)...)
		w.cluster.Workers = append(w.cluster.Workers, worker)
	}
	var addrs []string
	for _, node := range w.cluster.nats {
		p, err := node.proxy()
		if err != nil {
			return err
		}
		w.cluster.Load = append(w.cluster.Load, p)
		addrs = append(addrs, p.Addr())
	}
	nc, err := nats.Connect(natsURL(addrs), nats.Name("load"), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // a publication that fails says so itself
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	w.recorder = NewRecorder(w.subjects)
	w.load = NewLoad(w.recorder, js, w.subjects, seed)
	return nil
}

// close ends the workers, each of which must end with 0, and forgets the namespace.
func (w *harness) close(ctx context.Context) error {
	w.report.count(w.recorder, w.load)
	var all sync.WaitGroup
	errs := make([]error, len(w.cluster.Workers))
	for i, worker := range w.cluster.Workers {
		all.Go(func() { errs[i] = worker.close(w.workers) })
	}
	all.Wait()
	for i, worker := range w.cluster.Workers {
		for _, line := range worker.alarms() {
			w.report.violate("%s said: %s", worker.name, line)
		}
		if errs[i] != nil {
			w.report.violate("%s was stopped: %v", worker.name, errs[i])
		}
		w.report.WorkersLost += worker.exits
	}
	err := w.cluster.dropProxies()
	if len(w.report.Violations) == 0 { // else somebody wants to look
		err = errors.Join(err, w.cluster.removeNamespace(ctx, w.js))
	}
	w.nc.Close()
	return err
}

// burst breaks some things while the load goes on, mends them, and judges.
func (w *harness) burst(ctx context.Context, number int) error {
	faults := w.deal()
	names := make([]string, len(faults))
	for i, f := range faults {
		names[i] = f.Kind
	}
	w.Log("%s burst %d: %v", w.cluster.Namespace, number+1, names)
	began := time.Now()
	loading, stop := context.WithCancel(ctx)
	defer stop()
	var load sync.WaitGroup
	var made []*history
	var madeErr error
	histories := w.Histories
	if slices.Contains(names, clockMoved) || w.cluster.clock != 0 {
		histories = 0 // they are judged by a clock that they share with Redis
	}
	load.Go(func() { w.load.Run(loading) })
	if histories > 0 {
		seed := w.random.Uint64()
		load.Go(func() {
			made, madeErr = w.load.Histories(ctx, fmt.Sprintf("history-%d", number), histories, rand.New(rand.NewPCG(seed, 0)), loading.Done())
		})
	}
	broken := w.strike(ctx, faults)
	var later []error
	for _, do := range w.cluster.Later {
		later = append(later, do(ctx))
	}
	w.cluster.Later = nil
	if err := errors.Join(append(later, broken)...); err != nil {
		stop()
		return err
	}
	healed := time.Now()
	wait(ctx, time.Second)
	w.load.Cleanup(ctx)
	stop()
	load.Wait()
	if madeErr != nil {
		return madeErr
	}
	for _, h := range made {
		h.forgets = slices.ContainsFunc(faults, func(f Fault) bool { return f.Forgets })
	}
	w.report.Bursts++
	return w.check(ctx, began, healed, made)
}

// deal takes up to three faults that do not claim the same from the deck, which has each kind once
// and is shuffled anew when it is empty.
func (w *harness) deal() (hand []Fault) {
	number := 1 + w.random.IntN(3)
	claimed := make(map[string]bool)
	for range 2 {
		for i := 0; i < len(w.deck) && len(hand) < number; i++ {
			f := w.deck[i]
			if slices.ContainsFunc(f.claims(), func(claim string) bool { return claimed[claim] }) {
				continue
			}
			w.deck = slices.Delete(w.deck, i, i+1)
			i--
			if f.Missing != nil && f.Missing(w.cluster) != "" {
				continue
			}
			for _, claim := range f.claims() {
				claimed[claim] = true
			}
			hand = append(hand, f)
		}
		if len(hand) == number || len(w.deck) > 0 {
			break
		}
		for _, f := range Faults() {
			if len(w.Kinds) == 0 || slices.Contains(w.Kinds, f.Kind) {
				w.deck = append(w.deck, f)
			}
		}
		w.random.Shuffle(len(w.deck), func(i, j int) { w.deck[i], w.deck[j] = w.deck[j], w.deck[i] })
	}
	return hand
}

// strike breaks things, each at its time, for its time, and returns when all are mended.
func (w *harness) strike(ctx context.Context, faults []Fault) error {
	errs := make([]error, len(faults))
	var all sync.WaitGroup
	for i, f := range faults {
		after := time.Duration(w.random.Int64N(int64(2 * time.Second)))
		lasts := f.Lasts.pick(w.random)
		if w.Longest > 0 {
			lasts = min(lasts, w.Longest)
		}
		random := rand.New(rand.NewPCG(w.random.Uint64(), 0))
		all.Go(func() {
			wait(ctx, after)
			undo, err := f.Strike(ctx, w.cluster, random)
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", f.Kind, err)
			}
			w.report.countFault(f.Kind)
			wait(ctx, lasts)
			undoCtx, cancel := context.WithTimeout(ctx, hardBound)
			defer cancel()
			if err := undo(undoCtx); err != nil {
				errs[i] = errors.Join(errs[i], fmt.Errorf("mend %s: %w", f.Kind, err))
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
