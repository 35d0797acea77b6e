package main

import (
	"io"
	"time"

	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/terminal"
)

// The times of log lines have milliseconds and are in UTC, as those of events.
func init() {
	zerolog.TimeFieldFormat = holds.TimeFormat
	zerolog.TimestampFunc = func() time.Time { return time.Now().UTC() }
}

// newLogger returns a logger that writes JSON or, in the format console, readable lines. The format
// auto is console when w is a terminal.
func newLogger(w io.Writer, l Logging, namespace string) zerolog.Logger {
	level, _ := zerolog.ParseLevel(l.LogLevel) // the flag takes only its levels
	if l.LogFormat == logConsole || l.LogFormat != logJSON && terminal.Is(w) {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: "15:04:05.000", NoColor: !terminal.Is(w)}
	}
	with := zerolog.New(w).Level(level).With().Timestamp().Str("worker", workerName())
	return with.Str("namespace", namespace).Logger()
}
