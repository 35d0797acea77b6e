package main

import (
	"context"
	"sync"

	"github.com/rs/zerolog"
	"go.uber.org/fx"
)

// loops are the loops of the worker. They start with the app and are all told to stop at the
// same time, so that a slow one does not keep the others going; the servers that they work on
// are closed after them.
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

// attach hooks the loops into the app. It must come after everything that they use was made:
// hooks are called in that order at the start, and in the reverse order at the stop.
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
				// Nothing is lost: what was not settled is delivered again.
				l.log.Warn().Msg("a loop did not finish in time")
			}
		},
	))
}

// run adds a loop, before the app has started. When it ends before it is told to, the process
// ends with code 1.
func (l *loops) run(name string, loop func(context.Context) error) {
	l.start = append(l.start, func() {
		l.running.Go(func() {
			err := loop(l.ctx)
			if l.ctx.Err() == nil {
				l.log.Error().Err(err).Str("loop", name).Msg("loop ended by itself, the process ends")
				_ = l.shutdowner.Shutdown(fx.ExitCode(exitFailed)) // fails only when the app is not running
			}
		})
	})
}
