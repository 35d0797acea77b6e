package queries

import (
	"context"

	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
)

// availability answers EndpointAvailability.
func (q *Service) availability(ctx context.Context, m *query) (any, error) {
	resource, selection, err := parametersOf(m.body, "resource_id", "check_in", "check_out", "slots").availability()
	if err != nil {
		return nil, err
	}
	found, err := q.inquiry.Availability(ctx, resource, selection)
	return found.known(), err
}

// dryRun answers EndpointDryRun.
func (q *Service) dryRun(ctx context.Context, m *query) (any, error) {
	return q.DryRun(ctx, &nats.Msg{Subject: m.header.Get(events.HeaderDLQSubject), Header: m.header, Data: m.body})
}

// hold answers EndpointHold.
func (q *Service) hold(ctx context.Context, m *query) (any, error) {
	p := parametersOf(m.body, "hold_id", "reveal", "who")
	id, reveal, who := p.Text("hold_id"), !p.Has("reveal") || p.reveal(), p.who()
	if p.Err() != nil {
		return nil, p.Err()
	}
	hold, err := q.inquiry.Hold(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case !reveal:
		return Hidden(hold), nil
	}
	if p.Has("reveal") { // the services that own a hold do not give it
		q.logReveal("hold "+id, who)
	}
	return hold, nil
}

// holds answers EndpointHolds.
func (q *Service) holds(ctx context.Context, m *query) (any, error) {
	p := parametersOf(m.body, append(holdsParameters, "who")...)
	who := p.who()
	asked, err := p.holdsQuery()
	if err != nil {
		return nil, err
	}
	if asked.Reveal {
		q.logReveal("holds of "+asked.ResourceID, who)
	}
	return q.inquiry.Holds(ctx, asked)
}

// history answers EndpointHistory.
func (q *Service) history(ctx context.Context, m *query) (any, error) {
	p := parametersOf(m.body, "hold_id", "reveal", "who")
	id, reveal, who := p.Text("hold_id"), p.reveal(), p.who()
	if p.Err() != nil {
		return nil, p.Err()
	}
	if reveal {
		q.logReveal("history of hold "+id, who)
	}
	return q.inquiry.History(ctx, id, reveal)
}

// resources answers EndpointResources.
func (q *Service) resources(ctx context.Context, m *query) (any, error) {
	asked, err := parametersOf(m.body, resourcesParameters...).resourcesQuery()
	if err != nil {
		return nil, err
	}
	return q.inquiry.Resources(ctx, asked)
}

// logReveal logs that private data is shown.
func (q *Service) logReveal(what, who string) {
	q.log.Info().Str("what", events.OneLine(what)).Str("who", who).Str("via", "nats").Msg("private data revealed")
}
