package events

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// TestDiffStream_Mirror_FixEndsIt: NATS refuses subjects for a mirror, as which a lost stream is copied back. Package preflight
// tries the command.
func TestDiffStream_Mirror_FixEndsIt(t *testing.T) {
	t.Parallel()
	const ns = Namespace("shop")
	retention := Retention{HoldLifetime: time.Hour, AnswerTTL: time.Hour}
	for _, wanted := range ns.Streams(retention) {
		found := wanted
		found.Subjects, found.Mirror = nil, &jetstream.StreamSource{Name: "COPY"}
		drifts := ns.DiffStream(found, wanted, retention)
		if len(drifts) != 1 || !drifts[0].Fatal || drifts[0].Found != "it is a mirror of COPY" ||
			!strings.HasPrefix(drifts[0].Fix, "nats stream edit "+wanted.Name+" --force --no-mirror --subjects '"+wanted.Subjects[0]+"'\n") {
			t.Errorf("%s: %v", wanted.Name, drifts)
		}
	}
}

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
