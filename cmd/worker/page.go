package main

import (
	"fmt"
	"html"
	"net/http"
)

// page is what a browser shows of the operations address.
const page = `<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>Holdfast worker</title>
<pre>
A Holdfast worker, of namespace %[1]s. It keeps temporary holds on bookable capacity.

<a href="/healthz">/healthz</a>   200 while the process lives
<a href="/readyz">/readyz</a>    200 while it works and all its servers answer, else 503 with the reasons
<a href="/metrics">/metrics</a>   what it measures, for Prometheus

<a href="/v1/availability">/v1/availability</a>?resource_id=R&amp;check_in=D&amp;check_out=D   what is left of the nights
<a href="/v1/availability">/v1/availability</a>?resource_id=R&amp;slot=S                   what is left of slots (&amp;slot=S for more)
<a href="/v1/availability">/v1/availability</a>?resource_id=R                          what is left of the one slot of a stock
/v1/holds/HOLD_ID                                      a hold and its state
</pre>
</html>
`

// page answers the root, where a person arrives who opens the address.
func (s *server) page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if _, err := fmt.Fprintf(w, page, html.EscapeString(s.namespace)); err != nil {
		s.log.Debug().Err(err).Msg("http answer failed")
	}
}
