package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/terminal"
)

const (
	pauseWithin = 10 * time.Second             // for all consumers
	untilResume = 10 * 365 * 24 * time.Hour    // a pause without --for
	pauseUser   = "the user of worker migrate" // who may change consumers
)

// ConsumerChoice are the settings that pause and resume share.
type ConsumerChoice struct {
	NATSServers `embed:""`
	Named       `embed:"" set:"namespace=" set:"namespace_shown=NAME" set:"namespace_note=. Default: from endpoints.env, else holdfast"` //nolint:staticcheck // kong reads each set tag

	Consumers []string `default:"requests,changes,payments" enum:"requests,changes,payments" help:"Consumers: requests (booking.requested), changes (extensions, cancellations, inventory) or payments. Default: all three."`
	Output    string   `short:"o" default:"table" enum:"table,json" help:"Output format: table or json."`

	Directory `embed:""`
}

// pauseCommand is `worker pause`.
type pauseCommand struct {
	For    *time.Duration `placeholder:"DURATION" help:"How long to pause, such as 10m. Default: until worker resume."`
	Reason string         `placeholder:"TEXT" help:"Why, shown to other operators."`
	Who    string         `env:"HOLDFAST_WHO" placeholder:"NAME" help:"Operator name, shown to other operators. Default: user@host."`

	ConsumerChoice `embed:""`
}

func (*pauseCommand) Help() string {
	return `NATS then delivers no events to any worker until the pause ends. Workers finish the events that they have
fetched, within seconds; other events wait, and none is lost. Holds still expire: a payment that waits for longer
than its hold lives is refunded as expired, unless only --consumers requests is paused. /readyz of every worker
answers 503 with the reason "paused", and /v1/stats shows who paused, until when and why. A pause
outlasts restarts. It needs NATS only, 2.11 or newer, as ` + pauseUser + `.

Alerts about waiting events and workers that are not ready are silent meanwhile; HoldfastPaused fires after
half an hour. Do not deploy during a pause: no worker becomes ready.

Examples:

  worker pause --consumers requests --reason "Postgres switchover"
  worker pause --for 10m
  worker resume`
}

// resumeCommand is `worker resume`.
type resumeCommand struct {
	ConsumerChoice `embed:""`
}

func (*resumeCommand) Help() string {
	return `It ends a pause: workers continue with the events that have waited. It needs NATS only, as ` + pauseUser + `.

Example:

  worker resume`
}

// pausedConsumer is the state of a consumer, as -o json prints it.
type pausedConsumer struct {
	Consumer string        `json:"consumer"`
	Pause    *events.Pause `json:"pause"` // null: not paused
}

// Run pauses the consumers.
func (c *pauseCommand) Run(ctx context.Context, std streams) error {
	length, until := untilResume, "worker resume"
	if c.For != nil {
		length, until = *c.For, ""
	}
	if length < time.Second {
		return misused("--for %s must be at least 1s", length)
	}
	pause := &events.Pause{Reason: c.Reason, Who: terminal.Operator(c.Who)}
	return c.set(ctx, std, length, pause, until)
}

// Run resumes the consumers.
func (c *resumeCommand) Run(ctx context.Context, std streams) error {
	return c.set(ctx, std, 0, nil, "")
}

// set pauses the chosen consumers for length, or resumes them when pause is nil, and prints their states. until, unless
// empty, replaces the end of the pause in the table.
func (c *ConsumerChoice) set(
	ctx context.Context, std streams, length time.Duration, pause *events.Pause, until string,
) error {
	if len(c.Consumers) == 0 {
		return misused("--consumers is empty; leave the flag out for all three")
	}
	if _, err := c.find(c.DataDir, &c.Named); err != nil {
		return err
	}
	ctx, js, disconnect, err := c.openNATS(ctx, "holdfast pause "+c.Namespace, std.warnf)
	if err != nil {
		return err
	}
	defer disconnect()
	ctx, cancel := context.WithTimeout(ctx, pauseWithin)
	defer cancel()
	all := make([]pausedConsumer, 0, len(c.Consumers))
	for _, name := range c.Consumers {
		one := pausedConsumer{Consumer: name}
		if pause != nil {
			own := *pause // each ends by the time of the server at its own request
			one.Pause = &own
		}
		if err = events.SetPause(ctx, js, events.Namespace(c.Namespace), name, length, one.Pause); err != nil {
			err = events.Refused(ctx, client.HintMigrate(err, js.Conn(), events.Namespace(c.Namespace)))
			break
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		return err
	}
	if err != nil {
		err = fmt.Errorf("%w; the consumers on stdout were changed, repeat the command for the others", err)
	}
	if c.Output == "json" {
		return errors.Join(printJSON(std.out, all), err)
	}
	for _, one := range all {
		state := "resumed"
		if one.Pause != nil {
			state = one.Pause.String()
		}
		if until != "" {
			state = strings.Replace(state, one.Pause.Until.Format(holds.TimeFormat), until, 1)
		}
		fmt.Fprintf(std.out, "%s: %s\n", one.Consumer, terminal.Printable(state))
	}
	return err
}
