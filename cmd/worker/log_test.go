package main

import (
	"regexp"
	"strings"
	"testing"
)

func TestLogger_EachFormat_HasMillisecondsAndNamespace(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{
		"json": `^\{"level":"info","worker":"[^"]+-\d+","namespace":"shop",` +
			`"time":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z","message":"worker started"\}\n$`,
		"auto":    `^\{"level":"info".*"message":"worker started"\}\n$`, // a buffer is no terminal
		"console": `^\d\d:\d\d:\d\d\.\d{3} INF worker started namespace=shop worker=\S+-\d+\n$`,
	} {
		var out strings.Builder
		log := newLogger(&out, Logging{LogLevel: "info", LogFormat: format}, "shop")
		log.Debug().Msg("not logged")
		log.Info().Msg("worker started")
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("%s: %q does not match %s", format, out.String(), want)
		}
	}
}
