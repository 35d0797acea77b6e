package torture

import (
	"context"
	"math/rand/v2"
	"time"
)

var pathFaults = []Fault{
	{
		Kind: "redis replies lost", What: "scripts that Redis has run, and whose replies are lost with the connection", Claims: []string{"redis path"},
		Strike: lose(func(w *Worker) []*Proxy { return []*Proxy{w.redis} }, Loss{Words: []string{"evalsha"}}),
	},
	{
		Kind: "commit replies lost", What: "transactions that Postgres has committed, and whose replies are lost with the connection", Claims: []string{"postgres path"},
		Strike: lose(func(w *Worker) []*Proxy { return []*Proxy{w.postgres} }, Loss{Words: []string{"commit"}}),
	},
	{
		Kind: "commits lost", What: "connections that are cut before COMMIT arrives", Claims: []string{"postgres path"},
		Strike: lose(func(w *Worker) []*Proxy { return []*Proxy{w.postgres} }, Loss{Words: []string{"commit"}, Request: true}),
	},
	{
		Kind: "pubacks lost", What: "outcomes that JetStream has stored, and whose PubAcks are lost with the connection", Claims: []string{"nats path"},
		Strike: lose(func(w *Worker) []*Proxy { return w.nats }, Loss{Words: []string{".out."}}),
	},
	{
		Kind: "acks lost", What: "acks of events that are lost with the connection", Claims: []string{"nats path"},
		Strike: lose(func(w *Worker) []*Proxy { return w.nats }, Loss{Words: []string{"$JS.ACK"}, Request: true}),
	},
	{
		Kind: "publishers' pubacks lost", What: "events that JetStream has stored, and whose publisher hears nothing of it", Claims: []string{"load path"},
		Strike: func(ctx context.Context, s *Site, random *rand.Rand) (func(context.Context) error, error) {
			return loseOften(ctx, s.Load, random, Loss{Words: []string{".in."}})
		},
	},
	{
		Kind: "worker partitioned", What: "one worker reaches one of the servers no more: nothing passes, and nothing is said", Claims: []string{"redis path", "postgres path", "nats path", heldByNetwork}, Lasts: span{2 * time.Second, 20 * time.Second},
		Strike: func(_ context.Context, s *Site, random *rand.Rand) (func(context.Context) error, error) {
			w := s.oneOf(random)
			return change([][]*Proxy{{w.redis}, {w.postgres}, w.nats}[random.IntN(3)], random, func(p *Proxy) {
				p.Set(Up, Path{Stall: true})
				p.Set(Down, Path{Stall: true})
			})
		},
	},
	{
		Kind: "worker deaf", What: "one worker is heard by a server, and hears nothing", Claims: []string{"redis path", "postgres path", "nats path"}, Lasts: span{2 * time.Second, 12 * time.Second},
		Strike: func(_ context.Context, s *Site, random *rand.Rand) (func(context.Context) error, error) {
			w := s.oneOf(random)
			return change([][]*Proxy{{w.redis}, {w.postgres}, w.nats}[random.IntN(3)], random, func(p *Proxy) { p.Set(Down, Path{Stall: true}) })
		},
	},
	{
		Kind: "connections refused", What: "all connections of one worker are cut, and new ones refused", Claims: []string{"redis path", "postgres path", "nats path"},
		Strike: func(_ context.Context, s *Site, random *rand.Rand) (func(context.Context) error, error) {
			return change(s.oneOf(random).proxies(), random, func(p *Proxy) {
				p.Refuse(true)
				p.Cut(true)
			})
		},
	},
	{
		Kind: "connections cut", What: "all connections of all workers are cut, by RST or FIN, several times", Claims: []string{},
		Strike: func(ctx context.Context, s *Site, random *rand.Rand) (func(context.Context) error, error) {
			for range 4 {
				for _, w := range s.Workers {
					for _, p := range w.proxies() {
						p.Cut(random.IntN(2) == 0)
					}
				}
				wait(ctx, time.Duration(random.IntN(400))*time.Millisecond)
			}
			return nothing, nil
		},
	},
	{
		Kind: "everything slow", What: "each piece of what workers and servers say to each other comes 2 to 40 ms late", Claims: []string{"redis path", "postgres path", "nats path"},
		Strike: func(_ context.Context, s *Site, random *rand.Rand) (func(context.Context) error, error) {
			return change(s.everywhere(), random, func(p *Proxy) {
				late := func() Path { return Path{Delay: time.Duration(2+random.IntN(38)) * time.Millisecond} }
				p.Set(Up, late())
				p.Set(Down, late())
			})
		},
	},
	{
		Kind: "everything in slices", What: "what workers and servers say to each other comes in pieces of 1 to 64 bytes", Claims: []string{"redis path", "postgres path", "nats path"},
		Strike: func(_ context.Context, s *Site, random *rand.Rand) (func(context.Context) error, error) {
			return change(s.everywhere(), random, func(p *Proxy) {
				p.Set(Up, Path{Slice: 1 + random.IntN(64)})
				p.Set(Down, Path{Slice: 1 + random.IntN(64)})
			})
		},
	},
}

// everywhere are the proxies of all workers.
func (s *Site) everywhere() (all []*Proxy) {
	for _, w := range s.Workers {
		all = append(all, w.proxies()...)
	}
	return all
}

// change does something to proxies, until they are calmed.
func change(proxies []*Proxy, _ *rand.Rand, do func(p *Proxy)) (func(context.Context) error, error) {
	for _, p := range proxies {
		do(p)
	}
	return func(context.Context) error {
		for _, p := range proxies {
			p.Calm()
		}
		return nil
	}, nil
}

// lose loses something of all workers, over and over until it is mended.
func lose(which func(w *Worker) []*Proxy, l Loss) func(context.Context, *Site, *rand.Rand) (func(context.Context) error, error) {
	return func(ctx context.Context, s *Site, random *rand.Rand) (func(context.Context) error, error) {
		var proxies []*Proxy
		for _, w := range s.Workers {
			proxies = append(proxies, which(w)...)
		}
		return loseOften(ctx, proxies, random, l)
	}
}

func loseOften(_ context.Context, proxies []*Proxy, random *rand.Rand, l Loss) (func(context.Context) error, error) {
	const times = 8 // at each proxy
	for _, p := range proxies {
		for range times {
			its := l
			its.Skip = random.IntN(12)
			p.Lose(its)
		}
	}
	return func(context.Context) error {
		for _, p := range proxies {
			p.Calm()
		}
		return nil
	}, nil
}
