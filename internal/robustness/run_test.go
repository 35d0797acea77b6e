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
	"golang.org/x/sync/errgroup"

	"holdfast/internal/events"
)

// hardBound is the time after which the suite gives up waiting and reports a violation. It is far
// longer than any promised time; the suite measures and reports the actual times.
const hardBound = 5 * time.Minute

// Options configure a run.
type Options struct {
	Seed      uint64
	Layout    string        // one of layouts
	For       time.Duration // new rounds begin until it is over; 0 means one round
	Nodes     int           // of NATS, 1 or 3
	Workers   int
	Bursts    int // in a round
	Histories int // in a burst
	Strategy  string
	FaultMax  time.Duration // bounds the duration of each fault; 0 means as long as the fault says
	Kinds     []string      // only these kinds of faults; empty means all
	Race      bool          // build the workers with the race detector
	Dir       string        // for the worker program and the workers' logs
	Log       func(format string, args ...any)
}

// runner is the state of a run.
type runner struct {
	Options
	report  *Report
	cluster *Cluster
	left    []Fault // faults still to strike before all of them are shuffled again
	random  *rand.Rand
}

// Run runs rounds and reports the faults, the load and the violations of promises. A violation is in
// the report and ends the run; an error means that the run could not continue. The report may be nil
// with an error.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	r := newRunner(o)
	binary, err := buildWorker(ctx, o.Dir, o.Race)
	if err != nil {
		return nil, err
	}
	servers, err := NewServers(ctx, o.Layout, o.Nodes)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, servers.Close()) }()
	r.cluster = &Cluster{Servers: servers, Log: o.Log, Binary: binary}
	r.recordLeftOut()
	began := time.Now()
	defer func() { r.report.Seconds = time.Since(began).Seconds() }()
	for round := 1; round == 1 || time.Since(began) < o.For && ctx.Err() == nil; round++ {
		if err := r.round(ctx, round); err != nil {
			return r.report, fmt.Errorf("round %d: %w", round, err)
		}
		r.report.Rounds++
		if len(r.report.Violations) > 0 {
			break
		}
	}
	return r.report, ctx.Err()
}

func newRunner(o Options) *runner {
	return &runner{Options: o, report: newReport(o), random: rand.New(rand.NewPCG(o.Seed, 0))}
}

// recordLeftOut records which faults cannot strike on this machine, and why.
func (r *runner) recordLeftOut() {
	for _, f := range Faults() {
		if f.Unavailable != nil && f.isFor(r.Layout) {
			if why := f.Unavailable(r.cluster); why != "" {
				r.report.LeftOut[f.Kind] = why
			}
		}
	}
}

// harness is the state of a round.
type harness struct {
	*runner
	subjects events.Namespace
	recorder *Recorder
	load     *Load
	nc       *nats.Conn          // without proxies
	js       jetstream.JetStream // over nc
	stop     context.CancelFunc  // stops restarting the workers
}

// round runs the bursts of one round in a new namespace.
func (r *runner) round(ctx context.Context, number int) (err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	seed := r.random.Uint64()
	h := &harness{runner: r}
	r.cluster.Namespace = fmt.Sprintf("robustness%d", number)
	h.subjects = events.Namespace(r.cluster.Namespace)
	r.cluster.capacityBySQL, r.cluster.counterOverwritten = false, false
	if err := r.cluster.resetClock(ctx); err != nil {
		return err
	}
	if err := h.open(ctx, seed); err != nil {
		return err
	}
	var readers sync.WaitGroup
	readers.Go(func() { h.recorder.Follow(ctx, h.js) })
	readers.Go(func() { r.report.sample(ctx, r.cluster) })
	defer func() { end(); readers.Wait() }()
	if err := h.load.Open(ctx); err != nil {
		return errors.Join(err, h.close(ctx))
	}
	for burst := range r.Bursts {
		if err := h.burst(ctx, burst); err != nil || len(r.report.Violations) > 0 {
			return errors.Join(err, h.close(ctx))
		}
	}
	return h.close(ctx)
}

// resetClock restarts Redis with the true time if a fault has moved its clock.
func (s *Cluster) resetClock(ctx context.Context) error {
	if s.clock == 0 {
		return nil
	}
	s.clock = 0
	return errors.Join(s.redis[0].kill(), s.redis[0].up(ctx))
}

// open creates the namespace, starts its workers and prepares the load.
func (h *harness) open(ctx context.Context, seed uint64) (err error) {
	if h.nc, err = h.cluster.connectNATS(); err != nil {
		return err
	}
	if h.js, err = jetstream.New(h.nc); err != nil {
		return err
	}
	policy := []string{
		"--late-payment", []string{"reject", "accept_if_free"}[seed%2], "--hold-ttl", "3s", "--payment-window", "3s",
	}
	if err := h.cluster.migrate(ctx, policy...); err != nil {
		return err
	}
	h.cluster.Workers = nil
	running, cancel := context.WithCancel(ctx)
	h.stop = cancel
	for i := range h.Workers {
		name := fmt.Sprintf("%s-worker-%d", h.cluster.Namespace, i+1)
		worker, err := newWorker(h.cluster.Servers, h.cluster.Binary, name, h.Dir)
		if err != nil {
			return err
		}
		worker.run(running, append([]string{
			"--namespace", h.cluster.Namespace, "--lock-strategy", h.Strategy, "--lock-lease", "2s", "--log-level", "info",
		}, policy...)...)
		h.cluster.Workers = append(h.cluster.Workers, worker)
	}
	var addrs []string
	for _, node := range h.cluster.nats {
		p, err := node.proxy()
		if err != nil {
			return err
		}
		h.cluster.Load = append(h.cluster.Load, p)
		addrs = append(addrs, p.Addr())
	}
	nc, err := nats.Connect(natsURL(addrs), nats.Name("load"),
		nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // each publication returns its own error
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	h.recorder = NewRecorder(h.subjects)
	h.load = NewLoad(h.recorder, js, h.subjects, seed)
	return nil
}

// close stops the workers, each of which must exit with 0, and removes the namespace. After a violation
// it keeps the namespace for inspection.
func (h *harness) close(ctx context.Context) error {
	h.report.count(h.recorder, h.load)
	var all sync.WaitGroup
	errs := make([]error, len(h.cluster.Workers))
	for i, worker := range h.cluster.Workers {
		all.Go(func() { errs[i] = worker.close(h.stop) })
	}
	all.Wait()
	for i, worker := range h.cluster.Workers {
		for _, line := range worker.alarms(h.cluster.counterOverwritten) {
			h.report.violate("%s logged: %s", worker.name, line)
		}
		if errs[i] != nil {
			h.report.violate("stop %s: %v", worker.name, errs[i])
		}
		h.report.WorkersLost += worker.exits
	}
	err := h.cluster.dropProxies()
	if len(h.report.Violations) == 0 {
		err = errors.Join(err, h.cluster.removeNamespace(ctx, h.js))
	}
	h.nc.Close()
	return err
}

// burst injects some faults while the load runs, repairs them and checks.
func (h *harness) burst(ctx context.Context, number int) error {
	faults := h.pickFaults()
	names := make([]string, len(faults))
	for i, f := range faults {
		names[i] = f.Kind
	}
	h.Log("%s burst %d: %v", h.cluster.Namespace, number+1, names)
	began := time.Now()
	loading, stop := context.WithCancel(ctx)
	defer stop()
	var load sync.WaitGroup
	var histories []*history
	var historiesErr error
	n := h.Histories
	if slices.Contains(names, clockMoved) || h.cluster.clock != 0 {
		n = 0 // the check of a history needs this process and Redis to have the same time
	}
	load.Go(func() { h.load.Run(loading) })
	if n > 0 {
		random := rand.New(rand.NewPCG(h.random.Uint64(), 0))
		load.Go(func() {
			histories, historiesErr = h.load.Histories(ctx, fmt.Sprintf("history-%d", number), n, random, loading.Done())
		})
	}
	errs := []error{h.strike(ctx, faults)}
	for _, do := range h.cluster.AfterRepair {
		errs = append(errs, do(ctx))
	}
	h.cluster.AfterRepair = nil
	if err := errors.Join(errs...); err != nil {
		stop()
		return err
	}
	repaired := time.Now()
	wait(ctx, time.Second)
	h.load.Cleanup(ctx)
	stop()
	load.Wait()
	if historiesErr != nil {
		return historiesErr
	}
	for _, hist := range histories {
		hist.afterRebuild = slices.ContainsFunc(faults, func(f Fault) bool { return f.CausesRebuild })
	}
	h.report.Bursts++
	return h.check(ctx, began, repaired, histories)
}

// pickFaults returns one to three faults without a common claim. Each kind strikes once before any
// kind strikes twice: h.left has the kinds still to strike in random order, and pickFaults refills
// and shuffles it when it is empty.
func (h *harness) pickFaults() (picked []Fault) {
	number := 1 + h.random.IntN(3)
	claimed := make(map[string]bool)
	for range 2 {
		for i := 0; i < len(h.left) && len(picked) < number; i++ {
			f := h.left[i]
			if slices.ContainsFunc(f.claims(), func(claim string) bool { return claimed[claim] }) {
				continue
			}
			h.left = slices.Delete(h.left, i, i+1)
			i--
			if f.Unavailable != nil && f.Unavailable(h.cluster) != "" {
				continue
			}
			for _, claim := range f.claims() {
				claimed[claim] = true
			}
			picked = append(picked, f)
		}
		if len(picked) == number || len(h.left) > 0 {
			break
		}
		for _, f := range Faults() {
			if f.isFor(h.Layout) && (len(h.Kinds) == 0 || slices.Contains(h.Kinds, f.Kind)) {
				h.left = append(h.left, f)
			}
		}
		h.random.Shuffle(len(h.left), func(i, j int) { h.left[i], h.left[j] = h.left[j], h.left[i] })
	}
	return picked
}

// strike injects faults, each after a random delay of up to 2 s and for a random time, and returns
// when all are repaired.
func (h *harness) strike(ctx context.Context, faults []Fault) error {
	var all errgroup.Group
	for _, f := range faults {
		after := time.Duration(h.random.Int64N(int64(2 * time.Second)))
		lasts := f.Lasts.pick(h.random)
		if h.FaultMax > 0 {
			lasts = min(lasts, h.FaultMax)
		}
		random := rand.New(rand.NewPCG(h.random.Uint64(), 0))
		all.Go(func() error {
			wait(ctx, after)
			undo, err := f.Strike(ctx, h.cluster, random)
			if err != nil {
				err = fmt.Errorf("%s: %w", f.Kind, err)
			}
			h.report.countFault(f.Kind)
			wait(ctx, lasts)
			undoCtx, cancel := context.WithTimeout(ctx, hardBound)
			defer cancel()
			if undoErr := undo(undoCtx); undoErr != nil {
				err = errors.Join(err, fmt.Errorf("repair %s: %w", f.Kind, undoErr))
			}
			return err
		})
	}
	return all.Wait()
}
