package events

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/holds"
)

// commitBatch is the number of outcomes that Commits passes on together.
const commitBatch = 500

// commitOutcomes are the outcomes that are published after Postgres has committed them. An additional one raises
// schema_compatibility.works_from: an older worker would not compare it, and move the commit marker over it.
var commitOutcomes = []string{
	holds.EventHoldConfirmed, holds.EventConfirmRejected, holds.EventReservationCancelled, holds.EventCancelRejected,
	holds.EventInventoryUpdated, holds.EventInventoryRejected,
}

// Commits implements recovery.CommitLog. It skips messages that are not outcomes of a worker.
func (c *OutcomeLog) Commits(
	ctx context.Context, after holds.LogPosition, each func([]holds.StoredOutcome) error,
) (holds.LogPosition, error) {
	fail := func(err error) (holds.LogPosition, error) {
		return after, fmt.Errorf("read stream %s: %w", c.ns.OutStream(), err)
	}
	stream, err := c.js.Stream(ctx, c.ns.OutStream())
	if err != nil {
		return fail(err)
	}
	info := stream.CachedInfo()
	last := endOf(info)
	if after, err = c.startOfCommits(ctx, stream, info, after); err != nil {
		return fail(err)
	}
	if last.Seq <= after.Seq {
		return last, nil
	}
	if missing := info.State.FirstSeq - min(info.State.FirstSeq, after.Seq+1); missing > 0 && after.Seq > 0 {
		c.log.Error().Uint64("messages", missing).Msg("outbound stream lacks outcomes, commits behind them not compared")
	}
	config := jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: after.Seq + 1,
	}
	for _, event := range commitOutcomes {
		config.FilterSubjects = append(config.FilterSubjects, c.ns.Out(event, ">"))
	}
	var batch []holds.StoredOutcome
	for m, err := range ReadStream(ctx, c.js, stream, config, last.Seq) {
		if err != nil {
			return fail(err)
		}
		outcome, err := readOutcome(m)
		if err == nil && outcome.Data == nil {
			err = fmt.Errorf("unknown event %q", outcome.Event)
		}
		if err != nil {
			c.log.Warn().Err(err).Str("subject", m.Subject).Msg("skipped malformed outcome")
			continue
		}
		if batch = append(batch, outcome); len(batch) == commitBatch {
			if err := each(batch); err != nil {
				return after, err
			}
			batch = nil
		}
	}
	if len(batch) > 0 {
		if err := each(batch); err != nil {
			return after, err
		}
	}
	return last, nil
}

// startOfCommits returns the position after which Commits reads: the beginning, when the stream is another one than that of
// a position, or an older state of it was restored since.
func (c *OutcomeLog) startOfCommits(
	ctx context.Context, stream jetstream.Stream, info *jetstream.StreamInfo, after holds.LogPosition,
) (holds.LogPosition, error) {
	all := holds.LogPosition{Created: info.Created}
	if !all.SameStream(after) {
		return all, nil
	}
	what, err := GoneBack(ctx, stream, info.State, after)
	if err != nil || what == "" {
		return after, err
	}
	c.log.Warn().Uint64("marker", after.Seq).Uint64("last", info.State.LastSeq).Str("why", what).
		Msg("outbound stream has gone back, all of its commits compared")
	return all, nil
}

// formatPosition returns the time at which an event was stored, that at which its stream was
// created, and its sequence there, separated by spaces.
func formatPosition(p holds.StreamPosition) string {
	return p.At.UTC().Format(time.RFC3339Nano) + " " + p.StreamCreatedAt.UTC().Format(time.RFC3339Nano) + " " +
		strconv.FormatUint(p.Seq, 10)
}

func parsePosition(text string) (p holds.StreamPosition, err error) {
	words := strings.Fields(text)
	if len(words) != 3 {
		return p, fmt.Errorf("%s: %q", headerPosition, text)
	}
	if p.At, err = time.Parse(time.RFC3339Nano, words[0]); err == nil {
		if p.StreamCreatedAt, err = time.Parse(time.RFC3339Nano, words[1]); err == nil {
			p.Seq, err = strconv.ParseUint(words[2], 10, 64)
		}
	}
	return p, err
}
