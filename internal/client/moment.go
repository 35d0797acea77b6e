package client

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ParseMoment parses a time that an operator gives: RFC 3339, or an age such as 90m or 2d. It refuses the
// zero time, which programs write for no time: a filter would take it for no condition.
func ParseMoment(text string) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil && !at.IsZero() {
		return at.UTC(), nil
	}
	ago, err := time.ParseDuration(text)
	if days, isDays := strings.CutSuffix(text, "d"); isDays {
		var n uint64
		n, err = strconv.ParseUint(days, 10, 16)
		ago = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || ago < 0 {
		return time.Time{}, fmt.Errorf("want RFC 3339, or an age like 90m or 2d, got %q", text)
	}
	return time.Now().UTC().Add(-ago), nil
}
