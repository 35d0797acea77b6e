package robustness

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"holdfast/internal/stack/stacktest"
)

// workerPaths claims the connections of the workers to all servers.
var workerPaths = []string{"redis path", "postgres path", "nats path"}

func redisProxies(w *Worker) []*stacktest.Proxy    { return w.redis }
func postgresProxies(w *Worker) []*stacktest.Proxy { return w.postgres }
func natsProxies(w *Worker) []*stacktest.Proxy     { return w.nats }

var networkFaults = []Fault{
	{
		Kind: "redis replies lost", What: "Redis runs a script, and its reply is lost with the connection",
		Claims: []string{"redis path"},
		Strike: dropMessages(redisProxies, stacktest.DropRule{Words: []string{"evalsha"}}),
	},
	{
		Kind: "commit replies lost", What: "Postgres commits a transaction, and its reply is lost with the connection",
		Claims: []string{"postgres path"},
		Strike: dropMessages(postgresProxies, stacktest.DropRule{Words: []string{"commit"}}),
	},
	{
		Kind: "commits lost", What: "the connection is cut before COMMIT arrives",
		Claims: []string{"postgres path"},
		Strike: dropMessages(postgresProxies, stacktest.DropRule{Words: []string{"commit"}, Request: true}),
	},
	{
		Kind: "pubacks lost", What: "JetStream stores an outcome, and its PubAck is lost with the connection",
		Claims: []string{"nats path"},
		Strike: dropMessages(natsProxies, stacktest.DropRule{Words: []string{".out."}}),
	},
	{
		Kind: "acks lost", What: "the ack of an event is lost with the connection",
		Claims: []string{"nats path"},
		Strike: dropMessages(natsProxies, stacktest.DropRule{Words: []string{"$JS.ACK"}, Request: true}),
	},
	{
		Kind: "publishers' pubacks lost", What: "JetStream stores an event, and its publisher gets no PubAck",
		Claims: []string{"load path"},
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			return dropOften(s.Load, random, stacktest.DropRule{Words: []string{".in."}}), nil
		},
	},
	{
		Kind: "worker partitioned", What: "nothing passes between one worker and one of the servers, in either direction",
		Claims: append([]string{heldByNetwork}, workerPaths...), Lasts: span{2 * time.Second, 20 * time.Second},
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			return applyToxics(s.randomWorker(random).randomProxies(random), func(p *stacktest.Proxy) {
				p.Set(stacktest.Upstream, stacktest.Toxics{Stall: true})
				p.Set(stacktest.Downstream, stacktest.Toxics{Stall: true})
			}), nil
		},
	},
	{
		Kind: "worker deaf", What: "one worker reaches a server, and gets nothing back",
		Claims: workerPaths, Lasts: span{2 * time.Second, 12 * time.Second},
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			return applyToxics(s.randomWorker(random).randomProxies(random), func(p *stacktest.Proxy) {
				p.Set(stacktest.Downstream, stacktest.Toxics{Stall: true})
			}), nil
		},
	},
	{
		Kind: "connections refused", What: "all connections of one worker are cut, and new ones are refused",
		Claims: workerPaths,
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			return applyToxics(s.randomWorker(random).proxies(), func(p *stacktest.Proxy) {
				p.Refuse(true)
				p.Cut(true)
			}), nil
		},
	},
	{
		Kind: "connections cut", What: "all connections of all workers are cut by RST or FIN, several times",
		Claims: []string{},
		Strike: func(ctx context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			for range 4 {
				for _, p := range s.workerProxies() {
					p.Cut(random.IntN(2) == 0)
				}
				wait(ctx, time.Duration(random.IntN(400))*time.Millisecond)
			}
			return noUndo, nil
		},
	},
	{
		Kind: "everything slow", What: "each chunk between workers and servers is delayed by 2 to 40 ms",
		Claims: workerPaths,
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			return applyToxics(s.workerProxies(), func(p *stacktest.Proxy) {
				delay := func() stacktest.Toxics {
					return stacktest.Toxics{Delay: time.Duration(2+random.IntN(38)) * time.Millisecond}
				}
				p.Set(stacktest.Upstream, delay())
				p.Set(stacktest.Downstream, delay())
			}), nil
		},
	},
	{
		Kind: "everything in slices", What: "bytes between workers and servers arrive in slices of 1 to 64",
		Claims: workerPaths,
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			return applyToxics(s.workerProxies(), func(p *stacktest.Proxy) {
				p.Set(stacktest.Upstream, stacktest.Toxics{Slice: 1 + random.IntN(64)})
				p.Set(stacktest.Downstream, stacktest.Toxics{Slice: 1 + random.IntN(64)})
			}), nil
		},
	},
}

// randomProxies returns the proxies between the worker and one of the servers.
func (w *Worker) randomProxies(random *rand.Rand) []*stacktest.Proxy {
	return [][]*stacktest.Proxy{slices.Concat(w.redis, w.sentinels), w.postgres, w.nats}[random.IntN(3)]
}

// workerProxies returns the proxies of all workers.
func (s *Cluster) workerProxies() (all []*stacktest.Proxy) {
	for _, w := range s.Workers {
		all = append(all, w.proxies()...)
	}
	return all
}

// applyToxics calls apply for each proxy. The undoFunc resets the proxies.
func applyToxics(proxies []*stacktest.Proxy, apply func(p *stacktest.Proxy)) undoFunc {
	for _, p := range proxies {
		apply(p)
	}
	return func(context.Context) error {
		for _, p := range proxies {
			p.Reset()
		}
		return nil
	}
}

// dropMessages drops messages of all workers, several times until the fault ends.
func dropMessages(proxiesOf func(w *Worker) []*stacktest.Proxy, rule stacktest.DropRule) strikeFunc {
	return func(_ context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
		var proxies []*stacktest.Proxy
		for _, w := range s.Workers {
			proxies = append(proxies, proxiesOf(w)...)
		}
		return dropOften(proxies, random, rule), nil
	}
}

// dropOften sets a rule several times at each proxy, each time with another Skip.
func dropOften(proxies []*stacktest.Proxy, random *rand.Rand, rule stacktest.DropRule) undoFunc {
	const times = 8 // at each proxy
	return applyToxics(proxies, func(p *stacktest.Proxy) {
		for range times {
			rule.Skip = random.IntN(12)
			p.Drop(rule)
		}
	})
}
