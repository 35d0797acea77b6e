package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/client"
	"holdfast/internal/holds"
)

// TestRunResults_FinishedInAnyOrder_InOrderOfSequences prints a run whose dead letters finished in another order than
// that of their sequences. The first of each result is the lowest, and all of them are listed in order.
func TestRunResults_FinishedInAnyOrder_InOrderOfSequences(t *testing.T) {
	t.Parallel()
	run := &client.Run{Verb: client.RunReplay, State: client.RunDone}
	for _, seq := range []uint64{20024, 20021, 20025, 20022, 20023} {
		run.Results = append(run.Results, client.RunResult{Seq: seq, Result: holds.EventHoldCreated})
	}
	for output, want := range map[string][]string{
		outputTable: {"20021"}, outputWide: {"20021", "20022", "20023", "20024", "20025"},
	} {
		var out bytes.Buffer
		p := newProgram(&out, &out)
		p.Output = output
		if err := p.printRun(run); err != nil {
			t.Fatal(err)
		}
		seqs := slices.DeleteFunc(strings.Fields(out.String()), func(word string) bool { return !strings.HasPrefix(word, "2002") })
		if !slices.Equal(seqs, want) {
			t.Errorf("%s: %v, want %v\n%s", output, seqs, want, &out)
		}
	}
}
