package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
		Kind: "nats leader killed", What: "kill -9 of the node that leads the inbound stream", Claims: []string{natsProcess},
		Strike: func(ctx context.Context, s *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
			node := s.leader(ctx)
			return node.up, node.kill()
		},
	},
	{
		Kind: "nats killed", What: "kill -9 of all nodes at once", Claims: []string{natsProcess},
		Strike: func(_ context.Context, s *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
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
		Kind: "nats node stopped", What: "SIGSTOP of one node", Claims: []string{natsProcess, heldByNATS}, Lasts: span{2 * time.Second, 15 * time.Second},
		Strike: func(_ context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
			node := s.nats[random.IntN(len(s.nats))]
			return undoWith(node.resume), node.pause()
		},
	},
	{
		Kind: "consumer deleted", What: "a durable consumer of the inbound stream is deleted", Claims: []string{natsProcess, natsStream},
		Strike: func(ctx context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
			name := []string{events.ConsumerRequests, events.ConsumerChanges, events.ConsumerPayments}[random.IntN(3)]
			s.Log("consumer %s is deleted", name)
			return noUndo, s.withJetStream(ctx, func(ctx context.Context, js jetstream.JetStream) error {
				return js.DeleteConsumer(ctx, events.Namespace(s.Namespace).InStream(), name)
			})
		},
	},
	{
		Kind: "inbound stream full", What: "the inbound stream takes no more messages", Claims: []string{natsProcess, natsStream},
		Strike: fillStream(events.Namespace.InStream),
	},
	{
		Kind: "outbound stream full", What: "the outbound stream takes no more messages, and refuses them", Claims: []string{natsProcess, natsStream},
		Strike: fillStream(events.Namespace.OutStream),
	},
	{
		Kind: "dead letters full", What: "the stream of dead letters takes no more messages", Claims: []string{natsProcess, natsStream},
		Strike: fillStream(events.Namespace.DLQStream),
	},
}

// withJetStream does something with JetStream past all proxies.
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
		wait(ctx, publishRetry) // there is no leader now
	}
}

// leader returns the node that leads the inbound stream, the first when nobody says.
func (s *Cluster) leader(ctx context.Context) *serverProcess {
	name := ""
	_ = s.withJetStream(ctx, func(ctx context.Context, js jetstream.JetStream) error { // without an answer it is any node
		stream, err := js.Stream(ctx, events.Namespace(s.Namespace).InStream())
		if err == nil && stream.CachedInfo().Cluster != nil {
			name = stream.CachedInfo().Cluster.Leader
		}
		return err
	})
	return s.nats[max(0, slices.IndexFunc(s.nats, func(k *serverProcess) bool { return k.name == "nats "+name }))]
}

// fillStream lowers what a stream may have to what it has, and has it refuse what is new.
func fillStream(which func(events.Namespace) string) func(context.Context, *Cluster, *rand.Rand) (func(context.Context) error, error) {
	return func(ctx context.Context, s *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
		change := func(ctx context.Context, do func(stream jetstream.Stream) jetstream.StreamConfig) error {
			return s.withJetStream(ctx, func(ctx context.Context, js jetstream.JetStream) error {
				stream, err := js.Stream(ctx, which(events.Namespace(s.Namespace)))
				if err == nil {
					_, err = js.UpdateStream(ctx, do(stream))
				}
				return err
			})
		}
		var was *jetstream.StreamConfig
		err := change(ctx, func(stream jetstream.Stream) jetstream.StreamConfig {
			full := stream.CachedInfo().Config
			if was == nil { // else it is asked again, and may have been done
				before := full
				was = &before
			}
			full.Discard, full.MaxMsgs = jetstream.DiscardNew, max(1, int64(stream.CachedInfo().State.Msgs))
			return full
		})
		return func(ctx context.Context) error {
			return change(ctx, func(jetstream.Stream) jetstream.StreamConfig { return *was })
		}, err
	}
}
