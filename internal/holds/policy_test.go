package holds_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"holdfast/internal/holds"
)

// TestPolicy_EachSetting_IsStored changes each setting of a policy: all except LockWait are stored
// and compared.
func TestPolicy_EachSetting_IsStored(t *testing.T) {
	t.Parallel()
	for field := range reflect.TypeFor[holds.Policy]().Fields() {
		changed := testPolicy
		at := reflect.ValueOf(&changed).Elem().FieldByIndex(field.Index)
		switch at.Kind() {
		case reflect.String:
			at.SetString("other")
		default:
			at.SetInt(at.Int() + 1)
		}
		mismatch := holds.Policies{{Policy: changed}}.Mismatch(testPolicy)
		if stored := mismatch != ""; stored != (field.Name != "LockWait") || strings.Contains(mismatch, ";") {
			t.Errorf("%s changed: the mismatch is %q", field.Name, mismatch)
		}
		parsed, err := holds.ParsePolicy(changed.Settings())
		changed.LockWait = 0
		if err != nil || parsed != changed {
			t.Errorf("%s changed: stored and parsed it is %+v %v, want %+v", field.Name, parsed, err, changed)
		}
	}
	broken := testPolicy.Settings()
	delete(broken, "horizon")
	if parsed, err := holds.ParsePolicy(broken); err == nil {
		t.Errorf("without horizon the policy is %+v", parsed)
	}
}

// changePolicy stores another policy with its start, and makes a supervisor read it.
func (w *harness) changePolicy(t *testing.T, supervisor *holds.Supervisor, since string, change func(*holds.Policy)) {
	t.Helper()
	change(&w.policy)
	if _, err := w.store.StorePolicy(t.Context(), w.policy); err != nil {
		t.Fatal(err)
	}
	if since != "" {
		w.execute(t, `UPDATE policies SET since = `+since+` WHERE since = (SELECT max(since) FROM policies)`)
	}
	if e, err := supervisor.Check(t.Context()); err != nil || !e.Complete {
		t.Fatalf("the epoch is %+v %v", e, err)
	}
}

// TestPolicyChanged_EventIsDeliveredAgain_SameAnswer validates requests, changes the policy, and
// delivers the same events to a worker with yet other settings. Invalid requests stay invalid, and
// later requests are validated by the new policy.
func TestPolicyChanged_EventIsDeliveredAgain_SameAnswer(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", nights(3, 5), 9)
	epochTerm := holds.NewEpochTerm()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", epochTerm)
	w.term = epochTerm
	w.changePolicy(t, supervisor, "", func(p *holds.Policy) { p.NightsMax, p.HoldTTLMax = 2, 100*time.Second })
	w.startNewTerm(t)
	before := time.Now().Add(-time.Minute)

	request := func(cause string, storedAt time.Time) holds.PlaceRequest {
		return holds.PlaceRequest{EventID: cause, RequestKey: cause, Resource: "room", User: cause, Selection: nights(3, 3), StoredAt: storedAt}
	}
	want := func(what, reason string, o holds.Outcome) {
		t.Helper()
		got := ""
		switch data := o.Data.(type) {
		case holds.HoldRejected:
			got = data.Reason
		case holds.ExtensionRejected:
			got = data.Reason
		}
		if got != reason {
			t.Errorf("%s: %s %+v, want the reason %q", what, o.Event, o.Data, reason)
		}
	}
	want("three nights", holds.ReasonInvalidRequest, w.place(t, request("first", before))[0])
	two := request("second", before)
	two.Selection = nights(3, 2)
	hold := created(t, w.place(t, two)[0]).HoldID
	longer := holds.ExtendRequest{EventID: "longer", Hold: hold, TTLSeconds: 1000, StoredAt: before}
	want("a ttl beyond the limit", holds.ReasonInvalidRequest, w.extend(t, longer))

	term := w.service.Epoch()
	if err := w.service.Verify(t.Context(), term); err != nil {
		t.Errorf("before the policy changes: %v", err)
	}
	w.changePolicy(t, supervisor, "now() - interval '10 seconds'", func(p *holds.Policy) { p.NightsMax, p.HoldTTLMax = 30, time.Hour })
	if err := w.service.Verify(t.Context(), term); !errors.Is(err, holds.ErrBusy) {
		t.Errorf("an outcome of the earlier policy may be published: %v", err)
	}
	if err := w.service.Verify(t.Context(), w.service.Epoch()); err != nil {
		t.Errorf("an outcome of the new policy may not be published: %v", err)
	}
	w.startNewTerm(t) // another worker
	want("three nights, delivered again", holds.ReasonInvalidRequest, w.place(t, request("first", before))[0])
	want("the extension, delivered again", holds.ReasonInvalidRequest, w.extend(t, longer))
	want("three nights, asked later", "", w.place(t, request("third", time.Now()))[0])
	want("an extension, asked later", "", w.extend(t, holds.ExtendRequest{EventID: "later", Hold: hold, TTLSeconds: 1000, StoredAt: time.Now()}))

	// A worker's own settings have no effect.
	w.setPolicy(t, func(p *holds.Policy) { p.NightsMax = 1 })
	want("three nights, at a worker with other settings", "", w.place(t, request("fourth", time.Now()))[0])
}

// startRecordingLog makes the harness record outcomes from now on.
type startRecordingLog struct {
	*replayLog
	from time.Time
}

func (s *startRecordingLog) Outcomes(ctx context.Context, from time.Time, after uint64, each func(holds.StoredOutcome) error, progress func(done, all uint64)) (uint64, error) {
	if after == 0 {
		s.from = from
	}
	return s.replayLog.Outcomes(ctx, from, after, each, progress)
}

// TestRebuild_LifetimeShortened_ReadsAsFarBackAsHoldsLive shortens the longest life of a hold and
// the time for which answers are remembered. While a hold of the earlier policy may live, a rebuild
// reads as far back as its creation.
func TestRebuild_LifetimeShortened_ReadsAsFarBackAsHoldsLive(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.outcomes = []holds.StoredOutcome{}
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", holds.NewEpochTerm())
	w.changePolicy(t, supervisor, "", func(p *holds.Policy) { p.HoldLifetimeMax, p.RequestKeyTTL = 50*time.Hour, 60*time.Hour })
	w.changePolicy(t, supervisor, "now() - interval '100 hours'", func(p *holds.Policy) { p.HoldLifetimeMax, p.RequestKeyTTL = 2*time.Hour, 3*time.Hour })
	read := func() time.Duration {
		t.Helper()
		s := &startRecordingLog{replayLog: &replayLog{harness: w}}
		k := w.newSupervisor(s, "w2", holds.NewEpochTerm())
		k.SkipDrain()
		if _, err := k.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
			t.Fatal(err)
		}
		return time.Since(s.from)
	}
	if got := read(); got < 110*time.Hour {
		t.Errorf("a hold of the earlier policy may still be remembered, but only %v were read", got)
	}
	w.execute(t, `UPDATE policies SET since = now() - interval '200 hours' WHERE since > to_timestamp(0)`)
	if got := read(); got < 5*time.Hour || got > 6*time.Hour {
		t.Errorf("no outcome of the earlier policy is relevant, but %v were read", got)
	}
}
