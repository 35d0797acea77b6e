package main

import (
	"fmt"
	"html"
	"net/http"
)

// The HTML page at the root of the operations address consists of pageBegin, pageConsole when the console is on,
// and pageQueries; or, when another address serves both, of pageBegin and pageElsewhere.
const (
	pageBegin = `<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>Holdfast worker</title>
<pre>
A Holdfast worker of namespace %s. It keeps temporary holds on bookable capacity.

<a href="/healthz">/healthz</a>   200 while the process is alive
<a href="/readyz">/readyz</a>    200 while it processes events and all its servers answer, else 503 with the reasons
<a href="/metrics">/metrics</a>   metrics for Prometheus
`
	pageConsole = `<a href="/console/">/console/</a>  pages for operators
`
	pageQueries = `
<a href="/v1/availability">/v1/availability</a>?resource_id=R&amp;check_in=D&amp;check_out=D   availability of nights
<a href="/v1/availability">/v1/availability</a>?resource_id=R&amp;slot=S                   availability of slots (repeat &amp;slot=S)
<a href="/v1/availability">/v1/availability</a>?resource_id=R                          availability of a stock
/v1/holds/HOLD_ID                                      a hold and its state
/v1/holds/HOLD_ID/history                              what happened to a hold
<a href="/v1/holds">/v1/holds</a>?resource_id=R                                 live holds, in the order of their deadlines
<a href="/v1/resources">/v1/resources</a>                                          resources with their sums
<a href="/v1/stats">/v1/stats</a>                                              rates, lag, live holds, dead letters, streams
<a href="/v1/dead-letters">/v1/dead-letters</a>                                       dead letters, oldest first
`
	pageElsewhere = `
The queries under /v1 are on the address %s.
`
	pageEnd = `</pre>
</html>
`
)

// page answers a request for the root path.
func (s *server) page(w http.ResponseWriter, _ *http.Request) {
	text := fmt.Sprintf(pageBegin, html.EscapeString(s.namespace))
	switch {
	case s.listeners.api != nil:
		text += fmt.Sprintf(pageElsewhere, html.EscapeString(s.listeners.api.Addr().String()))
	case s.console != nil:
		text += pageConsole + pageQueries
	default:
		text += pageQueries
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if _, err := fmt.Fprint(w, text+pageEnd); err != nil {
		s.log.Debug().Err(err).Msg("http answer failed")
	}
}
