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

// The durable consumers. requests takes everything, so that what nobody else knows is found
// and dead-lettered, and passes over what the two others take; they have their own, so that a
// flood of requests does not delay a payment. payments is given whatever is called a payment, because
// one filter costs the server a fifth of what two cost it for each event, and passes over what it does not know.
const (
	ConsumerRequests = "requests"
	ConsumerChanges  = "changes"
	ConsumerPayments = "payments"
)

const (
	inMessageMax     = 128 << 10
	inDuplicates     = 100 * time.Millisecond // the smallest window that a server takes: 0 means two minutes
	outAgeMin        = 7 * 24 * time.Hour
	outDuplicates    = 10 * time.Minute
	dlqDuplicates    = 24 * time.Hour // a worker may die between a letter and its Term, and come back late
	runsAge          = 365 * 24 * time.Hour
	ackWait          = 15 * time.Second // a killed worker's events are taken up after it
	ackPendingMax    = -1               // no limit: what waits to be retried must not keep others back
	streamSetupLimit = 30 * time.Second
)

// ClockSkewMax bounds the difference between the clocks of two servers of a NATS cluster. The times of messages in two
// streams are compared with this tolerance: each stream has the clock of its leader.
const ClockSkewMax = time.Minute

// Retention is what the streams of a namespace depend on: how far back an outcome can matter when Redis is rebuilt
// from the outbound stream, and how many servers keep a copy.
type Retention struct {
	HoldLifetime time.Duration // of a hold, at most
	AnswerTTL    time.Duration // of ended holds and of answers
	Replicas     int           // of each stream; 0 = 3 in a cluster, 1 on a lone server
}

// replicasDefault is how many copies a stream has in a cluster.
const replicasDefault = 3

// Streams are the streams of a namespace as Setup creates them.
func (ns Namespace) Streams(retention Retention) []jetstream.StreamConfig {
	streams := []jetstream.StreamConfig{
		{
			Name: ns.InStream(), Subjects: []string{ns.AllIn()},
			Description: "what booking, payment and inventory services ask of Holdfast",
			Discard:     jetstream.DiscardNew, MaxMsgSize: inMessageMax, Duplicates: inDuplicates,
		},
		{
			Name: ns.OutStream(), Subjects: []string{ns.AllOut()},
			Description: "what Holdfast answers",
			Discard:     jetstream.DiscardOld, MaxAge: max(outAgeMin, 2*(retention.HoldLifetime+retention.AnswerTTL)), Duplicates: outDuplicates,
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

// Consumers are the durable consumers of the inbound stream as Setup creates them.
func (ns Namespace) Consumers() []jetstream.ConsumerConfig {
	consumers := []jetstream.ConsumerConfig{
		{Durable: ConsumerRequests, FilterSubjects: []string{ns.AllIn()}},
		{Durable: ConsumerChanges, FilterSubjects: ns.changes()},
		{Durable: ConsumerPayments, FilterSubjects: ns.payments()},
	}
	for i := range consumers {
		c := &consumers[i]
		c.AckPolicy, c.AckWait = jetstream.AckExplicitPolicy, ackWait
		c.MaxDeliver = -1 // the server's limit would park a message without a word
		c.MaxAckPending = ackPendingMax
	}
	return consumers
}

// consumer is the durable consumer of a name.
func (ns Namespace) consumer(name string) (config jetstream.ConsumerConfig) {
	for _, config = range ns.Consumers() {
		if config.Durable == name {
			break
		}
	}
	return config
}

// answeredBy returns which events a durable consumer answers, by their subjects. Those that another one answers it
// passes over, whatever the filters of the consumers are, which workers of two versions may want to be different.
func (ns Namespace) answeredBy(name string) func(subject string) bool {
	begins := func(with []string) func(string) bool {
		prefixes := prefixes(with)
		return func(subject string) bool {
			return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(subject, prefix) })
		}
	}
	changes, payments := begins(ns.changes()), begins(ns.ofAny(PaymentStarted, PaymentConfirmed))
	switch name {
	case ConsumerChanges:
		return changes
	case ConsumerPayments:
		return payments
	}
	return func(subject string) bool { return !changes(subject) && !payments(subject) }
}

// Setup creates the streams that are missing and the consumers. Streams that exist are left as
// their operators made them, but for the duplicate window of the inbound stream, which it brings
// down. For a stream that would break a promise it returns an error. A consumer that is missing goes on
// behind the last answered event, and log says so; where that is not known, Setup returns an error.
func Setup(parent context.Context, js jetstream.JetStream, ns Namespace, retention Retention, log zerolog.Logger) error {
	ctx, cancel := context.WithTimeout(parent, streamSetupLimit)
	defer cancel()
	for _, config := range ns.Streams(retention) {
		if err := ns.ensureStream(ctx, js, config, retention); err != nil {
			return fmt.Errorf("stream %s: %w", config.Name, err)
		}
	}
	for _, config := range ns.Consumers() {
		if err := ns.ensureConsumer(parent, js, config.Durable, nil, log); err != nil {
			return err
		}
	}
	return nil
}

// Remove removes the streams of a namespace, with all that is in them.
func Remove(ctx context.Context, js jetstream.JetStream, ns Namespace) error {
	var errs []error
	for _, config := range ns.Streams(Retention{}) {
		if err := js.DeleteStream(ctx, config.Name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			errs = append(errs, fmt.Errorf("remove stream %s: %w", config.Name, err))
		}
	}
	return errors.Join(errs...)
}

// changes and payments are the subjects of the consumers of these names.
func (ns Namespace) changes() []string {
	return ns.ofAny(BookingExtended, BookingCancelled, ReservationCancelled, InventorySet)
}

func (ns Namespace) payments() []string { return ns.ofAny("payment") }

// ofAny are the subjects of events about any resource.
func (ns Namespace) ofAny(events ...string) []string {
	subjects := make([]string, len(events))
	for i, event := range events {
		subjects[i] = ns.In(event, ">")
	}
	return subjects
}

func (ns Namespace) ensureStream(ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig, retention Retention) error {
	stream, err := js.Stream(ctx, config.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return createStream(ctx, js, config)
	}
	if err != nil {
		return err
	}
	found := stream.CachedInfo().Config
	if config.Name == ns.InStream() && found.Duplicates > config.Duplicates {
		found.Duplicates = config.Duplicates
		if _, err := js.UpdateStream(ctx, found); err != nil {
			return fmt.Errorf("bring its duplicate window down to %s: %w", config.Duplicates, err)
		}
	}
	for _, drift := range ns.DiffStream(found, config, retention) {
		if drift.Fatal {
			return errors.New(drift.String())
		}
	}
	return nil
}

// createStream creates a stream, by default with as many replicas as are usual for the servers. Another worker
// may create it meanwhile: the same configuration is no conflict. A cluster that lacks servers at this moment is an
// error: a stream that is created with fewer replicas keeps them.
func createStream(ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig) error {
	byDefault := config.Replicas == 0
	if byDefault {
		config.Replicas = replicasDefault
	}
	_, err := js.CreateStream(ctx, config)
	if byDefault && isLoneServer(err) {
		config.Replicas = 1
		_, err = js.CreateStream(ctx, config)
		return err
	}
	var refused *jetstream.APIError
	if errors.As(err, &refused) {
		return fmt.Errorf("create it with %d replicas: %w (start as many servers, or set HOLDFAST_STREAM_REPLICAS)", config.Replicas, err)
	}
	return err
}

// isLoneServer reports whether a server has refused replicas because it is in no cluster.
func isLoneServer(err error) bool {
	const replicasNotSupported = 10074
	refused, is := errors.AsType[*jetstream.APIError](err)
	return is && refused.ErrorCode == replicasNotSupported
}
