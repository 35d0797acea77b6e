package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/stack/stacktest"
)

// trimHarness is a namespace with streams and durable consumers, but without a worker.
type trimHarness struct {
	*testing.T
	js      jetstream.JetStream
	ns      Namespace
	inbound jetstream.Stream
	last    map[string]uint64 // the last sequence for each consumer
	*Trimmer
}

// newTrimHarness returns a trimHarness whose Trimmer keeps nothing: every event is old enough.
func newTrimHarness(t *testing.T) *trimHarness {
	t.Helper()
	js, ns := newJetStream(t), Namespace(stacktest.Namespace(t))
	setup(t, js, ns)
	b := &trimHarness{
		T: t, js: js, ns: ns, last: make(map[string]uint64), Trimmer: NewTrimmer(js, ns, -time.Minute, zerolog.Nop()),
	}
	b.inbound = streamOf(b, b.js, ns.InStream())
	return b
}

// publish stores events of these kinds.
func (b *trimHarness) publish(events ...string) {
	b.Helper()
	for _, event := range events {
		ack, err := b.js.Publish(b.Context(), b.ns.In(event, "room"), []byte("{}"))
		if err != nil {
			b.Fatal(err)
		}
		b.last[ConsumerRequests], b.last["theirs"] = ack.Sequence, ack.Sequence
		switch event {
		case InventorySet:
			b.last[ConsumerChanges] = ack.Sequence
		case PaymentConfirmed:
			b.last[ConsumerPayments] = ack.Sequence
		}
	}
}

// ack makes a consumer fetch all its events, and acknowledge all but some sequences.
func (b *trimHarness) ack(name string, but ...uint64) {
	b.Helper()
	consumer := consumerOf(b, b.js, b.ns, name)
	for delivered := consumer.CachedInfo().Delivered.Stream; delivered < b.last[name]; {
		m, err := consumer.Next(jetstream.FetchMaxWait(time.Minute))
		if err != nil {
			b.Fatal(err)
		}
		meta, err := m.Metadata()
		if err == nil && !slices.Contains(but, meta.Sequence.Stream) {
			err = m.DoubleAck(b.Context())
		}
		if err != nil {
			b.Fatal(err)
		}
		delivered = meta.Sequence.Stream
	}
}

func (b *trimHarness) ackAll(but ...uint64) {
	b.Helper()
	for _, name := range ConsumerNames() {
		b.ack(name, but...)
	}
}

// left returns the sequences that the inbound stream has.
func (b *trimHarness) left() (seqs []uint64) {
	b.Helper()
	for m, err := range ReadAll(b.Context(), b.js, streamOf(b, b.js, b.ns.InStream()), jetstream.OrderedConsumerConfig{}) {
		if err != nil {
			b.Fatal(err)
		}
		seqs = append(seqs, m.Meta.Sequence.Stream)
	}
	return seqs
}

// claimCheck stores a dead letter with a claim check for an event, and returns its sequence.
func (b *trimHarness) claimCheck(seq uint64) uint64 {
	b.Helper()
	m := nats.NewMsg(b.ns.DLQ(ReasonTooLarge))
	m.Header.Set(HeaderClaimCheckStream, b.ns.InStream())
	m.Header.Set(HeaderClaimCheckSeq, fmt.Sprint(seq))
	m.Header.Set(HeaderClaimCheckSHA256, bodySum([]byte("{}")))
	ack, err := b.js.PublishMsg(b.Context(), m)
	if err != nil {
		b.Fatal(err)
	}
	return ack.Sequence
}

// trims runs steps until there is no more to do, and compares the sequences that are left.
func (b *trimHarness) trims(want ...uint64) {
	b.Helper()
	for more := true; more; {
		done, err := b.RunOnce(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		more = done.More
	}
	if got := b.left(); !slices.Equal(got, want) {
		b.Errorf("the inbound stream has %d, want %d", got, want)
	}
}

var everyKind = []string{BookingRequested, PaymentConfirmed, InventorySet, BookingRequested, BookingRequested}

func TestTrimmer_AllAcknowledged_RemovesAll(t *testing.T) {
	t.Parallel()
	b := newTrimHarness(t)
	if done, err := b.RunOnce(t.Context()); err != nil || done.Removed != 0 {
		t.Errorf("before the first event: %+v, %v", done, err)
	}
	b.trims()
	b.publish(everyKind...)
	b.ackAll()
	b.trims()
	b.publish(BookingRequested)
	stacktest.Eventually(t, "the consumer to count it", func() bool { // a worker removes nothing that was stored just now
		return consumerOf(t, b.js, b.ns, ConsumerRequests).CachedInfo().NumPending == 1
	})
	b.trims(6)
}

func TestTrimmer_OneConsumerOfTheWorkersIsBehind_KeepsFromThereOn(t *testing.T) {
	t.Parallel()
	for name, unacked := range map[string]uint64{ConsumerRequests: 4, ConsumerPayments: 2, ConsumerChanges: 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTrimHarness(t)
			b.publish(everyKind...)
			for _, config := range b.ns.Consumers() {
				if config.Durable == name {
					b.ack(name, unacked) // the events above it are acknowledged
				} else {
					b.ack(config.Durable)
				}
			}
			b.trims([]uint64{1, 2, 3, 4, 5}[unacked-1:]...)
			if done, err := b.RunOnce(t.Context()); err != nil || done.Answered {
				t.Errorf("%+v %v, want Answered false", done, err)
			}
		})
	}
}

// TestTrimmer_EventWaits_LogsItsConsumerOnce answers all events but one, which keeps the others.
func TestTrimmer_EventWaits_LogsItsConsumerOnce(t *testing.T) {
	t.Parallel()
	b := newTrimHarness(t)
	var log bytes.Buffer
	b.log = zerolog.New(&log)
	b.publish(everyKind...)
	b.ackAll(2) // the payment
	for step := range 4 {
		if done, err := b.RunOnce(t.Context()); err != nil || done.Removed > 1 {
			t.Fatalf("%+v %v", done, err)
		}
		if step == 0 && log.Len() > 0 {
			t.Errorf("an ack floor that may be old is logged: %s", log.String())
		}
	}
	const want = `"consumer":"payments","stream_seq":2,`
	if n := strings.Count(log.String(), want); n != 1 || !strings.Contains(log.String(), "event that waits keeps inbound events") {
		t.Errorf("%d log lines have %s, want 1: %s", n, want, log.String())
	}
}

func TestTrimmer_EventIsYoung_KeepsIt(t *testing.T) {
	t.Parallel()
	b := newTrimHarness(t)
	b.publish(BookingRequested, BookingRequested)
	b.ackAll()
	b.keep = time.Hour
	b.trims(1, 2)
	done, err := b.RunOnce(t.Context())
	if err != nil || !done.Answered {
		t.Errorf("%+v %v, want Answered true", done, err)
	}
}

// TestTrimmer_OnlySomeAreOld_KeepsTheOthers uses the times when the server stored the events.
func TestTrimmer_OnlySomeAreOld_KeepsTheOthers(t *testing.T) {
	t.Parallel()
	b := newTrimHarness(t)
	b.publish(everyKind...)
	b.ackAll()
	third, err := b.inbound.GetMsg(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	aged := &agedStream{Stream: streamOf(b, b.js, b.ns.InStream()), now: third.Time}
	b.keep = 0
	done, err := b.step(t.Context(), aged)
	if err != nil || done.Removed != 2 {
		t.Fatalf("%+v %v, want 2 removed", done, err)
	}
	if got := b.left(); !slices.Equal(got, []uint64{3, 4, 5}) {
		t.Errorf("left %d", got)
	}
}

// agedStream is a stream whose clock is ahead, and which calls a function before its second Info: the first one belongs to
// the search for the events that are old enough.
type agedStream struct {
	jetstream.Stream
	now    time.Time
	infos  int
	before func()
}

func (s *agedStream) CachedInfo() *jetstream.StreamInfo {
	info := *s.Stream.CachedInfo()
	if !s.now.IsZero() {
		info.TimeStamp = s.now
	}
	return &info
}

func (s *agedStream) Info(ctx context.Context, options ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error) {
	if s.infos++; s.before != nil && s.infos == 2 {
		s.before()
	}
	return s.Stream.Info(ctx, options...)
}

// TestTrimmer_ConsumerIsMissingOrLosesEvents_RemovesNothing deletes or changes each consumer of the workers.
func TestTrimmer_ConsumerIsMissingOrLosesEvents_RemovesNothing(t *testing.T) {
	t.Parallel()
	for _, name := range []string{ConsumerRequests, ConsumerPayments, ConsumerChanges, "one delivery", "other events"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTrimHarness(t)
			b.publish(BookingRequested, InventorySet)
			b.ackAll()
			changed := b.ns.consumer(ConsumerRequests)
			var err error
			switch name {
			case "one delivery":
				changed.MaxDeliver = 1
				_, err = b.js.UpdateConsumer(t.Context(), b.ns.InStream(), changed)
			case "other events":
				changed.FilterSubjects = []string{b.ns.In(InventorySet, "*")}
				_, err = b.js.UpdateConsumer(t.Context(), b.ns.InStream(), changed)
			default:
				err = b.js.DeleteConsumer(t.Context(), b.ns.InStream(), name)
			}
			if err != nil {
				t.Fatal(err)
			}
			if done, err := b.RunOnce(t.Context()); !errors.Is(err, ErrTrimBlocked) || done.Removed != 0 {
				t.Errorf("%+v %v, want ErrTrimBlocked", done, err)
			}
			if got := b.left(); len(got) != 2 {
				t.Errorf("left %d", got)
			}
		})
	}
}

func TestTrimmer_ConsumerOfAnotherProgram_KeepsWhatItHasNotAcknowledged(t *testing.T) {
	t.Parallel()
	b := newTrimHarness(t)
	_, err := b.js.CreateConsumer(t.Context(), b.ns.InStream(), jetstream.ConsumerConfig{
		Durable: "theirs", AckPolicy: jetstream.AckExplicitPolicy,
	})
	if err != nil {
		t.Fatal(err)
	}
	b.publish(everyKind...)
	b.ackAll()
	b.trims(1, 2, 3, 4, 5)
	if done, err := b.RunOnce(t.Context()); err != nil || !done.Answered {
		t.Errorf("%+v %v, want Answered true", done, err)
	}
	b.ack("theirs", 3)
	b.trims(3, 4, 5)
	if err := b.js.DeleteConsumer(t.Context(), b.ns.InStream(), "theirs"); err != nil {
		t.Fatal(err)
	}
	b.trims()
}

func TestTrimmer_PushConsumerOfAnotherProgram_KeepsWhatItHasNotAcknowledged(t *testing.T) {
	t.Parallel()
	b := newTrimHarness(t)
	theirs, err := b.inbound.CreatePushConsumer(t.Context(), jetstream.ConsumerConfig{
		Durable: "theirs", DeliverSubject: nats.NewInbox(), AckPolicy: jetstream.AckExplicitPolicy,
	})
	if err != nil {
		t.Fatal(err)
	}
	b.publish(everyKind...)
	b.ackAll()
	b.trims(1, 2, 3, 4, 5)
	acked := make(chan error, len(everyKind))
	consuming, err := theirs.Consume(func(m jetstream.Msg) { acked <- m.DoubleAck(t.Context()) })
	if err != nil {
		t.Fatal(err)
	}
	defer consuming.Stop()
	for range everyKind {
		if err := <-acked; err != nil {
			t.Fatal(err)
		}
	}
	b.trims()
}

// TestTrimmer_ReaderHalfway_KeepsWhatItReadsNext uses a reader that acknowledges nothing, like an
// audit.
func TestTrimmer_ReaderHalfway_KeepsWhatItReadsNext(t *testing.T) {
	t.Parallel()
	b := newTrimHarness(t)
	b.publish(everyKind...)
	b.ackAll()
	config := jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy}
	reader, err := b.js.CreateConsumer(t.Context(), b.ns.InStream(), config)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := reader.Next(); err != nil || string(m.Data()) != "{}" {
		t.Fatal(m, err)
	}
	b.trims(2, 3, 4, 5)
}

func TestTrimmer_DeadLetterIsAClaimCheck_KeepsItsEventOnly(t *testing.T) {
	t.Parallel()
	b := newTrimHarness(t)
	b.deleteMax = 2 // so that there are several steps
	b.publish(everyKind...)
	b.publish(everyKind...)
	b.ackAll()
	fourth := b.claimCheck(4)
	b.claimCheck(9)
	b.trims(4, 9)
	b.publish(BookingRequested)
	b.ackAll()
	b.trims(4, 9)
	if err := streamOf(b, b.js, b.ns.DLQStream()).DeleteMsg(t.Context(), fourth); err != nil {
		t.Fatal(err)
	}
	b.trims(9)
	if err := b.js.DeleteStream(t.Context(), b.ns.DLQStream()); err != nil {
		t.Fatal(err)
	}
	setup(t, b.js, b.ns)
	b.publish(BookingRequested)
	b.ackAll()
	b.claimCheck(12)
	b.trims(12)
}

// TestTrimmer_ManyDeadLetters_ReadsABoundedNumberInAStep has more dead letters than a step reads. None of them is needed
// but the last one.
func TestTrimmer_ManyDeadLetters_ReadsABoundedNumberInAStep(t *testing.T) {
	t.Parallel()
	b := newTrimHarness(t)
	b.readMax = 2
	b.publish(everyKind...)
	b.ackAll()
	for range 4 {
		if _, err := b.js.Publish(t.Context(), b.ns.DLQ(ReasonMalformed), nil); err != nil {
			t.Fatal(err)
		}
	}
	b.claimCheck(5)
	for _, want := range []TrimResult{{0, true, true}, {0, true, true}, {4, true, true}} {
		if got, err := b.RunOnce(t.Context()); err != nil || got != want {
			t.Fatalf("%+v %v, want %+v", got, err, want)
		}
	}
	b.trims(5)
	if b.dlqNext != 6 {
		t.Errorf("reads dead letters from %d, want 6: it has read the others", b.dlqNext)
	}
}

// TestTrimmer_DeadLettersLostAtTheEnd_ReadsThoseThatFollow has read dead letters that an older state of the stream, which
// was restored, does not have. The next ones have their sequences.
func TestTrimmer_DeadLettersLostAtTheEnd_ReadsThoseThatFollow(t *testing.T) {
	t.Parallel()
	b := newTrimHarness(t)
	b.publish(everyKind...)
	b.ackAll()
	b.claimCheck(2)
	b.trims(2)
	b.dlqNext += 3
	b.publish(everyKind...)
	b.ackAll()
	b.claimCheck(7)
	b.trims(2, 7)
}

// TestTrimmer_LeaderOfDeadLettersBehind_ClaimChecksStay asks a server for removed dead letters that has only the first one.
// A dead letter before its end was removed.
func TestTrimmer_LeaderOfDeadLettersBehind_ClaimChecksStay(t *testing.T) {
	t.Parallel()
	b := newTrimHarness(t)
	name := b.ns.DLQStream() + "_BEHIND"
	config := jetstream.StreamConfig{Name: name, Subjects: []string{"behind." + name}}
	if _, err := b.js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := b.js.Publish(t.Context(), config.Subjects[0], nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := streamOf(t, b.js, name).DeleteMsg(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	b.claims = map[uint64]uint64{1: 11, 2: 12, 3: 13}
	for range 2 { // in turn
		if err := b.forgetRemoved(t.Context(), streamOf(t, b.js, name)); err != nil {
			t.Fatal(err)
		}
	}
	if want := map[uint64]uint64{2: 12, 3: 13}; !maps.Equal(b.claims, want) {
		t.Errorf("left %v, want %v", b.claims, want)
	}
}

func TestTrimmer_ManyEvents_RemovesABoundedNumberInAStep(t *testing.T) {
	t.Parallel()
	b := newTrimHarness(t)
	b.purgeMax = 2
	b.publish(everyKind...)
	b.ackAll()
	for _, want := range []TrimResult{{2, true, true}, {2, true, true}, {1, false, true}, {0, false, true}} {
		if got, err := b.RunOnce(t.Context()); err != nil || got != want {
			t.Fatalf("%+v %v, want %+v", got, err, want)
		}
	}
}

// TestTrimmer_StreamRecreated_RemovesNothing deletes and recreates the stream, and publishes
// events, after the consumers were read and before the purge.
func TestTrimmer_StreamRecreated_RemovesNothing(t *testing.T) {
	t.Parallel()
	b := newTrimHarness(t)
	b.publish(everyKind...)
	b.ackAll()
	recreated := &agedStream{Stream: streamOf(b, b.js, b.ns.InStream()), before: func() {
		if err := b.js.DeleteStream(t.Context(), b.ns.InStream()); err != nil {
			t.Error(err)
		}
		setup(t, b.js, b.ns)
		b.publish(BookingRequested, PaymentConfirmed)
	}}
	if done, err := b.step(t.Context(), recreated); err == nil || done.Removed != 0 {
		t.Errorf("%+v %v, want an error", done, err)
	}
	if got := b.left(); !slices.Equal(got, []uint64{1, 2}) {
		t.Errorf("left %d", got)
	}
}

// TestTrimmer_SeveralWorkers_EachIsHarmless runs two Trimmers at the same time.
func TestTrimmer_SeveralWorkers_EachIsHarmless(t *testing.T) {
	t.Parallel()
	b := newTrimHarness(t)
	for range 20 {
		b.publish(everyKind...)
	}
	b.ackAll(77, 78)
	b.claimCheck(40)
	other := NewTrimmer(b.js, b.ns, b.keep, zerolog.Nop())
	failed := make(chan error, 1)
	go func() {
		var err error
		for done := (TrimResult{More: true}); done.More && err == nil; {
			done, err = other.RunOnce(t.Context())
		}
		failed <- err
	}()
	for done := (TrimResult{More: true}); done.More; {
		var err error
		if done, err = b.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	got := b.left()
	if len(got) < 25 || got[0] != 40 || !slices.Contains(got, 77) || !slices.Contains(got, 100) {
		t.Errorf("left %d", got)
	}
}

// TestTrimmer_ConsumerOnReplicaBehind_EventsStay asks for the floor of each consumer on a server that has only the first
// event of the stream: the consumer has none left to deliver.
func TestTrimmer_ConsumerOnReplicaBehind_EventsStay(t *testing.T) {
	t.Parallel()
	b := newTrimHarness(t)
	first := b.ns.In(BookingRequested, "first")
	if _, err := b.js.Publish(t.Context(), first, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	b.publish(PaymentConfirmed, InventorySet)
	behind, err := b.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: b.ns.InStream() + "_BEHIND", Mirror: &jetstream.StreamSource{Name: b.ns.InStream(), FilterSubject: first},
	})
	if err != nil {
		t.Fatal(err)
	}
	theirs := jetstream.ConsumerConfig{Durable: "theirs", AckPolicy: jetstream.AckExplicitPolicy}
	for _, config := range append(b.ns.Consumers(), theirs) {
		consumer, err := behind.CreateConsumer(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		floor := uint64(1)
		switch config.Durable {
		case ConsumerChanges:
			floor = 2
		case ConsumerPayments:
		default:
			m, err := consumer.Next(jetstream.FetchMaxWait(time.Minute))
			if err == nil {
				err = m.DoubleAck(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		stream := &laggingStream{Stream: b.inbound, behind: behind}
		info, err := consumerInfo(t.Context(), stream, config.Durable)
		if err != nil {
			t.Fatal(err)
		}
		if found, err := floorOf(t.Context(), stream, info, 3); err != nil || found != floor {
			t.Errorf("the floor of %s is %d, want %d: %v", config.Durable, found, floor, err)
		}
	}
}
