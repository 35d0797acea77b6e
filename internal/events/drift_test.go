package events

import "testing"

// TestSubjectsOverlap_Wildcards_EitherSide compares subjects of which each side may have wildcards.
func TestSubjectsOverlap_Wildcards_EitherSide(t *testing.T) {
	t.Parallel()
	for pair, want := range map[[2]string]bool{
		{"a.b", "a.b"}: true, {"a.b", "a.c"}: false, {"a", "a.b"}: false,
		{"a.>", "a.b.c"}: true, {"a.>", "a"}: false, {">", "a"}: true, {"a.>", "a.b.>"}: true, {"b.>", "a.>"}: false,
		{"a.*", "a.b"}: true, {"a.*", "a.b.c"}: false, {"*.b", "a.*"}: true, {"*.*.c", "a.>"}: true, {"*", "a.>"}: false,
	} {
		for _, got := range []bool{SubjectsOverlap(pair[0], pair[1]), SubjectsOverlap(pair[1], pair[0])} {
			if got != want {
				t.Errorf("%v: %v, want %v", pair, got, want)
			}
		}
	}
}
