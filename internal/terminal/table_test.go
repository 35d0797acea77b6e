package terminal

import "testing"

func TestTable_Headers_NumbersAlignedRight(t *testing.T) {
	t.Parallel()
	got := Table([]string{"SLOT", "HELD", "NOTE"}, [][]string{{"A-1", "12", "ünï"}, {"客室", "-", ""}, {"B", "1.5", "two words"}})
	const want = `SLOT  HELD  NOTE
─────────────────────
A-1     12  ünï
客室     -
B      1.5  two words
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTable_NoHeaders_AlignedLeft(t *testing.T) {
	t.Parallel()
	if got, want := Table(nil, [][]string{{"  lines", "4"}, {"  published", "12"}}), "  lines      4\n  published  12\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := Table([]string{"SLOT"}, nil); got != "" {
		t.Errorf("no rows: %q", got)
	}
}
