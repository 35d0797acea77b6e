package events

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// streamHarness is a namespace whose streams a test fills without a worker.
type streamHarness struct {
	t      *testing.T
	js     jetstream.JetStream
	ns     Namespace
	events map[uint64]*nats.Msg
	log    strings.Builder
}

func newStreamHarness(t *testing.T) *streamHarness {
	t.Helper()
	l := &streamHarness{t: t, js: newJetStream(t), ns: Namespace(stacktest.Namespace(t)), events: make(map[uint64]*nats.Msg)}
	if err := l.setup(); err != nil {
		t.Fatal(err)
	}
	for _, name := range ConsumerNames() {
		if err := l.js.DeleteConsumer(t.Context(), l.ns.InStream(), name); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func (l *streamHarness) setup() error {
	return Setup(l.t.Context(), l.js, l.ns, Retention{HoldLifetime: 2 * time.Hour}, zerolog.New(&l.log))
}

func (l *streamHarness) store(m *nats.Msg) uint64 {
	l.t.Helper()
	ack, err := l.js.PublishMsg(l.t.Context(), m)
	if err != nil {
		l.t.Fatal(err)
	}
	return ack.Sequence
}

// storeEvent stores an event of the resource room and returns its sequence.
func (l *streamHarness) storeEvent(event, body string) uint64 {
	l.t.Helper()
	m := nats.NewMsg(l.ns.In(event, "room"))
	m.Data = []byte(body)
	seq := l.store(m)
	l.events[seq] = m
	return seq
}

func (l *streamHarness) storeRequest(id string) uint64 {
	l.t.Helper()
	return l.storeEvent(BookingRequested, keyed(id))
}

func (l *streamHarness) storePayment(id string) uint64 {
	l.t.Helper()
	return l.storeEvent(PaymentConfirmed, envelopeOf(PaymentConfirmed, id, `{"hold_id":"`+holdID+`","payment_id":"`+id+`"}`))
}

// storeOutcomes stores outcomes of events.
func (l *streamHarness) storeOutcomes(floors string, seqs ...uint64) {
	l.t.Helper()
	for _, seq := range seqs {
		in, err := l.ns.Decode(l.events[seq].Subject, nil, l.events[seq].Data, storedAt)
		if err != nil {
			l.t.Fatal(err)
		}
		m := nats.NewMsg(l.ns.Out(holds.EventHoldRejected, "room"))
		m.Header.Set(headerMsgID, in.OutcomeID)
		if floors != "" {
			m.Header.Set(headerFloors, floors)
		}
		l.store(m)
	}
}

// purgeOutcomes removes all stored outcomes.
func (l *streamHarness) purgeOutcomes() {
	l.t.Helper()
	if err := streamOf(l.t, l.js, l.ns.OutStream()).Purge(l.t.Context()); err != nil {
		l.t.Fatal(err)
	}
}

func (l *streamHarness) created() time.Time {
	l.t.Helper()
	return streamOf(l.t, l.js, l.ns.InStream()).CachedInfo().Created
}

// startSequences returns the sequences at which the consumers start: requests, changes and
// payments.
func (l *streamHarness) startSequences() (seqs [3]uint64) {
	l.t.Helper()
	for i, name := range ConsumerNames() {
		seqs[i] = max(1, consumerOf(l.t, l.js, l.ns, name).CachedInfo().Config.OptStartSeq)
	}
	return seqs
}

// TestSetup_ConsumerMissing_StartsBehindFloor deletes the durable consumers of a stream with events. Each is created behind
// its last floor.
func TestSetup_ConsumerMissing_StartsBehindFloor(t *testing.T) {
	t.Parallel()
	floors := func(created time.Time, requests, changes, payments uint64) string {
		return newFloors(created, map[string]uint64{
			ConsumerRequests: requests, ConsumerChanges: changes, ConsumerPayments: payments,
		}).text
	}
	for name, c := range map[string]struct {
		stored func(l *streamHarness)
		want   [3]uint64 // requests, changes, payments
	}{
		"nothing is stored":             {func(*streamHarness) {}, [3]uint64{1, 1, 1}},
		"no worker has answered so far": {func(l *streamHarness) { l.storeRequest("a"); l.storePayment("b") }, [3]uint64{1, 1, 1}},
		"no outcome carries a floor":    {func(l *streamHarness) { l.storeOutcomes("", l.storeRequest("a"), l.storePayment("b")) }, [3]uint64{1, 1, 1}},
		"a payment waits": {func(l *streamHarness) {
			a, _, c := l.storeRequest("a"), l.storePayment("waits"), l.storeRequest("c")
			l.storeOutcomes(floors(l.created(), 1, 1, 1), a)
			l.storeOutcomes(floors(l.created(), 3, 1, 1), c)
		}, [3]uint64{4, 2, 2}},
		"the outcome log has lost its beginning": {func(l *streamHarness) {
			l.storeOutcomes("", l.storeRequest("a"), l.storePayment("b"))
			l.purgeOutcomes()
			l.storeOutcomes(floors(l.created(), 1, 1, 2), l.storeRequest("c"))
		}, [3]uint64{2, 2, 3}},
		"an older state was restored, without the events up to the floor": {func(l *streamHarness) {
			l.storeOutcomes(floors(l.created(), 9, 9, 9), l.storeRequest("a"))
			l.storeRequest("waits")
		}, [3]uint64{1, 1, 1}},
		"a floor of a stream before is none": {func(l *streamHarness) {
			l.storeRequest("waits")
			l.storeOutcomes(floors(l.created().Add(-time.Second), 2, 2, 2), l.storeRequest("b"))
		}, [3]uint64{1, 1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newStreamHarness(t)
			c.stored(l)
			if err := l.setup(); err != nil {
				t.Fatal(err)
			}
			if got := l.startSequences(); got != c.want {
				t.Errorf("they start at %v, want %v", got, c.want)
			}
			if stored := streamOf(t, l.js, l.ns.InStream()).CachedInfo().State.LastSeq > 0; strings.Contains(l.log.String(), "from_stream_seq") != stored {
				t.Errorf("logged %q", l.log.String())
			}
		})
	}
}

// TestSetup_ConsumerLosesEvents_StartsAgain has a consumer that was changed and has skipped an event.
func TestSetup_ConsumerLosesEvents_StartsAgain(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*jetstream.ConsumerConfig){
		"headers only": func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true },
		"one delivery": func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 1 },
		"other events": func(c *jetstream.ConsumerConfig) { c.FilterSubjects = []string{"x"} },
		"slow replay":  func(c *jetstream.ConsumerConfig) { c.ReplayPolicy = jetstream.ReplayOriginalPolicy },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newStreamHarness(t)
			if err := l.setup(); err != nil {
				t.Fatal(err)
			}
			changed := l.ns.consumer(ConsumerRequests)
			changed.Metadata = map[string]string{"why": "tea"}
			until := time.Now().Add(time.Hour).UTC()
			changed.PauseUntil = &until
			change(&changed)
			if err := l.js.DeleteConsumer(t.Context(), l.ns.InStream(), ConsumerRequests); err != nil {
				t.Fatal(err)
			}
			if _, err := l.js.CreateConsumer(t.Context(), l.ns.InStream(), changed); err != nil {
				t.Fatal(err)
			}
			a, _, c := l.storeRequest("a"), l.storeRequest("skipped"), l.storeRequest("c")
			l.storeOutcomes(newFloors(l.created(), map[string]uint64{ConsumerRequests: 1}).text, a, c)
			if err := l.setup(); err != nil {
				t.Fatal(err)
			}
			if got, want := l.startSequences(), [3]uint64{2, 1, 1}; got != want {
				t.Errorf("they start at %v, want %v", got, want)
			}
			is := consumerOf(t, l.js, l.ns, ConsumerRequests).CachedInfo().Config
			if is.PauseUntil == nil || !is.PauseUntil.Equal(until) || is.Metadata["why"] != "tea" {
				t.Errorf("paused until %v, %v, want the pause as it was", is.PauseUntil, is.Metadata)
			}
			if drifts := DiffConsumer(is, l.ns.consumer(ConsumerRequests)); len(drifts) > 0 {
				t.Errorf("created with %v", drifts)
			}
		})
	}
}

// TestSetup_ConsumerPositionUnknown_IsError deletes a durable consumer when it cannot be determined
// which events are answered. Setup returns an error that says how an operator decides it.
func TestSetup_ConsumerPositionUnknown_IsError(t *testing.T) {
	const name = ConsumerRequests
	for when, lose := range map[string]func(l *streamHarness){
		"outcomes removed": func(*streamHarness) {},
		"and their stream restored": func(l *streamHarness) {
			stacktest.BackupStreams(l.t, stacktest.Shared().NATSURL, l.ns.OutStream())()
		},
	} {
		t.Run(when, func(t *testing.T) {
			l := newStreamHarness(t)
			l.storeOutcomes("", l.storeRequest("a"))
			l.purgeOutcomes()
			lose(l)
			err := l.setup()
			if err == nil || !strings.Contains(err.Error(), "nats consumer add "+l.ns.InStream()+" "+name+" --pull") {
				t.Fatalf("%v", err)
			}
			config := jetstream.ConsumerConfig{
				Durable: name, AckPolicy: jetstream.AckExplicitPolicy, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: 2,
			}
			if _, err := l.js.CreateConsumer(t.Context(), l.ns.InStream(), config); err != nil {
				t.Fatal(err)
			}
			if err := l.setup(); err != nil {
				t.Fatalf("after it was created by hand: %v", err)
			}
			consumer := consumerOf(t, l.js, l.ns, name)
			found := consumer.CachedInfo().Config
			if drifts := DiffConsumer(found, l.ns.consumer(name)); len(drifts) > 0 || found.OptStartSeq != 2 {
				t.Errorf("consumer %+v: %v", found, drifts)
			}
		})
	}
}

// TestSetup_PositionsUnknown_ErrorHasAllCommands deletes all durable consumers when the outcomes are lost, and runs the
// commands of the error. Setup then returns none.
func TestSetup_PositionsUnknown_ErrorHasAllCommands(t *testing.T) {
	t.Parallel()
	stacktest.NeedTool(t, "nats")
	l := newStreamHarness(t)
	set := l.storeEvent(InventorySet, envelopeOf(InventorySet, "c", `{"resource_id":"room","capacity":3}`))
	l.storeOutcomes("", l.storeRequest("a"), l.storePayment("b"), set)
	l.purgeOutcomes()
	err := l.setup()
	if err == nil {
		t.Fatal("no error")
	}
	for _, command := range regexp.MustCompile(`nats (consumer add .* SEQUENCE --defaults) `).FindAllStringSubmatch(err.Error(), -1) {
		args := strings.Fields(strings.Replace(command[1], "SEQUENCE", "2", 1))
		args = append(args, "--server", stacktest.Shared().NATSURL)
		if output, err := exec.CommandContext(t.Context(), "nats", args...).CombinedOutput(); err != nil {
			t.Fatalf("nats %v: %v\n%s", args, err, output)
		}
	}
	stacktest.Must(t, l.setup())
	if got := l.startSequences(); got != [3]uint64{2, 2, 2} {
		t.Errorf("they start at %v", got)
	}
	for _, name := range ConsumerNames() {
		if drifts := DiffConsumer(consumerOf(t, l.js, l.ns, name).CachedInfo().Config, l.ns.consumer(name)); len(drifts) > 0 {
			t.Errorf("consumer %s: %v", name, drifts)
		}
	}
}
