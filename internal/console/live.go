package console

import (
	"context"
	"net/http"
	"strings"
	"time"

	"holdfast/internal/queries"
)

const (
	liveEach    = time.Second
	writeWithin = 5 * time.Second
)

// status returns the state of the worker. All pages share one reading a second.
func (c *Console) status(ctx context.Context) (Status, error) {
	return c.live.get(ctx, liveEach-liveEach/10, c.Status)
}

// stream sends the body of the overview again every second, until the client disconnects, its session
// ends or the console closes. It answers HEAD, whose answer has no body, at once.
func (c *Console) stream(r *request) {
	if !c.streams.TryAcquire(1) {
		r.w.Header().Set("Retry-After", "10")
		http.Error(r.w, queries.Busy.Detail, http.StatusServiceUnavailable)
		return
	}
	defer c.streams.Release(1)
	r.w.Header().Set("Content-Type", "text/event-stream")
	r.w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	writer := http.NewResponseController(r.w)
	ticker := time.NewTicker(liveEach)
	defer ticker.Stop()
	for {
		if _, _, err := c.session(r.Request); err != nil {
			return
		}
		frame, err := c.frames.get(r.Context(), liveEach-liveEach/10, c.frame)
		if err != nil {
			return
		}
		// Set when the frame is built, which takes answerWithin while a server hangs.
		if err := writer.SetWriteDeadline(time.Now().Add(writeWithin)); err != nil {
			return
		}
		if _, err := r.w.Write(frame); err != nil {
			return
		}
		if writer.Flush() != nil {
			return
		}
		select {
		case <-ticker.C:
		case <-r.Context().Done():
			return
		case <-c.open.Done():
			return
		}
	}
}

// frame returns the body of the overview as a server-sent event. It is the same for every operator,
// so all live pages share one a second.
func (c *Console) frame(ctx context.Context) ([]byte, error) {
	p, err := c.overview(ctx, nil)
	if err != nil {
		_, text := c.statusOf(ctx, err)
		p = &page{Body: "problem", Data: text}
	}
	body, err := p.execute(p.Body)
	if err != nil {
		c.Log.Error().Err(err).Msg("console page failed")
		return []byte(": failed\n\n"), nil
	}
	return serverSentEvent(body), nil
}

// serverSentEvent returns the event that carries a body. A carriage return would end a line of the
// event too, and let a text of the body begin a field: it becomes a space.
func serverSentEvent(body []byte) []byte {
	lines := strings.NewReplacer("\r", " ", "\n", "\ndata: ").Replace(strings.TrimSuffix(string(body), "\n"))
	return []byte("event: body\ndata: " + lines + "\n\n")
}
