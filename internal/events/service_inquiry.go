package events

import "context"

// hold answers EndpointHold.
func (q *QueryService) hold(ctx context.Context, m *query) (any, error) {
	r, err := queryOf(m.body, "hold_id", "reveal", "who")
	if err != nil {
		return nil, err
	}
	id, reveal, who := r.text("hold_id"), !r.has("reveal") || r.reveal(), r.who()
	if r.err != nil {
		return nil, r.err
	}
	hold, err := GetHold(ctx, q.querier, id)
	switch {
	case err != nil:
		return nil, err
	case !reveal:
		return Hidden(hold), nil
	}
	if r.has("reveal") { // the services that own a hold do not give it
		q.logReveal("hold "+id, who)
	}
	return hold, nil
}

// holds answers EndpointHolds.
func (q *QueryService) holds(ctx context.Context, m *query) (any, error) {
	r, err := queryOf(m.body, append(holdsParameters, "who")...)
	if err != nil {
		return nil, err
	}
	who := r.who()
	asked, err := r.holdsQuery()
	if err != nil {
		return nil, err
	}
	if asked.Reveal {
		q.logReveal("holds of "+asked.ResourceID, who)
	}
	return q.inquiry.Holds(ctx, asked)
}

// history answers EndpointHistory.
func (q *QueryService) history(ctx context.Context, m *query) (any, error) {
	r, err := queryOf(m.body, "hold_id", "reveal", "who")
	if err != nil {
		return nil, err
	}
	id, reveal, who := r.text("hold_id"), r.reveal(), r.who()
	if r.err != nil {
		return nil, r.err
	}
	if reveal {
		q.logReveal("history of hold "+id, who)
	}
	return q.inquiry.History(ctx, id, reveal)
}

// resources answers EndpointResources.
func (q *QueryService) resources(ctx context.Context, m *query) (any, error) {
	r, err := queryOf(m.body, resourcesParameters...)
	if err != nil {
		return nil, err
	}
	asked, err := r.resourcesQuery()
	if err != nil {
		return nil, err
	}
	return q.inquiry.Resources(ctx, asked)
}

// who reads who asks, as the client says.
func (r *reader) who() string {
	if !r.has("who") {
		return ""
	}
	return oneLine(r.text("who"))
}

// logReveal logs that private data is shown.
func (q *QueryService) logReveal(what, who string) {
	q.log.Info().Str("what", oneLine(what)).Str("who", who).Str("via", "nats").Msg("private data revealed")
}
