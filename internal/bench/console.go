package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// consolesOpen is the number of live pages that are open at the same time.
const consolesOpen = 10

// consoles measures how a worker decides stored requests without live pages of its console and with some.
// The two take turns, and each begins as often: what changes during the run changes both.
func (b *runner) consoles(ctx context.Context) (err error) {
	b.progressf("console: a worker without live pages and with %d, each %s", consolesOpen, plural(b.consolePairs, "time"))
	s, done, err := b.stocked(ctx, manyResources)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	if err := s.start(ctx, 1, "HOLDFAST_CONSOLE=read"); err != nil {
		return err
	}
	figure := Consoles{Pages: consolesOpen}
	for pair := range b.consolePairs {
		for turn := range 2 {
			pages := consolesOpen * ((pair + turn) % 2)
			b.step("%s, pair %d of %d", plural(pages, "live page"), pair+1, b.consolePairs)
			rate, err := s.watched(ctx, pages)
			if err != nil {
				return fmt.Errorf("%s: %w", plural(pages, "live page"), err)
			}
			if pages == 0 {
				figure.Without = append(figure.Without, rate)
			} else {
				figure.With = append(figure.With, rate)
			}
		}
	}
	figure.sum()
	b.report.Consoles = &figure
	return nil
}

// watched measures how the worker decides stored requests while live pages are open. It returns an error
// if a page shows nothing.
func (s *cluster) watched(ctx context.Context, pages int) (Rate, error) {
	if err := s.queue(ctx, s.consoleEvents, load{resources: manyResources}, usualNights); err != nil {
		return Rate{}, err
	}
	open, closePages := context.WithCancel(ctx)
	defer closePages()
	var reading sync.WaitGroup
	shown := make([]int, pages)
	errs := make([]error, pages)
	for n := range pages {
		reading.Go(func() { shown[n], errs[n] = s.readLive(open) })
	}
	rate, err := s.resume(ctx, s.consoleEvents, events.ConsumerRequests)
	closePages()
	reading.Wait()
	for n, frames := range shown {
		if frames == 0 {
			errs = append(errs, fmt.Errorf("live page %d showed nothing", n))
		}
	}
	if err = errors.Join(append(errs, err)...); err != nil {
		return Rate{}, err
	}
	return rate, s.tally(ctx, map[string]int{holds.EventHoldCreated: s.consoleEvents})
}

// readLive reads a live page until ctx is over, and returns how often the worker has sent it.
func (s *cluster) readLive(ctx context.Context) (frames int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.workers[0].httpAddr+"/console/live", nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, fmt.Errorf("open a live page: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // only read
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("open a live page: %s", response.Status)
	}
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadString('\n')
		if ctx.Err() != nil {
			return frames, nil
		}
		if err != nil {
			return frames, fmt.Errorf("read a live page: %w", err)
		}
		if strings.HasPrefix(line, "event:") {
			frames++
		}
	}
}
