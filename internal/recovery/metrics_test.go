package recovery

import "testing"

func TestCauseOf_EveryReason_HasItsCause(t *testing.T) {
	t.Parallel()
	for why, want := range map[string]string{
		"epoch missing: data was removed, or not persisted across a restart": "epoch_missing",
		"older epoch: the data is from before an earlier loss":               "older_epoch",
		"newer epoch: Postgres is from before an earlier loss":               "newer_epoch",
		anotherServer:                         causeAnotherServer,
		"requested by worker rebuild":         "requested",
		"count of A-12: data corrupt":         causeCorruption,
		"record of 0123456789abcdef: corrupt": causeCorruption,
	} {
		if got := causeOf(why); got != want {
			t.Errorf("%q has the cause %s, want %s", why, got, want)
		}
	}
}
