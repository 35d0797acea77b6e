package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
)

const (
	natsProcess = "nats process"
	natsStream  = "nats stream"
)

var natsFaults = []Fault{
	{
		Kind: "nats leader killed", What: "kill -9 of the node that leads the inbound stream",
		Claims: []string{natsProcess},
		Strike: func(ctx context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
			node := s.leader(ctx)
			return node.up, node.kill()
		},
	},
	{
		Kind: "nats killed", What: "kill -9 of all nodes at once", Claims: []string{natsProcess},
		Strike: func(_ context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
			var errs []error
			for _, node := range s.nats {
				errs = append(errs, node.kill())
			}
			return func(ctx context.Context) error {
				var errs []error
				for _, node := range s.nats {
					errs = append(errs, node.up(ctx))
				}
				return errors.Join(errs...)
			}, errors.Join(errs...)
		},
	},
	{
		Kind: "nats node stopped", What: "SIGSTOP of one node",
		Claims: []string{natsProcess, heldByNATS}, Lasts: span{2 * time.Second, 15 * time.Second},
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			node := s.nats[random.IntN(len(s.nats))]
			return undoWith(node.resume), node.pause()
		},
	},
	{
		Kind: "nats node wiped", What: "a node loses its data; when the others have taken over, it joins again",
		Claims: []string{natsProcess, natsStream}, Unavailable: needsNodes,
		Strike: func(ctx context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			i := random.IntN(len(s.nats))
			s.Log("%s wiped", s.nats[i].name)
			return func(ctx context.Context) error {
				// A node without data votes for any leader, also for one that lacks acknowledged messages.
				return errors.Join(s.awaitReplicas(ctx, len(s.nats)-2), s.nats[i].up(ctx), s.awaitReplicas(ctx, len(s.nats)-1))
			}, errors.Join(s.nats[i].kill(), os.RemoveAll(nodeDir(s.dir, i)))
		},
	},
	{
		Kind: "consumer deleted", What: "a durable consumer of the inbound stream is deleted",
		Claims: []string{natsProcess, natsStream},
		Strike: func(ctx context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			name := consumers[random.IntN(len(consumers))]
			s.Log("consumer %s deleted", name)
			return noUndo, s.withJetStream(ctx, func(ctx context.Context, js jetstream.JetStream) error {
				return js.DeleteConsumer(ctx, events.Namespace(s.Namespace).InStream(), name)
			})
		},
	},
	{
		Kind: "inbound stream full", What: "the inbound stream refuses new messages",
		Claims: []string{natsProcess, natsStream},
		Strike: fillStream(events.Namespace.InStream),
	},
	{
		Kind: "outbound stream full", What: "the outbound stream refuses new messages",
		Claims: []string{natsProcess, natsStream},
		Strike: fillStream(events.Namespace.OutStream),
	},
	{
		Kind: "dead letters full", What: "the stream of dead letters refuses new messages",
		Claims: []string{natsProcess, natsStream},
		Strike: fillStream(events.Namespace.DLQStream),
	},
}

// consumers are the durable consumers of the inbound stream.
var consumers = []string{events.ConsumerRequests, events.ConsumerChanges, events.ConsumerPayments}

// withJetStream calls do over a connection without proxies, and retries it until it succeeds or
// startWithin is over.
func (s *Cluster) withJetStream(ctx context.Context, do func(ctx context.Context, js jetstream.JetStream) error) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	nc, err := s.connectNATS()
	if err != nil {
		return fmt.Errorf("connect to nats: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	for {
		within, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := do(within, js)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		wait(ctx, publishRetry) // for example until JetStream has elected a leader
	}
}

func needsNodes(s *Cluster) string {
	if len(s.nats) == 1 {
		return "one node of NATS"
	}
	return ""
}

// awaitReplicas waits until each stream and consumer has a leader, and so many other nodes with all its
// data.
func (s *Cluster) awaitReplicas(ctx context.Context, others int) error {
	check := func(name string, info *jetstream.ClusterInfo) error {
		current := 0
		for _, replica := range info.Replicas {
			if replica.Current && !replica.Offline {
				current++
			}
		}
		if info.Leader == "" || current < others {
			return fmt.Errorf("%s has leader %q and %d current replicas, want %d", name, info.Leader, current, others)
		}
		return nil
	}
	return s.withJetStream(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		for _, name := range s.streams() {
			stream, err := js.Stream(ctx, name)
			if err != nil {
				return err
			}
			if err := check(name, stream.CachedInfo().Cluster); err != nil {
				return err
			}
		}
		for _, name := range consumers {
			c, err := js.Consumer(ctx, events.Namespace(s.Namespace).InStream(), name)
			if err != nil {
				return err
			}
			if err := check(name, c.CachedInfo().Cluster); err != nil {
				return err
			}
		}
		return nil
	})
}

// leader returns the node that leads the inbound stream, or the first node when the leader is unknown.
func (s *Cluster) leader(ctx context.Context) *serverProcess {
	name := ""
	// Without an answer name stays empty, and leader returns the first node.
	_ = s.withJetStream(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		stream, err := js.Stream(ctx, events.Namespace(s.Namespace).InStream())
		if err == nil && stream.CachedInfo().Cluster != nil {
			name = stream.CachedInfo().Cluster.Leader
		}
		return err
	})
	return s.nats[max(0, slices.IndexFunc(s.nats, func(n *serverProcess) bool { return n.name == "nats "+name }))]
}

// fillStream lowers the limit of a stream to the number of its messages and makes it refuse new ones.
func fillStream(which func(events.Namespace) string) strikeFunc {
	return func(ctx context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
		change := func(ctx context.Context, newConfig func(stream jetstream.Stream) jetstream.StreamConfig) error {
			return s.withJetStream(ctx, func(ctx context.Context, js jetstream.JetStream) error {
				stream, err := js.Stream(ctx, which(events.Namespace(s.Namespace)))
				if err == nil {
					_, err = js.UpdateStream(ctx, newConfig(stream))
				}
				return err
			})
		}
		var original *jetstream.StreamConfig
		err := change(ctx, func(stream jetstream.Stream) jetstream.StreamConfig {
			config := stream.CachedInfo().Config
			if original == nil { // on a retry the first attempt may already have changed the stream
				before := config
				original = &before
			}
			config.Discard, config.MaxMsgs = jetstream.DiscardNew, max(1, int64(stream.CachedInfo().State.Msgs))
			return config
		})
		return func(ctx context.Context) error {
			return change(ctx, func(jetstream.Stream) jetstream.StreamConfig { return *original })
		}, err
	}
}
