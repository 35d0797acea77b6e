package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
)

// The durable consumers. There are three, so that a flood of requests does not delay a payment.
//
//   - requests receives all events, so that events of an unknown type are dead-lettered. It skips
//     those that the other two answer.
//   - changes receives the events that change a hold, a reservation or the inventory.
//   - payments receives all events whose name begins with payment, and skips those that it does not
//     know: for each event, one filter costs the server a fifth of what two cost.
const (
	ConsumerRequests = "requests"
	ConsumerChanges  = "changes"
	ConsumerPayments = "payments"
)

const (
	inMessageMax     = 128 << 10
	inDuplicates     = 100 * time.Millisecond // the smallest window that a server allows: 0 means two minutes
	outAgeMin        = 7 * 24 * time.Hour
	outDuplicates    = 10 * time.Minute
	dlqDuplicates    = 24 * time.Hour // a worker may die after it has stored a dead letter, and restart late
	runsAge          = 365 * 24 * time.Hour
	ackPendingMax    = -1 // no limit: events that wait for a retry must not block others
	streamSetupLimit = 30 * time.Second
)

// ackWait is how long the server waits for the ack of an event before it delivers it again. After it another
// worker has the events of a killed one; with the last fetch of a worker whose machine died (fetchWait),
// within 5 s. A running worker extends it in time (extendDue).
const ackWait = 4 * time.Second

// ClockSkewMax bounds the difference between the clocks of two servers of a NATS cluster. The times
// of messages in two streams are compared with this tolerance: each stream has the clock of its
// leader.
const ClockSkewMax = time.Minute

// Retention configures the streams of a namespace. HoldLifetime and AnswerTTL determine how old an
// outcome can be that a rebuild of Redis needs.
type Retention struct {
	HoldLifetime time.Duration // the longest life of a hold
	AnswerTTL    time.Duration // for which ended holds and answers are remembered
	Replicas     int           // of each stream; 0: 3 in a cluster, 1 on a single server
}

// replicasDefault is the number of replicas of a stream in a cluster.
const replicasDefault = 3

// Streams returns the streams of a namespace as Setup creates them.
func (ns Namespace) Streams(retention Retention) []jetstream.StreamConfig {
	streams := []jetstream.StreamConfig{
		{
			Name: ns.InStream(), Subjects: []string{ns.AllIn()},
			Description: "what booking, payment and inventory services ask of Holdfast",
			Discard:     jetstream.DiscardNew, MaxMsgSize: inMessageMax, Duplicates: inDuplicates,
			AllowAtomicPublish: true,
		},
		{
			Name: ns.OutStream(), Subjects: []string{ns.AllOut()},
			Description: "what Holdfast answers",
			Discard:     jetstream.DiscardOld, Duplicates: outDuplicates,
			MaxAge: max(outAgeMin, 2*(retention.HoldLifetime+retention.AnswerTTL)), AllowAtomicPublish: true,
		},
		{
			Name: ns.DLQStream(), Subjects: []string{ns.AllDLQ()},
			Description: "events that Holdfast can never process",
			Discard:     jetstream.DiscardNew, Duplicates: dlqDuplicates,
		},
		{
			Name: ns.RunsStream(), Subjects: []string{ns.AllRuns()},
			Description: "who did what to dead letters",
			Discard:     jetstream.DiscardOld, MaxAge: runsAge,
		},
	}
	for i := range streams {
		streams[i].Storage, streams[i].Retention = jetstream.FileStorage, jetstream.LimitsPolicy
		streams[i].Replicas = retention.Replicas
	}
	return streams
}

// Consumers returns the durable consumers of the inbound stream as Setup creates them.
func (ns Namespace) Consumers() []jetstream.ConsumerConfig {
	consumers := []jetstream.ConsumerConfig{
		{Durable: ConsumerRequests, FilterSubjects: []string{ns.AllIn()}},
		{Durable: ConsumerChanges, FilterSubjects: ns.ofAny(changeEvents...)},
		{Durable: ConsumerPayments, FilterSubjects: ns.ofAny("payment")},
	}
	for i := range consumers {
		c := &consumers[i]
		c.AckPolicy, c.AckWait = jetstream.AckExplicitPolicy, ackWait
		c.MaxDeliver = -1 // with a limit, the server would silently stop to deliver a message
		c.MaxAckPending = ackPendingMax
	}
	return consumers
}

// ConsumerNames returns the names of the durable consumers, in the order of Consumers.
func ConsumerNames() []string { return []string{ConsumerRequests, ConsumerChanges, ConsumerPayments} }

// consumer returns the configuration of a durable consumer.
func (ns Namespace) consumer(name string) (config jetstream.ConsumerConfig) {
	for _, config = range ns.Consumers() {
		if config.Durable == name {
			break
		}
	}
	return config
}

// ConsumerOf returns the name of the durable consumer that answers the events of a subject. It does not depend on the
// filters of the consumers, which workers of another version may have set differently.
func (ns Namespace) ConsumerOf(subject string) string {
	of := subject[min(len(subject), len(ns)+len(".in.")):]
	is := func(event string) bool {
		rest, found := strings.CutPrefix(of, event)
		return found && strings.HasPrefix(rest, ".")
	}
	switch {
	case is(PaymentStarted), is(PaymentConfirmed):
		return ConsumerPayments
	case slices.ContainsFunc(changeEvents, is):
		return ConsumerChanges
	}
	return ConsumerRequests
}

// Setup creates missing streams, and creates or updates the durable consumers. Of an existing stream it only lowers
// the duplicate window of the inbound one and, on a lone server, allows atomic batches (one before 2.12 has none). It
// returns an error if a stream breaks a promise (see DiffStream), or if the event at which a missing consumer starts
// cannot be determined.
func Setup(
	parent context.Context, js jetstream.JetStream, ns Namespace, retention Retention, log zerolog.Logger,
) error {
	ctx, cancel := context.WithTimeout(parent, streamSetupLimit)
	defer cancel()
	for _, config := range ns.Streams(retention) {
		if err := ns.ensureStream(ctx, js, config, retention); err != nil {
			return fmt.Errorf("stream %s: %w", config.Name, err)
		}
	}
	var unknown error // the error says what to do, so it names all consumers that need it
	for _, config := range ns.Consumers() {
		err := ns.ensureConsumer(parent, js, config.Durable, nil, log)
		if errors.Is(err, errPositionUnknown) {
			unknown = errors.Join(unknown, err)
		} else if err != nil {
			return err
		}
	}
	return unknown
}

// Remove deletes the streams of a namespace with all messages.
func Remove(ctx context.Context, js jetstream.JetStream, ns Namespace) error {
	var errs []error
	for _, config := range ns.Streams(Retention{}) {
		if err := js.DeleteStream(ctx, config.Name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			errs = append(errs, fmt.Errorf("remove stream %s: %w", config.Name, err))
		}
	}
	return errors.Join(errs...)
}

// changeEvents are the events that the consumer of changes answers.
var changeEvents = []string{BookingExtended, BookingCancelled, ReservationCancelled, InventorySet}

// ofAny returns the filters for events of any resource.
func (ns Namespace) ofAny(events ...string) []string {
	subjects := make([]string, len(events))
	for i, event := range events {
		subjects[i] = ns.In(event, ">")
	}
	return subjects
}

func (ns Namespace) ensureStream(
	ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig, retention Retention,
) error {
	stream, err := js.Stream(ctx, config.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return createStream(ctx, js, config)
	}
	if err != nil {
		return err
	}
	info := stream.CachedInfo()
	found := info.Config
	if config.Name == ns.InStream() && found.Duplicates > config.Duplicates {
		found.Duplicates = config.Duplicates
		if _, err := js.UpdateStream(ctx, found); err != nil {
			return fmt.Errorf("lower its duplicate window to %s: %w", config.Duplicates, err)
		}
	}
	if config.AllowAtomicPublish && !found.AllowAtomicPublish && !InCluster(info) {
		found.AllowAtomicPublish = true
		if _, err := js.UpdateStream(ctx, found); err != nil && ctx.Err() != nil {
			return fmt.Errorf("allow atomic batches: %w", err)
		}
	}
	for _, drift := range ns.DiffStream(found, config, retention) {
		if drift.Fatal {
			return errors.New(drift.String())
		}
	}
	return nil
}

// InCluster reports whether a stream is in a cluster of NATS. While one of its servers is older than 2.12, that server stops
// a stream for which the others allow atomic batches. Which versions all have is known to the operator only.
func InCluster(info *jetstream.StreamInfo) bool {
	return info.Cluster != nil && info.Cluster.Name != ""
}

// createStream creates a stream, by default with replicasDefault replicas in a cluster and 1 on a single server.
// A cluster with too few running servers is an error, after peerWithin for one that is just starting: with fewer
// replicas the stream would stay so.
func createStream(ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig) error {
	byDefault := config.Replicas == 0
	if byDefault {
		config.Replicas = replicasDefault
	}
	_, err := js.CreateStream(ctx, config)
	for began := time.Now(); isPeerOffline(err) && time.Since(began) < peerWithin; {
		if pauseFor(ctx, peerRetryAfter) != nil {
			return err
		}
		_, err = js.CreateStream(ctx, config)
	}
	if byDefault && HasErrorCode(err, replicasNotSupported) {
		config.Replicas = 1
		_, err = js.CreateStream(ctx, config)
		return err
	}
	switch {
	case HasErrorCode(err, noSuitablePeers, replicasNotSupported, noSuchTier):
		return fmt.Errorf("create it with %d replicas: %w (start as many servers, or set HOLDFAST_STREAM_REPLICAS)",
			config.Replicas, err)
	case HasErrorCode(err, maxBytesRequired):
		return fmt.Errorf("%w (create the four streams yourself: deployments/README.md has the commands)", err)
	}
	return err
}

// How long, and how often, a server of a cluster that is offline is waited for when a stream is created.
const (
	peerWithin     = 5 * time.Second
	peerRetryAfter = 200 * time.Millisecond
)

// Codes of refusals to create a stream.
const (
	noSuitablePeers      = 10005 // too few servers for its replicas
	replicasNotSupported = 10074 // the server is not in a cluster
	maxBytesRequired     = 10113 // streams of this account must have a limit
	noSuchTier           = 10120 // the account has no storage for as many replicas
)

// isPeerOffline reports whether a cluster has refused replicas because a server that it knows is offline.
func isPeerOffline(err error) bool {
	return HasErrorCode(err, noSuitablePeers) && strings.Contains(err.Error(), "offline")
}

// HasErrorCode reports whether an error is a refusal by JetStream with one of these codes.
func HasErrorCode(err error, codes ...jetstream.ErrorCode) bool {
	refused, is := errors.AsType[*jetstream.APIError](err)
	return is && slices.Contains(codes, refused.ErrorCode)
}
