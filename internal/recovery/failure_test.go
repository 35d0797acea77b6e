package recovery

import (
	"errors"
	"testing"
)

// TestFailure_TextsAlternate_LoggedOnceAMinute passes the errors of an outage, in turns of two texts.
func TestFailure_TextsAlternate_LoggedOnceAMinute(t *testing.T) {
	t.Parallel()
	var f failure
	one, other := errors.New("no answer"), errors.New("refused")
	for i, want := range []bool{true, false, false, false} {
		if got := f.isNew([]error{one, other}[i%2]); got != want {
			t.Errorf("failure %d is logged: %v", i, got)
		}
	}
	f.at = f.at.Add(-2 * failureEvery)
	if f.isNew(one) || !f.isNew(other) {
		t.Error("after a minute only a failure that differs is logged")
	}
	if f.isNew(nil) || !f.isNew(other) {
		t.Error("the first failure after a success is not logged")
	}
}
