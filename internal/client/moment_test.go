package client

import (
	"testing"
	"time"
)

// TestParseMoment_TimesAndAges_AreParsed parses both forms, and what is neither.
func TestParseMoment_TimesAndAges_AreParsed(t *testing.T) {
	t.Parallel()
	at, err := ParseMoment("2026-11-21T10:00:00+01:00")
	if want := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC); err != nil || !at.Equal(want) || at.Location() != time.UTC {
		t.Errorf("%s, %v; want %s", at, err, want)
	}
	for text, age := range map[string]time.Duration{"90m": 90 * time.Minute, "2d": 48 * time.Hour, "0s": 0} {
		before := time.Now().Add(-age)
		at, err := ParseMoment(text)
		if err != nil || at.Before(before) || at.After(time.Now().Add(-age)) {
			t.Errorf("%s: %s, %v", text, at, err)
		}
	}
	for _, text := range []string{"", "yesterday", "-1h", "-1d", "1.5d", "65536d", "2026-11-21", "0001-01-01T00:00:00Z", "0206-11-21T00:00:00Z",
		"2262-01-01T00:00:00Z", "2999-01-01T00:00:00Z"} {
		if at, err := ParseMoment(text); err == nil {
			t.Errorf("%q is %s", text, at)
		}
	}
}
