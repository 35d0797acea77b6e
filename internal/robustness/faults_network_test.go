package robustness

import (
	"context"
	"math/rand/v2"
	"time"

	"holdfast/internal/stack/stacktest"
)

var networkFaults = []Fault{
	{
		Kind: "redis replies lost", What: "scripts that Redis has run, and whose replies are lost with the connection", Claims: []string{"redis path"},
		Strike: dropMessages(func(w *Worker) []*stacktest.Proxy { return []*stacktest.Proxy{w.redis} }, stacktest.DropRule{Words: []string{"evalsha"}}),
	},
	{
		Kind: "commit replies lost", What: "transactions that Postgres has committed, and whose replies are lost with the connection", Claims: []string{"postgres path"},
		Strike: dropMessages(func(w *Worker) []*stacktest.Proxy { return []*stacktest.Proxy{w.postgres} }, stacktest.DropRule{Words: []string{"commit"}}),
	},
	{
		Kind: "commits lost", What: "connections that are cut before COMMIT arrives", Claims: []string{"postgres path"},
		Strike: dropMessages(func(w *Worker) []*stacktest.Proxy { return []*stacktest.Proxy{w.postgres} }, stacktest.DropRule{Words: []string{"commit"}, Request: true}),
	},
	{
		Kind: "pubacks lost", What: "outcomes that JetStream has stored, and whose PubAcks are lost with the connection", Claims: []string{"nats path"},
		Strike: dropMessages(func(w *Worker) []*stacktest.Proxy { return w.nats }, stacktest.DropRule{Words: []string{".out."}}),
	},
	{
		Kind: "acks lost", What: "acks of events that are lost with the connection", Claims: []string{"nats path"},
		Strike: dropMessages(func(w *Worker) []*stacktest.Proxy { return w.nats }, stacktest.DropRule{Words: []string{"$JS.ACK"}, Request: true}),
	},
	{
		Kind: "publishers' pubacks lost", What: "events that JetStream has stored, and whose publisher hears nothing of it", Claims: []string{"load path"},
		Strike: func(ctx context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
			return dropOften(ctx, s.Load, random, stacktest.DropRule{Words: []string{".in."}})
		},
	},
	{
		Kind: "worker partitioned", What: "one worker reaches one of the servers no more: nothing passes, and nothing is said", Claims: []string{"redis path", "postgres path", "nats path", heldByNetwork}, Lasts: span{2 * time.Second, 20 * time.Second},
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
			w := s.randomWorker(random)
			return applyToxics([][]*stacktest.Proxy{{w.redis}, {w.postgres}, w.nats}[random.IntN(3)], random, func(p *stacktest.Proxy) {
				p.Set(stacktest.Upstream, stacktest.Toxics{Stall: true})
				p.Set(stacktest.Downstream, stacktest.Toxics{Stall: true})
			})
		},
	},
	{
		Kind: "worker deaf", What: "one worker is heard by a server, and hears nothing", Claims: []string{"redis path", "postgres path", "nats path"}, Lasts: span{2 * time.Second, 12 * time.Second},
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
			w := s.randomWorker(random)
			return applyToxics([][]*stacktest.Proxy{{w.redis}, {w.postgres}, w.nats}[random.IntN(3)], random, func(p *stacktest.Proxy) { p.Set(stacktest.Downstream, stacktest.Toxics{Stall: true}) })
		},
	},
	{
		Kind: "connections refused", What: "all connections of one worker are cut, and new ones refused", Claims: []string{"redis path", "postgres path", "nats path"},
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
			return applyToxics(s.randomWorker(random).proxies(), random, func(p *stacktest.Proxy) {
				p.Refuse(true)
				p.Cut(true)
			})
		},
	},
	{
		Kind: "connections cut", What: "all connections of all workers are cut, by RST or FIN, several times", Claims: []string{},
		Strike: func(ctx context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
			for range 4 {
				for _, w := range s.Workers {
					for _, p := range w.proxies() {
						p.Cut(random.IntN(2) == 0)
					}
				}
				wait(ctx, time.Duration(random.IntN(400))*time.Millisecond)
			}
			return noUndo, nil
		},
	},
	{
		Kind: "everything slow", What: "each piece of what workers and servers say to each other comes 2 to 40 ms late", Claims: []string{"redis path", "postgres path", "nats path"},
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
			return applyToxics(s.allProxies(), random, func(p *stacktest.Proxy) {
				late := func() stacktest.Toxics {
					return stacktest.Toxics{Delay: time.Duration(2+random.IntN(38)) * time.Millisecond}
				}
				p.Set(stacktest.Upstream, late())
				p.Set(stacktest.Downstream, late())
			})
		},
	},
	{
		Kind: "everything in slices", What: "what workers and servers say to each other comes in pieces of 1 to 64 bytes", Claims: []string{"redis path", "postgres path", "nats path"},
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
			return applyToxics(s.allProxies(), random, func(p *stacktest.Proxy) {
				p.Set(stacktest.Upstream, stacktest.Toxics{Slice: 1 + random.IntN(64)})
				p.Set(stacktest.Downstream, stacktest.Toxics{Slice: 1 + random.IntN(64)})
			})
		},
	},
}

// allProxies are the proxies of all workers.
func (s *Cluster) allProxies() (all []*stacktest.Proxy) {
	for _, w := range s.Workers {
		all = append(all, w.proxies()...)
	}
	return all
}

// applyToxics does something to proxies, until they are calmed.
func applyToxics(proxies []*stacktest.Proxy, _ *rand.Rand, do func(p *stacktest.Proxy)) (func(context.Context) error, error) {
	for _, p := range proxies {
		do(p)
	}
	return func(context.Context) error {
		for _, p := range proxies {
			p.Reset()
		}
		return nil
	}, nil
}

// dropMessages loses something of all workers, over and over until it is mended.
func dropMessages(which func(w *Worker) []*stacktest.Proxy, l stacktest.DropRule) func(context.Context, *Cluster, *rand.Rand) (func(context.Context) error, error) {
	return func(ctx context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
		var proxies []*stacktest.Proxy
		for _, w := range s.Workers {
			proxies = append(proxies, which(w)...)
		}
		return dropOften(ctx, proxies, random, l)
	}
}

func dropOften(_ context.Context, proxies []*stacktest.Proxy, random *rand.Rand, l stacktest.DropRule) (func(context.Context) error, error) {
	const times = 8 // at each proxy
	for _, p := range proxies {
		for range times {
			its := l
			its.Skip = random.IntN(12)
			p.Drop(its)
		}
	}
	return func(context.Context) error {
		for _, p := range proxies {
			p.Reset()
		}
		return nil
	}, nil
}
