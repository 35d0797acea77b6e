package recovery

import "testing"

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
