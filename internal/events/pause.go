package events

import (
	"context"
	"fmt"
	"maps"

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

// SetPause pauses a durable consumer, or resumes it when pause is nil. The server then delivers no
// events of it to any worker; workers finish what they have fetched. A pause ends by itself, and it
// outlasts restarts of workers and of the server. A server before 2.11 knows no pause.
func SetPause(ctx context.Context, js jetstream.JetStream, ns Namespace, name string, pause *Pause) error {
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
		_, err = js.PauseConsumer(ctx, ns.InStream(), name, pause.Until.Time)
	} else if err == nil {
		_, err = js.ResumeConsumer(ctx, ns.InStream(), name)
	}
	if err != nil {
		return fmt.Errorf("consumer %s: %w", name, err)
	}
	return nil
}
