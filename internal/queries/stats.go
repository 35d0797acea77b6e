package queries

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

const (
	rateWindow   = 10 * time.Second // over which rates are measured
	rateSpacing  = time.Second      // between two samples
	liveFor      = 2 * time.Second  // for which a count of live holds, or its error, is used again
	liveWithin   = time.Second      // for one count of live holds
	hottestShown = 10
)

// rateSample is the end of the streams at a moment.
type rateSample struct {
	at      time.Time
	in, out uint64
}

// liveSample is the last count of live holds, nil when it has failed.
type liveSample struct {
	at     time.Time
	counts *holds.LiveCounts
}

// Stats is the state of a namespace, as one worker sees it.
type Stats struct {
	At          holds.Time        `json:"at"`    // by the clock of the worker
	Rates       *Rates            `json:"rates"` // null in the first answer of a worker
	Consumers   []ConsumerStats   `json:"consumers"`
	Streams     []StreamStats     `json:"streams"`
	LiveHolds   *holds.LiveCounts `json:"live_holds"` // without those that are being paid for; null while Redis is not used
	DeadLetters DeadLetterStats   `json:"dead_letters"`
}

// Rates are messages per second, over at most the last ten seconds.
type Rates struct {
	Events      float64 `json:"events"`   // stored in the inbound stream
	Outcomes    float64 `json:"outcomes"` // stored in the outbound stream
	OverSeconds float64 `json:"over_seconds"`
}

// ConsumerStats is the state of a durable consumer.
type ConsumerStats struct {
	Name             string        `json:"name"`
	Pending          uint64        `json:"pending"`     // events that were not delivered yet
	AckPending       int           `json:"ack_pending"` // events that were delivered and are not answered
	Redelivered      int           `json:"redelivered"`
	OldestAgeSeconds float64       `json:"oldest_age_seconds"` // age of the oldest event that is not answered; 0 for none
	Paused           bool          `json:"paused"`
	Pause            *events.Pause `json:"pause,omitzero"`              // nil when it is not paused
	PausedForSeconds float64       `json:"paused_for_seconds,omitzero"` // until it resumes by itself
}

// StreamStats is the fill of a stream. The maxima are 0 when the stream has none of its own.
type StreamStats struct {
	Name        string     `json:"name"`
	Messages    uint64     `json:"messages"`
	Bytes       uint64     `json:"bytes"`
	MessagesMax int64      `json:"messages_max"`
	BytesMax    int64      `json:"bytes_max"`
	Oldest      holds.Time `json:"oldest,omitzero"` // when its first message was stored
}

// DeadLetterStats is the number of dead letters.
type DeadLetterStats struct {
	Total    uint64            `json:"total"`
	ByReason map[string]uint64 `json:"by_reason"`
	Oldest   holds.Time        `json:"oldest,omitzero"`
}

// Stats returns the state of the namespace. It needs NATS; while Redis is not used or does not answer
// within liveWithin, the live holds are missing.
func (i *Inquiry) Stats(ctx context.Context) (Stats, error) {
	s := Stats{At: holds.TimeFromMillis(time.Now().UnixMilli()), Consumers: []ConsumerStats{}, Streams: []StreamStats{}}
	sample := rateSample{at: s.At.Time}
	for _, name := range []string{i.ns.InStream(), i.ns.OutStream(), i.ns.DLQStream(), i.ns.RunsStream()} {
		stream, err := i.js.Stream(ctx, name)
		if err != nil {
			return Stats{}, fmt.Errorf("stream %s: %w", name, err)
		}
		info := stream.CachedInfo()
		s.Streams = append(s.Streams, statsOfStream(info))
		switch name {
		case i.ns.InStream():
			sample.in = info.State.LastSeq
			if s.Consumers, err = i.consumers(ctx, stream); err != nil {
				return Stats{}, err
			}
		case i.ns.OutStream():
			sample.out = info.State.LastSeq
		case i.ns.DLQStream():
			if s.DeadLetters, err = i.deadLetterStats(ctx, stream); err != nil {
				return Stats{}, err
			}
		}
	}
	s.Rates, s.LiveHolds = i.rates(sample), i.liveHolds(ctx)
	return s, nil
}

func statsOfStream(info *jetstream.StreamInfo) StreamStats {
	s := StreamStats{
		Name: info.Config.Name, Messages: info.State.Msgs, Bytes: info.State.Bytes,
		MessagesMax: max(0, info.Config.MaxMsgs), BytesMax: max(0, info.Config.MaxBytes),
	}
	if info.State.Msgs > 0 {
		s.Oldest = holds.Time{Time: info.State.FirstTime.UTC()}
	}
	return s
}

// consumers returns the state of the durable consumers.
func (i *Inquiry) consumers(ctx context.Context, stream jetstream.Stream) (all []ConsumerStats, err error) {
	for _, config := range i.ns.Consumers() {
		consumer, err := stream.Consumer(ctx, config.Durable)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			continue // a worker recreates it
		}
		if err != nil {
			return nil, fmt.Errorf("consumer %s: %w", config.Durable, err)
		}
		info := consumer.CachedInfo()
		s := ConsumerStats{
			Name: config.Durable, Pending: info.NumPending, AckPending: info.NumAckPending,
			Redelivered: info.NumRedelivered, Paused: info.Paused, Pause: events.PauseOf(info), PausedForSeconds: info.PauseRemaining.Seconds(),
		}
		if info.NumPending > 0 || info.NumAckPending > 0 {
			_, oldest, err := events.FirstUnacknowledged(ctx, stream, info)
			if err != nil {
				return nil, fmt.Errorf("read the oldest event of consumer %s: %w", config.Durable, err)
			}
			if !oldest.IsZero() {
				s.OldestAgeSeconds = max(0, info.TimeStamp.Sub(oldest).Seconds())
			}
		}
		all = append(all, s)
	}
	return all, nil
}

func (i *Inquiry) deadLetterStats(ctx context.Context, stream jetstream.Stream) (s DeadLetterStats, err error) {
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(i.ns.AllDLQ()))
	if err != nil {
		return s, fmt.Errorf("stream %s: %w", i.ns.DLQStream(), err)
	}
	s.ByReason = make(map[string]uint64)
	for _, reason := range events.DeadLetterReasons() {
		s.ByReason[reason] = 0
	}
	for subject, n := range info.State.Subjects {
		s.ByReason[strings.TrimPrefix(subject, i.ns.DLQ(""))] += n
		s.Total += n
	}
	if s.Total > 0 {
		s.Oldest = holds.Time{Time: info.State.FirstTime.UTC()}
	}
	return s, nil
}

// rates returns the rates since the oldest sample within rateWindow, nil when there is none.
func (i *Inquiry) rates(now rateSample) *Rates {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.samples = slices.DeleteFunc(i.samples, func(s rateSample) bool {
		age := now.at.Sub(s.at)
		clockSetBack, streamRecreated := age < -rateWindow, s.in > now.in || s.out > now.out
		return age > rateWindow || clockSetBack || streamRecreated
	})
	var rates *Rates
	if len(i.samples) > 0 {
		if over := now.at.Sub(i.samples[0].at).Seconds(); over > 0 {
			first := i.samples[0]
			rates = &Rates{float64(now.in-first.in) / over, float64(now.out-first.out) / over, over}
		}
	}
	if n := len(i.samples); n == 0 || now.at.Sub(i.samples[n-1].at) >= rateSpacing {
		i.samples = append(i.samples, now)
	}
	return rates
}

// liveHolds returns the number of live holds, nil while Redis does not count them: /readyz says why. It counts them at
// most every liveFor, also while Redis hangs: concurrent calls wait for one count.
func (i *Inquiry) liveHolds(ctx context.Context) *holds.LiveCounts {
	i.mu.Lock()
	defer i.mu.Unlock()
	if time.Since(i.live.at) > liveFor {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), liveWithin) // other callers use the result too
		defer cancel()
		counts, err := i.querier.CountLive(ctx, hottestShown)
		i.live = liveSample{at: time.Now()}
		if err == nil {
			i.live.counts = &counts
		}
	}
	return i.live.counts
}
