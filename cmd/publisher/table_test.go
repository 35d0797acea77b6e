package main

import (
	"strings"
	"testing"
)

// TestFit_NarrowTerminal_KeepsIDsAndTimes fits a row that is wider than its terminal. A part of an id or of a
// time is of no use.
func TestFit_NarrowTerminal_KeepsIDsAndTimes(t *testing.T) {
	t.Parallel()
	const at = "2026-12-01T10:00:00.000Z"
	headers, rows := []string{"HOLD", "EXPIRES_AT", "SLOTS"}, [][]string{{someHold, at, strings.Repeat("A-12, ", 9)}}
	fit(headers, rows, 70)
	if row := rows[0]; row[0] != someHold || row[1] != at || len([]rune(row[2])) != columnMin {
		t.Errorf("%q", row)
	}
	rows = [][]string{{someHold, at, "A-12"}}
	if fit(headers, rows, 10); rows[0][1] != at || rows[0][2] != "A-12" {
		t.Errorf("on 10 columns %q", rows[0])
	}
}
