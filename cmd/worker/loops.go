package main

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/fx"
)

// loops are the loops of the worker. They start with the app, and one context stops all of them at
// the same time, so a slow loop does not keep the others running. Connections to the servers are
// closed after the loops have ended.
type loops struct {
	ctx        context.Context
	cancel     context.CancelFunc
	shutdowner fx.Shutdowner
	log        zerolog.Logger
	start      []func()
	running    sync.WaitGroup
}

func newLoops(s fx.Shutdowner, log zerolog.Logger) *loops {
	ctx, cancel := context.WithCancel(context.Background())
	return &loops{ctx: ctx, cancel: cancel, shutdowner: s, log: log}
}

// attach adds the hooks that start and stop the loops. Call it after everything that the loops use
// was constructed: fx calls hooks in this order at the start, and in the reverse order at the stop.
func (l *loops) attach(lc fx.Lifecycle) {
	lc.Append(fx.StartStopHook(
		func() {
			for _, start := range l.start {
				start()
			}
		},
		func(stopping context.Context) {
			l.cancel()
			done := make(chan struct{})
			go func() { l.running.Wait(); close(done) }()
			select {
			case <-done:
			case <-stopping.Done():
				// Nothing is lost: NATS redelivers each event that was not acknowledged.
				l.log.Warn().Msg("loop did not stop in time")
			}
		},
	))
}

// run adds a loop. Call it before the app starts. When the loop ends before its context is
// cancelled, the process exits with code 1.
func (l *loops) run(name string, loop func(context.Context) error) {
	l.start = append(l.start, func() {
		l.running.Go(func() {
			err := loop(l.ctx)
			if l.ctx.Err() == nil {
				l.log.Error().Err(err).Str("loop", name).Msg("loop exited, shutting down")
				_ = l.shutdowner.Shutdown(fx.ExitCode(exitFailed)) // fails only when the app is not running
			}
		})
	})
}

// every adds a loop that calls once at each interval, and logs its failures.
func (l *loops) every(name string, interval time.Duration, once func(context.Context) error) {
	l.run(name, func(ctx context.Context) error {
		every(ctx, interval, func() {
			if err := once(ctx); err != nil && ctx.Err() == nil {
				l.log.Warn().Err(err).Str("loop", name).Msg("periodic work failed, will retry")
			}
		})
		return nil
	})
}

// every calls once at each interval until ctx is cancelled.
func every(ctx context.Context, interval time.Duration, once func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			once()
		}
	}
}
