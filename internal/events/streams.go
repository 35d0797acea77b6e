package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
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
	outAgeMin        = 7 * 24 * time.Hour
	outDuplicates    = 10 * time.Minute
	dlqDuplicates    = 24 * time.Hour // a worker may die between a letter and its Term, and come back late
	runsAge          = 365 * 24 * time.Hour
	ackWait          = 15 * time.Second // a killed worker's events are taken up after it
	ackPendingMax    = 4 * inFlightMax  // so that four workers are never idle while events wait
	streamSetupLimit = 30 * time.Second
)

// Setup creates the streams that are missing and the consumers. Streams that exist are left as
// their operators made them, unless they would break a promise: then it returns an error.
func Setup(ctx context.Context, js jetstream.JetStream, ns Subjects, lifetimeMax time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, streamSetupLimit)
	defer cancel()
	wanted := []jetstream.StreamConfig{
		{
			Name: ns.InStream(), Subjects: []string{ns.AllIn()},
			Description: "what booking, payment and inventory services ask of Holdfast",
			Discard:     jetstream.DiscardNew, MaxMsgSize: inMessageMax,
		},
		{
			Name: ns.OutStream(), Subjects: []string{ns.AllOut()},
			Description: "what Holdfast answers",
			Discard:     jetstream.DiscardOld, MaxAge: max(outAgeMin, 2*lifetimeMax), Duplicates: outDuplicates,
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
	for _, config := range wanted {
		if err := ensureStream(ctx, js, config, lifetimeMax); err != nil {
			return fmt.Errorf("stream %s: %w", config.Name, err)
		}
	}
	for name, filters := range map[string][]string{
		ConsumerRequests: {ns.AllIn()},
		ConsumerChanges:  ns.changes(),
		ConsumerPayments: ns.payments(),
	} {
		_, err := js.CreateOrUpdateConsumer(ctx, ns.InStream(), jetstream.ConsumerConfig{
			Durable: name, FilterSubjects: filters,
			AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait,
			MaxDeliver:    -1, // the server's limit would park a message without a word
			MaxAckPending: ackPendingMax,
		})
		if err != nil {
			return fmt.Errorf("consumer %s of stream %s: %w", name, ns.InStream(), err)
		}
	}
	return nil
}

// changes and payments are the subjects of the consumers of these names.
func (ns Subjects) changes() []string {
	return ns.ofAny(BookingExtended, BookingCancelled, ReservationCancelled, InventorySet)
}

func (ns Subjects) payments() []string { return ns.ofAny("payment") }

// ofAny are the subjects of events about any resource.
func (ns Subjects) ofAny(events ...string) []string {
	subjects := make([]string, len(events))
	for i, event := range events {
		subjects[i] = ns.In(event, ">")
	}
	return subjects
}

func ensureStream(ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig, lifetimeMax time.Duration) error {
	config.Storage, config.Retention = jetstream.FileStorage, jetstream.LimitsPolicy
	stream, err := js.Stream(ctx, config.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		// Another worker may create it meanwhile: the same configuration is no conflict.
		_, err = js.CreateStream(ctx, config)
		return err
	}
	if err != nil {
		return err
	}
	found := stream.CachedInfo().Config
	switch {
	case found.Retention != jetstream.LimitsPolicy:
		return fmt.Errorf("its retention is %s, want limits", found.Retention)
	case found.Storage != jetstream.FileStorage:
		return fmt.Errorf("its storage is %s, want file", found.Storage)
	case found.Discard != config.Discard:
		return fmt.Errorf("it discards %s, want %s", found.Discard, config.Discard)
	case config.MaxAge > 0 && found.MaxAge > 0 && found.MaxAge < lifetimeMax:
		return fmt.Errorf("its messages live %s, less than a hold can (%s)", found.MaxAge, lifetimeMax)
	}
	return nil
}
