package events

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/holds"
)

// Pause says until when an operator has paused a durable consumer, and why.
type Pause struct {
	Until  holds.Time `json:"until"`
	Reason string     `json:"reason,omitzero"`
	Who    string     `json:"who,omitzero"`
}

func (p *Pause) String() string {
	text := "paused until " + p.Until.Format(holds.TimeFormat)
	if p.Who != "" {
		text += " by " + p.Who
	}
	if p.Reason != "" {
		text += ": " + p.Reason
	}
	return text
}

// The keys of the metadata of a consumer that is paused.
const (
	metadataPausedBy  = "holdfast_paused_by"
	metadataPausedFor = "holdfast_paused_for"
)

// PauseOf returns the pause of a consumer, nil when it is not paused.
func PauseOf(info *jetstream.ConsumerInfo) *Pause {
	if !info.Paused || info.Config.PauseUntil == nil {
		return nil
	}
	return &Pause{
		Until:  holds.Time{Time: info.Config.PauseUntil.UTC()},
		Reason: info.Config.Metadata[metadataPausedFor], Who: info.Config.Metadata[metadataPausedBy],
	}
}

// SetPause pauses a durable consumer for length, from now on by the clock of the server, and sets pause.Until. It resumes
// the consumer when pause is nil. The server delivers no events of a paused consumer to any worker; workers finish what
// they have fetched. A pause ends by itself, and it outlasts restarts of workers and of the server. A server before 2.11
// knows no pause.
func SetPause(
	ctx context.Context, js jetstream.JetStream, ns Namespace, name string, length time.Duration, pause *Pause,
) error {
	if js.Conn().IsConnected() && !isVersion2(js.Conn(), 11) {
		return fmt.Errorf("NATS %s cannot pause a consumer, 2.11 and newer can", js.Conn().ConnectedServerVersion())
	}
	found, err := js.Consumer(ctx, ns.InStream(), name)
	if err != nil {
		return fmt.Errorf("consumer %s: %w", name, err)
	}
	config := found.CachedInfo().Config
	config.Metadata = maps.Clone(config.Metadata)
	delete(config.Metadata, metadataPausedBy)
	delete(config.Metadata, metadataPausedFor)
	if pause != nil {
		if config.Metadata == nil {
			config.Metadata = make(map[string]string)
		}
		config.Metadata[metadataPausedBy], config.Metadata[metadataPausedFor] = pause.Who, pause.Reason
	}
	// An update does not change until when a consumer is paused.
	if _, err = js.UpdateConsumer(ctx, ns.InStream(), config); err == nil && pause != nil {
		// The time in the reply to an update is that at which the server has loaded the consumer.
		pause.Until = holds.TimeFromMillis(found.CachedInfo().TimeStamp.Add(length).UnixMilli())
		err = pauseUntil(ctx, js, ns, name, pause.Until)
	} else if err == nil {
		_, err = js.ResumeConsumer(ctx, ns.InStream(), name)
	}
	if err != nil {
		return fmt.Errorf("consumer %s: %w", name, err)
	}
	return nil
}

// pauseUntil pauses a durable consumer. It returns an error when that time is over: the server then pauses nothing.
func pauseUntil(ctx context.Context, js jetstream.JetStream, ns Namespace, name string, until holds.Time) error {
	reply, err := js.PauseConsumer(ctx, ns.InStream(), name, until.Time)
	if err == nil && !reply.Paused {
		err = fmt.Errorf("not paused: it is later than %s by the clock of the server", until.Format(holds.TimeFormat))
	}
	return err
}
