package main

import (
	"context"
	"strings"

	"holdfast/internal/client"
)

// dlqDiscard removes dead letters.
type dlqDiscard struct {
	Choice   choice        `embed:""`
	Operator operatorFlags `embed:""`
}

func (*dlqDiscard) Help() string {
	return `Removes dead letters permanently and publishes nothing: their publishers never get an outcome. It
asks for confirmation and requires a --note with the reason. Use publisher dlq export to keep a
copy.

Examples:

  publisher dlq discard 12 --note "a test of the booking team"
  publisher dlq discard --all --reason malformed --until 30d --note "old test data" --yes`
}

func (c *dlqDiscard) Validate() error {
	switch {
	case c.Choice.isEmpty():
		return misused("no dead letters selected: give sequences, or --all")
	case strings.TrimSpace(c.Operator.Note) == "":
		return misused("--note: give the reason")
	}
	return nil
}

func (c *dlqDiscard) Run(ctx context.Context, p *program) error {
	if err := p.canConfirm(c.Operator); err != nil {
		return err
	}
	deadLetters, err := p.deadLetters(ctx)
	if err != nil {
		return err
	}
	log, err := p.startRun(ctx, deadLetters, &c.Choice, &c.Operator, "Discard", client.Run{Verb: client.RunDiscard})
	if log == nil {
		return err
	}
	return p.executeRun(ctx, deadLetters, log, deadLetters.DiscardWork())
}
