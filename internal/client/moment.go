package client

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The years of a moment. NATS counts nanoseconds since 1970 in 64 bits, so the start time of a reader beyond 2262 is in
// the past. A filter takes the zero time, which programs write for no time, for no condition.
const (
	momentYearMin = 1970
	momentYearMax = 2261
)

// ParseMoment parses a time that an operator gives: RFC 3339, or an age such as 90m or 2d.
func ParseMoment(text string) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		if year := at.UTC().Year(); year < momentYearMin || year > momentYearMax {
			return time.Time{}, fmt.Errorf("want a year from %d to %d, got %q", momentYearMin, momentYearMax, text)
		}
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
