package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// The names of the peers, and of Holdfast beside them.
const (
	PeerPostgres      = "Postgres alone, durable"
	PeerPostgresAsync = "Postgres alone, synchronous_commit=off"
	PeerRedsync       = "redsync, a lock a night"
	PeerRedislock     = "bsm/redislock, a lock a night"
	PeerScript        = "one Lua script a hold"
	HoldfastDurable   = "Holdfast, all synced"
	HoldfastUnsynced  = "Holdfast, unsynced"
	HoldfastGiven     = "Holdfast, servers that were given"
)

// Promises says what a way of placing holds does beyond counting: whether an expired hold gives its slots
// back, whether an event is stored with the hold, whether the request gets an outcome that is remembered
// under its key, and whether holds survive that all programs are killed.
type Promises struct {
	Expires  bool  `json:"expiry_gives_back"`
	Event    bool  `json:"event_stored"`
	Outcome  bool  `json:"outcome_remembered"`
	Survives *bool `json:"survives_kill,omitzero"` // nil if unknown: on servers of Options
}

// peer is another way of placing holds.
type peer struct {
	name     string
	inFlight []int // numbers of requests at once that are tried, ascending
	Promises
	open func(ctx context.Context, p *peers, capacity int64) (placer, error) // nil for Holdfast
}

// placer places holds. It is safe for concurrent use.
type placer interface {
	// place places a hold, unless a night is full. The same key again takes no more room.
	place(ctx context.Context, r peerRequest) (placed bool, err error)
	// close removes what the peer has stored.
	close(ctx context.Context) error
}

// peerRequest is a request for some nights of a resource.
type peerRequest struct {
	key, resource string
	nights        []string // in ascending order
}

// allPeers are the peers in the order of the report. Those in Redis use the servers of the run.
var allPeers = []peer{
	{PeerPostgres, []int{8, 16}, Promises{Outcome: true, Survives: new(true)}, openPostgres("on")},
	{PeerPostgresAsync, []int{8, 16}, Promises{Outcome: true, Survives: new(false)}, openPostgres("off")},
	{PeerRedsync, []int{4, 16, 64, 256, 1024}, Promises{}, openRedsync},
	{PeerRedislock, []int{4, 16, 64, 256, 1024}, Promises{}, openRedislock},
	{PeerScript, []int{64, 256, 1024}, Promises{}, openScript},
}

// holdfasts are Holdfast on servers that sync, and on those of the run.
func (b *runner) holdfasts() (durable, other peer) {
	durable = peer{HoldfastDurable, []int{64, 256, 1024, 2048}, Promises{true, true, true, new(true)}, nil}
	other = durable
	other.name, other.Survives = HoldfastUnsynced, nil
	if b.stack == nil {
		other.name = HoldfastGiven
	}
	return durable, other
}

// peers are the servers of a comparison with peers.
type peers struct {
	*runner
	durable *durable
}

// peerLoads are the loads that peers are measured with.
var peerLoads = []load{{resources: manyResources}, {resources: 1}}

func (b *runner) peerSteps() int {
	return (len(allPeers) + 2) * len(b.peerNights) * len(peerLoads) // and Holdfast twice
}

// comparePeers measures holds per second of Holdfast and of its peers, each in a closed loop: a number of
// clients that each send a request when their last one is answered. Of some numbers it takes the best.
func (b *runner) comparePeers(ctx context.Context) (err error) {
	b.progressf("peers: each with as many requests at once as it does best with")
	d, err := b.startDurable(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	p := &peers{b, d}
	synced, other := b.holdfasts()
	if err := p.measureHoldfast(ctx, synced, d.cluster); err != nil {
		return err
	}
	if err := d.onlyPostgres(ctx); err != nil {
		return err
	}
	for _, kind := range allPeers {
		if err := p.measure(ctx, kind); err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
	}
	s, done, err := b.stocked(ctx, manyResources)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	if err := s.start(ctx, 1); err != nil {
		return err
	}
	return p.measureHoldfast(ctx, other, s)
}

// measure measures a peer with all nights and loads.
func (p *peers) measure(ctx context.Context, kind peer) (err error) {
	with, err := kind.open(ctx, p, unlimitedCapacity)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, with.close(context.WithoutCancel(ctx))) }()
	return p.measureWith(ctx, kind, with)
}

func (p *peers) measureWith(ctx context.Context, kind peer, with placer) error {
	for _, nights := range p.peerNights {
		for _, what := range peerLoads {
			p.step("%s: %s, %s", kind.name, plural(nights, "night"), what)
			figure, err := p.best(ctx, kind, with, nights, what)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", plural(nights, "night"), what, err)
			}
			p.report.Peers = append(p.report.Peers, figure)
		}
	}
	return nil
}

// clearlySlower is the share of the highest rate below which no larger number is tried.
const clearlySlower = 0.7

// best tries numbers of requests at once, until more of them are clearly slower, and measures with the best.
func (p *peers) best(ctx context.Context, kind peer, with placer, nights int, what load) (Peer, error) {
	run := func(inFlight int, lasting time.Duration) (Rate, Quantiles, error) {
		return closedLoop(ctx, inFlight, lasting, func(ctx context.Context, n int) error {
			placed, err := with.place(ctx, newPeerRequest(what.pick(n), nights))
			if err == nil && !placed {
				err = errors.New("refused, although nothing is full")
			}
			return err
		})
	}
	figure := Peer{Name: kind.name, Nights: nights, Resources: what.resources, Promises: kind.Promises}
	if figure.Survives == nil && p.stack != nil { // the run's own servers never sync
		figure.Survives = new(false)
	}
	highest := 0.0
	for _, inFlight := range kind.inFlight {
		tried, _, err := run(inFlight, p.peerTry)
		if err != nil {
			return Peer{}, err
		}
		if tried.PerSecond < clearlySlower*highest {
			break
		}
		if tried.PerSecond > highest {
			highest, figure.InFlight = tried.PerSecond, inFlight
		}
	}
	var err error
	figure.Rate, figure.Quantiles, err = run(figure.InFlight, p.peerFor)
	return figure, err
}

// peerKeys numbers the requests of all peers.
var peerKeys atomic.Int64

// newPeerRequest returns a request with a new key for random nights of a resource.
func newPeerRequest(resource, nights int) peerRequest {
	first := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, calendarFrom+rand.IntN(calendar-nights+1))
	r := peerRequest{
		key: "k" + strconv.FormatInt(peerKeys.Add(1), 10), resource: resourceName(resource), nights: make([]string, nights),
	}
	for n := range r.nights {
		r.nights[n] = first.AddDate(0, 0, n).Format(time.DateOnly)
	}
	return r
}

// closedLoop has a number of clients call do, each again as soon as it returns, until the time is over. It
// returns the rate of the calls and how long they took.
func closedLoop(
	ctx context.Context, clients int, lasting time.Duration, do func(ctx context.Context, n int) error,
) (Rate, Quantiles, error) {
	var mu sync.Mutex // guards times
	times := newHistogram()
	var calls atomic.Int64
	began := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for range clients {
		group.Go(func() error {
			for {
				from := time.Now()
				if from.Sub(began) >= lasting {
					return nil
				}
				if err := do(ctx, int(calls.Add(1))-1); err != nil {
					return err
				}
				took := time.Since(from)
				mu.Lock()
				record(times, took)
				mu.Unlock()
			}
		})
	}
	if err := group.Wait(); err != nil {
		return Rate{}, Quantiles{}, err
	}
	rate, err := newRate(int(calls.Load()), time.Since(began), nil)
	return rate, newQuantiles(times), err
}
