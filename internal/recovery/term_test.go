package recovery_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/recovery"
)

// TestEpochTerm_CorruptionPersists_IsReported checks when corruption counts as not healed.
func TestEpochTerm_CorruptionPersists_IsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		epochTerm := recovery.NewEpochTerm()
		unhealed := func(epoch string, want bool) {
			t.Helper()
			if found := epochTerm.TakeCorruptions(epoch); (found[7] != nil) != want || len(found) > 1 {
				t.Errorf("corruption under %s: %v, want one in partition 7: %v", epoch, found, want)
			}
		}
		epochTerm.Report(7, "e1", "room", holds.ErrCorrupt)
		unhealed("e1", false)
		time.Sleep(recovery.HealWithin - time.Nanosecond)
		epochTerm.Report(7, "e1", "room", holds.ErrCorrupt)
		unhealed("e1", false)
		time.Sleep(time.Nanosecond)
		unhealed("e1", false) // not found again
		epochTerm.Report(7, "e1", "hall", holds.ErrCorrupt)
		unhealed("e1", false) // of another resource
		epochTerm.Report(7, "e1", "room", holds.ErrCorrupt)
		unhealed("e1", true)
		unhealed("e1", true) // until it is healed
		unhealed("e2", false)
		unhealed("e1", false) // forgotten with its epoch

		epochTerm.Report(7, "e2", "room", holds.ErrCorrupt)
		time.Sleep(recovery.CorruptionForgottenAfter + 1)
		unhealed("e2", false)
		epochTerm.Report(7, "e2", "room", holds.ErrCorrupt) // once more, later
		unhealed("e2", false)
		time.Sleep(recovery.HealWithin)
		epochTerm.Report(7, "e2", "room", holds.ErrCorrupt)
		unhealed("e2", true)
		time.Sleep(recovery.CorruptionForgottenAfter + 1)
		unhealed("e2", false)

		for i := range recovery.CorruptionsMax {
			epochTerm.Report(7, "e3", fmt.Sprint(i), holds.ErrCorrupt)
		}
		epochTerm.Report(7, "e3", "one more", holds.ErrCorrupt)
		time.Sleep(recovery.HealWithin)
		epochTerm.Report(7, "e3", "one more", holds.ErrCorrupt)
		unhealed("e3", false)
	})
}

// TestVerify_MachineWasSuspended_EpochConfirmedFirst suspends the machine of a worker between a decision and its
// publication. Other workers may have recovered Redis meanwhile.
func TestVerify_MachineWasSuspended_EpochConfirmedFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		epochTerm := recovery.NewEpochTerm()
		epochTerm.Begin("e1")
		verify := func() error { return epochTerm.Verify(t.Context(), holds.EpochID(7, "e1")) }
		if err := verify(); err != nil {
			t.Errorf("before: %v", err)
		}
		epochTerm.Suspend(time.Hour)
		if verify() == nil {
			t.Error("published an hour after the epoch was confirmed")
		}
		epochTerm.Begin("e1")
		if err := verify(); err != nil {
			t.Errorf("confirmed again: %v", err)
		}
	})
}

// changePolicy stores another policy, in force since an SQL time, and makes a supervisor read it.
func (w *harness) changePolicy(
	t *testing.T, supervisor *recovery.Supervisor, since string, change func(*holds.Policy),
) {
	t.Helper()
	change(&w.policy)
	if _, err := w.store.StorePolicy(t.Context(), w.policy); err != nil {
		t.Fatal(err)
	}
	if since != "" {
		w.execute(t, `UPDATE policies SET since = `+since+` WHERE since = (SELECT max(since) FROM policies)`)
	}
	if e, err := checkAll(t, supervisor); err != nil || !e.Complete {
		t.Fatalf("epoch is %+v %v", e, err)
	}
}

// nights returns n nights from the given number of days from now.
func nights(from, n int) holds.SlotSelection {
	in := time.Now().UTC().AddDate(0, 0, from)
	out := in.AddDate(0, 0, n)
	return holds.SlotSelection{CheckIn: in.Format(holds.DateFormat), CheckOut: out.Format(holds.DateFormat)}
}

// TestPolicyChanged_EventIsDeliveredAgain_SameAnswer validates requests, changes the policy, and delivers the
// same events to a worker with other settings. Invalid requests stay invalid; later events are validated by
// the new policy.
func TestPolicyChanged_EventIsDeliveredAgain_SameAnswer(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", nights(3, 5), 9)
	epochTerm := recovery.NewEpochTerm()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", epochTerm)
	w.term = epochTerm
	w.changePolicy(t, supervisor, "", func(p *holds.Policy) { p.NightsMax, p.HoldTTLMax = 2, 100*time.Second })
	w.startNewTerm(t)
	before := time.Now().Add(-time.Minute)

	request := func(id string, storedAt time.Time) holds.PlaceRequest {
		return holds.PlaceRequest{
			EventID: id, RequestKey: id, Resource: "room", User: id, Selection: nights(3, 3), StoredAt: storedAt,
		}
	}
	want := func(what, reason string, o holds.Outcome) {
		t.Helper()
		if o.Reason() != reason {
			t.Errorf("%s: %s %+v, want the reason %q", what, o.Event, o.Data, reason)
		}
	}
	want("three nights", holds.ReasonInvalidRequest, w.place(t, request("first", before))[0])
	two := request("second", before)
	two.Selection = nights(3, 2)
	hold := created(t, w.place(t, two)[0]).HoldID
	longer := holds.ExtendRequest{EventID: "longer", Hold: hold, TTLSeconds: 1000, StoredAt: before}
	want("a ttl beyond the limit", holds.ReasonInvalidRequest, w.extend(t, longer))

	term := w.service.TermID("room")
	if err := w.service.Verify(t.Context(), term); err != nil {
		t.Errorf("verify before the policy changes: %v", err)
	}
	w.changePolicy(t, supervisor, "now() - interval '10 seconds'", func(p *holds.Policy) {
		p.NightsMax, p.HoldTTLMax = 30, time.Hour
	})
	if err := w.service.Verify(t.Context(), term); !errors.Is(err, holds.ErrBusy) {
		t.Errorf("verify of the term before: %v", err)
	}
	if err := w.service.Verify(t.Context(), w.service.TermID("room")); err != nil {
		t.Errorf("verify of the new term: %v", err)
	}
	w.startNewTerm(t) // another worker
	want("three nights, redelivered", holds.ReasonInvalidRequest, w.place(t, request("first", before))[0])
	want("extension, redelivered", holds.ReasonInvalidRequest, w.extend(t, longer))
	want("three nights, requested later", "", w.place(t, request("third", time.Now()))[0])
	longer.EventID, longer.StoredAt = "later", time.Now()
	want("extension, requested later", "", w.extend(t, longer))

	// The settings of the worker do not matter.
	w.setPolicy(t, func(p *holds.Policy) { p.NightsMax = 1 })
	want("three nights, worker with other settings", "", w.place(t, request("fourth", time.Now()))[0])
}
