package client

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
)

// TestResumeRun_ProcessLost_ContinuesRun keeps a run, loses its process, and goes on with it.
func TestResumeRun_ProcessLost_ContinuesRun(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	client := b.client
	seqs := make([]uint64, 2*runSeqsMax+3)
	for i := range seqs {
		seqs[i] = uint64(10 + 3*i)
	}
	log, err := client.StartRun(t.Context(), Run{Verb: RunReplay, Operator: "ann@desk", Note: "fixed", Filter: &DeadLetterFilter{UserID: "u"}, Keep: true}, seqs)
	if err != nil {
		t.Fatal(err)
	}
	results := func(seqs []uint64, word string) (results []RunResult) {
		for _, seq := range seqs {
			results = append(results, RunResult{Seq: seq, EventID: fmt.Sprint(seq), Result: word})
		}
		return results
	}
	first := results(seqs[:RunResultsMax], "hold.created")
	if err := log.Record(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	run, err := client.GetRun(t.Context(), log.Run.ID)
	if err != nil {
		t.Fatal(err)
	}
	if run.State != RunUnfinished || run.Total != len(seqs) || run.Processed() != RunResultsMax || run.Operator != "ann@desk" || run.Note != "fixed" ||
		run.Filter.UserID != "u" || !run.Keep || !slices.Equal(run.Seqs, seqs) || !reflect.DeepEqual(run.Results, first) || run.StartedAt.IsZero() {
		t.Errorf("run %+v", run)
	}

	// One that failed is tried again, and then has the result of that.
	if err := log.Record(t.Context(), results(seqs[RunResultsMax:RunResultsMax+1], ReplayFailed)); err != nil {
		t.Fatal(err)
	}
	later, left, err := client.ResumeRun(t.Context(), log.Run.ID, nil)
	if err != nil || !slices.Equal(left, seqs[RunResultsMax:]) {
		t.Fatalf("%v: %d letters are left, want %d", err, len(left), len(seqs)-RunResultsMax)
	}
	// The process that was thought dead is told that it is not alone.
	if err := log.Record(t.Context(), first); !errors.Is(err, ErrRunLocked) {
		t.Errorf("two processes record: %v", err)
	}
	if err := later.Record(t.Context(), results(left[:2], ReplayDeadLettered)); err != nil {
		t.Error(err)
	}
	if err := later.End(t.Context(), RunDone); err != nil {
		t.Error(err)
	}
	run, err = client.GetRun(t.Context(), log.Run.ID)
	if err != nil {
		t.Fatal(err)
	}
	if want := slices.Concat(first, results(left[:2], ReplayDeadLettered)); run.State != RunDone || run.Processed() != len(want) || !reflect.DeepEqual(run.Results, want) {
		t.Errorf("%s with %v: %+v", run.State, run.Counts, run.Results)
	}
	other, err := client.StartRun(t.Context(), Run{Verb: RunDiscard}, seqs[:1])
	if err != nil {
		t.Fatal(err)
	}
	listed, err := client.ListRuns(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(listed) != 2 || listed[0].ID != log.Run.ID || listed[0].State != RunDone || listed[0].Processed() != RunResultsMax+2 ||
		listed[0].Counts[ReplayDeadLettered] != 2 || listed[1].ID != other.Run.ID || listed[1].State != RunUnfinished {
		t.Errorf("runs %+v", listed)
	}
	if _, err := client.GetRun(t.Context(), "none"); !errors.Is(err, ErrRunNotFound) {
		t.Errorf("a run that is none: %v", err)
	}
}

// TestResumeRun_KilledBeforeStart_IsError was killed before its plan was stored whole.
func TestResumeRun_KilledBeforeStart_IsError(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	client := b.client
	log := &RunLog{c: client, Run: Run{ID: "half", Total: 2}}
	if err := log.write(t.Context(), []uint64{1}, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := client.ResumeRun(t.Context(), "half", nil); !errors.Is(err, ErrRunNotStarted) {
		t.Error(err)
	}
}
