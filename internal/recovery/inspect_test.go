package recovery

import (
	"testing"
	"time"
)

// TestMovedByResharding_OnlySameServers moves a partition from server a to server b, with other things
// happening meanwhile. Each step is a check: the servers that answer, and where the partition is whole.
func TestMovedByResharding_OnlySameServers(t *testing.T) {
	t.Parallel()
	type check struct {
		servers []string
		on      string // "" when the partition is on its way, or unknown
	}
	both := []string{"a", "b", "c"}
	for name, c := range map[string]struct {
		before []check
		now    []string // answers when the partition is found on b
		moved  bool
	}{
		"moved between two checks": {[]check{{both, "a"}}, both, true},
		"on its way for a while":   {[]check{{both, "a"}, {both, ""}, {both, ""}}, both, true},
		"never seen on a":          {[]check{{both, ""}, {both, "c"}}, both, false},
		"nothing seen before":      {nil, both, false},
		"b was restarted":          {[]check{{[]string{"a", "older b"}, "a"}}, both, false},
		"b was restarted, one check in between": {
			[]check{{[]string{"a", "older b"}, "a"}, {both, ""}}, both, false,
		},
		"b was restarted before":       {[]check{{[]string{"a", "older b"}, "a"}, {both, "a"}}, both, true},
		"b did not answer for a while": {[]check{{both, "a"}, {[]string{"a"}, ""}, {both, ""}}, both, false},
		"a was restarted":              {[]check{{both, "a"}}, []string{"newer a", "b"}, false},
		"a is gone":                    {[]check{{both, "a"}}, []string{"b"}, false},
		"a was gone for a while":       {[]check{{both, "a"}, {[]string{"b"}, ""}}, both, false},
		"a was promoted, one check in between": {
			[]check{{both, "a"}, {[]string{"newer a", "b"}, ""}}, []string{"newer a", "b"}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const p = 7
			var seen layout
			for _, step := range c.before {
				seen = seen.next(step.servers)
				if step.on != "" {
					seen.on[p], seen.at[p] = step.on, seen.check
				}
			}
			now := seen.next(c.now)
			if moved := now.movedByResharding(p, "a", "b"); moved != c.moved {
				t.Errorf("moved: %v, want %v", moved, c.moved)
			}
			if now.movedByResharding(p+1, "", "b") {
				t.Error("a partition on an unknown server counts as moved")
			}
		})
	}
}

// TestIsServer_MachineWasSuspended_NewHistoryCounts finds a server with a history of its own that is new. It may have
// followed another server while the machine of the worker was suspended.
func TestIsServer_MachineWasSuspended_NewHistoryCounts(t *testing.T) {
	t.Parallel()
	before, found := server{run: "r", history: "a"}, server{run: "r", history: "b"}
	now := momentAt(time.Now())
	s := &Supervisor{verifiedAt: map[string]moment{before.name(): now}}
	if !s.isServer(&Epoch{Server: before.name()}, found) {
		t.Error("the server was not the same just after a check")
	}
	s.verifiedAt[before.name()] = moment{now.monotonic, now.wall.Add(-time.Hour)}
	if s.isServer(&Epoch{Server: before.name()}, found) {
		t.Error("the server was the same after an hour of suspension")
	}
}
