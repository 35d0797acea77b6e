package events

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/stack/stacktest"
)

// newReadableStream returns a stream with more messages than a reader requests at a time.
func newReadableStream(t *testing.T) (js jetstream.JetStream, stream jetstream.Stream, last uint64) {
	t.Helper()
	js = newJetStream(t)
	name := stacktest.Namespace(t)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}})
	if err != nil {
		t.Fatal(err)
	}
	const number = 3 * readAhead
	body := make([]byte, 4<<10) // sending them takes longer than stopping the server
	for range number {
		if _, err := js.PublishAsync(name, body); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	return js, stream, number
}

// fromFirst starts at the first message.
var fromFirst = jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy}

// pauseReadConsumer makes the server send a reader no more messages.
func pauseReadConsumer(t *testing.T, js jetstream.JetStream, m StoredMsg) {
	t.Helper()
	if _, err := js.PauseConsumer(t.Context(), m.Meta.Stream, m.Meta.Consumer, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
}

// TestReadStream_ConsumerStalls_Restarts makes the server forget a reader that has read some of the
// messages. The reader requests the others again.
func TestReadStream_ConsumerStalls_Restarts(t *testing.T) {
	t.Parallel()
	js, stream, last := newReadableStream(t)
	var seqs []uint64
	first, of := "", ""
	for m, err := range ReadStream(t.Context(), js, stream, fromFirst, last) {
		if err != nil {
			t.Fatal(err)
		}
		seqs, of = append(seqs, m.Meta.Sequence.Stream), m.Meta.Consumer
		if first == "" {
			first = of
			pauseReadConsumer(t, js, m)
		}
	}
	if first == of {
		t.Error("the server still knows the reader")
	}
	want := make([]uint64, last)
	for i := range want {
		want[i] = uint64(i) + 1
	}
	if !slices.Equal(seqs, want) {
		t.Errorf("read %d of %d messages, or not in order", len(seqs), last)
	}
}

// TestReadStream_StreamRemovedOrCancelled_IsError deletes the stream while it is read, with or
// without the consumer of the reader, or cancels the reader while the server sends no messages.
func TestReadStream_StreamRemovedOrCancelled_IsError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		removes, consumer, givesUp bool
		want                       error
	}{
		"the stream is removed": {removes: true, want: jetstream.ErrStreamNotFound},
		"both are removed":      {removes: true, consumer: true, want: jetstream.ErrStreamNotFound},
		"the reader gives up":   {givesUp: true, want: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js, stream, last := newReadableStream(t)
			ctx, giveUp := context.WithCancel(t.Context())
			defer giveUp()
			read := 0
			var failed error
			for m, err := range ReadStream(ctx, js, stream, fromFirst, last) {
				if failed = err; err != nil {
					break
				}
				if read++; read > 1 {
					continue
				}
				pauseReadConsumer(t, js, m)
				if c.consumer {
					if err := js.DeleteConsumer(t.Context(), m.Meta.Stream, m.Meta.Consumer); err != nil {
						t.Fatal(err)
					}
				}
				if c.removes {
					if err := js.DeleteStream(t.Context(), m.Meta.Stream); err != nil {
						t.Fatal(err)
					}
				}
				if c.givesUp {
					time.AfterFunc(time.Second, giveUp)
				}
			}
			if !errors.Is(failed, c.want) {
				t.Errorf("ended after %d of %d messages with %v, want %v", read, last, failed, c.want)
			}
			if !c.givesUp {
				return
			}
			info, err := stream.Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if info.State.Consumers != 0 {
				t.Errorf("%d consumers are left", info.State.Consumers)
			}
		})
	}
}

// TestFollowStream_StreamRecreated_IsError deletes and creates the stream while a follower handles its last message. In the
// new one the sequences of the messages that were read belong to others, which the follower would skip.
func TestFollowStream_StreamRecreated_IsError(t *testing.T) {
	t.Parallel()
	js := newJetStream(t)
	config := jetstream.StreamConfig{Name: stacktest.Namespace(t)}
	config.Subjects = []string{config.Name}
	publish := func(number int) (stream jetstream.Stream) {
		stream, err := js.CreateStream(t.Context(), config)
		for range number {
			if err == nil {
				_, err = js.Publish(t.Context(), config.Name, nil)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	read := 0
	var failed error
	for m, err := range FollowStream(t.Context(), js, publish(2), fromFirst, ignored) {
		if failed = err; err != nil {
			break
		}
		if read++; read > 2 {
			t.Fatalf("message %d of the new stream follows", m.Meta.Sequence.Stream)
		}
		if read == 2 {
			if err := js.DeleteStream(t.Context(), config.Name); err != nil {
				t.Fatal(err)
			}
			publish(5)
		}
	}
	if read != 2 || !errors.Is(failed, errRecreated) {
		t.Errorf("ended after %d messages with %v", read, failed)
	}
}

// TestReadStream_FromATimeBeforeDeletedMessages_ReadsAll reads a stream of three file blocks, of which the second has
// no message left, but the deletions of messages in the first.
func TestReadStream_FromATimeBeforeDeletedMessages_ReadsAll(t *testing.T) {
	t.Parallel()
	s := stacktest.StartNATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir(), SyncInterval: 50 * time.Millisecond})
	js := stacktest.ConnectNATS(t, s.ClientURL())
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	if err != nil {
		t.Fatal(err)
	}
	body := make([]byte, 1<<20-1<<10) // eight fill a block
	var stored []time.Time
	publish := func(number int) {
		for range number {
			ack, err := js.Publish(t.Context(), "s", body)
			if err != nil {
				t.Fatal(err)
			}
			m, err := stream.GetMsg(t.Context(), ack.Sequence)
			if err != nil {
				t.Fatal(err)
			}
			stored = append(stored, m.Time)
		}
	}
	remove := func(seqs ...uint64) {
		for _, seq := range seqs {
			if err := stream.DeleteMsg(t.Context(), seq); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish(10)
	remove(2, 4)
	publish(14)
	remove(8, 9, 10, 11, 12, 13, 14, 15, 16, 17)
	left := []uint64{1, 3, 5, 6, 7, 18, 19, 20, 21, 22, 23, 24}

	// When this no longer happens, findStart can go.
	stacktest.Eventually(t, "the server skips messages before the block", func() bool {
		consumer, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{
			DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &stored[0], AckPolicy: jetstream.AckNonePolicy,
		})
		if err != nil {
			t.Fatal(err)
		}
		return consumer.CachedInfo().NumPending < uint64(len(left))
	})
	for _, first := range []int{0, 4, 7, 16, 23} {
		at := stored[first]
		var got, want []uint64
		for m, err := range ReadAll(t.Context(), js, stream, jetstream.OrderedConsumerConfig{
			DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &at, HeadersOnly: true,
		}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, m.Meta.Sequence.Stream)
		}
		for _, seq := range left {
			if seq > uint64(first) {
				want = append(want, seq)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("from the time of sequence %d: read %v, want %v", first+1, got, want)
		}
	}
}

// laggingStream is a stream with replicas, of which some are behind: the first consumers are on a server that has only
// the first messages.
type laggingStream struct {
	jetstream.Stream
	behind jetstream.Stream // with the first messages
	left   int              // number of consumers on it
}

func (s *laggingStream) CachedInfo() *jetstream.StreamInfo {
	info := *s.Stream.CachedInfo()
	info.Config.Replicas = 3
	return &info
}

func (s *laggingStream) CreateConsumer(ctx context.Context, config jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if s.left--; s.left >= 0 {
		return s.behind.CreateConsumer(ctx, config)
	}
	return s.Stream.CreateConsumer(ctx, config)
}

func (s *laggingStream) Consumer(ctx context.Context, name string) (jetstream.Consumer, error) {
	return s.behind.Consumer(ctx, name)
}

// TestReadStream_ReplicaBehind_ReadsAll reads a stream of which the server that has the reader's consumer lacks the
// last messages, or all.
func TestReadStream_ReplicaBehind_ReadsAll(t *testing.T) {
	t.Parallel()
	const number = 5
	since := time.Now()
	for name, c := range map[string]struct {
		config jetstream.OrderedConsumerConfig
		has    int
		first  uint64
	}{
		"from the first":                 {fromFirst, 2, 1},
		"from the first, it has none":    {fromFirst, 0, 1},
		"from a time":                    {jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since}, 2, 1},
		"from a time, it has none":       {jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since}, 0, 1},
		"from a sequence":                {jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: 2}, 3, 2},
		"from a sequence beyond its own": {jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: 4}, 2, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js := newJetStream(t)
			fill := func(name string, number int) jetstream.Stream {
				stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}})
				if err != nil {
					t.Fatal(err)
				}
				for range number {
					if _, err := js.Publish(t.Context(), name, nil); err != nil {
						t.Fatal(err)
					}
				}
				return stream
			}
			ns := stacktest.Namespace(t)
			stream := &laggingStream{Stream: fill(ns, number), behind: fill(ns+"_behind", c.has), left: 2}
			var seqs, want []uint64
			for m, err := range ReadStream(t.Context(), js, stream, c.config, number) {
				if err != nil {
					t.Fatal(err)
				}
				seqs = append(seqs, m.Meta.Sequence.Stream)
			}
			for seq := c.first; seq <= number; seq++ {
				want = append(want, seq)
			}
			if !slices.Equal(seqs, want) {
				t.Errorf("read %v, want %v", seqs, want)
			}
		})
	}
}
